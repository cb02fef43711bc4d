"""PL, convex and strongly convex forms: the truth is known exactly on quadratics, and wrong constants are caught."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sympy import exp

from decomfl_lab.errors import InputError
from tests.theory.bounds.test_default_run import MIXED, planted
from theory import Quadratic, Setting, Spectrum, Waves, check, statement
from theory.notation.symbols import D, Q, R, alpha, eta

# Statement, term, wrong factor, and where it is seen: the one constant that is not 0, then d (flat), P, R, z.
PLANTS: list[tuple[str, str, float, str, int, int, int, str]] = [
    ("pl", "start", 0.99, "D", 1000, 1, 1, "sphere"),
    ("pl", "noise", 0.285, "sigma", 1000, 10, 20_000, "gaussian"),
    ("pl", "dissimilarity", 0.285, "sigma_G", 1000, 10, 20_000, "gaussian"),
    ("pl", "smoothing", 0.28, "mu", 30_000, 100, 20_000, "sphere"),
    ("pl-dimension-free", "start", 0.99, "D", 1000, 1, 1, "gaussian"),
    ("pl-dimension-free", "noise", 0.285, "sigma", 1000, 10, 20_000, "gaussian"),
    ("pl-dimension-free", "dissimilarity", 0.285, "sigma_G", 1000, 10, 20_000, "gaussian"),
    ("pl-dimension-free", "smoothing", 0.05, "mu", 26, 1, 2000, "gaussian"),
    ("strongly-convex", "start", 0.99, "D", 1000, 1, 1, "sphere"),
    ("strongly-convex", "noise", 0.285, "sigma", 1000, 10, 20_000, "gaussian"),
    ("strongly-convex", "dissimilarity", 0.285, "sigma_G", 1000, 10, 20_000, "gaussian"),
    ("strongly-convex", "smoothing", 0.28, "mu", 30_000, 100, 20_000, "sphere"),
    ("convex", "start", 0.285, "D", 1000, 1, 100_000, "sphere"),
    ("convex", "noise", 0.142, "sigma", 1000, 100, 100_000, "sphere"),
    ("convex", "dissimilarity", 0.142, "sigma_G", 1000, 100, 100_000, "sphere"),
    ("convex", "smoothing", 0.14, "mu", 30_000, 10_000, 100_000, "sphere"),
]


def _alone(constant: str, d: int, P: int, R_: int, z: str, name: str) -> tuple[Quadratic, Setting]:
    """A flat quadratic on which one constant alone is not 0, at the largest η."""
    found = Quadratic.of(Spectrum.flat(d), **{each: float(each == constant) for each in ("D", "sigma", "sigma_G")})
    setting = found.setting(m=1, M=4, P=P, R=R_, mu=float(constant == "mu"), distribution=z)
    return found, setting.at(statement(name).step_sizes(setting).largest)


@pytest.mark.parametrize(("name", "term", "factor", "alone", "d", "P", "R_", "z"), PLANTS)
def test_planted_wrong_constants_are_caught(
    name: str, term: str, factor: float, alone: str, d: int, P: int, R_: int, z: str
) -> None:
    quadratic, setting = _alone(alone, d, P, R_, z, name)
    assert check(statement(name), quadratic, setting).holds
    assert check(planted(statement(name), term, factor), quadratic, setting).holds is False


@pytest.mark.parametrize(("name", "distance"), [("pl", D), ("pl-dimension-free", D), ("strongly-convex", Q)])
def test_a_rate_above_seven_quarters_of_the_proved_one_is_caught(name: str, distance: object) -> None:
    # On the sphere with H = L I a step multiplies by 1 − ηL(2 − ηLρ), and ηLρ = 1/4.
    quadratic, setting = _alone("D", 1000, 1, 100_000, "sphere", "pl")
    for share, holds in ((1.7, True), (1.8, False)):
        faster = replace(statement(name), terms={"start": exp(-share * alpha * eta * R) * distance})  # type: ignore[operator]
        assert check(faster, quadratic, setting).holds is holds


def test_an_alpha_above_the_problems_is_refused() -> None:
    setting = MIXED.setting(eta=1e-4, m=2, M=4, R=3)
    with pytest.raises(InputError, match=r"^alpha must be at most its 0\.3, got 0\.5"):
        check(statement("pl"), MIXED, replace(setting, alpha=0.5))
    with pytest.raises(InputError, match="^alpha must be above 0 and at most L = 2, got 3"):
        replace(setting, alpha=3.0)
    waves = Waves.random(waves=2, n=2, seed=0)
    for constant in ({"alpha": 0.01}, {"Q": 1.0}):
        with pytest.raises(
            InputError, match=f"^{next(iter(constant))} must be left out where the problem does not say"
        ):
            check(statement("pl"), waves, waves.setting(eta=1e-6, **constant), source="simulation")
    with pytest.raises(InputError, match="^alpha must be given"):
        statement("pl").bound(replace(setting, alpha=None))


def test_the_dimension_free_last_iterate_is_the_same_in_a_billion_dimensions() -> None:
    def both(d: int) -> tuple[float, float]:
        quadratic = Quadratic.of(Spectrum.confined(d, 10), sigma=1.0)
        found = check(statement("pl-dimension-free"), quadratic, m=1, M=4, P=5, R=500)
        return found.measured, found.bound

    assert both(10**9) == pytest.approx(both(10**3), rel=1e-9)
