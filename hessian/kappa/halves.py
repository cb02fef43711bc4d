"""How far λ_max of a sample is from that of all data: a bracket from two halves of the sample.

λ_max of a mean over few examples is too large, by a factor of several for small batches; its trace is not. With H_A and
H_B of two disjoint random halves, u_A the unit eigenvector of λ_max(H_A), and H the mean over all data there could be,

    E λ_max(H_A) ≥ λ_max(H)                     λ_max is convex: Jensen
    E u_Aᵀ H_B u_A = E u_Aᵀ H u_A ≤ λ_max(H)    B is independent of u_A
"""

from dataclasses import asdict, dataclass
from typing import Any

from decomfl_lab.errors import require
from hessian.operators.matrices import as_operator
from hessian.spectrum.lanczos import lanczos


@dataclass(frozen=True)
class SplitSample:
    """λ_max of two halves, and what each half's top eigenvector finds in the other."""

    own: tuple[float, float]  # the largest eigenvalues (λ_max(H_A), λ_max(H_B)), each of its own half
    crossed: tuple[float, float]  # the forms (u_Aᵀ H_B u_A, u_Bᵀ H_A u_B), each on the other half
    products: int  # the number of products spent on both halves

    @property
    def above(self) -> float:
        """Mean of λ_max of the halves: above λ_max of all data in expectation."""
        return sum(self.own) / 2

    @property
    def below(self) -> float:
        """Mean of what is found in the other half: below it in expectation."""
        return sum(self.crossed) / 2

    def kappa(self, trace: float) -> tuple[float, float]:
        """κ by the upper and by the lower λ_max, for tr(H) = ``trace`` ≥ 0, which no sampling biases.

        The ends are NaN where a λ_max is not positive.
        """
        low, high = (trace / top if top > 0 else float("nan") for top in (self.above, self.below))
        return low, high

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {**asdict(self), "above": self.above, "below": self.below}


def split_sample(halves: tuple[Any, Any], *, seed: int, steps: int = 30, tol: float = 0.01) -> SplitSample:
    """The bracket of λ_max from the operators of two disjoint halves of a random sample.

    Args:
        halves: The matrices H_A and H_B (``as_operator``), of the same dimension; they must be of disjoint examples.
        seed: The seed of the start vectors.
        steps: The most products for the λ_max of a half.
        tol: The residual, relative to λ_max, at which fewer are enough.

    Raises:
        InputError: If the dimensions differ, or an argument breaks a rule.
    """
    operators = [as_operator(half) for half in halves]
    sizes = tuple(half.d for half in operators)
    require(len(set(sizes)) == 1, "halves", "have one dimension", sizes)
    # The two forms at the end count as products from the start.
    own, vectors, products = [], [], 2
    for half in operators:
        found = lanczos(half, steps=steps, seed=seed, tol=tol)
        own.append(float(found.ritz_values[-1]))
        vectors += found.ritz_vectors([len(found.ritz_values) - 1])
        products += found.products
        del found  # its basis, before the other half's is made
    # u_B goes to H_A and u_A to H_B: crossed is (u_Bᵀ H_A u_B, u_Aᵀ H_B u_A), and the result has them the other way.
    crossed = [half.quad(u) for half, u in zip(operators, reversed(vectors), strict=True)]
    return SplitSample((own[0], own[1]), (crossed[1], crossed[0]), products)
