"""What holds of the last iterate, or of f itself, where f has more than a lower bound; one local step, plain SGD."""

from __future__ import annotations

from typing import Final

from sympy import exp

from theory.bounds.default_run import LOW_RANK, SMOOTH, Assumption
from theory.notation.symbols import D, L, Q, R, alpha, eta, m, phi, rho, sigma, sigma_G
from theory.statements.measured import AVERAGE_LOSS, LAST_DISTANCE, LAST_LOSS
from theory.statements.statement import Statement

__all__ = ["CONVEX"]

_SMOOTHED: Final = ("gaussian", "sphere")
_CONVEX_BIAS = SMOOTH.bias2 / L + 2 * eta * SMOOTH.second


def _polyak(name: str, of: Assumption) -> Statement:
    """Gradients dominate: ½‖∇f‖² ≥ α(f − f*)."""
    return Statement(
        name,
        variant="corrected",
        left=LAST_LOSS,
        terms={
            "start": exp(-alpha * eta * R) * D,
            "dissimilarity": L * eta * of.r * phi / (m * alpha) * sigma_G**2,
            "noise": L * eta * of.r / (m * alpha) * sigma**2,
            "smoothing": (of.bias2 + L * eta * of.second) / alpha,
        },
        eta={"descent": 1 / (4 * L * of.r)},
        single_step=True,
        assumptions=f"{of.words}; the PL inequality ½‖∇f(x)‖² ≥ α(f(x) − f*) at every x",
        note="The last iterate; f need not be convex. exp(−ηαR) stands for the (1 − ηα)^R of the proof.",
    )


CONVEX: Final = (
    _polyak("pl", SMOOTH),
    _polyak("pl-dimension-free", LOW_RANK),
    Statement(
        "strongly-convex",
        variant="corrected",
        left=LAST_DISTANCE,
        terms={
            "start": exp(-alpha * eta * R) * Q,
            "dissimilarity": 2 * eta * rho * phi / (m * alpha) * sigma_G**2,
            "noise": 2 * eta * rho / (m * alpha) * sigma**2,
            "smoothing": _CONVEX_BIAS / alpha,
        },
        eta={"descent": 1 / (4 * L * rho)},
        distributions=_SMOOTHED,
        single_step=True,
        assumptions=f"{SMOOTH.words}; f is α-strongly convex",
        note="Q = ‖x_0 − x*‖². exp(−ηαR) stands for the (1 − ηα)^R of the proof.",
    ),
    Statement(
        "convex",
        variant="corrected",
        left=AVERAGE_LOSS,
        terms={
            "start": Q / (R * eta),
            "dissimilarity": 2 * eta * rho * phi / m * sigma_G**2,
            "noise": 2 * eta * rho / m * sigma**2,
            "smoothing": _CONVEX_BIAS,
        },
        eta={"descent": 1 / (4 * L * rho)},
        distributions=_SMOOTHED,
        single_step=True,
        assumptions=f"{SMOOTH.words}; f is convex and has a minimum x*",
        note="Q = ‖x_0 − x*‖². By Jensen f of the mean of x_0, …, x_{R−1} keeps the same bound.",
    ),
)
