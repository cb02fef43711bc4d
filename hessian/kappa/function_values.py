"""κ from function values alone: trace, Frobenius norm and brackets from second differences, and which μ to take.

    q_p = (f(x + μ z_p) + f(x − μ z_p) − 2 f(x)) / μ²,        p = 1..n.

What their moments say about H stands in ``decomfl_lab.estimators.second_differences``. What a second difference is
wrong by:

- **truncation**: q_p = z_pᵀ H z_p + c_p μ² + O(μ⁴), c_p = D⁴f(x)[z_p, z_p, z_p, z_p] / 12.
- **rounding**: each value of f has an error of standard deviation ε_f (forward passes in float32: a few 10⁻⁸ of f), so
  q_p has one of √6 ε_f/μ² (weights 1, 1, −2). The error of f(x) is shared by all probes: of the mean over n it leaves
  √(4 + 2/n) ε_f/μ², a bias that no number of probes removes. Between probes only √2 ε_f/μ² differ, so Var q is too
  large by 2 ε_f²/μ⁴, which is taken off.

(c μ²)² + 6 ε_f²/μ⁴ is least at μ = (√6 ε_f / c)^{1/4} [c² the mean of the c_p²], where both are equal.

**Kinks.** Where f is piecewise smooth (ReLU, max-pooling) q_p does not tend to z_pᵀ H z_p of automatic differentiation,
because the jumps of the gradient count too. For Gaussian z, without any smoothness, with f^s(x) = E f(x + s u),

    E q = (2/μ²) ∫₀^μ s tr ∇²f^s(x) ds :

d/ds E f(x + s z) = E⟨z, ∇f(x + s z)⟩ = s tr ∇²f^s(x) (integration by parts); integrate from 0 to μ, twice, over μ².
So the estimate is of the *smoothed* trace at scales up to μ, the one zeroth-order methods see. It shows on a ladder of
μ: between neighbouring rungs smooth q_p move by c_p (μ'² − μ²), mean square ∝ μ⁴, and kinked ones by a mean square
∝ 1/μ (the chance to meet a kink within μ is ∝ μ, and a kink met counts 1/μ, so 1/μ² in square).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import require, require_finite_positive, require_int
from decomfl_lab.estimators.second_differences import BRACKETS, MOMENT_DISTRIBUTIONS, bracket, cumulants, power_sums
from decomfl_lab.noise import Distribution
from hessian.estimate import Estimate, require_confidence
from hessian.operators.probes import probe
from hessian.readings import Reading, Reported

Loss = Callable[[Tensor], float]
Floats = NDArray[np.float64]
Interval = tuple[float, float]

MUS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
"""Rungs of the default ladder: around the μ = 1e-3 of MeZO and the 1e-4 of the authors' image runs."""

_PROBES, _LADDER, _NOISE = 40, 41, 42


def _value(f: Loss, x: Tensor) -> float:
    """f(x); InputError if it is not finite."""
    value = float(f(x))
    require(math.isfinite(value), "loss f", "be finite at every point", value)
    return value


def _require_point(x: Tensor) -> None:
    require(x.ndim == 1 and x.numel() > 0, "x", "be a vector of at least one parameter", tuple(x.shape))
    require(x.dtype in (torch.float32, torch.float64), "x", "be float32 or float64", x.dtype)


def second_differences(f: Loss, x: Tensor, z: Iterable[Tensor], mu: float, center: float | None = None) -> Floats:
    """q_p for every direction z_p (d,), shape (n,), from 2n values of f and f(x), which is ``center`` if it is known.

    Raises:
        InputError: If there is no direction, μ is not positive or so small that x + μz = x, or f is not finite.
    """
    require_finite_positive("mu", mu)
    center = _value(f, x) if center is None else center
    values = []  # (f(x + μz_p), f(x − μz_p))
    for direction in z:
        points = x + mu * direction, x - mu * direction
        require(not torch.equal(points[0], x), "mu", f"move x (it does not in {x.dtype})", mu)
        values.append([_value(f, point) for point in points])
    require(len(values) > 0, "z", "hold at least one direction", len(values))
    q: Floats = (np.array(values).sum(1) - 2 * center) / mu**2
    return q


def evaluation_noise(f: Loss, x: Tensor, *, seed: int) -> float:
    """ε_f: the standard deviation of the rounding error of f near x, from nine values.

    f at nine points of a line, so near to each other (128 units in the last place of a typical parameter) that f itself
    is a polynomial of low degree there: its k-th differences vanish, and those of independent errors of variance ε²
    have the variance (2k)!/(k!)² ε². ε from the k-th differences is taken at the first k from which on it stays within
    a factor of 4 for three k, and not below half a unit roundoff of f(x).

    Source: Moré and Wild, "Estimating computational noise", SIAM J. Sci. Comput. 33 (2011), ECnoise.
    """
    _require_point(x)
    unit = torch.finfo(x.dtype).eps / 2
    scale = float(x.double().square().mean().sqrt()) or 1.0
    z = probe(x, seed, _NOISE, 0)
    table = np.array([_value(f, x + (128 * unit * scale * i) * z) for i in range(9)])  # its k-th differences in turn
    floor = 0.5 * unit * abs(float(table[0]))
    levels = []
    for k in range(1, 7):
        # The k-th differences of a polynomial of degree below k vanish: what is left is the error, scaled by its
        # factor.
        table = np.diff(table)
        levels.append(math.sqrt(float(np.mean(table**2)) * math.factorial(k) ** 2 / math.factorial(2 * k)))
    for k in range(len(levels) - 2):
        three = levels[k : k + 3]
        if max(three) <= 4 * min(three):
            return max(three[0], floor)
    return max(levels[-1], floor)


@dataclass(frozen=True)
class Rung:
    """Second differences at one μ."""

    mu: float  # the step μ
    trace: Estimate  # the mean of the second differences, with its standard error over the probes
    # the root mean square over the probes of the change since the rung below; for the lowest, to the one above
    change: float


@dataclass(frozen=True)
class MuLadder:
    """Second differences along the same few directions at several μ."""

    rungs: tuple[Rung, ...]  # what was found at every μ, rising
    noise: float  # the rounding error ε_f of a value of f
    # the coefficient c, so that truncation is c μ²; an upper estimate where rounding hides it, None where kinks leave
    # none
    fourth: float | None
    mu: float  # the recommended μ
    reason: str  # why it is that one, in a line
    evaluations: int  # the number of values of f

    @property
    def kinked(self) -> bool:
        """Whether second differences change with μ as they do at kinks."""
        return self.fourth is None

    def truncation(self, mu: float) -> float:
        """The truncation of a single q_p, c μ² (root mean square); with kinks the change at the nearest rung."""
        if self.fourth is not None:
            return self.fourth * mu**2
        return min(self.rungs, key=lambda rung: abs(math.log(rung.mu / mu))).change

    def rounding(self, mu: float, n: int = 1) -> float:
        """√(4 + 2/n) ε_f/μ², the standard deviation of the rounding error of the mean of n q_p."""
        return math.sqrt(4.0 + 2.0 / n) * self.noise / mu**2


def mu_ladder(
    f: Loss,
    x: Tensor,
    *,
    seed: int,
    mus: Sequence[float] = MUS,
    probes: int = 8,
    distribution: Distribution = Distribution.GAUSSIAN,
) -> MuLadder:
    """Second differences at every μ of ``mus`` along the same ``probes`` directions, and which μ to take.

    From μ to the next rung μ' the q_p change by D² in the mean square, of which rounding is V = 2ε_f² (1/μ⁴ + 1/μ'⁴) +
    4ε_f² (1/μ² − 1/μ'²)². ε_f is ``evaluation_noise``, or what the two lowest changes say if they fall as rounding
    does. Where D² > 25 V the slope of log D² over log(μ'² − μ²) is 2 for smooth f and −1/2 for kinks: one below 3/4
    means kinks. c = √(D² − V)/(μ'² − μ²) at the lowest such change.

    Args:
        f: The loss, of a vector (d,), computed in the dtype of x.
        x: The point, (d,) float32 or float64.
        seed: The seed of the directions.
        mus: The values of μ, at least three, rising.
        probes: The number of directions, at least 2.
        distribution: The distribution of the directions.

    Raises:
        InputError: If there are fewer than three μ, one is not positive or does not move x, or f is not finite.
    """
    _require_point(x)
    rising = len(mus) >= 3 and all(a < b for a, b in pairwise(mus))
    require(rising, "mus", "be at least three rising numbers", tuple(mus))
    require_int("probes of the ladder", probes, 2)
    z = [probe(x, seed, _LADDER, p, distribution) for p in range(probes)]
    center = _value(f, x)
    q = np.stack([second_differences(f, x, z, mu, center) for mu in mus])  # (len(mus), probes)
    noise = evaluation_noise(f, x, seed=seed)
    squares = np.mean(np.diff(q, axis=0) ** 2, axis=1)  # D² from each μ to the next, (len(mus) − 1,)
    low, high = np.array(mus[:-1]), np.array(mus[1:])
    width = high**2 - low**2
    shares = 2 * (low**-4 + high**-4) + 4 * (low**-2 - high**-2) ** 2  # V / ε_f²
    # Changes that fall with μ nearly as fast as rounding does are rounding. They tell ε_f better than nine values near
    # x.
    if squares[0] > squares[1] * math.sqrt(shares[0] / shares[1]):
        noise = max(noise, math.sqrt(squares[0] / shares[0]))
    rounded = shares * noise**2
    seen = np.flatnonzero(squares > 25 * rounded)
    # 2 for smooth f and −1/2 for kinks: 3/4 is halfway.
    slopes = np.diff(np.log(squares[seen])) / np.diff(np.log(width[seen]))
    kinked = bool((slopes < 0.75).any())
    j = int(seen[0]) if len(seen) else len(squares) - 1
    fourth = math.sqrt(squares[j] - rounded[j] if len(seen) else squares[j]) / float(width[j])
    if kinked:
        best = mus[len(mus) // 2]
        why = "f has kinks: q tends to no limit as μ falls; what is estimated is the Hessian smoothed at scale μ"
    else:
        # Least sum of squares of truncation c μ² and rounding √6 ε_f/μ²: where both are equal.
        best = float(np.clip((math.sqrt(6) * noise / fourth) ** 0.25, mus[0], mus[-1])) if fourth else mus[-1]
        at_end = " (an end of the ladder)" if best in (mus[0], mus[-1]) else ""
        why = f"truncation {fourth:.3g} μ² and rounding {math.sqrt(6) * noise:.3g}/μ² are balanced there{at_end}"
    changes = np.sqrt([squares[0], *squares])
    rungs = tuple(Rung(mu, Estimate.of(row.tolist()), float(c)) for mu, row, c in zip(mus, q, changes, strict=True))
    return MuLadder(rungs, noise, None if kinked else fourth, best, why, 10 + q.size * 2)


@dataclass(frozen=True)
class Quantity:
    """A number with its bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Bracket:
    """Between what κ lies, by estimated moments; ``outer_low``..``outer_high`` also takes in their sampling error."""

    low: float
    high: float
    outer_low: float
    outer_high: float


@dataclass(frozen=True, repr=False)
class ForwardOnly(Reported):
    """What n second differences say of the Hessian at x, smoothed at scale μ if f has kinks."""

    d: int  # the number of parameters
    mu: float  # the step μ
    distribution: Distribution  # the distribution of the directions
    seed: int  # the seed of the directions
    confidence: float  # the confidence of every interval
    trace: Estimate  # the trace tr H, with its standard error
    # the interval of the trace by Student's t, for sampling alone; ``rounding`` and ``truncation`` come on top
    trace_interval: Interval
    rounding: float  # the standard deviation of the rounding error of the trace, √(4 + 2/n) ε_f/μ²
    truncation: float  # the error c μ²; with kinks, the change from rung to rung
    frobenius_squared: Quantity | None  # the square ‖H‖_F²; None for Rademacher directions
    cube: Quantity | None  # the trace tr H³; None for Rademacher directions
    # the brackets of κ = tr H/‖H‖₂, by ``second_differences.BRACKETS``: "any-sign" for every symmetric H, "psd-second"
    # and "psd" for positive semi-definite H from second and from third moments
    brackets: dict[str, Bracket]
    indefinite: bool  # whether (‖H‖_F²)² > tr H · tr H³, which no positive semi-definite H has, over the whole interval
    ladder: MuLadder  # how μ was chosen
    evaluations: int  # the number of values of f, those of the ladder included
    reason: str  # what to know before the numbers are used, in a line

    def report(self) -> tuple[str, Sequence[Reading], str]:
        """Trace, ‖H‖_F², tr(H³) and the brackets of κ; see ``Reported``."""
        made = f"{self.trace.samples} {self.distribution} directions, μ = {self.mu:.3g}, d = {self.d:,}"
        errors = f"and rounding {self.rounding:.2g}, truncation {self.truncation:.2g}"
        readings = [Reading("tr(H)", self.trace.value, *self.trace_interval, errors)]
        for name, quantity in (("‖H‖_F²", self.frobenius_squared), ("tr(H³)", self.cube)):
            if quantity is not None:
                readings.append(Reading(name, quantity.value, quantity.low, quantity.high))
        for name, ends in self.brackets.items():
            words = f"with sampling error {ends.outer_low:.4g} .. {ends.outer_high:.4g}"
            readings.append(Reading(f"κ ({name})", math.nan, ends.low, ends.high, words))
        return f"forward-only, {made}; intervals of {100 * self.confidence:g} %", readings, self.reason


def forward_only(
    f: Loss,
    x: Tensor,
    *,
    seed: int,
    probes: int = 200,
    mu: float | None = None,
    mus: Sequence[float] = MUS,
    distribution: Distribution = Distribution.GAUSSIAN,
    confidence: float = 0.95,
    resamples: int = 1000,
) -> ForwardOnly:
    """Trace, ‖H‖_F², tr H³ and brackets of κ from 2·probes + 1 values of f, and as many as the ladder of μ needs.

    Intervals but the trace's are the wider of two bootstraps of ``resamples`` samples: of the q_p, and of a model of
    their tail. Measured at 95 % with 50 and 200 probes, five spectra, 200 seeds each: brackets ("any-sign", and "psd"
    of positive semi-definite H) hold κ in 96 to 100 %, but in 88 to 95 % where one eigenvalue makes two thirds of the
    trace; intervals of ‖H‖_F² and tr H³ hold it in 86 to 95 % and 90 to 100 %: heavy tails, of which few probes know.

    Args:
        f: The loss, of a vector (d,), computed in the dtype of x; the same x must give the same value.
        x: The point, (d,) float32 or float64.
        seed: The seed of everything random.
        probes: The number n of directions, at least 8.
        mu: The step μ; None for the ladder's recommendation.
        mus: The rungs of the ladder.
        distribution: The distribution of the directions. Rademacher gives the trace alone.
        confidence: The confidence of the intervals.
        resamples: The number of bootstrap samples.

    Raises:
        InputError: If an argument breaks its rule, μ does not move x, or f is not finite at a point.

    Source: [DeComFL, Assumption 4] for κ; moments and brackets: ``decomfl_lab.estimators.second_differences``.
    """
    require_int("probes", probes, 8)
    require_int("resamples", resamples, 100)
    require_confidence(confidence)
    ladder = mu_ladder(f, x, seed=seed, mus=mus, distribution=distribution)
    mu = ladder.mu if mu is None else require_finite_positive("mu", mu)
    d = x.numel()
    q = second_differences(f, x, (probe(x, seed, _PROBES, p, distribution) for p in range(probes)), mu)
    trace = Estimate.of(q.tolist())
    frobenius_squared, cube, brackets, indefinite = None, None, {}, False
    if distribution in MOMENT_DISTRIBUTIONS:
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_PROBES,)))
        shape = (resamples, probes)
        resampled = q[generator.integers(probes, size=shape)]
        # Samples k_1 + a(χ²_ν − ν) with the cumulants k of q: k_2 = 2a²ν, k_3 = 8a³ν; normal where k_3 is 0. A
        # quadratic form is a sum of such variables, and its tail, that of its largest eigenvalue, is one; samples of a
        # few dozen q show little of it, so that resampling them alone makes intervals too short.
        k1, k2, k3 = cumulants(q).tolist()
        if k2 <= 0 or k3 == 0:
            tailed = np.asarray(k1 + math.sqrt(max(k2, 0.0)) * generator.normal(size=shape))
        else:
            a = k3 / (4 * k2)
            nu = k2 / (2 * a**2)
            tailed = np.asarray(k1 + a * (generator.chisquare(nu, size=shape) - nu))
        # The q themselves (n,), resamples of them and samples of a model of their tail, both (resamples, n).
        samples = q, resampled, tailed
        rounding = 2 * ladder.noise**2 / mu**4
        t, drawn, model = (power_sums(cumulants(sample, rounding), distribution, d) for sample in samples)
        frobenius_squared = Quantity(float(t.t2), *_ends(t.t2, drawn.t2, model.t2, confidence))
        most = frobenius_squared.high**1.5  # tr H³ ≤ (tr H²)^{3/2}
        low, high = _ends(t.t3, drawn.t3, model.t3, confidence)
        cube = Quantity(float(t.t3), low, high if math.isfinite(high) else most)
        for name in BRACKETS:
            # Each end of the bracket gets its own sampling error, outwards.
            (low, high), drawn_ends, model_ends = (bracket(name, sums, d) for sums in (t, drawn, model))
            outer_low, _ = _ends(low, drawn_ends[0], model_ends[0], confidence)
            _, outer_high = _ends(high, drawn_ends[1], model_ends[1], confidence)
            brackets[name] = Bracket(float(low), float(high), outer_low, min(outer_high, float(d)))
        # t_1 t_3 < t_2² for nearly all resamples: no positive semi-definite H has that.
        indefinite = float(np.quantile(drawn.t1 * drawn.t3 - drawn.t2**2, 0.5 + confidence / 2)) < 0
    return ForwardOnly(
        d=d,
        mu=mu,
        distribution=distribution,
        seed=seed,
        confidence=confidence,
        trace=trace,
        trace_interval=trace.interval(confidence),
        rounding=ladder.rounding(mu, probes),
        truncation=ladder.truncation(mu),
        frobenius_squared=frobenius_squared,
        cube=cube,
        brackets=brackets,
        indefinite=indefinite,
        ladder=ladder,
        evaluations=ladder.evaluations + 2 * probes + 1,
        reason=_reason(trace, frobenius_squared, cube, indefinite, ladder, mu),
    )


def _ends(value: Floats, drawn: Floats, model: Floats, confidence: float) -> Interval:
    """The wider of two bootstrap intervals: percentiles of resamples, and value/(model/value) by samples of a model.

    ``value`` is one number, ``drawn`` and ``model`` are (resamples,).
    """
    tails = [0.5 - confidence / 2, 0.5 + confidence / 2]
    low, high = np.quantile(drawn, tails).tolist()
    if value > 0:
        # model/value says by what factor an estimate misses the truth: the truth is the estimate over that factor.
        least, most = np.quantile(model / value, tails).tolist()
        low = min(low, float(value) / most) if most > 0 else low
        high = max(high, float(value) / least) if least > 0 else math.inf
    return low, high


def _reason(
    trace: Estimate, square: Quantity | None, cube: Quantity | None, indefinite: bool, ladder: MuLadder, mu: float
) -> str:
    """What to know before the numbers are used, in a line."""
    parts = []
    if square is None or cube is None:
        parts.append("rademacher directions tell the trace only: ‖H‖_F needs the diagonal")
    elif square.value <= 0:
        parts.append("rounding and sampling exceed the spread of q: ‖H‖_F² is not known; more probes or a larger μ")
    elif cube.low <= 0:
        parts.append("tr(H³) is not distinguished from 0: κ has no upper end; more probes")
    if trace.value <= 0:
        parts.append("the trace is not positive: no bracket applies")
    if indefinite:
        parts.append("H is indefinite: use the any-sign bracket, the psd ones do not hold")
    elif square is not None:
        parts.append("nothing here shows H indefinite, nor that it is not: the psd brackets need that it is not")
    if ladder.rounding(mu, trace.samples) > trace.stderr:
        parts.append("rounding exceeds the standard error of the trace: a larger μ")
    if ladder.kinked:
        parts.append(ladder.reason)
    elif ladder.truncation(mu) > trace.stderr:
        parts.append("truncation exceeds the standard error of the trace: a smaller μ")
    return "; ".join(parts)
