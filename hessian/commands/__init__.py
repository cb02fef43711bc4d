"""Sub-commands of ``decomfl`` that this layer contributes: parse, call, print."""
