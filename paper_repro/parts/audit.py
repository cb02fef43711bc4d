"""Every statement of the paper with the finding of the audit and the evidence gathered for it, now."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

import theory
from decomfl_lab.progress import Progress
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import Folded, notes
from paper_repro.workflow.runs import Report, Result, Work
from paper_repro.workflow.verdicts.answer import TONES
from paper_repro.workflow.verdicts.claim_table import UNTESTED, ClaimOutcome, Verdict
from paper_repro.workflow.verdicts.claim_verdicts import judged
from theory.findings.finding import STATUSES, TRUE, EntryResult, gather
from theory.findings.registry import ENTRIES
from theory.findings.texts import KNOWN
from theory.statements.statement import inequality

_NESTED: Final = ["evidence", "labels", "bounds", "runs"]
_JUDGED: Final = ("theorem", "corollary", "lemma")  # kinds whose entries are claims of their own


def jobs(options: Options) -> list[Work]:  # noqa: ARG001 (of the protocol)
    """The audit, the same at every scale: a minute."""
    return [Work(title="audit of the paper", function=_audited, layers=("hessian", "theory"), cost=6e5)]


def _audited(folder: Path, report: Report) -> Result:  # noqa: ARG001 (of the protocol)
    """A row for each statement, as ``EntryResult.row`` makes it; nothing but code made them."""

    def show(done: int, _: EntryResult) -> None:
        report(Progress(done, len(ENTRIES)))

    return pd.DataFrame([result.row() for result in gather(ENTRIES, show, KNOWN)]), {}


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:  # noqa: ARG001
    """The list of findings, and those on the theorems, corollaries and lemmas as claims."""
    # What is true is counted, not listed.
    folded = []
    for row in rows.to_dict("records"):
        if row["status"] in TRUE and row["confirmed"]:
            continue
        # The first piece that speaks against the statement, or of the context, and those that fail.
        shown = [piece for piece in row["evidence"] if piece["role"] in ("refutes", "context")][:1]
        shown += [piece for piece in row["evidence"] if not piece["holds"] and piece not in shown]
        told = []
        for piece in shown:
            heading = f"{piece['role']}{'' if piece['holds'] else ' (fails)'}"
            told.append((heading, f"{piece['instrument']}: {piece['says']}"))
        formulas = {}
        for bound in row["bounds"]:
            name, variant = bound.split()
            formulas[f"as {variant}"] = inequality(theory.statement(name, variant))
        where = ", ".join((row["place"], row["kind"], f"line {row['line']}", *row["labels"]))
        body = [("quote", str(row.get("quote", ""))), ("where", where), ("why", str(row["why"])), *told]
        folded.append(
            Folded(
                label=str(row["label"]),
                verdict=row["status"] if row["confirmed"] else f"{row['status']}: not borne out",
                tone=TONES[row["status"]] if row["confirmed"] else "untested",
                says=str(row["says"]),
                body=[*body, ("instead", str(row["instead"]))],
                formulas=formulas,
            )
        )
    return made(
        "audit",
        claims(rows),
        tables={"audit": rows.drop(columns=_NESTED, errors="ignore")},
        table=None,
        notes=notes("audit"),
        facts={
            "statements": str(len(rows)),
            "pieces of evidence": str(sum(len(evidence) for evidence in rows["evidence"])),
            "findings borne out": f"{int(rows['confirmed'].sum())} of {len(rows)}",
        },
        folded=folded,
    )


def claims(rows: pd.DataFrame) -> list[ClaimOutcome]:
    """Whether the statements of the paper are correct: all together, and each theorem, corollary and lemma.

    What says again what another statement says counts with that one.
    """
    restating = rows["restates"].fillna("") != ""
    own_statements = rows[~restating]
    counts = Counter(own_statements["status"])
    wrong = any(counts[status] for status in STATUSES if TONES[status] in ("no", "depends"))
    measured = {status: counts[status] for status in STATUSES}
    words = f"{len(own_statements)} statements, {int(restating.sum())} of them said again elsewhere in the paper"
    outcomes = [ClaimOutcome("audit.all", "does not hold" if wrong else "holds", measured, words)]
    verdicts: dict[str, Verdict] = {"yes": "holds", "untested": UNTESTED}
    for row in own_statements[own_statements["kind"].isin(_JUDGED)].to_dict("records"):
        tone = TONES[str(row["status"])] if row["confirmed"] else "untested"
        numbers: Mapping[str, float | None] = next((each["numbers"] for each in row["evidence"] if each["numbers"]), {})
        outcomes.append(
            ClaimOutcome(
                f"audit.{row['label'].replace(':', '-')}",
                verdicts.get(tone, "does not hold"),
                {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)},
                f"audit: {row['status']}",
                f"{row['place']}, {row['label']}: {row['says']}",
            )
        )
    return judged("audit", "", {}, outcomes)
