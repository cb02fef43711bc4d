"""FedKSeed's pool: S directions for a whole run, so x stays in x_0 + their span; proved in docs/methods-theory.md."""

import math

import numpy as np
from scipy import optimize, special

from decomfl_lab.errors import require, require_finite_positive, require_int
from theory.problems.problem import Floats
from theory.problems.spectrum import Spectrum


def pool_left(spectrum: Spectrum, S: int) -> tuple[Floats, Floats]:
    """Between what the share of the loss lies that S Gaussian directions leave, in expectation over the pool.

        min over x_0 + span of ½xᵀHx  =  ½ Σ_j (1 − Π_jj) λ_j x_{0,j}²  in expectation,   0 ≤ 1 − E Π_jj ≤ 1

    The two are equal, and exact, where all eigenvalues above 0 but one are alike: 1 − S/d for H = λI.

    *Proof.* ``docs/methods-theory.md`` has 1 − Π_jj = 1/(1 + λ_j q_j) with q_j = n_jᵀB_j⁻¹n_j.

    - *One eigenvalue apart:* if all λ_k of k ≠ j are λ, then q_j is λ⁻¹χ²_S/χ²_{d−S}, a quotient of two independent χ²
      (that of Hotelling's T²), so with b ~ Beta((d − S)/2, S/2) 1 − E Π_jj = E[b/(b + (λ_j/λ)(1 − b))], one integral.
    - *Any H, from below:* B_j ⪰ λ Σ n_k n_kᵀ over the N others with λ_k ≥ λ, N ≥ S, so 1 − E Π_jj ≥ E[b/(b + (λ_j/λ)(1
      − b))], b ~ Beta((N − S + 1)/2, S/2). The best λ is taken.
    - *Any H, from above:* leave the k < S largest others out: in the S − k dimensions orthogonal to their n's, which
      has no part in the rest, qⱼ is at least that of the rest (q_j = sup_v 2n_jᵀv − vᵀB_jv, over fewer v), where B_j ⪯
      λ_{k+1} Σ n_k n_kᵀ. So 1 − E Π_jj ≤ E[b/(b + (λ_j/λ_{k+1})(1 − b))], b ~ Beta((d − S)/2, (S − k)/2), d counting
      the eigenvalues above 0. The best k is taken; then Σ_j (1 − E Π_jj) = d − S sharpens both.
    - *About:* 1 − E Π_jj ≈ γ/(λ_j + γ) with Σ_j λ_j/(λ_j + γ) = S (exact for H = λI; within 0.04 in the tests).

    Args:
        spectrum: Spectrum of H.
        S: Number of directions in the pool, at least 1.

    Returns:
        Lower and upper bound of 1 − E Π_jj for an eigenvector of each group, shape (groups,) both; 1 where H is 0.

    Raises:
        InputError: If S is below 1.
    """
    require_int("S", S, 1)
    ends = [_left(spectrum, group, S) for group in range(len(spectrum.values))]
    low, high = np.array(ends).T
    counts = spectrum.multiplicities
    left = max(spectrum.d - S, counts @ (spectrum.eigenvalues == 0))  # Σ_j (1 − Π_jj), whatever the pool
    return (
        np.maximum(low, (left - (counts @ high - counts * high)) / counts),
        np.minimum(high, (left - (counts @ low - counts * low)) / counts),
    )


def pool_left_about(spectrum: Spectrum, S: int) -> Floats:
    """About 1 − E Π_jj: γ/(λ_j + γ), with the γ for which Σ_j λ_j/(λ_j + γ) = S; shape (groups,).

    It is exact for H = λI and for large effective rank (``docs/methods-theory.md`` has how near); 0 from as many
    directions on as H has eigenvalues above 0.

    Raises:
        InputError: If S is below 1.
    """
    require_int("S", S, 1)
    values, counts = spectrum.eigenvalues, spectrum.multiplicities
    if counts[values > 0].sum() <= S:
        return np.where(values > 0, 0.0, 1.0)

    def excess(log_gamma: float) -> float:
        return float(counts @ (values / (values + math.exp(log_gamma)))) - S

    top = math.log(spectrum.trace / S)  # Σ λ/(λ + γ) ≤ tr(H)/γ
    gamma = math.exp(optimize.brentq(excess, top - 100.0, top, xtol=1e-12))
    return gamma / (values + gamma)


def pool_contraction(gram: Floats, eta: float) -> float:
    """By what a step along a random direction of the pool multiplies E[f − what the pool leaves] at most.

        1 − η(2 − η max_s z_sᵀHz_s) λ_min(ZᵀHZ)/S

    ``gram`` is ZᵀHZ of the pool Z, positive definite, shape (S, S), in F/X²; η > 0 in X²/F. From η = 2/max z_sᵀHz_s on
    the factor is at least 1, and nothing is promised.

    Raises:
        InputError: If η is not above 0 or ZᵀHZ is not square.
    """
    require(gram.ndim == 2 and gram.shape[0] == gram.shape[1], "gram", "be a square matrix", gram.shape)
    require_finite_positive("eta", eta)
    return 1 - eta * (2 - eta * float(np.diag(gram).max())) * float(np.linalg.eigvalsh(gram)[0]) / len(gram)


def _left(spectrum: Spectrum, group: int, S: int) -> tuple[float, float]:
    """Both bounds for one eigenvector of a group: equal eigenvalues take the place of the others."""
    value_of_group = spectrum.values[group]
    if value_of_group == 0:
        return 1.0, 1.0
    counts = [count - (each == group) for each, count in enumerate(spectrum.counts)]
    pairs = zip(spectrum.values, counts, strict=True)
    others = sorted(((value, count) for value, count in pairs if value > 0 and count), reverse=True)
    if sum(count for _, count in others) < S:
        return 0.0, 0.0
    low, high, above = 0.0, 1.0, 0
    for value, count in others:
        if above < S:  # only what is orthogonal to those above, all others at most this
            rest = sum(number for each, number in others if each <= value)
            high = min(high, _alone(value_of_group / value, S - above, rest - (S - above) + 1))
        above += count
        if above >= S:  # those from here up, all at least this
            low = max(low, _alone(value_of_group / value, S, above - S + 1))
    return low, high


def _alone(c: float, inside: int, outside: int) -> float:
    """E[b/(b + c(1 − b))] of b ~ Beta(outside/2, inside/2).

    Of y = log(b/(1 − b)) it is the mean of 1/(1 + c exp(−y)), and y's density is analytic and falls exponentially: sums
    at equal distances converge as fast. (``scipy.special.hyp2f1``, which it also is, is NaN for large counts.)
    """
    p, q = outside / 2, inside / 2
    mode, width = math.log(p / q), 9 * math.sqrt(1 / p + 1 / q)
    y = np.linspace(mode - width - 45 / p, mode + width + 45 / q, 2001)
    log_density = -p * np.logaddexp(0.0, -y) - q * np.logaddexp(0.0, y)
    weights = np.exp(log_density - log_density.max())
    return float(weights @ special.expit(y - math.log(c)) / weights.sum())
