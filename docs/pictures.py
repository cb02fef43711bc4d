"""The pictures of docs/ that show recorded rows; each says in its metadata what it shows, and of which rows.

python -m docs.pictures docs
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from decomfl_lab.errors import require
from decomfl_lab.storage.files import write_atomically
from figures.comparison import comparison
from figures.curves import Count
from paper_repro.parts import fig2
from paper_repro.pipeline import make_report
from paper_repro.report_folder import label, rendered
from paper_repro.request import requested
from paper_repro.workflow import recordings
from paper_repro.workflow.estimators import Curves
from paper_repro.workflow.options import PaperOptions
from paper_repro.workflow.part import Options
from paper_repro.workflow.recordings import Rows
from paper_repro.workflow.scales import SCALES
from paper_repro.workflow.verdicts.claim_table import rows
from paper_repro.workflow.verdicts.reference import fig2_reference

PICTURES: Final = {
    **{name: name for name in ("fig2", "fig3", "edge", "census", "kernels")},
    "theory-dimension": "theory",
}
"""The stems of the pictures, with the parts that draw them."""
HERO: Final = "figure-2"
"""The stem of the picture at the head of the README."""
COUNTED: Final[dict[Count, str]] = {"plotted": "by the paper's axis", "wire": "by bytes"}


def draw(docs: Path, stems: Collection[str] = (*PICTURES, HERO)) -> None:
    """Draw pictures anew, of the rows that are recorded at the largest scale, beside the authors' curves."""
    wanted = [stem for stem in stems if stem != HERO]
    if HERO in stems:
        source = _recorded().source("fig2")
        write_atomically(docs / f"{HERO}.png", rendered(hero(), dpi=110, metadata=label(HERO, source)))
    with tempfile.TemporaryDirectory() as folder:
        only = ",".join(dict.fromkeys(PICTURES[stem] for stem in wanted))
        asked = PaperOptions(out=Path(folder), only=only, from_recorded=True)
        if wanted:
            make_report(requested(asked), silent=True)
        for stem in wanted:
            write_atomically(docs / f"{stem}.png", (Path(folder) / "figures" / f"{stem}.png").read_bytes())


def _recorded() -> Rows:
    kept = recordings.load("fig2", "full")
    require(kept is not None, "rows of Figure 2", "be recorded at full scale", "none")
    assert kept is not None
    return kept


def hero() -> Figure:
    """Figure 2's left half by both countings: DeComFL with more local steps, FedAvg and the authors' runs."""
    kept = _recorded()
    options = Options(scale=SCALES["full"], readings=("as-plotted",), count="wire")
    plotted = kept.rows[kept.rows.reading == "as-plotted"]
    curves = Curves.of(plotted, options, fig2.CURVE, fig2.add_countings, fig2.jobs(options))
    wanted = [(count, "as-plotted", "local-updates") for count in COUNTED]
    panels, styles = fig2.panels(curves, fig2_reference(None), wanted, options.scale)
    # What either counting says of the cost of one accuracy, of our runs and of the authors' logs.
    measured = {row["id"]: row["measured"] for row in rows(["fig2"])}
    ours, logs = (measured[name] for name in ("fig2.saving", "fig2.saving-in-the-logs"))
    return comparison(
        [replace(panel, title=title) for panel, title in zip(panels, COUNTED.values(), strict=True)],
        styles,
        across=len(panels),
        title="Figure 2 of the paper, by both countings: DeComFL with K local steps (P = 20), and FedAvg",
        caption=curves.caption(
            HERO,
            kept.provenance,
            options,
            level=f"{ours['accuracy reached by both']:.0%}",
            axis=f"{ours['FedAvg / DeComFL, plotted']:.1f}",
            axis_logs=f"{logs['FedAvg / DeComFL, plotted']:.1f}",
            bytes=f"{1 / ours['FedAvg / DeComFL, wire']:.1f}",
            bytes_logs=f"{1 / logs['FedAvg / DeComFL, wire']:.2f}",
        ),
    )


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2:] or (*PICTURES, HERO))
