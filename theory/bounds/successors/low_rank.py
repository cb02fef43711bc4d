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
    """ρ_κ = 1 + (κ + 1 + (2κ + 9/2)/r)/P, with E‖(1/P) Σ_p z_p z_pᵀ v‖²_H ≤ L ρ_κ ‖v‖² for 0 ⪯ H ⪯ L I, tr H ≤ κL."""
    return 1 + (kappa + 1 + (2 * kappa + 4.5) / require_int("rank", rank, 1)) / P
