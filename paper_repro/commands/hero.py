"""The picture at the head of the README: Figure 2's left half as recorded at the paper's own sizes, by both countings.

python -m paper_repro.commands.hero docs/figure-2.png
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

import figures
from decomfl_lab.errors import require
from decomfl_lab.runs.provenance import code_version
from figures.comparison import comparison
from figures.curves import Count
from paper_repro.parts import fig2
from paper_repro.workflow import recorded
from paper_repro.workflow.claims import rows
from paper_repro.workflow.estimators import Curves
from paper_repro.workflow.part import Options
from paper_repro.workflow.reference import THINNED, fig2_reference
from paper_repro.workflow.scales import SCALES

KEY: Final = "Source"  # the entry of the file that has ``made_of``
COUNTED: Final[dict[Count, str]] = {"plotted": "by the paper's axis", "wire": "by bytes"}


def hero() -> Figure:
    """DeComFL with more local steps, FedAvg and the authors' runs: accuracy against communication, counted twice."""
    kept = recorded.load("fig2", "full")
    require(kept is not None, "rows of Figure 2", "be recorded at full scale", "none")
    assert kept is not None
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
            "figure-2",
            kept.provenance,
            options,
            level=f"{ours['accuracy reached by both']:.0%}",
            axis=f"{ours['FedAvg / DeComFL, plotted']:.1f}",
            axis_logs=f"{logs['FedAvg / DeComFL, plotted']:.1f}",
            bytes=f"{1 / ours['FedAvg / DeComFL, wire']:.1f}",
            bytes_logs=f"{1 / logs['FedAvg / DeComFL, wire']:.2f}",
        ),
    )


def made_of() -> str:
    """A digest of what is drawn and of the code that draws it."""
    h = hashlib.blake2b(digest_size=8)
    for file in (recorded.RESULTS / "fig2-full.csv.gz", THINNED, Path(__file__)):
        h.update(file.read_bytes())
    h.update(inspect.getsource(fig2.panels).encode() + code_version(Path(figures.__file__).parent).encode())
    return h.hexdigest()


if __name__ == "__main__":
    hero().savefig(sys.argv[1], dpi=110, metadata={KEY: made_of()})
