"""What the layers above contribute by entry points, so that this one need not know them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from decomfl_lab.errors import InputError

__all__ = ["COMMANDS", "contributed", "installed", "is_here", "load", "load_entry"]

COMMANDS = "decomfl.commands"
"""The group of entry points that are commands."""


def contributed(group: str) -> list[EntryPoint]:
    """The entries of the group, of layers that are here and of layers that only a checkout has; none is loaded."""
    return list(entry_points(group=group))


def is_here(entry: EntryPoint) -> bool:
    """Whether the entry's module can be found; a foreign package of the layer's name has no such module."""
    try:
        return find_spec(entry.module) is not None
    except ModuleNotFoundError:
        return False


def installed(group: str, name: str) -> bool:
    """Whether the layer that contributes the entry is here, so that the entry may be offered."""
    return any(map(is_here, entry_points(group=group, name=name)))


def load(group: str, name: str, what: str) -> Any:
    """The object of the entry ``name`` of the group.

    Raises:
        InputError: If it is of a layer that only a checkout has; it says how to get ``what``.
    """
    (entry,) = entry_points(group=group, name=name)
    return load_entry(entry, what)


def load_entry(entry: EntryPoint, what: str) -> Any:
    """The object of an entry that is available here; errors are those of ``load``."""
    if not is_here(entry):
        layer = entry.module.partition(".")[0]
        raise InputError(
            f"{what} must be asked of a checkout of the project (run `make setup` in one, then its "
            f".venv/bin/decomfl), got an installed package without the layer {layer}"
        )
    return entry.load()
