"""Lemma of the covariance matrix (lines 1297-1360), by exact sums over directions, clients and noise."""
# given.toml places these checks beside statements: "line-N" is the one on line N of the paper's LaTeX source.

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import permutations, product
from typing import Any, Final

import numpy as np
import sympy as sp

from theory.findings.corrections import MENDED
from theory.findings.evidence.designs import design
from theory.findings.finding import Evidence
from theory.findings.instruments import at_most, exceeds, same, unlike

Matrix = Any  # numpy array of Fractions, shape (d, d)


class Clients:
    """Clients with known gradients ∇f_i at a point and mini-batch noise of ±s_i, in whole numbers, both (M, d)."""

    def __init__(self, gradients: Iterable[Iterable[int]], noises: Iterable[Iterable[int]]) -> None:
        self.gradients, self.noises = _exact(gradients), _exact(noises)
        self.M, self.d = self.gradients.shape

    @property
    def gradient(self) -> Matrix:
        """∇f, the mean."""
        return self.gradients.sum(axis=0) * Fraction(1, self.M)

    @property
    def between(self) -> Matrix:
        """Δ_f = (1/M) Σ ∇f_i ∇f_iᵀ − ∇f ∇fᵀ, [DeComFL, line 1306]."""
        return self.gradients.T @ self.gradients * Fraction(1, self.M) - np.outer(self.gradient, self.gradient)

    @property
    def within(self) -> Matrix:
        """E Σ_r = (1/M) Σ E s_i s_iᵀ."""
        return self.noises.T @ self.noises * Fraction(1, self.M)

    def mean_square(self, m: int, *, replacement: bool) -> Matrix:
        """E v̄v̄ᵀ of the mean v̄ over m drawn clients of ∇f_i ± s_i, by adding up all draws and signs."""
        draws = product(range(self.M), repeat=m) if replacement else permutations(range(self.M), m)
        squares = []
        for draw, signs in product(draws, product((-1, 1), repeat=m)):
            chosen = list(draw)  # of a tuple numpy would take one entry
            v = (self.gradients[chosen] + _exact([signs]).T * self.noises[chosen]).sum(axis=0)
            squares.append(np.outer(v, v) * Fraction(1, m * m))
        return _mean(squares)

    def second_moment(self, m: int, P: int, *, replacement: bool, distribution: str = "sphere") -> Matrix:
        """E ∇̄f ∇̄fᵀ, ∇̄f = Z v̄, by adding up all directions too."""
        return design(distribution, self.d).sandwich(self.mean_square(m, replacement=replacement), P)


def _exact(rows: Iterable[Iterable[int]]) -> Matrix:
    """The same in Fractions."""
    return np.array([[Fraction(entry) for entry in row] for row in rows], dtype=object)


def _mean(matrices: Iterable[Matrix]) -> Matrix:
    """The mean of equally likely matrices."""
    listed = list(matrices)
    return np.sum(listed, axis=0) * Fraction(1, len(listed))


def printed_covariance(clients: Clients, m: int, P: int) -> Matrix:
    """Right side of the lemma: d/(P(d+2)) tr(A) I + (1 + (d−2)/(P(d+2))) A with A = ∇f∇fᵀ + Σ/m + Δ/m."""
    d = clients.d
    A = np.outer(clients.gradient, clients.gradient) + (clients.within + clients.between) * Fraction(1, m)
    scatter, keep = Fraction(d, P * (d + 2)), 1 + Fraction(d - 2, P * (d + 2))
    return scatter * np.trace(A) * _exact(np.eye(d, dtype=int)) + keep * A


def _mended(key: str, name: str, d: int, m: int, P: int, M: int) -> Fraction:
    """The coefficient ``name`` of the mended display ``key``."""
    values = zip(("d", "m", "P", "M"), (d, m, P, M), strict=True)
    coefficient = MENDED[key][name].subs({sp.Symbol(symbol, positive=True): value for symbol, value in values})
    return Fraction(int(coefficient.p), int(coefficient.q))


def mended_covariance(clients: Clients, m: int, P: int) -> Matrix:
    """The lemma where m of M clients are drawn without replacement, by the coefficients in ``corrections.MENDED``.

    scatter tr(A) I + keep A, where the parts of A, ∇f∇fᵀ, Σ and Δ, have coefficients of their own.
    """
    sizes = (clients.d, m, P, clients.M)
    mean = np.outer(clients.gradient, clients.gradient)
    parts = {"mean": mean, "within": clients.within, "between": clients.between}
    A = sum(_mended("lemma.covariance.A", name, *sizes) * part for name, part in parts.items())
    scatter, keep = (_mended("lemma.covariance", name, *sizes) for name in ("scatter", "keep"))
    return scatter * np.trace(A) * _exact(np.eye(clients.d, dtype=int)) + keep * A


SAMPLE: Final = Clients(
    [(2, 1, 0, -1), (0, 3, 1, 1), (1, -1, 2, 3)],
    [(1, 0, 2, 0), (0, 1, 0, 0), (1, 1, -1, 2)],
)
QUIET: Final = Clients(SAMPLE.gradients, np.zeros((3, 4), dtype=int))
NOISY: Final = Clients(np.zeros((3, 4), dtype=int), SAMPLE.noises)
_ONE: Final = Clients([(2,), (-1,), (5,)], [(1,), (3,), (2,)])


_SIZES: Final = ((1, 1), (2, 2), (2, 3))
_PARTS: Final = {
    "with replacement": [(SAMPLE, 1, 1), (SAMPLE, 2, 1), (SAMPLE, 2, 3), (_ONE, 2, 2), (_ONE, 3, 4)],
    "T_1 without noise, clients drawn with replacement": [(QUIET, *sizes) for sizes in _SIZES],
    "T_2 alone": [(NOISY, *sizes) for sizes in _SIZES],
    "φΔ for Δ": [(SAMPLE, 1, 2), (SAMPLE, 2, 2), (SAMPLE, 3, 1), (_ONE, 2, 3)],
}


def part(what: str) -> Evidence:
    """The lemma for clients drawn with replacement, or the mended one for different clients."""
    replacement = what != "φΔ for Δ"
    lemma = printed_covariance if replacement else mended_covariance
    return _all(
        same(
            clients.second_moment(m, P, replacement=replacement),
            lemma(clients, m, P),
            f"{what}, d = {clients.d}, m = {m}, P = {P}",
        )
        for clients, m, P in _PARTS[what]
    )


def _all(cases: Iterable[Evidence]) -> Evidence:
    """The first that does not hold, else the last with how many there are."""
    listed = list(cases)
    failing = [evidence for evidence in listed if not evidence.holds]
    return failing[0] if failing else replace(listed[-1], says=f"{len(listed)} cases; {listed[-1].says}")


def _noise_sum(draws: Iterable[tuple[int, ...]], *, printed: bool, per_client: bool = False) -> Matrix:
    """E Σ_{i,i'} s_i s_i'ᵀ (printed: s_i s_iᵀ) over equally likely draws.

    Every place of a draw has a mini-batch of its own; per_client: every client has one.
    """
    s = SAMPLE.noises
    sums = []
    for chosen, signs in product(draws, product((-1, 1), repeat=SAMPLE.M)):
        # The sign of a client's noise, or of the noise at a place of the draw, where one client may stand twice.
        sign = [signs[i] for i in chosen] if per_client else signs
        drawn = [sign[place] * s[i] for place, i in enumerate(chosen)]
        if printed:
            sums.append(np.sum([np.outer(s[i], s[i]) for i, _ in product(chosen, chosen)], axis=0))
        else:
            sums.append(np.sum([np.outer(left, right) for left, right in product(drawn, drawn)], axis=0))
    return _mean(sums)


def double_sum(*, printed: bool) -> Evidence:
    compare, transposed = (unlike, "s_iᵀ") if printed else (same, "s_i'ᵀ")
    left = _noise_sum(permutations(range(3), 2), printed=printed)
    return compare(left, 2 * SAMPLE.within, f"m = 2 of M = 3, E Σ_{{i,i'}} s_i {transposed} against mΣ")


def drawn_twice(*, per_client: bool) -> Evidence:
    compare, batches = (unlike, "one mini-batch a client") if per_client else (same, "a mini-batch for every draw")
    left = _noise_sum(product(range(3), repeat=2), printed=False, per_client=per_client)
    return compare(left, 2 * SAMPLE.within, f"with replacement, {batches}: E Σ_{{i,i'}} s_i s_i'ᵀ against mΣ")


def _sums_of_gradients(what: str, *, replacement: bool) -> Evidence:
    """E of Σ_{i,i'} ∇f_i ∇f_i'ᵀ over m clients as m²∇f∇fᵀ + mφΔ, with φ = 1 for draws with replacement."""
    mean = np.outer(QUIET.gradient, QUIET.gradient)

    def right(m: int) -> Matrix:
        if replacement:
            return m * m * mean + m * QUIET.between
        squared, drawn = (_mended("eq.fejiosd", name, QUIET.d, m, 1, QUIET.M) for name in ("mean", "between"))
        return squared * mean + drawn * QUIET.between

    return _all(
        same(m * m * QUIET.mean_square(m, replacement=replacement), right(m), f"{what}, m = {m}") for m in (1, 2, 3)
    )


def moment(u: tuple[int, ...], v: tuple[int, ...], *, mended: bool) -> Evidence:
    """E z zᵀ u vᵀ z zᵀ on the sphere, summed over a design, against the print or the mended formula."""
    d = len(u)
    A = np.outer(_exact([u])[0], _exact([v])[0])
    eye = np.trace(A) * _exact(np.eye(d, dtype=int))
    right = Fraction(d, d + 2) * (eye + 2 * A)
    if mended:
        parts = {"trace": eye, "same": A, "turned": A.T}
        right = sum(_mended("line-1338", name, d, 1, 1, 2) * part for name, part in parts.items())
    return (same if mended else unlike)(design("sphere", d).sandwich(A), right, f"u = {u}, v = {v}")


def rare_noise(*, mean: bool) -> Evidence:
    """One client; s = ±10 (1, 0, 0, 0) in one mini-batch of a hundred, else 0: σ² = 1."""
    sizes = [10] + [0] * 99
    squares = [size**2 for size in sizes]
    variance = sum(squares) / len(squares)
    if mean:
        return at_most(variance, 1.0, "E Tr Σ_r against σ²")
    return exceeds(max(squares), variance, "Tr Σ_r in one mini-batch of a hundred against σ²")


def exact(name: str) -> Evidence:
    """Exact sums that are one, or are not."""
    square = np.outer(SAMPLE.gradient, SAMPLE.gradient)
    match name:
        case "sets of clients":
            drawn, printed = SAMPLE.second_moment(2, 2, replacement=False), printed_covariance(SAMPLE, 2, 2)
            return unlike(drawn, printed, "M = 3, m = 2 different clients, P = 2, d = 4")
        case "all of two clients":
            clients = Clients([(1,), (-1,)], [(0,), (0,)])
            left = 4 * clients.mean_square(2, replacement=False)[0, 0]
            right = (4 * np.outer(clients.gradient, clients.gradient) + 2 * clients.between)[0, 0]
            return unlike(left, right, "M = m = 2, ∇f_i = ±1: the sum over all clients is 0")
        case "not centred":
            second = SAMPLE.second_moment(2, 1, replacement=True)
            return unlike(second - square, second, "covariance against second moment")
        case "moment of the mean":
            moment = SAMPLE.second_moment(2, 1, replacement=True)
            return same(moment, printed_covariance(SAMPLE, 2, 1), "E ∇̄f∇̄fᵀ, d = 4")
        case "trace of Δ":
            squares = (SAMPLE.gradients - SAMPLE.gradient) ** 2
            return same(np.trace(SAMPLE.between), squares.sum() / SAMPLE.M, "Tr Δ and the mean of ‖∇f − ∇f_i‖²")
        case "one drawn client":  # whose gradient has the covariance Δ
            covariance = QUIET.mean_square(1, replacement=False) - square
            return same(SAMPLE.between, covariance, "Δ and the covariance of one drawn client's gradient")
        case "one mini-batch":  # ξ_r for ξ_{i,r}: the noises of all M clients, here all sampled, have one sign
            together = SAMPLE.noises.sum(axis=0) * Fraction(1, SAMPLE.M)
            what = "one mini-batch for all clients: noise of the mean against Σ/m"
            return unlike(np.outer(together, together), SAMPLE.within * Fraction(1, SAMPLE.M), what)
        case "two points":  # x, x' of f = ‖x‖²/2, ∇f = x: the print's left side has one x_r, one x_r'
            here, there = _exact([(1, 0, 0, 0)])[0], _exact([(0, 1, 0, 0)])[0]
            mixed, same_point = (design("sphere", 4).sandwich(np.outer(here, other)) for other in (there, here))
            return unlike(mixed, same_point, "E ∇̄f(x) ∇̄f(x')ᵀ against E ∇̄f(x) ∇̄f(x)ᵀ, f = ‖x‖²/2")
    raise KeyError(name)
