"""Left sides: what a statement bounds, exactly where a closed form is known, else along simulated runs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from decomfl_lab.errors import InputError
from theory.notation.setting import Setting
from theory.notation.units import F, Unit, X
from theory.problems.problem import Bowl, Floats, Problem
from theory.problems.quadratic import Quadratic, Trajectory, expected, local_steps, remainder, signs, spread
from theory.problems.waves import Waves
from theory.statements.algorithms import Step, decomfl

Path = Callable[[Any, Floats], Floats]
"""A function of the problem and of x_0..x_R, shape (R + 1, runs, n), to a number a run, shape (runs,)."""


@dataclass(frozen=True)
class MeasuredSide:
    """A left side, and the symbols of its point that the right side uses."""

    value: float  # the left side
    # a = ‖∇f(x_0)‖ and delta, the root mean square distance from x_0.
    point: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Left:
    """What a statement bounds.

    One of your own needs its unit and a function of simulated runs:

        smallest = Left("E min_r ‖∇f(x_r)‖²", (F / X)**2, lambda f, x: (f.gradient(x[:-1]) ** 2).sum(-1).min(0))

    Attributes:
        text: How it is written.
        unit: Its unit.
        path: What it is the expectation of: a function of the problem and of x_0..x_R, shape (R + 1, runs, n), to one
            number a run, shape (runs,); None where no simulated run has it.
        expected: Function of a quadratic's ``Trajectory`` that gives it exactly; None where there is none.
        closed: Exact forms by class of problems, functions of the problem and a setting; of lemmas at x_0, of those on
            local steps at the K-th of client 0.
        step: The local step that it is of alone, and its exact forms; where that is not DeComFL's, η may be left out.
    """

    text: str
    unit: Unit
    path: Path | None = None
    expected: Callable[[Trajectory], float] | None = None
    closed: Mapping[type, Callable[[Any, Setting], MeasuredSide]] = field(default_factory=dict)
    step: Step = decomfl

    def __str__(self) -> str:
        return self.text

    def is_exact(self, problem: Problem | Quadratic) -> bool:
        """Whether there is a closed form for it on this problem."""
        kind = Quadratic if isinstance(problem, Bowl) else type(problem)
        return kind in self.closed or (kind is Quadratic and self.expected is not None)

    def exact(self, problem: Problem | Quadratic, setting: Setting) -> MeasuredSide:
        """Its value on this problem, under DeComFL; InputError if there is no closed form for it."""
        if not self.is_exact(problem):
            raise InputError(f"source must be simulation or run for {self} on {type(problem).__name__}, got 'exact'")
        if isinstance(problem, Bowl):
            problem = problem.quadratic
        if self.expected is not None:
            assert isinstance(problem, Quadratic)
            return MeasuredSide(self.expected(expected(problem, setting)))
        return self.closed[type(problem)](problem, setting)


def average(problem: Problem, x: Floats) -> Floats:
    """(1/R) Σ_{r<R} ‖∇f(x_r)‖², shape (runs,)."""
    mean: Floats = np.mean([(problem.gradient(each) ** 2).sum(-1) for each in x[:-1]], axis=0)
    return mean


def _losses(problem: Any, x: Floats) -> Floats:
    """f(x_r) − f*, shape (R + 1, runs)."""
    gaps: Floats = _known(problem, "value")(x) - _known(problem, "least")
    return gaps


def _known(problem: Any, name: str) -> Any:
    """What some problems know besides the members of ``Problem``."""
    if not hasattr(problem, name):
        raise InputError(f"problem must have {name} for this left side, got {type(problem).__name__} without")
    return getattr(problem, name)


AVERAGE: Final = Left("(1/R) Σ_r E‖∇f(x_r)‖²", (F / X) ** 2, average, lambda run: run.average)
"""The squared norm of the gradient, a mean over rounds, which is the paper's left side."""
LAST_GRADIENT: Final = Left(
    "E‖∇f(x_R)‖²",
    (F / X) ** 2,
    lambda f, x: (f.gradient(x[-1]) ** 2).sum(-1),
    lambda run: float(run.gradient2[-1]),
)
"""The squared norm of the gradient after the last round."""
AVERAGE_LOSS: Final = Left(
    "(1/R) Σ_r E f(x_r) − f*", F, lambda f, x: _losses(f, x[:-1]).mean(0), lambda run: float(run.f[:-1].mean())
)
"""Its problem must have ``value(x)`` and ``least``, which is f*."""
LAST_LOSS: Final = Left("E f(x_R) − f*", F, lambda f, x: _losses(f, x[-1]), lambda run: float(run.f[-1]))
"""Its problem must have ``value(x)`` and ``least``, which is f*."""
LAST_DISTANCE: Final = Left(
    "E‖x_R − x*‖²", X**2, lambda f, x: _known(f, "distance2")(x[-1]), lambda run: float(run.distance2[-1])
)
"""x* is the nearest minimiser; its problem must have ``distance2(x)``."""


def _gradient(quadratic: Quadratic) -> Floats:
    """∇f(x_0)∇f(x_0)ᵀ by groups."""
    return np.array(quadratic.start) * quadratic.spectrum.eigenvalues**2


def _second_moment(quadratic: Quadratic, setting: Setting) -> MeasuredSide:
    """E‖g z‖² at x_0 along one direction: that of Zv for v = ∇f(x_0), and that of what differences add."""
    single = replace(setting, P=1)
    gradient = _gradient(quadratic)
    value = spread(quadratic, single, gradient).sum() + remainder(quadratic, single).sum()
    return MeasuredSide(float(value), {"a": math.sqrt(gradient.sum())})


def _local_second_moment(quadratic: Quadratic, setting: Setting) -> MeasuredSide:
    """E‖G‖² at the K-th local step of client 0."""
    last = local_steps(quadratic, setting)[-1]
    sampled = last.gradients + np.array(quadratic.noise)
    value = spread(quadratic, setting, sampled).sum() + remainder(quadratic, setting).sum()
    point = {"a": math.sqrt(quadratic.gradient2), "delta": math.sqrt(last.distance2)}
    return MeasuredSide(float(value), point)


def _variance(quadratic: Quadratic, setting: Setting) -> MeasuredSide:
    whole = _local_second_moment(quadratic, setting)
    mean = float(local_steps(quadratic, setting)[-1].gradients.sum())  # ∇f_i^μ = ∇f_i
    variance = whole.value - mean
    return MeasuredSide(variance if variance > 1e-14 * mean else 0.0, whole.point)


def _weighted(quadratic: Quadratic, setting: Setting) -> MeasuredSide:
    """⟨H, E Z V Z⟩ with V the second moment, by groups, of the sampled clients' mean stochastic gradient at x_0."""
    gradient = _gradient(quadratic)
    dissimilarity = setting.phi * quadratic.covariance(setting.clients)
    V = gradient + (dissimilarity + np.array(quadratic.noise)) / setting.m
    value = quadratic.spectrum.eigenvalues @ spread(quadratic, setting, V)
    return MeasuredSide(float(value), {"a": math.sqrt(gradient.sum())})


def _waves_a(waves: Waves) -> dict[str, float]:
    """The symbol a of the point x_0."""
    return {"a": float(np.linalg.norm(waves.gradient(waves.start)))}


def _waves_estimate(waves: Waves, setting: Setting) -> tuple[float, Floats]:
    """E‖G‖² and E G of client 0 at x_0; its P directions share the data sample."""
    if setting.K > 1:
        raise InputError(f"K must be 1 for a closed form on waves, got {setting.K}")
    x, mu, distribution, P = waves.start, setting.mu, setting.distribution, setting.P
    client = waves.a + signs(waves.M)[0] * waves.b  # its amplitudes, (J,), to which the data sample adds ±s
    square = 0.0
    for amplitudes in (client + waves.s, client - waves.s):
        mean = waves.mean_estimate(x, mu, distribution, amplitudes)
        single = waves.second_moment(x, mu, distribution, amplitudes, central=setting.central)
        square += 0.5 * (single / P + (1 - 1 / P) * float(mean @ mean))
    return square, waves.mean_estimate(x, mu, distribution, client)


def _waves_variance(waves: Waves, setting: Setting) -> MeasuredSide:
    square, mean = _waves_estimate(waves, setting)
    return MeasuredSide(square - float(mean @ mean), {**_waves_a(waves), "delta": 0.0})


SMOOTHED_VALUE: Final = Left("|f^μ(x) − f(x)|", F, closed={
    Quadratic: lambda quadratic, setting: MeasuredSide(0.5 * setting.mu**2 * quadratic.spectrum.trace),
    Waves: lambda waves, setting: MeasuredSide(
        abs(waves.smoothed(waves.start, setting.mu, setting.distribution) - float(waves.value(waves.start)))
    ),
})  # fmt: skip
SMOOTHED_GRADIENT: Final = Left("‖∇f^μ(x) − ∇f(x)‖", F / X, closed={
    Quadratic: lambda _, __: MeasuredSide(0.0),
    Waves: lambda waves, setting: MeasuredSide(float(np.linalg.norm(
        waves.mean_estimate(waves.start, setting.mu, setting.distribution) - waves.gradient(waves.start)
    ))),
})  # fmt: skip
SECOND_MOMENT: Final = Left("E‖g z‖², g = (f(x + μz) − f(x))/μ", (F / X) ** 2, closed={
    Quadratic: _second_moment,
    Waves: lambda waves, setting: MeasuredSide(
        waves.second_moment(waves.start, setting.mu, setting.distribution, central=setting.central), _waves_a(waves)
    ),
})  # fmt: skip
VARIANCE: Final = Left("E_r‖G_{i,r}^k − ∇f_i^μ(x_{i,r}^k)‖²", (F / X) ** 2, closed={
    Quadratic: _variance, Waves: _waves_variance,
})  # fmt: skip
LOCAL_SECOND_MOMENT: Final = Left("E_r‖G_{i,r}^k‖²", (F / X) ** 2, closed={
    Quadratic: _local_second_moment,
    Waves: lambda waves, setting: MeasuredSide(
        _waves_estimate(waves, setting)[0], {**_waves_a(waves), "delta": 0.0}
    ),
})  # fmt: skip
DRIFT: Final = Left("χ_r = (1/M) Σ_i Σ_k E_r‖x_{i,r}^k − x_r‖²", X**2, closed={
    Quadratic: lambda quadratic, setting: MeasuredSide(
        math.fsum(step.distance2 for step in local_steps(quadratic, setting, client=None)),
        {"a": math.sqrt(quadratic.gradient2)},
    ),
})  # fmt: skip
REMAINDER: Final = Left("E‖ε_r‖²", (F / X) ** 2, closed={
    Quadratic: lambda quadratic, setting: MeasuredSide(float(remainder(quadratic, setting).sum())),
})  # fmt: skip
WEIGHTED: Final = Left("⟨H, E ∇̄f ∇̄fᵀ⟩", F / X**2 * (F / X) ** 2, closed={Quadratic: _weighted})
