"""Probes: constants that a problem of one's own understates are found, and those of the lab's problems stand."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import theory
from decomfl_lab.errors import InputError
from tests.theory.checks.test_verdict import MIXED
from theory import Problem, Quadratic, Spectrum, Waves, statement
from theory.problems.problem import Bowl, Floats, Integers

OURS = [
    Bowl(MIXED, 4),
    Waves.random(waves=3, n=2, M=4, seed=4),
    Waves.random(waves=2, n=3, noise=3.0, seed=1),
]


@dataclass(frozen=True)
class Own:
    """A problem of one's own: another's losses, with claims and members that may be wrong."""

    inner: Any
    claims: dict[str, float | None]
    wrong: dict[str, Callable[..., Any]]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.wrong.get(name, getattr(self.inner, name))

    def setting(self, **run: Any) -> theory.Setting:
        return replace(self.inner.setting(**run), **self.claims)  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", OURS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("seed", range(3))
def test_the_labs_own_problems_keep_their_constants(problem: Problem, seed: int) -> None:
    theory.probe(problem, seed=seed)


@pytest.mark.parametrize(
    ("problem", "name", "share", "what"),
    [
        (OURS[0], "L", 0.99, r"‖∇f_i\(x; ξ\) − ∇f_i\(y; ξ\)‖/‖x − y‖ at x = \(.*\), y = \(.*\), client"),
        (OURS[0], "sigma", 0.9, r"√E‖∇f_i\(x; ξ\) − ∇f_i\(x\)‖² at x = .*client"),
        (OURS[0], "sigma_G", 0.9, r"√\(\(1/M\) Σ_i"),
        (OURS[0], "D", 0.99, r"f\(x_0\) − f\(x\) at x_0"),
        (OURS[0], "kappa", 0.99, "the sum of the positive eigenvalues"),
        (OURS[1], "G", 0.1, r"‖∇f_i\(x; ξ\)‖ at x"),
        (OURS[2], "L", 0.2, r"‖∇f_i\(x; ξ\)"),
    ],
)
def test_a_constant_that_is_too_small_is_found_with_the_points(
    problem: Any, name: str, share: float, what: str
) -> None:
    claims = {name: share * getattr(problem.setting(), name), "alpha": None}
    with pytest.raises(InputError, match=f"^{name} must be at least .*, which is {what}"):
        theory.probe(Own(problem, claims, {}))


def doubled(x: Floats, clients: Integers, xi: Floats) -> Floats:
    return 2 * OURS[0].sampled_gradient(x, clients, xi)


@pytest.mark.parametrize(
    ("name", "member"),
    [("sampled_gradient", doubled), ("gradient", lambda x: OURS[0].gradient(x) + 0.1)],  # type: ignore[attr-defined]
)
def test_a_gradient_that_is_not_that_of_the_loss_is_found(name: str, member: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=f"^{name} must be the (gradient|mean)"):
        theory.probe(Own(OURS[0], {"L": 9.0, "sigma": 9.0, "sigma_G": 9.0, "D": 9.0}, {name: member}))


def test_a_proved_theorem_is_not_blamed_for_a_problem_that_understates_its_smoothness() -> None:
    steep = Own(Bowl(Quadratic.of(Spectrum.flat(4, L=20.0)), 2), {"L": 1.0, "alpha": 1.0}, {})
    with pytest.raises(InputError, match="^L must be at least 20, which is"):
        theory.check(statement("theorem-1"), steep, m=1, R=10, mu=0.0, source="simulation", runs=50)
    told = Own(steep.inner, {}, {})
    assert theory.check(statement("theorem-1"), told, m=1, R=10, source="simulation", runs=50).holds
