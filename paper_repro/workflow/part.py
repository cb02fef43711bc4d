"""What a figure or table of the paper is made of: the runs it needs, and what is made of their rows."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from figures.curves import Count
from figures.style import rc
from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.report import Section
from paper_repro.workflow.runs import Work
from paper_repro.workflow.scales import Scale

if TYPE_CHECKING:
    from paper_repro.workflow.recorded import Recorded

__all__ = ["Made", "Options", "Part", "rendered"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for."""

    scale: Scale  # the sizes of every part, with what --set changed
    readings: tuple[str, ...]  # the readings of the paper's image settings: as-plotted, as-written
    count: Count  # how the x-axes of communication count
    cache: Path = Path()  # the folder of results: what is there is not computed again
    authors: Path | None = None  # the folder with the authors' curves, or None
    from_recorded: bool = False  # whether recorded rows are drawn where there are some
    largest: bool = False  # whether of each part the largest scale that is recorded is drawn
    spared: tuple[str, ...] = ()  # parts that are not computed where they are recorded
    out: Path = Path("out")  # the folder of the report
    jobs: int = -1  # the number of runs at a time, -1 for one a CPU
    record: Path | None = None  # the folder in which the rows of what is made are kept, or None
    # the hours after which no run is begun any more, and those under way are saved; None for no limit
    hours: float | None = None
    resume: bool = False  # whether training runs go on that another version of the code began
    # the device on which runs compute: cpu, cuda, cuda:N or auto. On a GPU, where finite differences cost little, they
    # are as long as the curves by projection, for every seed, and go first.
    device: str = "cpu"
    # the rows recorded for the part at full scale, where that is larger than ``scale``; they are drawn thin
    longer: Recorded | None = None
    # the rows recorded for the part at the scale below, for what those of ``scale`` cannot decide so far
    shorter: Recorded | None = None
    problems: tuple[str, ...] = ()  # the problems of the board; none for all
    lines: tuple[str, ...] = ()  # the lines of the board; none for all
    changes: Mapping[str, str] = field(default_factory=dict)  # {part: the settings that were changed, in words}
    set: tuple[str, ...] = ()  # the assignments of --set that changed them

    def command(self, part: str) -> str:
        """The command that makes a part again, from its runs."""
        board = bool(self.problems or self.lines)
        asked = {
            "--problem": ";".join(self.problems),
            "--methods": ";".join(self.lines),
            "--count": self.count * (self.count != "wire"),
            "--reading": self.readings[0] if len(self.readings) == 1 else "",
            "--reference": "DIR" if self.authors else "",
            "--device": self.device * (self.device != "cpu"),
        }
        # Options at their defaults are left out: an empty value stands for one.
        flags: list[str] = []
        for flag, value in asked.items():
            flags += [flag, value] if value else []
        for text in self.set if part in self.changes else ():
            flags += ["--set", text]
        verb = ["board"] if board else ["paper", "--only", part]
        return shlex.join(["decomfl", *verb, "--scale", self.scale.name, *flags])

    @property
    def thin(self) -> str:
        """The sentence of a caption about what is drawn thin."""
        return "" if self.longer is None else self.longer.thin


@dataclass(frozen=True, kw_only=True)
class Made:
    """A part of the report."""

    section: Section  # the section of the page
    claims: Sequence[ClaimOutcome]  # the outcomes of its claims
    figures: Mapping[str, Figure] = field(default_factory=dict)  # {stem of the file: figure}
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # {stem of the file: frame}

    def of(self, kept: Recorded) -> Made:
        """The same, made from recorded rows: section and claims say that nothing was computed."""
        note = f"Not computed here: rows {kept.words}, from the data named above."
        section = replace(self.section, notes=[note, *self.section.notes])
        claims = [replace(claim, scale=f"{kept.words}; {claim.scale}") for claim in self.claims]
        return replace(self, section=section, claims=claims)


class Part(Protocol):
    """A module of this package that makes a figure or table."""

    def jobs(self, options: Options) -> Sequence[Work]:
        """The work that it needs; what two parts share is done once."""
        ...

    def make(self, rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
        """The part, from the rows of its work (of runs: evaluations with the labels of their jobs)."""
        ...


def rendered(
    figure: Figure, kind: str = "png", dpi: float | None = None, metadata: Mapping[str, str] | None = None
) -> bytes:
    """The figure as a file of the given kind, in the one style; ``dpi`` is of pixels, None for the style's."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(rc()):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    with matplotlib.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)  # the next kind has the places of this one, without being drawn to find them
    return buffer.getvalue()
