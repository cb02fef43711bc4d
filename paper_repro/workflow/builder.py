"""A part from its verdicts, figures and tables: in one way for all parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.part import Made
from paper_repro.workflow.report import Section


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
    # Verdicts need no figure: it is drawn when it is first asked for, and once.
    figures, tables = {stem: cache(draw) for stem, draw in (figures or {}).items()}, tables or {}
    ways = [*figures.values()]
    own: dict[str, Any] = {"figure": ways[0] if ways else None, "more_figures": dict(zip(more, ways[1:], strict=False))}
    own |= {"table": tables.get(part), **section}
    return Made(section=Section(id=part, **own), claims=claims, figures=figures, tables=tables)
