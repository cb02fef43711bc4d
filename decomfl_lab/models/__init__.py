"""Models by name."""

from decomfl_lab.storage.tables import table_beside

WRITTEN = table_beside(f"{__name__}.", "models.toml")
"""What kind of network each is, with its arguments."""
MODEL_NAMES = tuple(WRITTEN)
"""The keys of ``registry.MODELS``, for help and completion, which load no torch."""
