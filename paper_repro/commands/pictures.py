"""The pictures of docs/ that show recorded rows; each says in its metadata what it shows, and of which rows.

python -m paper_repro.commands.pictures docs
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from decomfl_lab.files import write_atomically
from paper_repro.making import make_report
from paper_repro.request import requested
from paper_repro.workflow.asked import PaperOptions

PICTURES: Final = {"fig2": "fig2", "fig3": "fig3", "edge": "edge", "theory-dimension": "theory"}
"""The stems of the pictures, with the parts that draw them."""


def draw(docs: Path, stems: Iterable[str] = PICTURES) -> None:
    """Draw pictures anew, of the rows that are recorded at the largest scale, beside the authors' curves."""
    wanted = list(stems)
    with tempfile.TemporaryDirectory() as folder:
        only = ",".join(dict.fromkeys(PICTURES[stem] for stem in wanted))
        asked = PaperOptions(out=Path(folder), only=only, from_recorded=True)
        make_report(requested(asked), silent=True)
        for stem in wanted:
            write_atomically(docs / f"{stem}.png", (Path(folder) / "figures" / f"{stem}.png").read_bytes())


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2:] or PICTURES)
