"""What the statements bound, computed exactly where that is possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from decomfl_lab.errors import InputError, require
from theory.problems.problem import Bowl, Floats, Problem
from theory.problems.quadratic import Quadratic, expected, local_steps, remainder, signs, spread
from theory.problems.waves import Waves
from theory.setting import Setting

__all__ = ["AVERAGES", "Measured", "exact"]

AVERAGES: Final = (
    "theorem-1", "theorem-1-single", "corollary-1", "theorem-2", "theorem-2-dimension-free", "theorem-2-gaussian",
    "momentum", "default-run", "momentum-dimension-free", "momentum-local", "default-run-local", "theorem-2-local",
)  # fmt: skip
"""Statements on (1/R) Σ_r E‖∇f(x_r)‖²."""


@dataclass(frozen=True)
class Measured:
    """A left side, and the symbols of its point that the right side uses.

    Attributes:
        value: The left side.
        point: a = ‖∇f(x_0)‖ and delta, the root mean square distance from x_0.
    """

    value: float
    point: Mapping[str, float] = field(default_factory=dict)


def exact(name: str, problem: Problem | Quadratic, setting: Setting) -> Measured:
    """The left side of a statement on this problem: of lemmas at x_0, of those on local steps at the K-th of client 0.

    Raises:
        InputError: If there is no closed form for it.
    """
    left: Callable[..., Measured] | None = None
    if isinstance(problem, Bowl):
        problem = problem.quadratic
    if isinstance(problem, Quadratic):
        left = _QUADRATIC.get(name)
    elif isinstance(problem, Waves):
        left = _WAVES.get(name)
    if left is None:
        raise InputError(f"source must be simulation or run for {name} on {type(problem).__name__}, got 'exact'")
    return left(problem, setting)


def _average(quadratic: Quadratic, setting: Setting) -> Measured:
    return Measured(expected(quadratic, setting).average)


def _last(quadratic: Quadratic, setting: Setting) -> Measured:
    return Measured(float(expected(quadratic, setting).f[-1]))


def _values(quadratic: Quadratic, setting: Setting) -> Measured:
    return Measured(float(expected(quadratic, setting).f[:-1].mean()))


def _distance(quadratic: Quadratic, setting: Setting) -> Measured:
    require(quadratic.spectrum.lambda_min > 0, "spectrum", "have no eigenvalue 0 where f is strongly convex", 0.0)
    return Measured(float(expected(quadratic, setting).distance2[-1]))


def _gradient(quadratic: Quadratic) -> Floats:
    """∇f(x_0)∇f(x_0)ᵀ by groups."""
    return np.array(quadratic.start) * quadratic.spectrum.eigenvalues**2


def _second_moment(quadratic: Quadratic, setting: Setting) -> Measured:
    single = replace(setting, P=1)
    gradient = _gradient(quadratic)
    value = spread(quadratic, single, gradient).sum() + remainder(quadratic, single).sum()
    return Measured(float(value), {"a": math.sqrt(gradient.sum())})


def _local_second_moment(quadratic: Quadratic, setting: Setting) -> Measured:
    last = local_steps(quadratic, setting)[-1]
    sampled = last.gradients + np.array(quadratic.noise)
    value = spread(quadratic, setting, sampled).sum() + remainder(quadratic, setting).sum()
    point = {"a": math.sqrt(quadratic.gradient2), "delta": math.sqrt(last.distance2)}
    return Measured(float(value), point)


def _variance(quadratic: Quadratic, setting: Setting) -> Measured:
    whole = _local_second_moment(quadratic, setting)
    mean = float(local_steps(quadratic, setting)[-1].gradients.sum())  # ∇f_i^μ = ∇f_i
    variance = whole.value - mean
    return Measured(variance if variance > 1e-14 * mean else 0.0, whole.point)


def _drift(quadratic: Quadratic, setting: Setting) -> Measured:
    chi = math.fsum(step.distance2 for step in local_steps(quadratic, setting, client=None))
    return Measured(chi, {"a": math.sqrt(quadratic.gradient2)})


def _weighted(quadratic: Quadratic, setting: Setting) -> Measured:
    gradient = _gradient(quadratic)
    dissimilarity = setting.phi * quadratic.covariance(setting.clients)
    V = gradient + (dissimilarity + np.array(quadratic.noise)) / setting.m
    value = quadratic.spectrum.eigenvalues @ spread(quadratic, setting, V)
    return Measured(float(value), {"a": math.sqrt(gradient.sum())})


_QUADRATIC: Final[Mapping[str, Callable[[Quadratic, Setting], Measured]]] = {
    **dict.fromkeys(AVERAGES, _average),
    "smoothed-value": lambda quadratic, setting: Measured(0.5 * setting.mu**2 * quadratic.spectrum.trace),
    **dict.fromkeys(("smoothed-gradient", "central-bias"), lambda _, __: Measured(0.0)),
    "second-moment": _second_moment,
    "variance": _variance,
    **dict.fromkeys(("local-second-moment", "central-second-moment"), _local_second_moment),
    **dict.fromkeys(("pl", "pl-dimension-free"), _last),
    "convex": _values,
    "strongly-convex": _distance,
    "local-drift": _drift,
    "remainder": lambda quadratic, setting: Measured(float(remainder(quadratic, setting).sum())),
    "weighted-second-moment": _weighted,
}


def _waves_value(waves: Waves, setting: Setting) -> Measured:
    smoothed = waves.smoothed(waves.start, setting.mu, setting.distribution)
    return Measured(abs(smoothed - float(waves.value(waves.start))))


def _waves_gradient(waves: Waves, setting: Setting) -> Measured:
    mean = waves.mean_estimate(waves.start, setting.mu, setting.distribution)
    return Measured(float(np.linalg.norm(mean - waves.gradient(waves.start))))


def _waves_a(waves: Waves) -> dict[str, float]:
    return {"a": float(np.linalg.norm(waves.gradient(waves.start)))}


def _waves_second_moment(waves: Waves, setting: Setting) -> Measured:
    return Measured(
        waves.second_moment(waves.start, setting.mu, setting.distribution, central=setting.central), _waves_a(waves)
    )


def _waves_estimate(waves: Waves, setting: Setting) -> tuple[float, Floats]:
    """E‖G‖² and E G of client 0 at x_0; its P directions share the data sample."""
    if setting.K > 1:
        raise InputError(f"K must be 1 for a closed form on waves, got {setting.K}")
    x, mu, distribution, P = waves.start, setting.mu, setting.distribution, setting.P
    own = waves.a + signs(waves.M)[0] * waves.b
    square = 0.0
    for amplitudes in (own + waves.s, own - waves.s):
        mean = waves.mean_estimate(x, mu, distribution, amplitudes)
        single = waves.second_moment(x, mu, distribution, amplitudes, central=setting.central)
        square += 0.5 * (single / P + (1 - 1 / P) * float(mean @ mean))
    return square, waves.mean_estimate(x, mu, distribution, own)


def _waves_local(waves: Waves, setting: Setting) -> Measured:
    square, _ = _waves_estimate(waves, setting)
    return Measured(square, {**_waves_a(waves), "delta": 0.0})


def _waves_variance(waves: Waves, setting: Setting) -> Measured:
    square, mean = _waves_estimate(waves, setting)
    return Measured(square - float(mean @ mean), {**_waves_a(waves), "delta": 0.0})


_WAVES: Final[Mapping[str, Callable[[Waves, Setting], Measured]]] = {
    "smoothed-value": _waves_value,
    **dict.fromkeys(("smoothed-gradient", "central-bias"), _waves_gradient),
    "second-moment": _waves_second_moment,
    "variance": _waves_variance,
    **dict.fromkeys(("local-second-moment", "central-second-moment"), _waves_local),
}
