"""PL, convex and strongly convex forms: the truth is known exactly on quadratics, and wrong constants are caught."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sympy import exp

from tests.theory.checks.test_checking import alone
from theory import Quadratic, Spectrum, check, statement
from theory.notation.symbols import D, Q, R, alpha, eta


@pytest.mark.parametrize(("name", "distance"), [("pl", D), ("pl-dimension-free", D), ("strongly-convex", Q)])
def test_a_rate_above_seven_quarters_of_the_proved_one_is_caught(name: str, distance: object) -> None:
    # On the sphere with H = L I a step multiplies by 1 − ηL(2 − ηLρ), and ηLρ = 1/4.
    quadratic, setting = alone("D", 1000, R=100_000, distribution="sphere")
    setting = setting.at(statement("pl").step_sizes(setting).largest)
    for share, holds in ((1.7, True), (1.8, False)):
        faster = replace(statement(name), terms={"start": exp(-share * alpha * eta * R) * distance})  # type: ignore[operator]
        assert check(faster, quadratic, setting).holds is holds


def test_the_dimension_free_last_iterate_is_the_same_in_a_billion_dimensions() -> None:
    def both(d: int) -> tuple[float, float]:
        quadratic = Quadratic.of(Spectrum.confined(d, 10), sigma=1.0)
        found = check(statement("pl-dimension-free"), quadratic, m=1, M=4, P=5, R=500)
        return found.measured, found.bound

    assert both(10**9) == pytest.approx(both(10**3), rel=1e-9)
