"""Figures for commands below the figures' layer, found through the entry points that it contributes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from decomfl_lab.cli.layers import load
from decomfl_lab.pictures import require_picture, save_picture

__all__ = ["drawing"]

GROUP = "decomfl.figures"


def drawing(name: str, path: Path) -> Callable[..., None]:
    """A function that draws the figure ``name`` (of the group ``decomfl.figures``) of its arguments to ``path``.

    Called before anything is computed, it refuses what could not be drawn afterwards.

    Raises:
        InputError: If files of this kind cannot be drawn.
    """
    make: Callable[..., Any] = load(GROUP, name, f"plot {path}")
    require_picture(path)

    def draw(*frames: object, **words: object) -> None:
        save_picture(make(*frames, **words), path)

    return draw
