"""Figures as files: refused early where they could not be written, and written with the folders above them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from decomfl_lab.errors import require
from decomfl_lab.files import require_writable, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def require_picture(path: Path, argument: str = "plot") -> None:
    """InputError unless matplotlib writes files with the ending of ``path``, and there may be one."""
    from matplotlib.figure import Figure  # here, since matplotlib takes long to load and only a plot needs it

    kinds = sorted(Figure().canvas.get_supported_filetypes())
    require(path.suffix[1:] in kinds, argument, f"end in one of .{', .'.join(kinds)}", str(path))
    require_writable(argument, path)


def save_picture(figure: Figure, path: Path) -> Path:
    """Write the figure, and say where; InputError if its file cannot be written, or is of no known kind."""
    require_picture(path)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:])
    write_atomically(path, drawn.getvalue())
    return path
