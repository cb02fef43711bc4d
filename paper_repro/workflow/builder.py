"""A part from its verdicts, figures and tables, in one way for all; a figure is drawn when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.part import Made
from paper_repro.workflow.report import Section

__all__ = ["Drawings", "made"]


class Drawings(Mapping[str, Figure]):
    """Figures by the stems of their files, so that verdicts need none of them to be drawn."""

    def __init__(self, ways: Mapping[str, Callable[[], Figure]]) -> None:
        self.ways = {stem: partial(self.__getitem__, stem) for stem in ways}  # the same, as functions
        self._ways = ways
        self._drawn: dict[str, Figure] = {}

    def __getitem__(self, stem: str) -> Figure:
        if stem not in self._drawn:
            self._drawn[stem] = self._ways[stem]()
        return self._drawn[stem]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ways)

    def __len__(self) -> int:
        return len(self._ways)


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

    Args:
        part: The part.
        claims: The outcomes of its claims.
        figures: What draws its figures, by the stems of their files.
        tables: Its tables, likewise.
        more: The headings of those figures behind the first that the page has.
        section: What else the section has.
    """
    drawings, tables = Drawings(figures or {}), tables or {}
    ways = [*drawings.ways.values()]
    own: dict[str, Any] = {"figure": ways[0] if ways else None, "more_figures": dict(zip(more, ways[1:], strict=False))}
    own |= {"table": tables.get(part), **section}
    return Made(section=Section(id=part, **own), claims=claims, figures=drawings, tables=tables)
