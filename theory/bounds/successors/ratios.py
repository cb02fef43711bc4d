"""Corrected Theorem 1 over sharper and wider ones.

``python -m theory.bounds.successors.ratios`` prints the page, which `make docs` writes.
"""

import itertools
import statistics
from typing import Final

from theory.bounds import statement
from theory.notation.setting import Setting
from theory.statements.statement import Variant

_D, _P, _K, _M = (100, 10_000, 1_000_000), (1, 10, 100), (2, 10, 100), (1, 10, 100)
_VARIANTS: Final[tuple[Variant, ...]] = ("sharper", "wider")


def ratio(variant: Variant, *, d: int, P: int, K: int, m: int, R: int = 10_000) -> float:
    """Corrected Theorem 1 over this variant of it, each at its best η: L = D = σ = σ_G = 1, M = 1000, μ → 0."""
    here = Setting(d=d, L=1.0, m=m, M=1000, P=P, K=K, R=R, sigma=1.0, sigma_G=1.0)
    landed, other = (statement("theorem-1", each) for each in ("corrected", variant))
    return sum(landed.bound(here.at(landed.best_eta(here)))) / sum(other.bound(here.at(other.best_eta(here))))


def page() -> str:
    """The tables in Markdown."""
    parts = [
        "# How much smaller the sharper Theorem 1 is",
        "Corrected Theorem 1 over the sharper and over the wider one ([theory.md](theory.md)), each at its own best\n"
        "η, in 81 settings: L = D = σ = σ_G = 1, M = 1,000, R = 10,000, Gaussian directions, μ → 0. Written by\n"
        "`python -m theory.bounds.successors.ratios`.",
    ]
    for variant in _VARIANTS:
        ratios = {
            key: ratio(variant, d=key[0], P=key[1], K=key[2], m=key[3]) for key in itertools.product(_D, _P, _K, _M)
        }
        low, middle, high = min(ratios.values()), statistics.median(ratios.values()), max(ratios.values())
        columns = list(itertools.product(_K, _M))
        rows = [
            "| d | P | " + " | ".join(f"K = {K}, m = {m}" for K, m in columns) + " |",
            "|---" * (len(columns) + 2) + "|",
            *(
                f"| {d:,} | {P} | " + " | ".join(f"{ratios[d, P, K, m]:.2f}" for K, m in columns) + " |"
                for d, P in itertools.product(_D, _P)
            ),
        ]
        parts += [f"## {variant.capitalize()}: {low:.2f} to {high:.2f}, median {middle:.2f}", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
