"""What became of laws: an outcome a law, a list of them that prints itself, and tests of pytest. Needs nothing."""

import random
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal
from xml.etree import ElementTree

Status = Literal["holds", "broken", "crashed", "refused", "skipped", "not yours"]
MARKS = {
    "holds": "ok    ",
    "broken": "BROKEN",
    "crashed": "BROKEN",
    "refused": "NOCASE",
    "skipped": "skip  ",
    "not yours": "-     ",
}


@dataclass(frozen=True, repr=False)
class Outcome:
    """What became of one law."""

    law: str  # name of the law
    says: str  # what it says, in a line
    # "holds"; "broken", by values that disagree; "crashed", by another exception, which breaks it too; "refused", where
    # ``supports`` refuses every case; "skipped", where it does and the implementation's ``skips`` says why, or where
    # the implementation does not offer what the law is about; or "not yours", where the law is about parts that are the
    # lab's
    status: Status
    cases: int  # how many cases were tried
    # what differs in the smallest case that failed, the case and its history, in lines; or why none was tried
    counterexample: str = ""
    # the implementation's own parts that the law made no use of, so that it cannot see a fault in them
    unseen: tuple[str, ...] = ()
    seconds: float = 0.0  # how long it took
    refused: int = 0  # how many drawn cases the implementation refused beside those that were tried
    measured: str = ""  # what was measured, and how much of it, where the law does

    @property
    def tried(self) -> bool:
        """Whether the law says something about the implementation."""
        return self.status in ("holds", "broken", "crashed")

    @property
    def passed(self) -> bool:
        """Whether no case failed, and ``supports`` did not refuse them all."""
        return self.status in ("holds", "skipped", "not yours")

    @property
    def error(self) -> str:
        """What was raised, without the case, where the law was broken by a crash; else empty."""
        first, *rest = self.counterexample.split("\n") if self.status == "crashed" else [""]
        return "\n".join([first, *takewhile(lambda line: line.startswith(" " * 9), rest)])

    def __repr__(self) -> str:
        return f"<Outcome: {self.law} {self.status}>"

    def __str__(self) -> str:
        if not self.tried:
            return f"{MARKS[self.status]}              {self.law}: {self.counterexample}"
        tried = f"{self.cases:5d} cases" if self.status == "holds" else f"at case {self.cases:<3d}"
        blind = f" (does not look at your {', '.join(self.unseen)})" if self.unseen else ""
        few = f" ({self.refused} others were refused)" if self.refused > 9 * self.cases else ""
        measured = f" [{self.measured}]" if self.measured else ""
        line = f"{MARKS[self.status]} {tried}  {self.law}: {self.says}{blind}{few}{measured}"
        return f"{line}\n{textwrap.indent(self.counterexample, ' ' * 7)}" if self.counterexample else line


class Outcomes(list[Outcome]):
    """Outcomes of several laws; ``str`` has a line for each and a last one that counts."""

    def __repr__(self) -> str:
        return f"<Outcomes: {self.summary}>"

    @property
    def broken(self) -> list[str]:
        """The names of the laws that do not hold."""
        return [outcome.law for outcome in self if outcome.tried and not outcome.passed]

    @property
    def tried(self) -> int:
        """How many laws say something about the implementation."""
        return sum(outcome.tried for outcome in self)

    @property
    def exit_code(self) -> int:
        """1 if a law is broken, 3 if none could be tried or all cases of one were refused, else 0."""
        if self.broken:
            return 1
        return 0 if self.tried and all(outcome.passed for outcome in self) else 3

    @property
    def summary(self) -> str:
        """How many of the laws hold."""
        line = f"{self.tried - len(self.broken)} of {self.tried} laws hold"
        counts = Counter(outcome.status for outcome in self)
        others = {
            "without a case that you support": counts["refused"],
            "skipped": counts["skipped"],
            "not about your code": counts["not yours"],
        }
        blind = [outcome.unseen for outcome in self if outcome.tried]
        common = [part for part in (blind[0] if blind else ()) if all(part in parts for parts in blind)]
        unseen = ", ".join(common)
        parts = [line, *(f"{count} {what}" for what, count in others.items() if count)]
        return ", ".join([*parts, f"and none of these looks at your {unseen}"] if unseen else parts)

    def told(self, index: int) -> str:
        """An outcome in lines; only its name and the earlier law, where that ended with the same error."""
        outcome = self[index]
        for earlier in self[:index] if outcome.error else ():
            if earlier.error == outcome.error:
                head = f"{MARKS[outcome.status]} at case {outcome.cases:<3d}  {outcome.law}"
                return f"{head}: the same error as in {earlier.law}"
        return str(outcome)

    def __str__(self) -> str:
        return "\n".join([*map(self.told, range(len(self))), self.summary])

    def junit(self, name: str) -> str:
        """The outcomes as JUnit's XML, which servers of continuous integration read: a test case a law."""
        suite = ElementTree.Element("testsuite", name=_printable(name))
        counts = dict(zip(MARKS, ("", "failures", "errors", "errors", "skipped", "skipped"), strict=True))
        for count in ("failures", "errors", "skipped"):
            suite.set(count, str(sum(counts.get(outcome.status) == count for outcome in self)))
        suite.set("tests", str(len(self)))
        suite.set("time", f"{sum(outcome.seconds for outcome in self):.3f}")
        for outcome in self:
            attributes = {"name": outcome.law, "classname": "decomfl.laws", "time": f"{outcome.seconds:.3f}"}
            case = ElementTree.SubElement(suite, "testcase", attributes)
            if outcome.status != "holds":
                kind = {"failures": "failure", "errors": "error", "skipped": "skipped"}[counts[outcome.status]]
                first = outcome.counterexample.split("\n", 1)[0]
                message = outcome.says if outcome.tried else _printable(first)
                element = ElementTree.SubElement(case, kind, message=message)
                element.text = _printable(outcome.counterexample) if outcome.tried else None
        ElementTree.indent(suite)
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """The text without what XML has no form for."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)


def generators() -> dict[str, Any]:
    """The states of the random generators that everybody shares: Python's, and numpy's and torch's where they are."""
    states: dict[str, Any] = {"Python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        _, keys, place, *_ = numpy.random.get_state()
        states["numpy"] = keys.tobytes(), place
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.random.get_rng_state().numpy().tobytes()
    return states


def suite(laws: Iterable[str], check: Callable[[str], Outcome], xfail: Mapping[str, str]) -> Any:
    """Tests for pytest, one a law, each of which is what ``check`` finds of the law of that name.

    Laws of ``xfail`` are known not to hold yet, each with the reason; one that holds then fails its test.
    """
    import pytest

    @pytest.mark.parametrize("law", laws)
    def test_laws(law: str) -> None:
        outcome = check(law)
        if outcome.status in ("skipped", "not yours"):
            pytest.skip(outcome.counterexample)
        if outcome.passed and law in xfail:
            pytest.fail(f"{law} holds now: take it off the xfail list ({xfail[law]})", pytrace=False)
        if not outcome.passed and law in xfail:
            pytest.xfail(f"{xfail[law]}\n{outcome}")
        if not outcome.passed:
            pytest.fail(str(outcome), pytrace=False)

    return test_laws
