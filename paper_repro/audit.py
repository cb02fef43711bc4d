"""Every statement of the paper with the finding of the audit and the evidence gathered for it, now."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

import hessian
import theory
from decomfl_lab.files import write_atomically
from decomfl_lab.runs.run import Progress
from paper_repro.claims import Claim, Verdict
from paper_repro.part import Made, Options
from paper_repro.report import Folded, Section
from paper_repro.runs import Work, fingerprint
from theory.findings.finding import STATUSES, Result, gather
from theory.findings.registry import ENTRIES

__all__ = ["claims", "jobs", "make"]

TONES: Final[Mapping[str, str]] = {
    "correct": "yes",
    "proof gap, conclusion true": "depends",
    "imprecise": "depends",
    "misprint": "depends",
    "carried over": "no",
    "refuted": "no",
    "not checkable": "untested",
}
_JUDGED: Final = ("theorem", "corollary", "lemma")
"""Kinds whose entries are claims of their own."""


@dataclass(frozen=True)
class AuditWork:
    """All entries of the registry, each with its evidence.

    Attributes:
        title: The title of its progress bar.
    """

    title: str = "audit of the paper"

    def key(self) -> str:
        """See ``Work``: the code of all layers below."""
        return fingerprint(__file__, layers=[hessian, theory])

    def cost(self) -> float:
        """See ``Work``: a minute, as a pass of the MNIST CNN takes about 0.1 ms."""
        return 6e5

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """See ``Work``."""
        folder.mkdir(parents=True, exist_ok=True)

        def show(done: int, _: Result) -> None:
            report(Progress(done, len(ENTRIES), math.nan, math.nan, 0.0))

        rows = [result.row() for result in gather(ENTRIES, show)]
        write_atomically(folder / "audit.json", json.dumps(rows, ensure_ascii=False))
        return f"{len(rows)} statements"

    def result(self, folder: Path, ended: str) -> tuple[pd.DataFrame, dict[str, Any]]:  # noqa: ARG002 (of the protocol)
        """See ``Work``: a row for each statement, as ``Result.row`` makes it; nothing but code made them."""
        return pd.DataFrame(json.loads((folder / "audit.json").read_text(encoding="utf-8"))), {}


def jobs(options: Options) -> list[Work]:  # noqa: ARG001 (of the protocol)
    """The audit, the same at every scale."""
    return [AuditWork()]


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:  # noqa: ARG001
    """The list of findings, and those on the theorems, corollaries and lemmas as claims."""
    section = Section(
        id="audit",
        title="Audit: every equation, lemma, theorem, algorithm line and table of the paper",
        figure_png=None,
        settings=pd.DataFrame(),
        notes=[
            "Each line opens to the reason, the evidence gathered for this report, and the corrected statement. "
            "“Refuted” means that concrete numbers contradict it; “carried over” that the step is right and starts "
            "from one that is not. Evidence: units of every term; computer algebra; searches over the parameters for "
            "the worst slack; counter-examples; arithmetic of tables; algorithms run to the letter. `decomfl audit` "
            "repeats all of it.",
        ],
        facts={
            "statements": str(len(rows)),
            "pieces of evidence": str(sum(len(evidence) for evidence in rows["evidence"])),
            "findings borne out": f"{int(rows['confirmed'].sum())} of {len(rows)}",
        },
        folded=[_folded(row) for row in rows.to_dict("records")],
    )
    return Made(section=section, claims=claims(rows), tables={"audit": rows.drop(columns=["evidence", "labels"])})


def _folded(row: Mapping[Any, Any]) -> Folded:
    status = str(row["status"])
    return Folded(
        label=str(row["label"]),
        verdict=status if row["confirmed"] else f"{status}: not borne out",
        tone=TONES[status] if row["confirmed"] else "untested",
        says=str(row["says"]),
        body=[
            ("where", ", ".join((row["place"], row["kind"], f"line {row['line']}", *row["labels"]))),
            ("why", str(row["why"])),
            *(
                (f"{found['role']}{'' if found['holds'] else ' (fails)'}", f"{found['instrument']}: {found['says']}")
                for found in row["evidence"]
            ),
            ("instead", str(row["instead"])),
        ],
    )


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Whether the statements of the paper are correct: all together, and each theorem, corollary and lemma."""
    counts = Counter(rows["status"])
    wrong = [status for status in STATUSES if TONES[status] in ("no", "depends")]
    everything = Claim(
        id="audit.all",
        claim="The paper's displayed statements, algorithms and tables are correct",
        source="the whole paper",
        verdict="does not hold" if any(counts[status] for status in wrong) else "holds",
        measured={status: counts[status] for status in STATUSES},
        scale=f"{len(rows)} statements",
    )
    return [everything, *(_claim(row) for row in rows.to_dict("records") if row["kind"] in _JUDGED)]


def _claim(row: Mapping[Any, Any]) -> Claim:
    tone = TONES[str(row["status"])] if row["confirmed"] else "untested"
    verdicts: dict[str, Verdict] = {"yes": "holds", "untested": "not tested at this scale"}
    numbers: Mapping[str, float | None] = next((found["numbers"] for found in row["evidence"] if found["numbers"]), {})
    return Claim(
        id=f"audit.{row['label'].replace(':', '-')}",
        claim=f"{str(row['kind']).capitalize()} as printed: {row['says']}",
        source=f"{row['label']}, line {row['line']} of the source",
        verdict=verdicts.get(tone, "does not hold"),
        measured={name: value for name, value in numbers.items() if value is not None and math.isfinite(value)},
        scale=f"audit: {row['status']}",
    )
