"""Images and text by name, and how they are split among clients."""

DATA_NAMES = ("mnist", "fashion-mnist", "cifar10", "digits", "text")
"""The keys of ``images.DATA_SETS``, for help and completion, which load no torch."""
