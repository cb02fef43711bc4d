"""Whether the recorded verdicts bear out what entries say of their runs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from paper_repro.workflow.verdicts.claim_table import CLAIMS
from theory.findings.finding import BY_DATA, FALSE, TRUE, Entry, Role

ROLES: Final[Mapping[str, Role]] = {
    "holds": "supports",
    "does not hold": "refutes",
    "depends on how it is counted": "refutes",
}
"""What a verdict makes of a measurement for the sentences that name it; every other verdict leaves it undecided."""


def disagreements(entries: Sequence[Entry], verdicts: Mapping[str, str]) -> Iterator[str]:
    """What entries say of their runs that the verdicts, by id, do not bear out, or that does not give their status.

    What is tested may be stronger than the quotation: then a run that fails leaves it undecided. Or it is weaker: then
    a run that holds does. ``tests`` says which, by its first word, and runs alone cannot make such an entry true.
    """
    for entry in entries:
        given = {run: ROLES.get(verdicts.get(run, ""), "context") for run in entry.runs}
        tested = entry.tests.partition(":")[0].lower()
        decides_nothing = {"stronger": "refutes", "weaker": "supports"}.get(tested)
        for run, role in entry.runs.items():
            if role != given[run] and not (role == "context" and given[run] == decides_nothing):
                yield f"{entry.label}: {run} {verdicts.get(run, 'is not recorded')!r}, so it {given[run]}, not {role}"
            if role == decides_nothing and entry.status in (*FALSE, *TRUE) and not entry.checks(role):
                yield f"{entry.label}: {run} {role} what is {tested} than the quotation, so it is in the context of it"
        refuting = {verdicts.get(run) for run, role in entry.runs.items() if role == "refutes"}
        # What is so in some runs, and in others not, may be imprecise.
        spared = [] if "supports" in entry.runs.values() else ["imprecise"]
        if "does not hold" in refuting and entry.status in (*TRUE, "not decided", *spared):
            yield f"{entry.label}: a run refutes it, so it is not {entry.status}"
        if refuting and "does not hold" not in refuting and entry.status != "imprecise" and not entry.causes:
            yield f"{entry.label}: it depends on how one counts, so it is imprecise, not {entry.status}"
        failed = any(role == "context" and given[run] == "refutes" for run, role in entry.runs.items())
        if failed and entry.status in TRUE:
            yield f"{entry.label}: a run leaves it undecided, so it is not decided, not {entry.status}"
        # Where runs alone decide, those that speak for the status are of its scope.
        speaking = {"supports"} if entry.status in TRUE else {"refutes"}
        scopes = {CLAIMS[run].scope for run, role in entry.runs.items() if role in speaking and run in CLAIMS}
        decided = entry.status in (*FALSE, *TRUE, "not reproduced in our setting") and not entry.evidence
        if decided and ("in the paper's own data" in scopes) != (entry.status in BY_DATA):
            yield f"{entry.label}: its runs are {' and '.join(sorted(scopes))}, so it is not {entry.status}"
