"""What a rule instead of the mean costs, and what liars can do against it; proved in docs/robust.md."""

from typing import Any, Final

import numpy as np

from decomfl_lab.errors import require, require_int
from decomfl_lab.protocol.aggregation import Aggregation, Mean, Median, TrimmedMean, omega
from theory.notation.setting import Setting
from theory.notation.symbols import D, L, P, R, eta, m, rho, sigma, sigma_G, symbol
from theory.problems.problem import Floats
from theory.statements.algorithms import Losses
from theory.statements.statement import Statement

_OMEGA: Final = symbol("omega")
_LIE: Final = 1e6
"""Simulated liars answer as if every component of their gradient were this."""


def robust(rule: Aggregation, liars: int = 0) -> Statement:
    """Theorem 1 for K = 1 where f further clients lie and the scalars are aggregated coordinate by coordinate.

        (1/R) Σ_r E‖∇f(x_r)‖² ≤ 2D/(ηR) + 2Lηρσ²/m + 2(1 + Lηρ₁)ω(σ² + σ_G²)   for η ≤ 1/(4Lρ)

    f, σ and σ_G are those of the m honest clients, who all take part in every round (M = m), and n = m + f replies are
    aggregated. ω is ``protocol.aggregation.omega(rule, n, f)`` and ρ₁ = 1 + P(ρ − 1), or ρ if nobody lies. μ → 0.

    The rule is the mean, a median or a trimmed mean; f = ``liars`` is at most what it tolerates. The left side is
    simulated, so ``theory.check`` needs ``source="simulation"``.

    Raises:
        InputError: If the rule is another one, or f is negative.
    """
    known = isinstance(rule, Mean | Median | TrimmedMean)
    require(known, "rule", "be lab.Mean(), lab.Median() or lab.TrimmedMean(f), which have a proof", rule)
    require_int("liars", liars, 0)

    def known_omega(_: Any, setting: Setting) -> float:
        require(setting.clients == setting.m, "M", f"be m = {setting.m}: all honest clients take part", setting.M)
        return omega(rule, setting.m + liars, liars)

    def step(losses: Losses, x: Floats, v: Floats, z: Floats, setting: Setting) -> tuple[Floats, Floats]:
        """x⁺ = x − (η/P) Σ_p A_p z_p with A of the honest scalars z_pᵀ∇f_i and the liars', the same for all clients."""
        honest = np.einsum("rmn,rpn->rmp", losses.gradient(x), z)
        lies = np.repeat(_LIE * z.sum(-1)[:, None], liars, axis=1)
        sent = np.concatenate([honest, lies], axis=1)[:, :, None].astype(np.float32)
        aggregated = np.concatenate([rule(list(replies)) for replies in sent])
        assert setting.eta is not None
        return x - setting.eta / setting.P * np.einsum("rp,rpn->rn", aggregated, z)[:, None], v

    spread = 1 + L * eta * (1 + P * (rho - 1) if liars else rho)
    return Statement(
        f"robust, {rule}, {liars} liars",
        step=step,
        terms={
            "start": 2 * D / (eta * R),
            "noise": 2 * L * eta * rho * sigma**2 / m,
            "spread": 2 * spread * _OMEGA * (sigma**2 + sigma_G**2),
        },
        eta={"descent": 1 / (4 * L * rho)},
        constants={"omega": known_omega},
        single_step=True,
        without=("mu",),
        assumptions="every f_i(·; ξ) L-smooth; M = m honest clients, all sampled, and liars who may know everything",
    )
