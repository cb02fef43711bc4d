"""The fourth moment of low-rank directions, and what it makes of ρ and ρ_κ; proved in docs/methods-theory.md."""

from __future__ import annotations

from decomfl_lab.errors import require, require_int
from decomfl_lab.noise import LowRank
from theory.problems.problem import Floats

__all__ = ["fourth_moment", "low_rank_effective_factor", "low_rank_second_moment_factor"]


def fourth_moment(V: Floats, H: Floats, rank: int) -> float:
    """E ⟨z, v⟩² zᵀHz for z = vec(A Bᵀ)/√r of one matrix, v = vec(V), row by row.

        ‖v‖² tr H + 2 vᵀHv + (2/r) (⟨VVᵀ, H_rows⟩ + ⟨VᵀV, H_columns⟩ + vᵀH^Γv),

    where H_rows (a, a) is the partial trace of H over columns, H_columns (b, b) that over rows, and H^Γ the partial
    transpose, H^Γ[ij, kl] = H[il, kj]. For r → ∞ it is the Gaussian's.

    Args:
        V: Shape (a, b).
        H: Symmetric, shape (ab, ab).
        rank: r.

    Raises:
        InputError: If shapes do not fit or r is below 1.
    """
    a, b = V.shape
    require(H.shape == (a * b, a * b), "H", f"be of shape {(a * b, a * b)}", H.shape)
    require_int("rank", rank, 1)
    v, blocks = V.reshape(-1), H.reshape(a, b, a, b)
    rows = (V @ V.T * blocks.trace(axis1=1, axis2=3)).sum()
    columns = (V.T @ V * blocks.trace(axis1=0, axis2=2)).sum()
    turned = v @ blocks.swapaxes(1, 3).reshape(H.shape) @ v
    return float(v @ v * H.trace() + 2 * v @ H @ v + 2 / rank * (rows + columns + turned))


def low_rank_second_moment_factor(of: LowRank, P: int) -> float:
    """The largest ρ = E‖(1/P) Σ_p z_p z_pᵀ v‖²/‖v‖² over v: 1 + (d + 1 + (2/r) max (a + b + 1))/P, over matrices."""
    largest = max((at.rows + at.columns + 1 for at in of.tensors if at.terms), default=0)
    return 1 + (of.d + 1 + 2 * largest / of.rank) / P


def low_rank_effective_factor(*, rank: int, P: int, kappa: float) -> float:
    """ρ_κ = 1 + (κ + 1 + (2κ + 9/2)/r)/P, with E‖(1/P) Σ_p z_p z_pᵀ v‖²_H ≤ L ρ_κ ‖v‖² for 0 ⪯ H ⪯ L I, tr H ≤ κL.

    *Proof.* (R1) of ``docs/methods-theory.md`` is the fourth moment. It is enough to show ⟨Q, H⟩ ≤ L(κ + 9/4) for one
    matrix with ‖V‖ = 1, Q the form in the brackets of (R1). In the bases of V's singular vectors, s_i the singular
    values, p_i = s_i², Q has the eigenvalues 3p_i, p_i + p_j ± s_is_j for i < j, and p_i for each further row or
    column. ⟨Q, H⟩ ≤ tr H + L Σ(q − 1)₊ over them. Let p_1 be the largest and δ = 1 − p_1. If p_1 ≤ 1/3, no q exceeds 1,
    as q ≤ 3p_1. Otherwise pairs without 1 have q ≤ 3(p_i + p_j)/2 ≤ 3δ/2 < 1, and n pairs (1, j) exceed 1 by Σ(p_j − δ
    + s_1s_j) ≤ (1 − n)δ + √(nδ(1 − δ)) together. With 3p_1 − 1 = 2 − 3δ that is at most 2 − (n + 2)δ + √(nδ) ≤ 2 +
    n/(4(n + 2)) < 9/4; if also p_2 > 1/3, then 1/3 < δ < 2/3 and 3p_2 − 1 ≤ 3δ − 1 leave at most 1 + (1 − n)δ + √(nδ(1
    − δ)) ≤ 3/2. ∎

    *In any case,* for any v and H ⪰ 0, E⟨z, v⟩²zᵀHz is at most 1 + 3/r times the Gaussian's, and V = I_2, H = ww^T with
    w = vec((0 1; 1 0)) has that. *Proof.* H = ww^T, ‖v‖ = ‖w‖ = 1, is enough: Q(w) ≤ 3/2 + 3⟨v, w⟩² is needed. Off the
    diagonal q ≤ 3(p_i + p_j)/2 ≤ 3/2. On it 3Σp_iw_i² − 3(Σs_iw_i)² = −3Σ_{i≠j} s_is_jw_iw_j ≤ 6 (Σ₊ s_i|w_i|)(Σ₋
    s_j|w_j|), sums over the w_i of either sign, and each of these is at most √(p₊W₊), √(p₋W₋) with p₊ + p₋ ≤ 1, W₊ + W₋
    ≤ 1: together 6 · ½ · ½ = 3/2. The two parts of w add with their shares of ‖w‖². ∎
    """
    return 1 + (kappa + 1 + (2 * kappa + 4.5) / require_int("rank", rank, 1)) / P
