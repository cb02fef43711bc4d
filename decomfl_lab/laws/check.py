"""Run laws on an implementation and count the cases."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any, Literal

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis.errors import Unsatisfiable, UnsatisfiedAssumption

from decomfl_lab.devices import find_device
from decomfl_lab.errors import InputError, require, require_choice, require_int
from decomfl_lab.interrupts import Interrupted, postponed

# Each of these registers its laws.
from decomfl_lab.laws import aggregation, federation, machine, stream, variants  # noqa: F401
from decomfl_lab.laws.contract import AcrossDevices, Case, Implementation, supported
from decomfl_lab.laws.faults import FAULTS
from decomfl_lab.laws.register import LAWS, Law, LawBrokenError
from decomfl_lab.plugins import made

__all__ = ["Outcome", "Outcomes", "check_law", "load_implementation", "planted", "pytest_suite", "verify"]

Status = Literal["holds", "broken", "crashed", "not tried"]


@dataclass(frozen=True)
class Outcome:
    """What became of one law.

    Attributes:
        law: Name of the law.
        says: What it says, in a line.
        status: "holds"; "broken", by values that disagree; "crashed", by another exception, which breaks it too; or
            "not tried", where the implementation has nothing of its own that the law is about.
        cases: How many cases were tried.
        counterexample: What differs in the smallest case that failed, the case and its history, in lines; or why none
            was tried.
    """

    law: str
    says: str
    status: Status
    cases: int
    counterexample: str = ""

    @property
    def passed(self) -> bool:
        """Whether no case failed."""
        return self.status in ("holds", "not tried")

    def __str__(self) -> str:
        mark = {"holds": "ok    ", "broken": "BROKEN", "crashed": "BROKEN", "not tried": "-     "}[self.status]
        line = f"{mark} {self.cases:5d} cases  {self.law}: {self.says}"
        return f"{line}\n{textwrap.indent(self.counterexample, ' ' * 7)}" if self.counterexample else line


class Outcomes(list[Outcome]):
    """Outcomes of several laws; ``str`` has a line for each and a last one that counts."""

    @property
    def broken(self) -> list[str]:
        """The names of the laws that do not hold."""
        return [outcome.law for outcome in self if not outcome.passed]

    @property
    def summary(self) -> str:
        """How many of the laws hold."""
        tried = sum(outcome.status != "not tried" for outcome in self)
        line = f"{tried - len(self.broken)} of {tried} laws hold"
        return line if tried == len(self) else f"{line}, {len(self) - tried} not tried"

    def __str__(self) -> str:
        return "\n".join([*map(str, self), self.summary])


def check_law(law: Law, implementation: Implementation, *, cases: int, seed: int = 0, shrink: bool = True) -> Outcome:
    """Try ``law`` on up to ``cases`` drawn cases, and shrink the first failure to a small one unless told not to."""
    if not any(map(implementation.offers, law.parts)):
        return Outcome(law.name, law.says, "not tried", 0, f"{implementation.name} has no {' or '.join(law.parts)}")
    count = 0
    failing: tuple[object, ...] = ()

    @hypothesis_seed(seed)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
    )
    @given(law.inputs)
    def run(drawn: tuple[object, ...]) -> None:
        nonlocal count, failing
        inputs = tuple(supported(implementation, part) if isinstance(part, Case) else part for part in drawn)
        assume(None not in inputs)
        if came:
            raise Interrupted(number=came[0])
        try:
            law.check(implementation, *inputs)
        except UnsatisfiedAssumption:
            raise
        except Exception:
            failing = inputs
            raise
        count += 1

    try:
        with postponed() as came:  # an interrupt inside hypothesis, where a hook of the garbage collector loses it
            run()
    except Unsatisfiable:
        pass
    except Exception as error:  # any exception of a foreign implementation breaks the law
        status: Status = "broken" if isinstance(error, LawBrokenError) else "crashed"
        return Outcome(law.name, law.says, status, count + 1, _told(error, law, failing))
    if not count:
        return Outcome(law.name, law.says, "not tried", 0, f"{implementation.name} supports no case of it")
    return Outcome(law.name, law.says, "holds", count)


def _told(error: Exception, law: Law, inputs: Sequence[object]) -> str:
    """What differs first, the case, its history round by round, and what else the law takes, by its name there."""
    broken = isinstance(error, LawBrokenError)
    lines = [("differs", str(error) if broken else f"{type(error).__name__}: {error}")]
    for name, each in zip(list(signature(law.check).parameters)[1:], inputs, strict=False):
        if isinstance(each, Case):
            named = (f"{own.name} = {getattr(each, own.name)}" for own in fields(each) if own.name != "rounds")
            lines += [(name, ", ".join(named)), *((f"round {r}", str(own)) for r, own in enumerate(each.rounds))]
        else:
            lines += [(name, str(step)) for step in (each if isinstance(each, list) else [each])]
    blank = " " * 9
    return "\n".join(textwrap.fill(f"{head:<8} {text}", 110, subsequent_indent=blank) for head, text in lines)


def verify(
    implementation: Implementation,
    *,
    cases: int = 100,
    seed: int = 0,
    laws: Iterable[str] = (),
    on_law: Callable[[str], object] = str,
    on_outcome: Callable[[Outcome], object] = str,
) -> Outcomes:
    """Put an implementation to the laws.

    Args:
        implementation: What is tested.
        cases: Random cases a law.
        seed: Seed of the random cases.
        laws: Names of the laws to try, by default all.
        on_law: Called with a law's name before it is tried.
        on_outcome: Called with each outcome as soon as it is there.

    Returns:
        The outcomes, one a law; print them, or read ``broken``.

    Raises:
        InputError: If a law is unknown or ``cases`` is not positive.
    """
    require_int("cases", cases, 1)
    outcomes = Outcomes()
    for law in _named(laws):
        on_law(law.name)
        outcomes.append(check_law(law, implementation, cases=cases, seed=seed))
        on_outcome(outcomes[-1])
    return outcomes


def _named(laws: Iterable[str]) -> list[Law]:
    return [LAWS[require_choice("law", name, LAWS)] for name in laws] or list(LAWS.values())


def planted(
    *,
    cases: int = 6,
    seed: int = 0,
    laws: Iterable[str] = (),
    on_fault: Callable[[str], object] = str,
) -> dict[str, dict[str, Outcome]]:
    """Which laws each planted fault breaks: {fault: {law: outcome}}.

    Some faults are rare, so the law that is meant to catch one is tried on up to 25 times as many cases. Every law is
    left at its first failure.

    Args:
        cases: Random cases for a law and a fault.
        seed: Seed of the random cases.
        laws: Names of the laws to try, by default all; faults that are meant for other laws are left out.
        on_fault: Called with a fault's name before it is tried.

    Raises:
        InputError: If a law is unknown or ``cases`` is not positive.
    """
    require_int("cases", cases, 1)
    tried = {law.name: law for law in _named(laws)}
    table: dict[str, dict[str, Outcome]] = {}
    for name, fault in FAULTS.items():
        if fault.caught_by in tried:
            on_fault(name)
            table[name] = {
                law.name: check_law(
                    law, fault, cases=cases * (25 if law.name == fault.caught_by else 1), seed=seed, shrink=False
                )
                for law in tried.values()
            }
    return table


def pytest_suite(implementation: Implementation, *, cases: int = 100, seed: int = 0) -> Any:
    """Tests for pytest, one a law.

    In a module of tests, ``test_laws = pytest_suite(Mine())`` is all it takes.
    Laws that there is nothing to try on are skipped. Needs pytest.

    Args:
        implementation: What is tested.
        cases: Random cases a law.
        seed: Seed of the random cases.
    """
    import pytest

    @pytest.mark.parametrize("law", LAWS)
    def test_laws(law: str) -> None:
        outcome = check_law(LAWS[law], implementation, cases=cases, seed=seed)
        if outcome.status == "not tried":
            pytest.skip(outcome.counterexample)
        if not outcome.passed:
            pytest.fail(str(outcome), pytrace=False)

    return test_laws


def load_implementation(target: str | None, fault: str | None, device: str | None = None) -> Implementation:
    """The lab's implementation, also across devices, or ``module:function``'s, or the lab's with a planted fault.

    A fault exchanges classes of the lab's own, so in another implementation it would test these and not what is there.
    """
    if target is not None and fault is not None:
        raise InputError(
            "target and plant must not both be given, for a fault is planted in the lab's own implementation, got "
            f"{target!r} and {fault!r}"
        )
    if device is not None:
        require(target is None and fault is None, "device", "be left out where target or plant is given", device)
        return AcrossDevices(find_device(device))
    if fault is not None:
        return FAULTS[require_choice("fault", fault, FAULTS)]
    if target is None:
        return Implementation()
    return made("target", target, Implementation)
