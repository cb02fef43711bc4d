"""What can be asked of ``decomfl paper``: the options of the command, and of whoever makes a report in Python."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from decomfl_lab.options import option
from decomfl_lab.storage.tables import table_beside
from paper_repro.workflow.verdicts.claim_table import DEAR, ON_GPU, PARTS

if TYPE_CHECKING:  # the help needs no figures
    from figures.curves import Count

COUNTS: Final[tuple["Count", ...]] = ("wire", "table1", "plotted")
READINGS: Final = ("as-plotted", "as-written")
"""The readings of the paper's image settings."""
MOST_JOBS: Final = 4096
"""Processes at a time; a machine ends long before."""
_HELP: Final = table_beside(__name__, "options.toml")
_TIME, _AXES = "Time and machines", "Axes and readings"  # groups of options


@dataclass(frozen=True, kw_only=True)
class PaperOptions:
    """The options of ``decomfl paper``."""

    scale: str = option("", _HELP["scale"])
    live_only: bool = option(False, _HELP["live_only"])
    only: str = option("", _HELP["only"].format(parts=", ".join(PARTS), dear=", ".join(DEAR)))
    out: Path = option(Path("out"), _HELP["out"])
    runs: Path | None = option(None, _HELP["runs"], _TIME)
    count: str = option("wire", _HELP["count"], _AXES, choices=COUNTS)
    reading: str = option("both", _HELP["reading"], _AXES, choices=(*READINGS, "both"))
    changes: tuple[str, ...] = option((), _HELP["changes"], "Settings", flag="--set", metavar="PART.SETTING=VALUE")
    reference: Path | None = option(None, _HELP["reference"], _AXES)
    from_recorded: bool = option(False, _HELP["from_recorded"])
    record: Path | None = option(None, _HELP["record"], "What is recorded")
    hours: float | None = option(None, _HELP["hours"], _TIME, gt=0)
    minutes: float | None = option(None, _HELP["minutes"], _TIME, gt=0)
    device: str = option("cpu", _HELP["device"].format(parts=", ".join(ON_GPU)))
    resume: bool = option(False, _HELP["resume"], _TIME)
    jobs: int = option(0, _HELP["jobs"], _TIME, ge=0, le=MOST_JOBS)
    list_claims: bool = option(False, _HELP["list_claims"], flag="--list")
    answer: bool = option(False, _HELP["answer"])
    as_json: bool = option(False, _HELP["as_json"], flag="--json")

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
