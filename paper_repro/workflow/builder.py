"""A part from its verdicts, figures and tables: in one way for all parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.part import Made
from paper_repro.workflow.report import Section


def made(
    part: str,
    claims: Sequence[ClaimOutcome],
    figures: Mapping[str, Figure] | None = None,
    tables: Mapping[str, pd.DataFrame] | None = None,
    *,
    more: Sequence[str] = (),
    **section: Any,
) -> Made:
    """A part whose section begins with the first of its figures, and has the table of its name unless it has another.

    Args:
        part: The part.
        claims: The outcomes of its claims.
        figures: Its figures, by the stems of their files.
        tables: The same of its tables.
        more: The headings of those behind the first that the page has.
        section: What else the section has.
    """
    figures, tables = figures or {}, tables or {}
    drawn = [*figures.values()]
    own: dict[str, Any] = {"figure": drawn[0] if drawn else None, "table": tables.get(part), **section}
    own["more_figures"] = dict(zip(more, drawn[1:], strict=False))
    return Made(section=Section(id=part, **own), claims=claims, figures=figures, tables=tables)
