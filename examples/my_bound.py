"""A bound of your own.

``decomfl check examples/my_bound.py:right`` holds; ``decomfl check examples/my_bound.py:wrong`` fails and shows where.
"""

from dataclasses import replace

import theory
from theory.notation.symbols import D, L, R, eta, m, phi, rho, sigma, sigma_G

# E f(x_R) − f* ≤ (1 − ην)^R D + Lηρ(σ² + φσ_G²)/(2νm) for η ≤ 1/(Lρ), K = 1 and μ → 0, if f is ν-strongly convex: is it
# so? A symbol of your own has a unit, and units are checked when the bound is written down.
nu = theory.symbol("nu", theory.F / theory.X**2)
right = theory.Statement(
    "right",
    left=theory.LAST_LOSS,
    terms={
        "start": (1 - eta * nu) ** R * D,
        "noise": L * eta * rho * (sigma**2 + phi * sigma_G**2) / (2 * nu * m),
    },
    eta={"descent": 1 / (L * rho)},
    constants={"nu": lambda problem, setting: problem.spectrum.lambda_min},
    single_step=True,
    without=("mu",),
)

# Without ρ, as for gradient descent, there is too little noise in the bound.
wrong = replace(right, name="wrong", terms={**right.terms, "noise": right.terms["noise"] / rho})

if __name__ == "__main__":
    print(right)
    problem = theory.quadratic(d=1000, kappa=1000, D=0.0, sigma=0.1)  # or one problem at a time
    for statement in (right, wrong):
        print(theory.check(statement, problem, m=10, M=100, P=10, R=1000))
