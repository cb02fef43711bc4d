"""Figures as files: refused early where they could not be written, and written with the folders above them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from decomfl_lab.errors import InputError, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["require_picture", "save_picture"]


def require_picture(path: Path) -> None:
    """InputError unless matplotlib writes files with the ending of ``path``."""
    from matplotlib.figure import Figure  # here, since matplotlib takes long to load and only a plot needs it

    kinds = sorted(Figure().canvas.get_supported_filetypes())
    require(path.suffix[1:] in kinds, "plot", f"end in one of .{', .'.join(kinds)}", str(path))


def save_picture(figure: Figure, path: Path) -> None:
    """Write the figure; InputError if its file cannot be written, or is of no known kind."""
    require_picture(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise InputError(f"plot must be a file that can be written, got {path} ({error.strerror})") from None
