"""Lemma of the covariance matrix (lines 1297-1360), by exact sums over directions, clients and noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import permutations, product
from typing import Any, Final

import numpy as np
import sympy as sp

from theory.audit.designs import design
from theory.audit.entry import Entry, Evidence
from theory.audit.exact import same, unlike
from theory.audit.instruments import at_most, equal, exceeds

__all__ = ["ENTRIES", "SAMPLE", "Clients", "printed_covariance"]

Matrix = Any  # numpy array of Fractions, shape (d, d)


class Clients:
    """Clients with known gradients at a point and mini-batch noise of ±s_i, in whole numbers.

    Args:
        gradients: ∇f_i, shape (M, d).
        noises: s_i, shape (M, d); zeros for none.
    """

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
        return _mean(
            np.outer(v, v) * Fraction(1, m * m)
            for chosen in map(list, draws)
            for signs in product((-1, 1), repeat=m)
            for v in [(self.gradients[chosen] + _exact([signs]).T * self.noises[chosen]).sum(axis=0)]
        )

    def second_moment(self, m: int, P: int, *, replacement: bool, distribution: str = "sphere") -> Matrix:
        """E ∇̄f ∇̄fᵀ, ∇̄f = Z v̄, by adding up all directions too."""
        return design(distribution, self.d).sandwich(self.mean_square(m, replacement=replacement), P)


def _exact(rows: Iterable[Iterable[int]]) -> Matrix:
    return np.array([[Fraction(entry) for entry in row] for row in rows], dtype=object)


def _mean(matrices: Iterable[Matrix]) -> Matrix:
    listed = list(matrices)
    return np.sum(listed, axis=0) * Fraction(1, len(listed))


def printed_covariance(clients: Clients, m: int, P: int, *, phi: Fraction = Fraction(1)) -> Matrix:
    """Right side of the lemma: d/(P(d+2)) tr(A) I + (1 + (d−2)/(P(d+2))) A with A = ∇f∇fᵀ + Σ/m + φΔ/m.

    φ = 1 as printed.
    """
    d = clients.d
    A = np.outer(clients.gradient, clients.gradient) + (clients.within + phi * clients.between) * Fraction(1, m)
    scatter, keep = Fraction(d, P * (d + 2)), 1 + Fraction(d - 2, P * (d + 2))
    return scatter * np.trace(A) * _exact(np.eye(d, dtype=int)) + keep * A


SAMPLE: Final = Clients(
    [(2, 1, 0, -1), (0, 3, 1, 1), (1, -1, 2, 3)],
    [(1, 0, 2, 0), (0, 1, 0, 0), (1, 1, -1, 2)],
)
_QUIET: Final = Clients(SAMPLE.gradients, np.zeros((3, 4), dtype=int))
_NOISY: Final = Clients(np.zeros((3, 4), dtype=int), SAMPLE.noises)
_ONE: Final = Clients([(2,), (-1,), (5,)], [(1,), (3,), (2,)])


def _phi(clients: Clients, m: int) -> Fraction:
    return Fraction(clients.M - m, clients.M - 1)


def _lemma_with_replacement() -> Evidence:
    return _all(
        same(
            clients.second_moment(m, P, replacement=True),
            printed_covariance(clients, m, P),
            f"with replacement, d = {clients.d}, m = {m}, P = {P}",
        )
        for clients, m, P in [(SAMPLE, 1, 1), (SAMPLE, 2, 1), (SAMPLE, 2, 3), (_ONE, 2, 2), (_ONE, 3, 4)]
    )


def _lemma_of_sets() -> Evidence:
    return unlike(
        SAMPLE.second_moment(2, 2, replacement=False),
        printed_covariance(SAMPLE, 2, 2),
        "M = 3, m = 2 different clients, P = 2, d = 4",
    )


def _lemma_mended() -> Evidence:
    return _all(
        same(
            clients.second_moment(m, P, replacement=False),
            printed_covariance(clients, m, P, phi=_phi(clients, m)),
            f"φΔ for Δ, d = {clients.d}, m = {m}, P = {P}",
        )
        for clients, m, P in [(SAMPLE, 1, 2), (SAMPLE, 2, 2), (SAMPLE, 3, 1), (_ONE, 2, 3)]
    )


def _all(found: Iterable[Evidence]) -> Evidence:
    """The first that does not hold, else the last with how many there are."""
    listed = list(found)
    wrong = [each for each in listed if not each.holds]
    return wrong[0] if wrong else Evidence(listed[-1].instrument, True, f"{len(listed)} cases; {listed[-1].says}")


_LEMMA: Final = (_lemma_with_replacement, _lemma_of_sets, _lemma_mended)


def _not_centred() -> Evidence:
    second = SAMPLE.second_moment(2, 1, replacement=True)
    centred = second - np.outer(SAMPLE.gradient, SAMPLE.gradient)
    return unlike(centred, second, "covariance against second moment")


def _noise_sum(draws: Iterable[tuple[int, ...]], *, printed: bool, per_client: bool = False) -> Matrix:
    """E Σ_{i,i'} s_i s_i'ᵀ (printed: s_i s_iᵀ) over equally likely draws.

    Every place of a draw has a mini-batch of its own; per_client: every client has one.
    """
    s = SAMPLE.noises
    return _mean(
        np.sum(
            [
                np.outer(s[i], s[i]) if printed else np.outer(sign[at] * s[i], sign[other] * s[j])
                for at, i in enumerate(chosen)
                for other, j in enumerate(chosen)
            ],
            axis=0,
        )
        for chosen in draws
        for signs in product((-1, 1), repeat=SAMPLE.M)
        for sign in [[signs[i] for i in chosen] if per_client else signs]
    )


def _double_sum(*, printed: bool) -> Evidence:
    compare, transposed = (unlike, "s_iᵀ") if printed else (same, "s_i'ᵀ")
    left = _noise_sum(permutations(range(3), 2), printed=printed)
    return compare(left, 2 * SAMPLE.within, f"m = 2 of M = 3, E Σ_{{i,i'}} s_i {transposed} against mΣ")


def _drawn_twice(*, per_client: bool) -> Evidence:
    compare, batches = (unlike, "one mini-batch a client") if per_client else (same, "a mini-batch for every draw")
    left = _noise_sum(product(range(3), repeat=2), printed=False, per_client=per_client)
    return compare(left, 2 * SAMPLE.within, f"with replacement, {batches}: E Σ_{{i,i'}} s_i s_i'ᵀ against mΣ")


def _sets_of_clients() -> Evidence:
    clients = Clients([(1,), (-1,)], [(0,), (0,)])
    left = 4 * clients.mean_square(2, replacement=False)[0, 0]
    right = (4 * np.outer(clients.gradient, clients.gradient) + 2 * clients.between)[0, 0]
    return unlike(left, right, "M = m = 2, ∇f_i = ±1: the sum over all clients is 0")


def _sets_mended() -> Evidence:
    return _all(
        same(
            m * m * _QUIET.mean_square(m, replacement=False),
            m * m * np.outer(_QUIET.gradient, _QUIET.gradient) + m * _phi(_QUIET, m) * _QUIET.between,
            f"m²∇f∇fᵀ + mφΔ, m = {m}",
        )
        for m in (1, 2, 3)
    )


def _draws() -> Evidence:
    return _all(
        same(
            m * m * _QUIET.mean_square(m, replacement=True),
            m * m * np.outer(_QUIET.gradient, _QUIET.gradient) + m * _QUIET.between,
            f"with replacement, m = {m}",
        )
        for m in (1, 2, 3)
    )


def _trace_of_between() -> Evidence:
    from_mean = SAMPLE.gradients - SAMPLE.gradient
    return same(np.trace(SAMPLE.between), (from_mean**2).sum() / SAMPLE.M, "Tr Δ and the mean of ‖∇f − ∇f_i‖²")


def _part(clients: Clients, what: str) -> Callable[[], Evidence]:
    def check() -> Evidence:
        return _all(
            same(
                clients.second_moment(m, P, replacement=True),
                printed_covariance(clients, m, P),
                f"{what}, m = {m}, P = {P}",
            )
            for m, P in [(1, 1), (2, 2), (2, 3)]
        )

    return check


def _moment(u: tuple[int, ...], v: tuple[int, ...], *, mended: bool) -> Evidence:
    """E z zᵀ u vᵀ z zᵀ on the sphere, summed over a design, against the print or the mended formula."""
    d = len(u)
    A = np.outer(_exact([u])[0], _exact([v])[0])
    right = Fraction(d, d + 2) * (np.trace(A) * _exact(np.eye(d, dtype=int)) + (A + A.T if mended else 2 * A))
    return (same if mended else unlike)(design("sphere", d).sandwich(A), right, f"u = {u}, v = {v}")


def _moment_by_trace() -> Evidence:
    d, gamma = sp.symbols("d gamma", positive=True)
    # E z_i z_j z_k z_l = γ (δ_ij δ_kl + δ_ik δ_jl + δ_il δ_jk) by symmetry; i = j, k = l summed: E‖z‖⁴ = d².
    return equal(sp.solve(gamma * (d**2 + 2 * d) - d**2, gamma)[0], d / (d + 2), "γ from E‖z‖⁴ = d²")


def _rare_noise(*, mean: bool) -> Evidence:
    """One client; s = ±10 (1, 0, 0, 0) in one mini-batch of a hundred, else 0: σ² = 1."""
    sizes = [10] + [0] * 99
    squares = [size**2 for size in sizes]
    variance = sum(squares) / len(squares)
    if mean:
        return at_most(variance, 1.0, "E Tr Σ_r against σ²")
    return exceeds(max(squares), variance, "Tr Σ_r in one mini-batch of a hundred against σ²")


def _one_batch_for_all() -> Evidence:
    """ξ_r for ξ_{i,r}: the noises of all M clients, here all sampled, have one sign."""
    together = SAMPLE.noises.sum(axis=0) * Fraction(1, SAMPLE.M)
    return unlike(
        np.outer(together, together),
        SAMPLE.within * Fraction(1, SAMPLE.M),
        "one mini-batch for all clients: noise of the mean against Σ/m",
    )


def _regrouped() -> Evidence:
    d, P = sp.symbols("d P", positive=True)
    return equal((P - 1) / P + 2 * d / (P * (d + 2)), 1 + (d - 2) / (P * (d + 2)), "(P−1)/P + 2d/(P(d+2))")


def _two_points() -> Evidence:
    """∇̄f at two points x, x' of f = ‖x‖²/2, ∇f = x: the print's left side has one x_r, one x_r'."""
    here, there = (1, 0, 0, 0), (0, 1, 0, 0)
    mixed = np.outer(_exact([here])[0], _exact([there])[0])
    own = np.outer(_exact([here])[0], _exact([here])[0])
    moment = design("sphere", 4).sandwich
    return unlike(moment(mixed), moment(own), "E ∇̄f(x) ∇̄f(x')ᵀ against E ∇̄f(x) ∇̄f(x)ᵀ, f = ‖x‖²/2")


_SETS_WHY: Final = (
    "The algorithm draws a set of m clients, so without replacement: Δ is multiplied by φ = (M − m)/(M − 1). "
    "Equality holds only with replacement, and then only if a client drawn twice takes two mini-batches. As φ ≤ 1, "
    "the bounds made of it stay."
)

ENTRIES: Final = (
    Entry(
        label="line-1297",
        line=1297,
        kind="claim",
        says="The covariance matrix of ∇̂f has the following relationship (the lemma gives E ∇̄f ∇̄fᵀ).",
        finding="typo",
        checks=(_not_centred,),
        why="The lemma is about ∇̄f, not ∇̂f, and about the second moment; the covariance matrix is ∇f∇fᵀ less.",
        fix="The second moment of ∇̄f has the following relationship.",
    ),
    Entry(
        label="lemma.covariance",
        line=1299,
        kind="lemma",
        says="E ∇̄f ∇̄fᵀ = d/(P(d+2)) (‖∇f‖² + Tr Σ/m + Tr Δ/m) I + (1 + (d−2)/(P(d+2))) (∇f∇fᵀ + Σ/m + Δ/m)",
        finding="false",
        checks=_LEMMA,
        why=_SETS_WHY + " It is for directions on the sphere, which it does not say.",
        fix="The same with E Σ for Σ and φΔ for Δ, φ = (M − m)/(M − 1).",
    ),
    Entry(
        label="line-1300",
        line=1300,
        kind="equation",
        says="The identity of the lemma of the covariance matrix.",
        finding="false",
        checks=_LEMMA,
        why=_SETS_WHY,
        fix="φΔ for Δ, E Σ for Σ.",
    ),
    Entry(
        label="line-1306",
        line=1306,
        kind="equation",
        says="Σ_r = (1/M) Σ_i s_i s_iᵀ, with s_i = ∇f_i(x; ξ_r) − ∇f_i(x)",
        finding="typo",
        checks=(lambda: _rare_noise(mean=False), lambda: _rare_noise(mean=True), _one_batch_for_all),
        why="Random as printed, while the lemma's left side is an expectation: E is missing. And the mini-batch is "
        "ξ_{i,r}: one ξ_r for all clients would make their noises dependent, and nothing would be divided by m.",
        fix="Σ_r = (1/M) Σ_i E s_i s_iᵀ, s_i = ∇f_i(x; ξ_{i,r}) − ∇f_i(x)",
    ),
    Entry(
        label="line-1306.2",
        line=1306,
        kind="equation",
        says="Δ = (1/M) Σ_i ∇f_i ∇f_iᵀ − ∇f ∇fᵀ, the covariance of sampling one client",
        finding="correct",
        checks=(
            lambda: same(
                SAMPLE.between,
                _QUIET.mean_square(1, replacement=False) - np.outer(SAMPLE.gradient, SAMPLE.gradient),
                "Δ and the covariance of one drawn client's gradient",
            ),
        ),
    ),
    Entry(
        label="line-1313",
        line=1313,
        kind="equation",
        says="E ∇̄f ∇̄fᵀ = T_1 + T_2, T_2 with Σ_{i,i'} of s_i s_iᵀ",
        finding="typo",
        checks=(lambda: _double_sum(printed=True), lambda: _double_sum(printed=False)),
        why="The double sum is of s_i s_i'ᵀ; with s_i s_iᵀ in it T_2 would be m times larger. The cross terms vanish "
        "if noises of different clients are independent, which no assumption says.",
        fix="s_{i,r} s_{i',r}ᵀ",
    ),
    Entry(
        label="eq.fejiosd",
        line=1318,
        kind="equation",
        says="E Σ_{i,i'} ∇f_i ∇f_i'ᵀ = (m² − m) ∇f∇fᵀ + (m/M) Σ ∇f_i ∇f_iᵀ = m² ∇f∇fᵀ + mΔ",
        finding="false",
        checks=(_sets_of_clients, _draws, _sets_mended),
        why="True of m draws with replacement. C_r is a set: two different clients are not independent, and with m = M "
        "nothing is random.",
        fix="m² ∇f∇fᵀ + m (M − m)/(M − 1) Δ",
    ),
    Entry(
        label="line-1324",
        line=1324,
        kind="equation",
        says="Tr Δ = (1/M) Σ ‖∇f_i‖² − ‖∇f‖² = (1/M) Σ ‖∇f − ∇f_i‖² ≤ σ_G²",
        finding="correct",
        checks=(_trace_of_between,),
    ),
    Entry(
        label="line-1328",
        line=1328,
        kind="equation",
        says="T_1 in three steps: pairs p = p' and p ≠ p'; eq. fejiosd; the moment of the sphere",
        finding="correct",
        checks=(_part(_QUIET, "T_1 without noise, clients drawn with replacement"),),
        why="Given eq. fejiosd, so for clients drawn with replacement.",
    ),
    Entry(
        label="line-1338",
        line=1338,
        kind="equation",
        says="E z zᵀ u vᵀ z zᵀ = d/(d+2) Tr(uvᵀ) I + 2d/(d+2) uvᵀ",
        finding="false",
        checks=(
            lambda: _moment((1, 0, 0, 0), (0, 1, 0, 0), mended=False),
            lambda: _moment((1, 0, 0, 0), (0, 1, 0, 0), mended=True),
            lambda: _moment((1, 2, 0, -1, 0, 0, 3, 0), (0, 1, 0, 2, 0, 1, 0, 0), mended=True),
            _moment_by_trace,
        ),
        why="The left side is symmetric, the right side is not for u ≠ v. The proof needs it for symmetric sums only, "
        "for which it is right.",
        fix="d/(d+2) (uᵀv I + uvᵀ + vuᵀ)",
    ),
    Entry(
        label="line-1345",
        line=1345,
        kind="equation",
        says="E Σ_{i,i'} s_i s_iᵀ = (m/M) Σ s_i s_iᵀ = mΣ",
        finding="typo",
        checks=(
            lambda: _double_sum(printed=True),
            lambda: _double_sum(printed=False),
            lambda: _drawn_twice(per_client=True),
            lambda: _drawn_twice(per_client=False),
        ),
        why="The sum is of s_i s_i'ᵀ. With replacement, which eq. fejiosd needs, it also needs two mini-batches for a "
        "client drawn twice; without, it is right.",
        fix="E Σ_{i,i'} s_i s_i'ᵀ = mΣ",
    ),
    Entry(
        label="line-1345.2",
        line=1345,
        kind="equation",
        says="Tr Σ_r ≤ σ²",
        finding="false",
        checks=(lambda: _rare_noise(mean=False), lambda: _rare_noise(mean=True)),
        why="Assumption 1 bounds the mean square of the noise, not its square in every draw.",
        fix="E Tr Σ_r ≤ σ²",
    ),
    Entry(
        label="line-1349",
        line=1349,
        kind="equation",
        says="T_2 = (P−1)/(mP) Σ + d/(mP(d+2)) (Tr Σ I + 2Σ)",
        finding="correct",
        checks=(_part(_NOISY, "T_2 alone"),),
    ),
    Entry(
        label="line-1354",
        line=1354,
        kind="equation",
        says="E ∇̄f(x_r) ∇̄f(x_r')ᵀ = T_1 + T_2, to be regrouped",
        finding="typo",
        checks=(_two_points, _regrouped),
        why="x_r' on the left is x_r: at two points it is another matrix. Regrouping is right.",
        fix="E ∇̄f(x_r; ξ_r) ∇̄f(x_r; ξ_r)ᵀ",
    ),
)
