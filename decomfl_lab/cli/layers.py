"""What the layers above contribute by entry points, so that this one need not know them."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

COMMANDS = "decomfl.commands"
"""The group of entry points that are commands."""


def contributed(group: str) -> list[EntryPoint]:
    """The entries of the group; none is loaded."""
    return list(entry_points(group=group))


def load(group: str, name: str) -> Any:
    """The object of the entry ``name`` of the group."""
    (entry,) = entry_points(group=group, name=name)
    return entry.load()
