"""A bound of your own, checked on a problem whose truth is known exactly."""

from dataclasses import replace

import theory
from theory.symbols import D, L, R, eta, kappa, m, sigma

# (1/R) Σ_r E‖∇f(x_r)‖² ≤ 2D/(Rη) + 2Lηκσ²/m for η ≤ 1/(8Lκ): is it so? The units are checked when it is written down.
mine = theory.Statement(
    "mine",
    terms={"start": 2 * D / (R * eta), "noise": 2 * L * eta * kappa * sigma**2 / m},
    eta={"descent": 1 / (8 * L * kappa)},
)
print(mine)

# On a quadratic with 10⁹ parameters and effective rank 50. The step size is the largest that the bound allows.
problem = theory.quadratic(d=10**9, kappa=50, D=2.0, sigma=0.1)
print(theory.check(mine, problem, m=10, M=100, P=10, R=1000))

# Without κ, as for gradient descent, there is too little noise in the bound: from the minimum on, it fails.
noisy = theory.quadratic(d=10**9, kappa=50, D=0.0, sigma=1.0)
without_kappa = replace(mine, name="without κ", terms={**mine.terms, "noise": L * eta * sigma**2 / m})
print(theory.check(without_kappa, noisy, R=100_000))

# What is proved: Theorem 2 of the paper, corrected.
print(theory.check(theory.statement("theorem-2"), problem, m=10, M=100, P=10, R=1000))
