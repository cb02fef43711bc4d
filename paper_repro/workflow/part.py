"""A part, which is a figure or table of the paper: the runs it needs, and what is made of their rows."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
from matplotlib.figure import Figure

from figures.curves import Count
from paper_repro.workflow.report import Section
from paper_repro.workflow.runs import Job, Work
from paper_repro.workflow.scales import Scale
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome

if TYPE_CHECKING:
    from paper_repro.workflow.recordings import Rows


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for, as far as it concerns what a part is made of."""

    scale: Scale  # the sizes of every part, with what --set changed
    readings: tuple[str, ...]  # the readings of the paper's image settings: as-plotted, as-written
    count: Count  # how the x-axes of communication count
    # the folder with the authors' whole curves; None draws those that come with the project, and judges by none
    authors: Path | None = None
    # the device on which runs compute: cpu, cuda, cuda:N or auto. On a GPU, where finite differences cost little, they
    # are as long as the curves by projection, for every seed, and go first.
    device: str = "cpu"
    # the rows recorded for the part at full scale, where that is larger than ``scale``; they are drawn thin
    longer: Rows | None = None
    changes: Mapping[str, str] = field(default_factory=dict)  # {part: the settings that were changed, in words}
    set: tuple[str, ...] = ()  # the assignments of --set that changed them

    def command(self, part: str) -> str:
        """The command that makes a part again, from its runs."""
        flag_values = {
            "--count": self.count * (self.count != "wire"),
            "--reading": self.readings[0] if len(self.readings) == 1 else "",
            "--reference": "DIR" if self.authors else "",
            "--device": self.device * (self.device != "cpu"),
        }
        # Options at their defaults are left out: an empty value stands for one.
        flags: list[str] = []
        for flag, value in flag_values.items():
            flags += [flag, value] if value else []
        for text in self.set if part in self.changes else ():
            flags += ["--set", text]
        return shlex.join(["decomfl", "paper", "--only", part, "--scale", self.scale.name, *flags])


@dataclass(frozen=True, kw_only=True)
class Made:
    """A part of the report, made: what ``report_folder`` writes and ``report`` sets on the page."""

    section: Section  # the section of the page
    claims: Sequence[ClaimOutcome]  # the outcomes of its claims
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)  # {stem of the file: what draws it}
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # {stem of the file: frame}

    def of(self, kept: Rows) -> Made:
        """The same, where it was made from recorded rows: section and claims say that nothing was computed."""
        if not kept.date:
            return self
        note = f"Not computed here: rows {kept.words}, from the data named above."
        section = replace(self.section, notes=[note, *self.section.notes])
        claims = [replace(claim, scale=f"{kept.words}; {claim.scale}") for claim in self.claims]
        return replace(self, section=section, claims=claims)


def made(
    part: str,
    claims: Sequence[ClaimOutcome],
    figures: Mapping[str, Callable[[], Figure]] | None = None,
    tables: Mapping[str, pd.DataFrame] | None = None,
    *,
    more: Sequence[str] = (),
    **section: Any,
) -> Made:
    """A part whose section begins with the first of its figures, and has the table of its name unless it has another.

    Figures (what draws them) and tables are by the stems of their files; ``more`` are the headings of those figures
    behind the first that the page has, and ``section`` what else its ``Section`` has.
    """
    # Verdicts need no figure: it is drawn when it is first asked for, and once.
    figures = {stem: cache(draw) for stem, draw in (figures or {}).items()}
    tables = tables or {}
    first, *others = figures.values() if figures else (None,)
    fields: dict[str, Any] = {"figure": first, "more_figures": dict(zip(more, others, strict=False))}
    fields |= {"table": tables.get(part), **section}
    return Made(section=Section(id=part, **fields), claims=claims, figures=figures, tables=tables)


class Part(Protocol):
    """A module of this package that makes a figure or table."""

    def jobs(self, options: Options) -> Sequence[Work | Job]:
        """The work that it needs; what two parts share is done once."""
        ...

    def make(self, rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
        """The part, from the rows of its work (of runs: evaluations with the labels of their jobs)."""
        ...
