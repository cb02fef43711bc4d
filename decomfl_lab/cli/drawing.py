"""Figures for commands below the figures' layer, found through the entry points that it contributes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from decomfl_lab.cli.layers import installed, load
from decomfl_lab.errors import InputError, require

__all__ = ["drawing", "plot_option"]

GROUP = "decomfl.figures"


def plot_option(name: str, text: str) -> Any:
    """The option --plot of a command, for the figure ``name``, which is not offered where it cannot be drawn."""
    return typer.Option(help=text, hidden=not installed(GROUP, name))


def drawing(name: str, path: Path) -> Callable[..., None]:
    """A function that draws the figure ``name`` (of the group ``decomfl.figures``) of its arguments to ``path``.

    Called before anything is computed, it refuses what could not be drawn afterwards.

    Raises:
        InputError: If the project's figures are not installed here, or files of this kind cannot be drawn.
    """
    from matplotlib.figure import Figure  # here, since matplotlib takes long to load and only a plot needs it

    make: Callable[..., Figure] = load(GROUP, name, f"plot {path}")
    kinds = Figure().canvas.get_supported_filetypes()
    require(path.suffix[1:] in kinds, "plot", f"end in one of .{', .'.join(sorted(kinds))}", str(path))

    def draw(*frames: object, **words: object) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            make(*frames, **words).savefig(path)
        except OSError as error:
            raise InputError(f"plot must be a file that can be written, got {path} ({error.strerror})") from None

    return draw
