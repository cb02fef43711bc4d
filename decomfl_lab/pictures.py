"""Figures as files: refused early where they could not be written, and written with the folders above them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from decomfl_lab.errors import InputError, require
from decomfl_lab.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["require_picture", "save_picture"]


def require_picture(path: Path, argument: str = "plot") -> None:
    """InputError unless matplotlib writes files with the ending of ``path``, and there may be one."""
    from matplotlib.figure import Figure  # here, since matplotlib takes long to load and only a plot needs it

    kinds = sorted(Figure().canvas.get_supported_filetypes())
    require(path.suffix[1:] in kinds, argument, f"end in one of .{', .'.join(kinds)}", str(path))
    above = next(folder for folder in path.absolute().parents if folder.exists())
    free = above.is_dir() and os.access(above, os.W_OK | os.X_OK) and not path.is_dir()
    require(free, argument, "be a file that can be written", str(path))


def save_picture(figure: Figure, path: Path) -> Path:
    """Write the figure, and say where; InputError if its file cannot be written, or is of no known kind."""
    require_picture(path)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"plot must be a file that can be written, got {path} ({error.strerror})") from None
    write_atomically(path, drawn.getvalue())
    return path
