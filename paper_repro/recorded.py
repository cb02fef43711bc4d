"""Rows of runs that are kept with the code: what a machine without their data, or without the time, can draw.

``results/<part>-<scale>.csv`` has the rows that a part's ``make`` takes, ``results/<part>-<scale>.json`` where they
come from: the date, and the provenance of every run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from decomfl_lab.errors import InputError
from decomfl_lab.files import write_atomically
from paper_repro.part import Made

__all__ = ["RESULTS", "Recorded", "load", "save"]

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Recorded:
    """What ``save`` kept.

    Attributes:
        rows: Of all runs of a part.
        provenance: Of each run.
        date: When they were recorded.
    """

    rows: pd.DataFrame
    provenance: Sequence[Mapping[str, Any]]
    date: str

    def told(self, made: Made) -> Made:
        """``made`` from these rows, saying in its section and its claims that nothing was computed."""
        codes = ", ".join(sorted({str(each["code"]) for each in self.provenance}))
        note = f"Not computed here: rows recorded on {self.date} by code {codes}, from the data named above."
        section = replace(made.section, notes=[note, *made.section.notes])
        claims = [replace(claim, scale=f"recorded on {self.date}; {claim.scale}") for claim in made.claims]
        return replace(made, section=section, claims=claims)


def save(part: str, scale: str, rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], into: Path) -> None:
    """Keep the rows of a part; both files are written whole, the rows last."""
    into.mkdir(parents=True, exist_ok=True)
    facts = {"date": datetime.now(UTC).date().isoformat(), "runs": list(provenance)}
    write_atomically(into / f"{part}-{scale}.json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    write_atomically(into / f"{part}-{scale}.csv", rows.to_csv(index=False))


def load(part: str, scale: str, of: Path = RESULTS) -> Recorded | None:
    """What was kept of a part at a scale, or None.

    Raises:
        InputError: If the files are damaged.
    """
    path = of / f"{part}-{scale}.csv"
    if not path.exists():
        return None
    try:
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return Recorded(pd.read_csv(path), facts["runs"], facts["date"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"recorded rows must be whole files {path.stem}.csv and .json, got {path} ({error})") from None
