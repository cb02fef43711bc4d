"""A finding: a statement of the paper, the evidence on it that can be gathered again, and the status that follows."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final, Literal, ParamSpec, get_args

from decomfl_lab.errors import require, require_choice

Q = ParamSpec("Q")
Status = Literal[  # the gravest first; each says of what it is the verdict
    "false by proof",
    "false by the paper's own data",  # its tables, or its authors' logs
    "proof gap",  # what is said may be so, but is not proved, or rests on what is false
    "false to the letter, true as meant",
    "imprecise",
    "not reproduced in our setting",  # ours need not be the authors'
    "not decided",
    "not checkable",
    "true in our runs",
    "true in the paper's data",
    "true by proof",
]
Kind = Literal[
    "equation", "lemma", "theorem", "corollary", "assumption", "remark", "algorithm line", "table", "claim", "caption"
]
Instrument = Literal["units", "algebra", "search", "counter-example", "arithmetic", "execution", "table"]
Role = Literal["refutes", "supports", "mends", "context"]
Nature = Literal["error", "imprecision", "misprint"]

STATUSES: Final[tuple[str, ...]] = get_args(Status)
KINDS: Final[tuple[str, ...]] = get_args(Kind)
INSTRUMENTS: Final[tuple[str, ...]] = get_args(Instrument)
ROLES: Final[tuple[Role, ...]] = get_args(Role)
# What is false, by what it is shown; and what is true.
FALSE: Final[tuple[Status, ...]] = ("false by proof", "false by the paper's own data")
TRUE: Final[tuple[Status, ...]] = ("true by proof", "true in the paper's data", "true in our runs")
BY_DATA: Final = (FALSE[1], TRUE[1])
AS_MEANT: Final[Status] = "false to the letter, true as meant"
# The texts of an entry, as a row has them.
_PLACED: Final = ("label", "place", "line", "kind")
_TOLD: Final = (*_PLACED, "quote", "says", "tests", "status", "carries", "restates", "why", "instead")
_OF_NATURE: Final[Mapping[Nature, tuple[Status, ...]]] = {
    "error": FALSE,
    "imprecision": ("imprecise",),
    "misprint": (AS_MEANT,),
}


@dataclass(frozen=True)
class Evidence:
    """What an instrument finds, now."""

    # units; algebra (sympy); search (over parameters, for the worst slack); counter-example (a whole statement or step
    # at concrete numbers, exact or simulated); arithmetic (of formulas); execution (a line of an algorithm run to the
    # letter); table (arithmetic of the paper's own tables and text).
    instrument: Instrument
    holds: bool  # whether the instrument finds what it was set to look for
    says: str  # one line with the numbers
    numbers: Mapping[str, float] = field(default_factory=dict)  # every number behind it by its name
    # Whether, where it holds, it speaks against what it looks at: a counter-example, a wrong unit, a literal run that
    # stops. Else it speaks for it. None where only the statement beside which it is placed can tell.
    against: bool | None = None

    def __post_init__(self) -> None:
        require_choice("instrument", self.instrument, INSTRUMENTS)

    def plays(self, role: Role) -> bool:
        """Whether it holds and speaks the way that its role says: only what refutes speaks against."""
        return bool(self.holds) and bool(self.against) == (role == "refutes")


def by_role(check: Callable[Q, Evidence]) -> Callable[Q, Evidence]:
    """What the check finds, where it holds, speaks as its role says, whatever instrument found it."""

    @wraps(check)
    def found(*args: Q.args, **kwargs: Q.kwargs) -> Evidence:
        return replace(check(*args, **kwargs), against=None)

    return found


@dataclass(frozen=True)
class EvidenceCheck:
    """A piece of evidence by its name, module.function(arguments), and the function that gathers it."""

    name: str
    gather: Callable[[], Evidence] = field(compare=False)


class Text:
    """A field that is text, or what makes it: that is called when the field is first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type | None = None) -> str:
        if instance is None:
            return ""  # where none is given
        given = vars(instance)[self._name]
        if not isinstance(given, str):
            vars(instance)[self._name] = given = given()
        return str(given)

    def __set__(self, instance: object, given: str | Callable[[], str]) -> None:
        vars(instance)[self._name] = given


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why statements of the paper are not as they should be."""

    name: str  # what the data call it
    title: str  # what is wrong, as a sentence
    nature: Nature  # error, imprecision or misprint
    witness: EvidenceCheck  # the check whose words show it best
    instead: Text = Text()  # what is true instead, as a sentence
    headline: bool = False  # whether the summary tells it

    def __post_init__(self) -> None:
        require_choice(f"nature of {self.name}", self.nature, tuple(_OF_NATURE))


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A statement of the paper with the evidence on it."""

    label: str  # LaTeX label if it has one, else ``line-N`` (``line-N.2`` for the second statement of a display)
    line: int  # line of the source on which its display, environment, algorithm line or table begins
    place: str  # where a reader finds it: section and number of the equation, theorem, table or algorithm
    kind: Kind  # one of ``KINDS``
    # The statement, shortened, in plain text; of a quotation, what it asserts, so that one can test it: the quotation
    # itself where that needs no formula.
    says: str
    status: Status  # what is to be said of it, as the data have it; ``Entry.implied`` is what the evidence allows
    # The checks of each role: refutes (speaks against the print), supports (for the print, or for the conclusion of a
    # step that is false), mends (for what is true instead), context (what can be said where nothing can be decided).
    evidence: Mapping[Role, tuple[EvidenceCheck, ...]] = field(default_factory=dict)
    why: Text = Text()  # the reason in a sentence or two, "" only for what is true
    instead: Text = Text()  # the statement that is true; "" where nothing is wrong or nobody can say
    carries: str = ""  # label of the entry whose fault a step that is right in itself carries on
    restates: str = ""  # label of the entry that says the same elsewhere
    labels: tuple[str, ...] = ()  # further labels of the same display that this entry speaks for
    bounds: tuple[str, ...] = ()  # names and variants of the statements of ``theory.bounds`` that its texts are made of
    # The causes that its refuting evidence shows, the one that its status follows from before the others.
    causes: tuple[Cause, ...] = ()
    quote: str = ""  # the paper's own words, as they stand in running text or a caption, "…" for words left out
    # What the evidence tests where that is weaker or stronger than the quotation, and by how much; begun with that word
    # where a run that holds, or one that fails, decides nothing for this reason.
    tests: str = ""
    # The measurements that speak on it, by their id in ``paper_repro``, each with its role: what holds supports, what
    # does not hold or depends on how it is counted refutes; context is what is undecided, or what ``tests`` says
    # decides nothing.
    runs: Mapping[str, Role] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_choice(f"status of {self.label}", self.status, STATUSES)
        require_choice(f"kind of {self.label}", self.kind, KINDS)
        require_choice(f"status of {self.label}", self.status, self.implied)
        given = bool(vars(self)["why"]) or self.status in TRUE
        require(given, f"why of {self.label}", "be given for", self.status)
        for run, role in self.runs.items():
            require_choice(f"role of run {run} of {self.label}", role, ("supports", "refutes", "context"))

    def checks(self, role: Role) -> tuple[EvidenceCheck, ...]:
        """The checks of one role."""
        return self.evidence.get(role, ())

    @property
    def number(self) -> str:
        """What a reader looks for, the first part of its place: Theorem 1, Equation (6), or the section alone."""
        return self.place.split(", ")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """All that it can be asked for by: its labels, its line, its number (theorem-1) and the bound that it states.

        What says again what another entry says has no bound of its own, and a line of an algorithm no number.
        """
        stated = [bound.removesuffix(" stated") for bound in self.bounds if bound.endswith(" stated")]
        numbers = [re.sub(r"\W+", "-", self.number.lower()).strip("-")] * (self.kind != "algorithm line")
        return (self.label, *self.labels, f"line-{self.line}", *numbers, *([] if self.restates else stated))

    @property
    def section(self) -> str:
        """The section that it stands in; an algorithm's lines stand under its name."""
        if self.kind == "algorithm line":
            return self.number
        return next(part for part in self.place.split(", ") if part.startswith(("Sec", "App", "Abs")))

    @property
    def implied(self) -> tuple[Status, ...]:
        """The statuses that the roles of the evidence and the nature of the cause shown first allow."""
        measured = set(self.runs.values())
        if self.checks("refutes") and self.checks("supports") and "refutes" not in measured:
            return ("proof gap",)
        if self.checks("refutes"):
            require(bool(self.causes), f"evidence of {self.label}", "refute by a check that a cause names", self.label)
            return _OF_NATURE[self.causes[0].nature]
        if self.carries:
            return ("proof gap",)
        if "refutes" in measured:  # what is wrong only by one way of counting is imprecise
            return ("not reproduced in our setting", FALSE[1], "imprecise")
        if self.checks("supports"):
            return TRUE[:2]
        if measured:
            return TRUE if measured == {"supports"} else ("not decided",)
        return ("not checkable",)


@dataclass(frozen=True)
class EntryResult:
    """An entry with the evidence gathered for it now, by role."""

    entry: Entry
    evidence: tuple[tuple[Role, Evidence], ...]

    @property
    def confirmed(self) -> bool:
        """Whether every piece of evidence holds and speaks the way that its role says, by proof or by data as said."""
        decides = [found for role, found in self.evidence if role == "refutes"]
        decides = decides or [found for role, found in self.evidence if role == "supports"]
        by_data = all(found.instrument == "table" for found in decides)
        if decides and self.entry.status in (*FALSE, *TRUE) and by_data != (self.entry.status in BY_DATA):
            return False
        return all(found.plays(role) for role, found in self.evidence)

    def row(self) -> dict[str, Any]:
        """For a table or JSON."""
        entry = self.entry
        return {
            **{name: getattr(entry, name) for name in _TOLD},
            "cause": ", ".join(cause.name for cause in entry.causes),
            "runs": dict(entry.runs),
            "labels": list(entry.labels),
            "bounds": list(entry.bounds),
            "confirmed": self.confirmed,
            "evidence": [
                {
                    "role": role,
                    "instrument": found.instrument,
                    "holds": found.plays(role),
                    "says": found.says,
                    "numbers": {  # JSON has neither infinity nor NaN
                        name: float(value) if math.isfinite(value) else None for name, value in found.numbers.items()
                    },
                }
                for role, found in self.evidence
            ],
        }


def gather(
    entries: Sequence[Entry],
    on_result: Callable[[int, EntryResult], None] | None = None,
    known: dict[str, Evidence] | None = None,
) -> list[EntryResult]:
    """Gather the evidence for the entries now; checks that several entries share are run once.

    ``on_result`` is told, after each entry, how many are done and the latest. ``known`` is evidence that was gathered
    before, by the name of its check, to which the other is added.
    """
    known = {} if known is None else known
    results = []
    for done, entry in enumerate(entries, 1):
        for checks in entry.evidence.values():
            for check in checks:
                if check.name not in known:
                    known[check.name] = check.gather()
        evidence = tuple((role, known[check.name]) for role, checks in entry.evidence.items() for check in checks)
        results.append(EntryResult(entry, evidence))
        if on_result:
            on_result(done, results[-1])
    return results
