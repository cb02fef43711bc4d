"""What second differences of the loss along random directions say about its Hessian: power sums and brackets of κ.

Central differences evaluate f(x ± μ z_p); with f(x) they also give

    q_p = (f(x + μ z_p) + f(x − μ z_p) − 2 f(x)) / μ²  =  z_pᵀ H z_p + O(μ²),        H = ∇²f(x),

samples of a quadratic form, whose cumulants are the power sums t_k = tr(H^k). For Gaussian z (Q = zᵀHz is a sum of
λ_i χ²_1, whose cumulants add):

    E q = t_1,      Var q = 2 t_2 = 2‖H‖_F²,      κ_3(q) = 8 t_3.

On the sphere of radius √d, zᵀHz = t_1 + zᵀAz with A = H − (t_1/d) I, and E[(uᵀAu)²], E[(uᵀAu)³] on the unit sphere are
2 tr A² / (d(d+2)) and 8 tr A³ / (d(d+2)(d+4)) because tr A = 0, so

    Var q = 2d/(d+2) · a_2,     κ_3(q) = 8d²/((d+2)(d+4)) · a_3          [a_k = tr A^k],
    t_2 = a_2 + t_1²/d,         t_3 = a_3 + 3 a_2 t_1/d + t_1³/d².

Rademacher z gives t_1 only: Var q = 2(t_2 − Σ h_jj²), and nothing here knows the diagonal.

**Brackets.** With ‖H‖ = max|λ| and κ = t_1/‖H‖, for t_1 > 0:

- any symmetric H: ‖H‖² ≤ Σλ² = t_2, so κ ≥ t_1/√t_2; and t_3 ≤ Σ|λ|λ² ≤ ‖H‖ t_2, so κ ≤ t_1 t_2/t_3 where t_3 > 0.
- positive semi-definite H, second moments: also t_2 ≤ ‖H‖ t_1, so κ ≤ t_1²/t_2.
- positive semi-definite H, third moments: ‖H‖³ ≤ t_3, so κ ≥ t_1/t_3^{1/3}; with κ ≤ t_1 t_2/t_3 from above. Neither
  end is wider than before: t_3^{1/3} ≤ t_2^{1/2} (norms of a sequence fall), and t_2² ≤ t_1 t_3 (Cauchy-Schwarz).

The last inequality is also a test: t_2² > t_1 t_3 proves that H is indefinite.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import require
from decomfl_lab.noise import Distribution

Floats = NDArray[np.float64]

MOMENT_DISTRIBUTIONS = (Distribution.GAUSSIAN, Distribution.SPHERE)
"""The distributions of z under which the moments of zᵀHz give ‖H‖_F² and tr H³."""


def require_moment_distribution(argument: str, distribution: Distribution) -> None:
    """InputError unless second differences along directions of this ``distribution`` determine ‖H‖_F²."""
    rule = "be gaussian or sphere (the variance of zᵀHz along others is not that of H's eigenvalues alone)"
    require(distribution in MOMENT_DISTRIBUTIONS, argument, rule, str(distribution))


class PowerSums(NamedTuple):
    """t_k = tr(H^k), k = 1, 2, 3: numbers, or arrays of them."""

    t1: Floats
    t2: Floats
    t3: Floats


def cumulants(q: Floats, error_variance: float = 0.0) -> Floats:
    """Unbiased estimates (k-statistics) of the first three cumulants along the last axis, shape (3, ...).

    ``error_variance`` is that of independent symmetric errors of the q; it is taken off the second. InputError for
    fewer than three q.
    """
    k1, k2, k3 = cross_cumulants(q[..., None, :])
    return np.stack([k1, k2 - error_variance, k3])


def cross_cumulants(q: Floats) -> Floats:
    """Cumulants of what m independent measurements along the same n directions have in common.

    q[i, p] = zᵀ_p H_i z_p + e_ip, with H_i drawn independently (mini-batches) around H and independent errors e.
    Centred over p, c_ip,

        k_2 = 1/(n−1) Σ_p mean_{i≠j} c_ip c_jp,      k_3 = n/((n−1)(n−2)) Σ_p mean_{i≠j≠l} c_ip c_jp c_lp

    are unbiased for the joint cumulants of *different* measurements, 2 tr(H_i H_j) and 8 tr(H_i H_j H_l) symmetrised,
    whose expectations are 2 tr H² and 8 tr H³: neither the scatter of the batches nor rounding adds to them. With m = 1
    (and for k_3 m = 2) there are no such tuples; the mean over measurements is taken in their place, and both do add.

    Args:
        q: Shape (..., m, n), n ≥ 3.

    Returns:
        k_1, k_2, k_3, shape (3, ...), in units of q, q² and q³.

    Raises:
        InputError: If n < 3.
    """
    m, n = q.shape[-2:]
    require(n >= 3, "second differences along different directions", "be at least 3", n)
    c = q - q.mean(-1, keepdims=True)
    # Sums over tuples of different measurements, by Newton's identities from the power sums s_k over i:
    # Σ_{i≠j} c_i c_j = s_1² − s_2 and Σ_{i≠j≠l} c_i c_j c_l = s_1³ − 3 s_1 s_2 + 2 s_3.
    s1, s2, s3 = c.sum(-2), (c**2).sum(-2), (c**3).sum(-2)
    pairs = (s1**2 - s2) / (m * (m - 1)) if m > 1 else s1**2
    triples = (s1**3 - 3 * s1 * s2 + 2 * s3) / (m * (m - 1) * (m - 2)) if m > 2 else (s1 / m) ** 3
    return np.stack([q.mean((-2, -1)), pairs.sum(-1) / (n - 1), triples.sum(-1) * n / ((n - 1) * (n - 2))])


def power_sums(k: Floats, distribution: Distribution, d: int) -> PowerSums:
    """t_1, t_2, t_3 of H from the cumulants (3, ...) of zᵀHz; InputError unless the distribution determines them."""
    require_moment_distribution("distribution", distribution)
    t1, k2, k3 = k
    if distribution is Distribution.GAUSSIAN:
        return PowerSums(t1, k2 / 2, k3 / 8)
    # On the sphere zᵀHz varies by the traceless part H − (t_1/d)I alone: a_2 and a_3 are its power sums, from which
    # those of H follow.
    a2, a3 = k2 * (d + 2) / (2 * d), k3 * (d + 2) * (d + 4) / (8 * d**2)
    return PowerSums(t1, a2 + t1**2 / d, a3 + 3 * a2 * t1 / d + t1**3 / d**2)


def _ratio(numerator: Floats, denominator: Floats, otherwise: float) -> Floats:
    """The quotient where the denominator is positive, else ``otherwise``."""
    # Both branches of ``where`` are computed, so the denominator is made harmless where it is not used.
    positive = denominator > 0
    return np.where(positive, numerator / np.where(positive, denominator, 1.0), otherwise)


BRACKETS = ("any-sign", "psd-second", "psd")
"""The kinds of ``bracket``."""


def bracket(kind: str, t: PowerSums, d: int) -> Floats:
    """(low, high) of κ from power sums and d, shape (2, ...).

    Args:
        kind: "any-sign" for any symmetric H, "psd-second" for positive semi-definite H from second moments, or "psd"
            from third ones.
        t: The power sums.
        d: The dimension.

    Returns:
        The bracket, cut to what κ can be: 0..d, or 1..d where no eigenvalue is negative (tr H ≤ d ‖H‖ for every H, and
        tr H ≥ ‖H‖ then). Where an estimate is not positive, as sampling error may make it, an end falls back to these.
        Where t_1 ≤ 0, of which nothing here speaks, it is −d..d.
    """
    least = 0.0 if kind == "any-sign" else 1.0
    t2 = np.maximum(t.t2, 0.0)
    low = _ratio(t.t1, np.cbrt(np.maximum(t.t3, 0.0)) if kind == "psd" else np.sqrt(t2), least)
    high = _ratio(t.t1**2, t2, d) if kind == "psd-second" else _ratio(t.t1 * t2, t.t3, d)
    ends = np.clip(np.stack([low, high]), least, d)
    return np.where(t.t1 > 0, ends, np.stack([np.full_like(t.t1, -d), np.full_like(t.t1, d)]))


class CurvatureLog:
    """Power sums and κ of a run between two evaluations, from what its clients' central differences give besides.

    In local step k of round r all sampled clients measure along the same P directions, so the cumulants are formed
    within a step, where x and batches stand still, from different clients (``cross_cumulants``): the scatter of their
    mini-batches, rounding, the shared f(x) and the movement of x add nothing to them but for m = 1 or 2. Averaged over
    the steps they are unbiased for the means of t_1, t_2, t_3 over these steps, t̄_k, of H = E H_i, the Hessian of the
    mean loss over clients and data (at K > 1 each client's own x_{i,r}^k is meant; clients drawn without replacement
    scatter a little more than independent ones, by 1/M). Then

        t̄_1/√t̄_2 ≤ mean tr H / mean ‖H‖        and        mean tr H / max ‖H‖ ≤ t̄_1 t̄_2/t̄_3,

    the first by concavity, the second because Σ t_3 ≤ max ‖H‖ Σ t_2: a bracket of κ for any sign where H stands still.
    Likewise mean tr H / max ‖H‖ ≤ t̄_1²/t̄_2 for positive semi-definite H.

    Along scaled directions u = s ⊙ z, uᵀHu = zᵀDHDz with D = diag(s): all this is of DHD then.
    """

    def __init__(self, d: int, distribution: Distribution, *, whitened: bool = False) -> None:
        """An empty log for models of d parameters and directions of this distribution, ``whitened`` if scaled."""
        self.d = d
        self.distribution = distribution
        # ``CURVATURE_COLUMNS``, each with "whitened_" before it where directions are scaled
        self.names = tuple(f"whitened_{name}" if whitened else name for name in CURVATURE_COLUMNS)
        self.steps: list[list[float]] = []  # k_1, k_2, k_3 of every local step

    def add(self, q: Floats) -> None:
        """Take in the second differences of a round, shape (m, K, P); InputError for P < 3."""
        # Cumulants are formed within a step: (K, m, P) gives (3, K), and a row a step is kept.
        self.steps += cross_cumulants(q.swapaxes(0, 1)).T.tolist()

    def columns(self) -> dict[str, float]:
        """The values of ``names`` for the steps since the log was emptied.

        hessian_trace (mean over them), hessian_trace_stderr (over steps; NaN for one), hessian_frobenius (0 where noise
        exceeds it), kappa_low and kappa_high of the any-sign bracket, kappa_high_psd from second moments: each at its
        outer 2.5 % of 500 bootstrap samples of the steps (at one step, the ends themselves); −d and d where the trace
        is not above 0. With m = 1, κ is that of mini-batches, and rounding lowers kappa_low and kappa_high_psd. Each
        end was on the right side of κ in at least 94 % of 200 simulated logs (10 and 50 steps, four spectra), but
        kappa_low in 80 to 92 % where one eigenvalue makes two thirds of the trace.
        """
        k = np.array(self.steps)
        n = len(k)
        # The bootstrap draws whole steps, 500 times n of them, and takes the means: (500, n, 3), then (3, 500). Its
        # seed is the number of steps, so that a log gives the same values whenever it is asked.
        drawn = k[np.random.default_rng(n).integers(n, size=(500, n))].mean(1).T
        t = power_sums(k.mean(0), self.distribution, self.d)
        resampled = power_sums(drawn, self.distribution, self.d)
        lows, highs = bracket("any-sign", resampled, self.d)
        _, highs_psd = bracket("psd-second", resampled, self.d)
        values = (
            float(t.t1),
            float(k[:, 0].std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan"),
            max(float(t.t2), 0.0) ** 0.5,
            float(np.quantile(lows, 0.025)),
            float(np.quantile(highs, 0.975)),
            float(np.quantile(highs_psd, 0.975)),
        )
        return dict(zip(self.names, values, strict=True))


CURVATURE_COLUMNS = (
    "hessian_trace",
    "hessian_trace_stderr",
    "hessian_frobenius",
    "kappa_low",
    "kappa_high",
    "kappa_high_psd",
)
"""See ``CurvatureLog.columns``."""
