"""The laws of seed/revert logic, as properties that any implementation can be put to.

``contract`` says what an implementation is, ``strategies`` what the laws quantify over, ``laws`` states
them, ``machine`` plays random histories, ``faults`` are wrong implementations that the laws must catch, and
``check`` runs laws and counts cases. Needs hypothesis.
"""
