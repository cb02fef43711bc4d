"""Whether what entries say is borne out: roles of runs by the recorded verdicts, numbers by what they rest on."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from paper_repro.workflow.claims import CLAIMS
from theory.findings.finding import BY_DATA, FALSE, TRUE, Entry, Role

ROLES: Final[Mapping[str, Role]] = {
    "holds": "supports",
    "does not hold": "refutes",
    "depends on how it is counted": "refutes",
}
"""What a verdict makes of a measurement for the sentences that name it; every other verdict leaves it undecided."""
_NUMBER: Final = r"(?<![\w.,_^{/-])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w^{]|-\d)"
# Parts of the paper and of this audit, whose numbers are names; and what is filled in from elsewhere.
_POINTER: Final = (
    r"(?:line|eq)-?[\d.]+|[Ll]ines? \d+|\b(?:Section|Appendix|Equation|Assumption|Figure) \(?[\w.]+\)?|⟦[^⟧]*⟧"
)


_TENS: Final = "ten twenty thirty forty fifty sixty seventy eighty ninety hundred".split()  # noqa: SIM905
NUMERALS: Final = {"five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"} | {
    word: str(10 * n) for n, word in enumerate(_TENS, 1)
}


def numbers(text: str) -> set[str]:
    """The numbers of a text above 4, in figures; smaller ones are counts, and in all formulas."""
    text = re.sub(rf"\b(?:{'|'.join(NUMERALS)})\b", lambda word: NUMERALS[word[0]], re.sub(_POINTER, "", text))
    found = {each.replace(",", "") for each in re.findall(_NUMBER, text)}
    return {each for each in found if each not in "01234"}


def untold(text: str, *sources: str) -> list[str]:
    """The numbers of a text that none of its sources has, rounded to as many digits."""
    known = [float(each) for source in sources for each in numbers(source)]
    found = []
    for each in sorted(numbers(text)):
        digits = max(1, len(each.partition("e")[0].replace(".", "").lstrip("0")))
        if not any(float(f"{value:.{digits}g}") == float(each) for value in known):
            found.append(each)
    return found


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
