"""What can be asked of ``decomfl paper``: the options of the command, and of whoever makes a report in Python."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from decomfl_lab.options import option
from paper_repro.workflow.verdicts.claims import DEAR, ON_GPU, PARTS

if TYPE_CHECKING:  # the help needs no figures
    from figures.curves import Count

COUNTS: Final[tuple["Count", ...]] = ("wire", "table1", "plotted")
READINGS: Final = ("as-plotted", "as-written")
"""The readings of the paper's image settings."""
MOST_JOBS: Final = 4096
"""Processes at a time; a machine ends long before."""


@dataclass(frozen=True, kw_only=True)
class PaperOptions:
    """The options of ``decomfl paper``."""

    scale: str = option(
        "",
        "Run at this scale: smoke (2 minutes), default (a quarter of an hour) or full (the paper's sizes). "
        "[default: what is recorded is shown, and the beginnings of the runs at default scale check it]",
    )
    live_only: bool = option(
        False, "Show nothing that is recorded: run at --scale, or else at default scale, and draw these runs alone."
    )
    only: str = option(
        "",
        f"The parts to make, joined by commas: {', '.join(PARTS)}. The page then has these alone. "
        f"[default: all; {', '.join(DEAR)} from "
        "what is recorded at the scale, where it is, unless they are named here]",
    )
    out: Path = option(Path("out"), "The folder for report.html, figures, tables, claims.json and runs. [default: out]")
    runs: Path | None = option(
        None,
        "The folder of runs. Several commands, with an --out each, may share it: each run is computed by one. "
        "[default: OUT/runs]",
        "Time and machines",
    )
    count: str = option(
        "wire",
        "The x-axis: wire (bytes sent), table1 (the paper's formula) or plotted (its axis). [default: wire]",
        "Axes and readings",
        choices=COUNTS,
    )
    reading: str = option(
        "both",
        "The settings: as-plotted (the authors' logs), as-written (the paper's text) or both. [default: both]",
        "Axes and readings",
        choices=(*READINGS, "both"),
    )
    changes: tuple[str, ...] = option(
        (),
        "Change a setting of the runs, as fig2.local_rounds={2=60} for K = 2, or hessian.model=resnet20-bn; "
        "an unknown one is refused with a list of those that there are. The report says what was changed, and no "
        "verdict of the part counts. For another model or method of a run: decomfl train. Repeatable.",
        "Settings",
        flag="--set",
        metavar="PART.SETTING=VALUE",
    )
    reference: Path | None = option(
        None,
        "The folder with authors_curves.csv, the authors' whole curves, to draw and judge by. [default: thinned ones "
        "are drawn]",
        "Axes and readings",
    )
    from_recorded: bool = option(
        False,
        "Draw what is recorded instead of computing; the report lists parts without it.",
    )
    record: Path | None = option(
        None,
        "Keep the rows of the parts made here, of finished runs and of those under way, in this folder "
        "(paper_repro/results: with the code); a recorded run that is further on stays. "
        "With --from-recorded keep the verdicts that --list shows.",
        "What is recorded",
    )
    hours: float | None = option(
        None,
        "Stop after this many hours: runs under way are saved, what exists is drawn, and the same command "
        "goes on. Whole series come first, cheap ones first.",
        "Time and machines",
        gt=0,
    )
    minutes: float | None = option(
        None,
        "Stop likewise after this many minutes, for a machine that you have for a while.",
        "Time and machines",
        gt=0,
    )
    device: str = option(
        "cpu",
        "The device on which runs compute: cpu, cuda (a GPU), cuda:N or auto. On a GPU its bits are first checked "
        f"against the CPU's; then come, unless --only names others, {', '.join(ON_GPU)}, in this order, one run at "
        "a time, with finite differences as long as the curves, and --resume. [default: cpu]",
    )
    resume: bool = option(
        False,
        "Take up training runs in OUT/runs by settings, seed and data, also if another version of the code "
        "began them; the provenance of a run lists every version.",
        "Time and machines",
    )
    jobs: int = option(
        0,
        "The number of runs at a time, 0 for one a CPU; training runs that are fewer share the CPUs. [default: 0]",
        "Time and machines",
        ge=0,
        le=MOST_JOBS,
    )
    list_claims: bool = option(
        False,
        "Run nothing: list the claims (of the parts of --only), where the paper makes them, what is measured, "
        "the rule, the least scale that can decide it, and what the recorded runs say.",
        flag="--list",
    )
    answer: bool = option(
        False,
        "Run nothing: is the paper right? Ten lines, each a sentence with numbers, its verdict and where to read on.",
    )
    as_json: bool = option(False, "Print the verdicts, the list or the answer as JSON on stdout.", flag="--json")

    @property
    def cache(self) -> Path:
        """The folder of runs: what is there is not computed again."""
        return self.out / "runs" if self.runs is None else self.runs

    @property
    def largest(self) -> bool:
        """Whether of each part the largest scale that is recorded is drawn."""
        return (self.from_recorded and not self.scale) or self.recorded_first

    @property
    def spared(self) -> tuple[str, ...]:
        """Parts that are not computed where they are recorded."""
        return () if self.only else DEAR

    @property
    def recorded_first(self) -> bool:
        """Whether what is recorded is shown first, and live runs are laid over it.

        Not where something is asked for that only whole runs can have.
        """
        other = self.live_only or self.from_recorded or self.resume or bool(self.record or self.changes or self.scale)
        return not other and self.device == "cpu"
