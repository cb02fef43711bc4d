"""The picture at the head of the README: Figure 2 as recorded at the paper's own sizes, beside the authors' logs.

python -m paper_repro.commands.hero REFERENCE docs/figure-2.png
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

import figures
from decomfl_lab.errors import require
from decomfl_lab.runs.provenance import code_version
from figures.comparison import by_communication, comparison
from figures.style import series_styles
from paper_repro.parts.fig2 import add_countings
from paper_repro.workflow import estimators, recorded
from paper_repro.workflow.measures import CHECKED, lost, settled
from paper_repro.workflow.reference import fig2_reference
from paper_repro.workflow.scales import SCALES

__all__ = ["KEY", "hero", "made_of"]

KEY: Final = "Source"  # the entry of the file that has ``made_of``
_COUNT: Final = "plotted"


def hero(reference: Path) -> Figure:
    """DeComFL as it is recorded at full scale, and the authors' runs: accuracy against communicated scalars.

    Args:
        reference: The folder of the authors' logged curves.
    """
    kept = recorded.load("fig2", "full")
    require(kept is not None, "rows of Figure 2", "be recorded at full scale", "none")
    assert kept is not None
    rows = add_countings(kept.rows, SCALES["full"])
    rows = rows[(rows.reading == "as-plotted") & (rows.panel == "local-updates") & (rows["round"] > 0)]
    authors = fig2_reference(reference)
    authors = authors[authors.panel == "local-updates"]
    lines, dots = (settled(rows[rows[CHECKED].astype(bool) == check], ["series"]) for check in (False, True))
    theirs = authors.sort_values(["K", "P"])
    ours = theirs[theirs.method == "DeComFL"].series
    styles = series_styles(ours) | series_styles(theirs[theirs.method == "FedAvg"].series, baseline=True)
    facts = kept.provenance[0]
    panel = by_communication(
        frame=lines,
        count=_COUNT,
        title="",
        reference=authors,
        checks=dots,
        yscale="logit",
        ylimits=(0.2, 0.993),
    )
    ends = [(series, own["round"].max(), own.seed.nunique()) for series, own in lines.groupby("series")]
    told = ", ".join(f"{series} {rounds:,} rounds, {seeds} seed{'s' * (seeds > 1)}" for series, rounds, seeds in ends)
    left_out = lost(rows[~rows[CHECKED].astype(bool)], ["series"])
    apart = f" Diverged, and not in the means: {'; '.join(left_out)}." if left_out else ""
    return comparison(
        [panel],
        styles,
        across=1,
        title="Figure 2 at the paper's own sizes, beside the authors' logs",
        caption=f"M = 100 clients, m = 10 sampled, P = 20. Thick: ours, DeComFL by projection ({told}); dots: "
        f"finite differences, seed {dots.seed.iloc[0]}, as far as they were run. {estimators.words(rows, ['series'])} "
        f"Recorded on {kept.date}.{apart} Dashed: the authors' logs: "
        "DeComFL with K = 1 (yellow), 4 (green) and 10 (blue), FedAvg (greys). "
        f"{facts['data'].partition(', from')[0]}.",
    )


def made_of() -> str:
    """A digest of the recorded rows and of the code that draws them."""
    rows, own = (recorded.RESULTS / "fig2-full.csv.gz").read_bytes(), Path(__file__).read_bytes()
    code = code_version(Path(figures.__file__).parent).encode()
    return hashlib.blake2b(rows + own + code, digest_size=8).hexdigest()


if __name__ == "__main__":
    hero(Path(sys.argv[1])).savefig(sys.argv[2], dpi=110, metadata={KEY: made_of()})
