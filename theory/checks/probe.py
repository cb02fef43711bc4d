"""Are the constants of a problem of your own what it says? Its gradients are asked at many pairs of points."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from decomfl_lab.errors import InputError, require
from theory.notation.setting import Setting
from theory.problems.problem import Floats, Integers, Problem

_SLACK = 1 + 1e-4
"""What differences of gradients, a relative 10⁻⁵ apart, may lose to rounding."""
_WALKS = 8
"""Walks in which points and directions are sought."""
_STEPS = 20
"""Steps of a walk."""
_BATCHES = 2000
"""Mini-batches of a client by which noise and means are estimated."""
_STDERRS = 6.0
"""Standard errors by which an estimate must be off to count."""
_DENSE = 100
"""Coordinates up to which the Hessian of f is made, for κ."""


def probe(problem: Problem, setting: Setting | None = None, *, seed: int = 0) -> None:
    """Look for points at which a problem breaks the constants that it gives itself.

    - L: the largest ‖∇f_i(x; ξ) − ∇f_i(y; ξ)‖/‖x − y‖, over random pairs and over y that follow the difference of the
      gradients, a power iteration that turns to where the curvature is largest.
    - ``sampled_gradient``: the difference quotients of ``sampled``, and with ``gradient`` for its mean.
    - σ, σ_G, G: E‖∇f_i(x; ξ) − ∇f_i(x)‖², (1/M) Σ_i ‖∇f_i(x) − ∇f(x)‖² and max ‖∇f_i(x; ξ)‖ at points of a descent.
    - D: by how much f falls on that descent.
    - κ: the positive eigenvalues of ∇²f, whose sum is at most tr H of any H ⪰ ∇²f and H ⪰ 0, at x_0 and at its end.

    What it finds is certain up to rounding, or to six standard errors where a mean is estimated. That it finds nothing
    proves nothing.

    Args:
        problem: The losses.
        setting: The constants that are claimed of it; None for the problem's own.
        seed: The seed of points, clients and mini-batches.

    Raises:
        InputError: That names the constant, what was found and where.
    """
    claimed = problem.setting() if setting is None else setting
    rng = np.random.default_rng(seed)
    # x_0 and the points of gradient descent from it, with the step 1/L.
    x = np.asarray(problem.start, dtype=np.float64)
    points, slope = [x], problem.gradient(x)
    for _ in range(_WALKS * _STEPS):
        y = x - slope / claimed.L
        there = problem.gradient(y)
        require(bool(np.isfinite(there).all()), "gradient", "be finite on a descent from start", there)
        quotient = _quotient(x, y, slope, there)
        _refuse("L", claimed.L, quotient, "‖∇f(x) − ∇f(y)‖/‖x − y‖", _at("x", x), _at("y", y))
        x, slope = y, there
        points.append(x)
    for x, y, client, xi in _pairs(problem, claimed, points, rng):
        # L is not exceeded between x and y, and there the gradient is that of the loss.
        who, which = np.array(client), np.array(xi)
        here, there = (problem.sampled_gradient(each, who, which) for each in (x, y))
        where = (_at("x", x), _at("y", y), f"client {client}", f"ξ = {xi:.6g}")
        _refuse("L", claimed.L, _quotient(x, y, here, there), "‖∇f_i(x; ξ) − ∇f_i(y; ξ)‖/‖x − y‖", *where)
        before = float(problem.sampled(x, who, which))
        rise = float(problem.sampled(y, who, which)) - before
        middle = 0.5 * float((here + there) @ (y - x))
        # f(y) − f(x) lies within L‖y − x‖²/4 of the mean of the two slopes, if the gradient is f's and L-Lipschitz.
        allowed = 0.26 * claimed.L * float(np.linalg.norm(y - x)) ** 2 + 1e-9 * (abs(middle) + abs(before))
        if abs(rise - middle) > allowed:
            raise InputError(
                f"sampled_gradient must be the gradient of sampled, which changes by {rise:.6g} from {where[0]} to "
                f"{where[1]} ({where[2]}, {where[3]}), got a gradient that says {middle:.6g}"
            )
    for x in (points[0], points[-1]):
        _moments(problem, claimed, x, rng)
        # κ against the sum of the positive eigenvalues of ∇²f(x), over L.
        if claimed.kappa is not None and x.size <= _DENSE:
            step = 1e-5 * max(1.0, float(np.linalg.norm(x)))
            unit = step * np.eye(x.size)
            H = (problem.gradient(x + unit) - problem.gradient(x - unit)) / (2 * step)
            values = np.linalg.eigvalsh(0.5 * (H + H.T))
            least = float(values[values > 0].sum()) / claimed.L
            _refuse(
                "kappa", claimed.kappa, least, "the sum of the positive eigenvalues of ∇²f(x), over L,", _at("x", x)
            )
    # D against the fall of f along the descent, by Simpson's rule for ∫ ∇f·dx where f itself is not known.
    value: Any = getattr(problem, "value", None)
    if value is not None:
        fall = float(value(points[0]) - value(points[-1]))
    else:
        fall = 0.0
        for x, y in pairwise(points):
            ends = problem.gradient(x) + problem.gradient(y) + 4 * problem.gradient(0.5 * (x + y))
            fall += float(ends @ (x - y)) / 6
    _refuse("D", claimed.D, fall, "f(x_0) − f(x)", _at("x_0", points[0]), _at("x", points[-1]))


def _refuse(name: str, claimed: float, found: float, what: str, *where: str) -> None:
    """InputError if more was found than is claimed."""
    if found > claimed * _SLACK:
        raise InputError(
            f"{name} must be at least {found:.6g}, which is {what} at {', '.join(where)}, got {claimed:.6g}"
        )


def _at(name: str, x: Floats) -> str:
    """A point as an error tells it."""
    shown = ", ".join(f"{value:.6g}" for value in x[:6])
    return f"{name} = ({shown}{', ...' if x.size > 6 else ''})"


def _quotient(x: Floats, y: Floats, here: Floats, there: Floats) -> float:
    """‖∇f(y) − ∇f(x)‖/‖y − x‖, less what may be rounding."""
    rounding = 1e-12 * max(float(np.linalg.norm(each)) for each in (here, there))
    apart = max(float(np.linalg.norm(y - x)), 1e-9 * float(np.linalg.norm(x)), 1e-300)
    return (float(np.linalg.norm(there - here)) - rounding) / apart


def _pairs(
    problem: Problem, claimed: Setting, points: list[Floats], rng: np.random.Generator
) -> Iterator[tuple[Floats, Floats, int, float]]:
    """Pairs of points with a client and a mini-batch."""
    scale = max(float(np.linalg.norm(points[0] - points[-1])), math.sqrt(2 * claimed.D / claimed.L), 1e-3)
    for walk in range(_WALKS):
        client, xi = int(rng.integers(problem.M)), float(rng.random())
        drawn = np.array(client), np.array(xi)
        x = points[int(rng.integers(len(points)))] + (walk > 0) * scale * rng.standard_normal(points[0].shape)
        far = x + scale * rng.standard_normal(x.shape)
        yield x, far, client, xi
        v = far - x
        for _ in range(_STEPS):
            near = 1e-5 * max(scale, float(np.linalg.norm(x)))
            y = x + near * v / max(float(np.linalg.norm(v)), 1e-300)
            yield x, y, client, xi
            bend = problem.sampled_gradient(y, *drawn) - problem.sampled_gradient(x, *drawn)
            v = bend if bend.any() else rng.standard_normal(x.shape)
            if rng.random() < 0.3:  # onward, to where the gradient leads
                x = x + scale / _STEPS * rng.choice([-1.0, 1.0]) * v / max(float(np.linalg.norm(v)), 1e-300)


def _moments(problem: Problem, claimed: Setting, x: Floats, rng: np.random.Generator) -> None:
    """Noise and dissimilarity at x, and that the mean of all gradients is ``gradient``."""
    M = min(problem.M, 100)
    chosen = rng.permutation(problem.M)[:M]
    clients: Integers = np.repeat(chosen[:, None], _BATCHES, axis=1)
    # Gradients at two independent samples each, (M, _BATCHES, n).
    pairs = [problem.sampled_gradient(x, clients, rng.random(clients.shape)) for _ in range(2)]
    place = _at("x", x)
    if claimed.G is not None:
        largest = float(np.linalg.norm(pairs[0], axis=-1).max())
        _refuse("G", claimed.G, largest, "‖∇f_i(x; ξ)‖", place)
    noise = 0.5 * ((pairs[0] - pairs[1]) ** 2).sum(-1)  # E ½‖g − g'‖² is the variance, of every client
    client = int(noise.mean(1).argmax())
    low = _lower(noise[client])
    _refuse(
        "sigma", claimed.sigma, math.sqrt(max(low, 0.0)), "√E‖∇f_i(x; ξ) − ∇f_i(x)‖²", place, f"client {chosen[client]}"
    )
    if M < problem.M:
        return
    gradient = problem.gradient(x)
    off = [each - gradient for each in pairs]
    low = _lower((off[0] * off[1]).sum(-1).mean(0))  # independent, so E⟨g_i − ∇f, g_i' − ∇f⟩ = ‖∇f_i − ∇f‖²
    _refuse("sigma_G", claimed.sigma_G, math.sqrt(max(low, 0.0)), "√((1/M) Σ_i ‖∇f_i(x) − ∇f(x)‖²)", place)
    means = np.concatenate(off, axis=1).mean(0)
    stderr = means.std(0, ddof=1) / math.sqrt(len(means))
    wrong = np.flatnonzero(abs(means.mean(0)) > _STDERRS * stderr + 1e-9 * (1 + abs(gradient)))
    if wrong.size:
        j = int(wrong[0])
        raise InputError(
            f"gradient must be the mean of sampled_gradient, {gradient[j] + means.mean(0)[j]:.6g} in coordinate {j} at "
            f"{place}, got {gradient[j]:.6g}"
        )


def _lower(samples: Floats) -> float:
    """What the mean of the samples is above, all but certainly."""
    return float(samples.mean() - _STDERRS * samples.std(ddof=1) / math.sqrt(samples.size))
