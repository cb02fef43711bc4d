"""Figures for commands below the figures' layer, found through the entry points that it contributes."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from decomfl_lab.errors import InputError

__all__ = ["draw"]


def draw(name: str, path: Path, *frames: Any, **words: Any) -> None:
    """Draw the figure ``name`` (of the group ``decomfl.figures``) of data frames to a file.

    Raises:
        InputError: If the project's figures are not installed here, or the file's kind is unknown.
    """
    (entry,) = entry_points(group="decomfl.figures", name=name) or (None,)
    try:
        make = entry.load() if entry is not None else None
    except ModuleNotFoundError:
        make = None
    if make is None:
        raise InputError(f"plot must stay unset where the project's figures are not installed, got {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        make(*frames, **words).savefig(path)
    except (OSError, ValueError) as error:
        raise InputError(f"plot must be a file that can be drawn, such as kappa.png, got {path} ({error})") from None
