"""What the layers above contribute by entry points, so that this one need not know them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from decomfl_lab.errors import InputError

__all__ = ["contributions", "installed", "require_layer"]


def contributions(group: str, only: str | None = None) -> Iterator[tuple[str, Any]]:
    """Name and object of every entry of the group, by name; those of layers that only a checkout has are left out.

    Args:
        group: Of the entry points.
        only: Name of the one that is wanted, so that the others need not be loaded; all, if there is none of it.
    """
    entries = [entry for entry in entry_points(group=group) if _is_here(entry)]
    chosen = [entry for entry in entries if entry.name == only]
    for entry in sorted(chosen or entries, key=lambda entry: entry.name):
        yield entry.name, entry.load()


def installed(group: str, name: str) -> bool:
    """Whether the layer that contributes the entry is here, so that the entry may be offered."""
    return any(_is_here(entry) for entry in entry_points(group=group, name=name))


def require_layer(group: str, name: str, what: str) -> None:
    """InputError that says how to get it if ``what`` is an entry of a layer that only a checkout has."""
    for entry in entry_points(group=group, name=name):
        if not _is_here(entry):
            layer = entry.module.partition(".")[0]
            raise InputError(
                f"{what} must be asked of a checkout of the project (run `make setup` in one, then its "
                f".venv/bin/decomfl), got an installed package without the layer {layer}"
            )


def _is_here(entry: EntryPoint) -> bool:
    """Whether the entry's module can be found; a foreign package of the layer's name has no such module."""
    try:
        return find_spec(entry.module) is not None
    except ModuleNotFoundError:
        return False
