"""Run laws on an implementation and count the cases."""

import copy
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, cast

import hypothesis
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import seed as hypothesis_seed
from hypothesis.errors import Flaky, Unsatisfiable, UnsatisfiedAssumption

import decomfl_lab

# Each of these registers its laws, or its faults.
import decomfl_lab.laws.faults.measurement
import decomfl_lab.laws.properties.aggregation
import decomfl_lab.laws.properties.federation
import decomfl_lab.laws.properties.measurement
import decomfl_lab.laws.properties.stream
import decomfl_lab.laws.properties.variants
from decomfl_lab.devices import find_device
from decomfl_lab.errors import InputError, require, require_choice, require_int, require_possible
from decomfl_lab.interrupts import Interrupted, postponed
from decomfl_lab.laws.contract import PARTS, AcrossDevices, Case, Implementation, RefusedError
from decomfl_lab.laws.edge import fitted
from decomfl_lab.laws.faults.federation import AROUND, FAULTS, around, narrow
from decomfl_lab.laws.method import of_method
from decomfl_lab.laws.outcomes import Outcome, Outcomes, Status, suite
from decomfl_lab.laws.register import LAWS, Law, LawBrokenError
from decomfl_lab.laws.strategies import Support
from decomfl_lab.methods.method import Method
from decomfl_lab.plugins import made

_FEW = 25
"""Cases at least that an implementation may refuse before one that it takes, and of a law after one that is broken."""


class _Untried(BaseException):
    """A law is given up: status, None for a bad part, and reason. No Exception, which hypothesis would make smaller."""


class _Watch:
    """An implementation whose own parts are noted as they are used; the lab's stand for those that it refuses to be."""

    def __init__(self, implementation: Implementation, law: Law) -> None:
        self.law, self.implementation = law, implementation
        self.watched = copy.copy(implementation)  # what is used instead of it, by its own parts too
        self.used: set[str] = set()  # the parts that were made by it
        self.refused: set[str] = set()  # the parts that it does not offer
        for part in implementation.offered:
            setattr(self.watched, part, partial(self._make, part, getattr(self.watched, part)))

    def _make(self, part: str, make: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            made = make(*arguments, **named)
        except NotImplementedError:
            if self.law.parts == (part,) and _offers(getattr(self.implementation, part)):
                raise  # it is there, but not for this case
            self.refused.add(part)
            if part in self.law.parts:
                self.check()
            return PARTS[part](self.watched, *arguments, **named)
        if made is None:
            raise _Untried(None, f"{part} of {self.implementation.name} must return what the laws are to use, got None")
        self.used.add(part)
        return made

    def check(self) -> None:
        """Give the law up where it has used no part of the implementation that it is about."""
        if self.used.intersection(self.law.parts or self.used):
            return
        about = self.law.parts
        if names := [part for part in about or PARTS if part in self.refused]:
            raise _Untried("skipped", f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not offered")
        raise _Untried("not yours", f"not about your code{' but about ' if about else ''}{', '.join(about)}")


def check_law(law: Law, implementation: Implementation, *, cases: int, seed: int = 0, shrink: bool = True) -> Outcome:
    """Try ``law`` on up to ``cases`` drawn cases, and shrink the first failure to a small one unless told not to."""
    watch, began = _Watch(implementation, law), time.perf_counter()
    seen, support = fitted(watch.watched), Support(implementation)
    count = refusals = 0
    why, by_supports = "", True  # whether all that were refused were so by ``supports``
    failing: tuple[tuple[object, ...], BaseException] | None = None

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
        nonlocal count, refusals, why, by_supports, failing
        if came:
            raise Interrupted(number=came[0])
        inputs = drawn
        try:
            inputs = tuple(support.fitted(part) if isinstance(part, Case) else part for part in drawn)
            if None in inputs:
                raise RefusedError(f"{implementation.name}.supports refuses every case that was drawn")
            law.check(seen, *inputs)
            watch.check()
        except UnsatisfiedAssumption:
            raise
        except (NotImplementedError, _Untried) as error:
            if failing is not None:  # a case with which hypothesis would make the failure smaller: it is none
                reject()
            if not isinstance(error, NotImplementedError):
                raise
            refusals += 1
            why = f"{str(error) or type(error).__name__}{_place(error)}"
            by_supports = by_supports and isinstance(error, RefusedError)
            if not count and refusals == max(_FEW, cases):
                raise _Untried("refused" if by_supports else "skipped", why) from None
            reject()
        except (Exception, SystemExit) as error:
            failing = inputs, error
            raise
        count += failing is None  # those with which hypothesis makes a failure smaller do not count

    def outcome(status: Status, count: int, why: str = "") -> Outcome:
        if status == "refused" and law.name in implementation.skips:
            status, why = "skipped", f"{why}: {implementation.skips[law.name]}"
        unseen: tuple[str, ...] = ()
        if status in ("holds", "broken", "crashed"):
            unused = implementation.replaced - watch.used - watch.refused
            unseen = tuple(part for part in PARTS if part in unused and _offers(getattr(implementation, part)))
        return Outcome(law.name, law.says, status, count, why, unseen, time.perf_counter() - began, refusals)

    about = implementation.offered.intersection(law.parts or implementation.offered)
    if law.stream and implementation.own and about:
        return outcome("skipped", 0, "compares with the lab's stream and arithmetic, and yours are your own")
    try:
        with postponed() as came:  # an interrupt inside hypothesis, where a hook of the garbage collector loses it
            if not about:
                watch.check()
            run()
    except Unsatisfiable:
        pass
    except _Untried as untried:
        status, why = untried.args
        if status is None:
            raise InputError(why) from None
        return outcome(status, 0, why)
    except (Exception, SystemExit) as error:  # any exception of a foreign implementation breaks the law
        if failing is not None and shrink and not isinstance(error, Flaky):
            failing = _simplified(failing, partial(law.check, seen), support)
        inputs, first = failing or ((), error)
        what = _in_words(first, law, inputs)
        if isinstance(error, Flaky):
            what += "\nbut      when the same case was tried again it passed: something depends on more than the case"
        return outcome("broken" if isinstance(first, LawBrokenError) else "crashed", count + 1, what)
    if count:
        return outcome("holds", count)
    why = why or "it is about no case that was drawn"
    return outcome("refused" if refusals and by_supports else "skipped", 0, why)


def _simplified(
    failing: tuple[tuple[object, ...], BaseException], check: Callable[..., None], support: Support
) -> tuple[tuple[object, ...], BaseException]:
    """The failure whose case has the simplest values that the implementation supports, and is of the same kind."""
    inputs, error = failing
    for n, drawn in enumerate(inputs):

        def fails(case: Case, n: int = n) -> bool:
            nonlocal inputs, error
            changed = (*inputs[:n], case, *inputs[n + 1 :])
            try:
                check(*changed)
            except (Exception, SystemExit, _Untried) as other:
                if type(other) is type(error):
                    inputs, error = changed, other
                    return True
            return False

        if isinstance(drawn, Case):
            support.simplified(drawn, fails)
    return inputs, error


def _offers(part: Any) -> bool:
    """Whether a part does anything but to say that it is not offered, as those of the template do."""
    return getattr(getattr(part, "__code__", None), "co_names", None) != ("NotImplementedError",)


def _place(error: BaseException) -> str:
    """The last line of somebody else's that ran before the error, in brackets; nothing where all are the lab's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not frame.filename.startswith("<") and not _LIBRARIES.intersection(path.parents):
            return f" ({path.name} line {frame.lineno})"
    return ""


_LIBRARIES = {Path(module.__file__ or "").parent for module in (decomfl_lab, hypothesis, np, torch, traceback)}


def _in_words(error: BaseException, law: Law, inputs: Sequence[object]) -> str:
    """What differs first, the case, its history round by round, and what else the law takes, by its name there."""
    if isinstance(error, LawBrokenError):
        lines = [("differs", str(error))]
    else:  # an error that wraps one of the same words is told by the kind of the one inside
        kind = type(error.__cause__ if getattr(error.__cause__, "args", None) == error.args else error).__name__
        lines = [("raised", f"{kind}: {' '.join(str(error).split())}{_place(error)}")]
    # The first parameter of a law is the implementation.
    for name, value in zip(list(signature(law.check).parameters)[1:], inputs, strict=False):
        if isinstance(value, Case):
            values = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "rounds"}
            defaults = {field.name: field.default for field in fields(value)}
            settings = [f"{key} = {setting}" for key, setting in values.items() if setting != defaults[key]]
            lines.append((name, ", ".join(settings)))
            lines += [(f"round {r}", str(round_)) for r, round_ in enumerate(value.rounds)]
        else:
            lines += [(name, str(step)) for step in (value if isinstance(value, list) else [value])]
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
        cases: Random cases a law. Once a law is broken the others get a quarter of them, but 25 at least: an
            implementation that has to be mended comes again, and most of the time went into what holds.
        seed: Seed of the random cases.
        laws: Names of the laws to try, by default all.
        on_law: Called with a law's name before it is tried.
        on_outcome: Called with each outcome as soon as it is there.

    Returns:
        The outcomes, one a law; print them, or read ``broken``.

    Raises:
        InputError: If the implementation is none, a law is unknown, ``cases`` is not positive or ``seed`` is negative.
    """
    _require(implementation, cases, seed)
    outcomes = Outcomes()
    for law in named(laws):
        on_law(law.name)
        enough = min(cases, max(_FEW, cases // 4)) if outcomes.broken else cases
        outcomes.append(check_law(law, implementation, cases=enough, seed=seed))
        on_outcome(outcomes[-1])
    return outcomes


def _require(implementation: Implementation, cases: int, seed: int) -> None:
    """InputError unless these arguments of ``verify`` are in order."""
    sound = isinstance(implementation, Implementation)
    require(sound, "implementation", "be an instance of laws.Implementation", implementation)
    require_possible("cases", require_int("cases", cases, 1), operations=1e7 * cases)
    require_int("seed", seed, 0)
    _require_reasons("skips", implementation.skips)
    if implementation.own:  # else clients and server have two arithmetics
        parts = implementation.replaced
        whole = "client" in parts and bool({"replica", "server"} & parts)
        require(whole, "own", "be of who makes the client, and the replica or the server", sorted(parts))


def _require_reasons(name: str, reasons: Any) -> None:
    """InputError, which calls the argument ``name``, unless ``reasons`` names laws, each with a reason."""
    require(isinstance(reasons, Mapping), name, "be {law: reason, ...}", reasons)
    for law, reason in reasons.items():
        require_choice(f"law of {name}", law, LAWS)
        require(isinstance(reason, str) and bool(reason.strip()), f"{name}[{law!r}]", "be a reason in words", reason)


def named(laws: Iterable[str]) -> list[Law]:
    """The laws of these names, or all; InputError for a name that none has."""
    return [LAWS[require_choice("law", name, LAWS)] for name in laws] or list(LAWS.values())


def planted(
    implementation: Implementation | None = None,
    *,
    cases: int = 6,
    seed: int = 0,
    laws: Iterable[str] = (),
    on_fault: Callable[[str], object] = str,
) -> dict[str, dict[str, Outcome]]:
    """Which laws each planted fault breaks: {fault: {law: outcome}}.

    Some faults are rare, so the law that is meant to catch one is tried on up to 25 times as many cases. Every law is
    left at its first failure. A fault behind a narrow ``supports`` (``faults.narrow``), and one around somebody's own
    parts (``faults.AROUND``), is put to that law alone.

    Args:
        implementation: Around whose own parts faults are put; None for the lab's, which has faults of its own.
        cases: Random cases for a law and a fault.
        seed: Seed of the random cases.
        laws: Names of the laws to try, by default all; faults that are meant for other laws are left out.
        on_fault: Called with a fault's name before it is tried.

    Raises:
        InputError: If a law is unknown, ``cases`` is not positive or ``seed`` is negative.
    """
    _require(Implementation() if implementation is None else implementation, cases, seed)
    tried = {law.name: law for law in named(laws)}
    table: dict[str, dict[str, Outcome]] = {}
    if implementation is None:
        plain, behind = FAULTS, narrow(FAULTS)
    else:
        plain, (behind, _) = {}, around(implementation)
    for name, fault in {**plain, **behind}.items():
        if fault.caught_by not in tried:
            continue
        on_fault(name)
        table[name] = {}
        for law in tried.values():
            meant = law.name == fault.caught_by
            if meant or name not in behind:
                count = 25 * cases if meant else cases
                table[name][law.name] = check_law(law, fault, cases=count, seed=seed, shrink=False)
    return table


def pytest_suite(
    implementation: Implementation, *, cases: int = 100, seed: int = 0, xfail: Mapping[str, str] | None = None
) -> Any:
    """Tests for pytest, one a law.

    In a module of tests, ``test_laws = pytest_suite(Mine())`` is all it takes.
    Laws about parts that are the lab's, or not offered, are skipped; one all of whose cases ``supports`` refuses fails,
    unless the implementation's ``skips`` names it. Needs pytest.

    Args:
        implementation: What is tested.
        cases: Random cases a law.
        seed: Seed of the random cases.
        xfail: Laws that are known not to hold yet, each with the reason. The list is strict: the test of a law that is
            on it, and holds, fails, so that the list tells the truth.

    Raises:
        InputError: If ``cases`` is not positive, ``seed`` is negative, or ``xfail`` names an unknown law or no reason.
    """
    _require(implementation, cases, seed)
    expected = {} if xfail is None else xfail
    _require_reasons("xfail", expected)
    return suite(LAWS, lambda law: check_law(LAWS[law], implementation, cases=cases, seed=seed), expected)


def load_implementation(target: str | None, fault: str | None, device: str | None = None) -> Implementation:
    """The lab's implementation, also across devices, or ``module:function``'s; or one of them with a planted fault.

    A method there is what its server and clients are (``method.of_method``).
    In the lab's own a fault exchanges classes of the lab's; in another implementation it is put around its parts.
    """
    if device is not None:
        require(target is None and fault is None, "device", "be left out where target or plant is given", device)
        return AcrossDevices(find_device(device))
    if target is None:
        return Implementation() if fault is None else FAULTS[require_choice("fault", fault, FAULTS)]
    named_one: Any = made("target", target, Implementation, Method)
    theirs = named_one if isinstance(named_one, Implementation) else of_method(named_one)
    if fault is None:
        return theirs
    spoiled, left_out = around(theirs)
    require_choice("fault", fault, AROUND)
    require(fault not in left_out, "plant", f"be of a part of the target's ({left_out.get(fault)})", fault)
    return cast("Implementation", spoiled[fault])
