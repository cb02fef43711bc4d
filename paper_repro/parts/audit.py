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
from decomfl_lab.runs.told import Progress
from paper_repro.workflow.claims import UNTESTED, ClaimOutcome, Verdict
from paper_repro.workflow.expression import judged
from paper_repro.workflow.measures import verdict_of
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.report import Folded, Section, notes
from paper_repro.workflow.runs import Work, fingerprint
from theory.findings.finding import STATUSES, EntryResult, gather
from theory.findings.registry import ENTRIES
from theory.statements.statement import inequality

__all__ = ["claims", "jobs", "make"]

TONES: Final[Mapping[str, str]] = {
    "correct": "yes",
    "proof gap": "depends",
    "imprecise": "depends",
    "misprint": "depends",
    "carried over": "no",
    "refuted": "no",
    "not decided": "untested",
    "not checkable": "untested",
}
_NESTED: Final = ["evidence", "labels", "bounds", "runs"]
_JUDGED: Final = ("theorem", "corollary", "lemma")  # kinds whose entries are claims of their own


@dataclass(frozen=True)
class AuditWork:
    """All entries of the registry, each with its evidence."""

    title: str = "audit of the paper"  # the title of its progress bar

    def key(self) -> str:
        """See ``Work``: the code of all layers below."""
        return fingerprint(__file__, layers=[hessian, theory])

    def cost(self) -> float:
        """See ``Work``: a minute, as a pass of the MNIST CNN takes about 0.1 ms."""
        return 6e5

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """See ``Work``."""

        def show(done: int, _: EntryResult) -> None:
            report(Progress(done, len(ENTRIES), math.nan, math.nan, 0.0))

        rows = [result.row() for result in gather(ENTRIES, show)]
        write_atomically(folder / "audit.json", json.dumps(rows, ensure_ascii=False))
        return f"{len(rows)} statements"

    def result(self, folder: Path, ended: str) -> tuple[pd.DataFrame, dict[str, Any]]:  # noqa: ARG002 (of the protocol)
        """See ``Work``: a row for each statement, as ``EntryResult.row`` makes it; nothing but code made them."""
        return pd.DataFrame(json.loads((folder / "audit.json").read_text(encoding="utf-8"))), {}


def jobs(options: Options) -> list[Work]:  # noqa: ARG001 (of the protocol)
    """The audit, the same at every scale."""
    return [AuditWork()]


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:  # noqa: ARG001
    """The list of findings, and those on the theorems, corollaries and lemmas as claims."""
    section = Section(
        id="audit",
        notes=notes("audit"),
        facts={
            "statements": str(len(rows)),
            "pieces of evidence": str(sum(len(evidence) for evidence in rows["evidence"])),
            "findings borne out": f"{int(rows['confirmed'].sum())} of {len(rows)}",
        },
        folded=[_folded(row) for row in rows.to_dict("records") if row["status"] != "correct" or not row["confirmed"]],
    )
    return Made(section=section, claims=claims(rows), tables={"audit": rows.drop(columns=_NESTED, errors="ignore")})


def _folded(row: Mapping[Any, Any]) -> Folded:
    status = str(row["status"])
    # The first piece that speaks against the statement, or of the context, and those that fail.
    shown = [found for found in row["evidence"] if found["role"] in ("refutes", "context")][:1]
    shown += [found for found in row["evidence"] if not found["holds"] and found not in shown]
    formulas = {}
    for bound in row["bounds"]:
        name, variant = bound.split()
        formulas[f"as {variant}"] = inequality(theory.statement(name, variant))
    return Folded(
        label=str(row["label"]),
        verdict=status if row["confirmed"] else f"{status}: not borne out",
        tone=TONES[status] if row["confirmed"] else "untested",
        says=str(row["says"]),
        body=[
            ("quote", str(row.get("quote", ""))),
            ("where", ", ".join((row["place"], row["kind"], f"line {row['line']}", *row["labels"]))),
            ("why", str(row["why"])),
            *(
                (f"{found['role']}{'' if found['holds'] else ' (fails)'}", f"{found['instrument']}: {found['says']}")
                for found in shown
            ),
            ("instead", str(row["instead"])),
        ],
        formulas=formulas,
    )


def claims(rows: pd.DataFrame) -> list[ClaimOutcome]:
    """Whether the statements of the paper are correct: all together, and each theorem, corollary and lemma.

    What says again what another statement says counts with that one.
    """
    again = rows["restates"].fillna("") != ""
    own = rows[~again]
    counts = Counter(own["status"])
    wrong = any(counts[status] for status in STATUSES if TONES[status] in ("no", "depends"))
    measured = {status: counts[status] for status in STATUSES}
    words = f"{len(own)} statements, {int(again.sum())} of them said again elsewhere in the paper"
    everything = ClaimOutcome("audit.all", verdict_of(not wrong), measured, words)
    return judged("audit", "", {}, [everything, *map(_outcome, own[own["kind"].isin(_JUDGED)].to_dict("records"))])


def _outcome(row: Mapping[Any, Any]) -> ClaimOutcome:
    tone = TONES[str(row["status"])] if row["confirmed"] else "untested"
    verdicts: dict[str, Verdict] = {"yes": "holds", "untested": UNTESTED}
    numbers: Mapping[str, float | None] = next((found["numbers"] for found in row["evidence"] if found["numbers"]), {})
    return ClaimOutcome(
        f"audit.{row['label'].replace(':', '-')}",
        verdicts.get(tone, "does not hold"),
        {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)},
        f"audit: {row['status']}",
        f"{row['place']}, {row['label']}: {row['says']}",
    )
