"""Run laws on an implementation and count the cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import seed as hypothesis_seed

from decomfl_lab.devices import find_device
from decomfl_lab.errors import InputError, require, require_choice, require_int
from decomfl_lab.laws.contract import AcrossDevices, Case, Implementation
from decomfl_lab.laws.faults import FAULTS
from decomfl_lab.laws.laws import LAWS, Law
from decomfl_lab.plugins import made

__all__ = ["Verdict", "check_law", "load_implementation", "verify"]


@dataclass(frozen=True)
class Verdict:
    """What became of one law: how many cases were tried, whether all passed, and the smallest that did not."""

    law: str
    says: str
    cases: int
    passed: bool
    counterexample: str = ""


def check_law(law: Law, implementation: Implementation, *, cases: int, seed: int = 0, shrink: bool = True) -> Verdict:
    """Try ``law`` on up to ``cases`` drawn cases, and shrink the first failure to a small one unless told not to."""
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
    def run(inputs: tuple[object, ...]) -> None:
        nonlocal count, failing
        assume(all(implementation.supports(part) for part in inputs if isinstance(part, Case)))
        count += 1
        failing = inputs
        law.check(implementation, *inputs)

    try:
        run()
    except Exception as error:  # any exception of a foreign implementation breaks the law
        message = f"{type(error).__name__}: {error}"
        return Verdict(law.name, law.says, count, False, f"{message} for {failing}")
    return Verdict(law.name, law.says, count, True)


def verify(
    implementation: Implementation,
    *,
    cases: int,
    seed: int = 0,
    laws: tuple[str, ...] = (),
    on_law: Callable[[str], None] | None = None,
) -> Iterator[Verdict]:
    """Verdicts of the named laws (default: all), one after another.

    Raises:
        InputError: If a law is unknown or ``cases`` is not positive.
    """
    require_int("cases", cases, 1)
    for name in laws:
        require_choice("law", name, LAWS)
    for name in laws or tuple(LAWS):
        if on_law is not None:
            on_law(name)
        yield check_law(LAWS[name], implementation, cases=cases, seed=seed)


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
