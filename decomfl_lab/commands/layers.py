"""What the layers above contribute by entry points, so that this one need not know them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

__all__ = ["contributions"]


def contributions(group: str, only: str | None = None) -> Iterator[tuple[str, Any]]:
    """Name and object of every entry of the group, by name; those of layers that only a checkout has are left out.

    Args:
        group: Of the entry points.
        only: Name of the one that is wanted, so that the others need not be loaded; all, if there is none of it.
    """
    entries = entry_points(group=group)
    chosen = [entry for entry in entries if entry.name == only]
    for entry in sorted(chosen or entries, key=lambda entry: entry.name):
        try:
            yield entry.name, entry.load()
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != entry.module.split(".")[0]:
                raise
