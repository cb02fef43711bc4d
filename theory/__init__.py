"""What is proved of DeComFL: bounds, problems whose truth is known, and checks of the one against the other.

    import theory
    from theory.symbols import D, L, R, eta, kappa, m, sigma

    mine = theory.Statement(
        "mine",
        terms={"start": 2 * D / (R * eta), "noise": 2 * L * eta * kappa * sigma**2 / m},
        eta={"descent": 1 / (8 * L * kappa)},
    )
    problem = theory.quadratic(d=10**9, kappa=50, D=2.0, sigma=0.1)
    print(theory.check(mine, problem, m=10, M=100, P=10, R=1000))

``theory.statement("theorem-1")`` is a bound of the paper as corrected, ``theory.statement("theorem-1", "stated")`` as
printed. A name is imported when it is first asked for, so that ``import theory`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from theory import printed, symbols
    from theory.bounds import STATEMENTS, statement
    from theory.checking import Check, check
    from theory.communication import (
        TABLE_1,
        Traffic,
        expected_numbers,
        expected_traffic,
        table1_scalars_decomfl,
        table1_scalars_fedavg,
    )
    from theory.formula import unit_of, value_of, written
    from theory.problems.problem import Logistic, Problem
    from theory.problems.quadratic import Quadratic, expected, quadratic
    from theory.problems.spectrum import Spectrum
    from theory.problems.waves import Waves
    from theory.rounds import rounds_by_bound, rounds_of
    from theory.setting import Setting
    from theory.stability import largest_step
    from theory.statements import Statement, StepSizes
    from theory.units import Unit, UnitError

_HOMES: Final = {
    "bounds": ("STATEMENTS", "statement"),
    "checking": ("Check", "check"),
    "communication": (
        *("TABLE_1", "Traffic", "expected_numbers", "expected_traffic"),
        *("table1_scalars_decomfl", "table1_scalars_fedavg"),
    ),
    "formula": ("unit_of", "value_of", "written"),
    "problems.problem": ("Logistic", "Problem"),
    "problems.quadratic": ("Quadratic", "expected", "quadratic"),
    "problems.spectrum": ("Spectrum",),
    "problems.waves": ("Waves",),
    "rounds": ("rounds_by_bound", "rounds_of"),
    "setting": ("Setting",),
    "stability": ("largest_step",),
    "statements": ("Statement", "StepSizes"),
    "units": ("Unit", "UnitError"),
}
_HOME: Final = {name: home for home, names in _HOMES.items() for name in names}
_MODULES: Final = ("printed", "symbols")

__all__ = [
    "STATEMENTS", "TABLE_1", "Check", "Logistic", "Problem", "Quadratic", "Setting", "Spectrum", "Statement",
    "StepSizes", "Traffic", "Unit", "UnitError", "Waves", "check", "expected", "expected_numbers", "expected_traffic",
    "largest_step", "printed", "quadratic", "rounds_by_bound", "rounds_of", "statement", "symbols",
    "table1_scalars_decomfl", "table1_scalars_fedavg", "unit_of", "value_of", "written",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
