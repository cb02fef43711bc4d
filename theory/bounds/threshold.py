"""Where the printed Theorem 1 is true once every f_i(·; ξ) is L-smooth, as μ → 0."""

from dataclasses import replace
from typing import Final

from decomfl_lab.errors import require
from theory.bounds.paper import PAPER
from theory.bounds.sharp_constants import SHARPER
from theory.notation.setting import Setting

_STATED: Final = next(each for each in PAPER if (each.name, each.variant) == ("theorem-1", "stated"))


def printed_theorem_1(setting: Setting) -> bool | None:
    """Whether the printed Theorem 1, smoothness mended, is true as μ → 0 for every η that it admits.

        false if (d + P + 1)/(2 − ηLρ) > 16(d + 4) at its largest η;  for K = 1 true otherwise

    Noise alone on f = ½L‖x‖² breaks it in the first case. For K > 1 it is true where each term of a proved Theorem 1
    (sharper or wider) is at most the printed one; between the two it is not known.

    *Proof for K = 1.* E_r f(x_{r+1}) ≤ f(x_r) − η‖a‖² + (L/2)η²ρ(‖a‖² + (σ² + φσ_G²)/m) (F1, μ → 0), so the average is
    at most 2D/(ηR(2 − ηLρ)) + Lηρ(σ² + φσ_G²)/(m(2 − ηLρ)). The printed conditions give ηLρ < 1 (the second for m ≥ 2,
    the first and the last for m = 1), so the first is below 4D/(ηR). Pρ = d + P + 1, so the inequality says that the
    second is at most the printed noise term, at this η and at every smaller one, and the printed dissimilarity term is
    larger than that. Conversely f = ½L‖x‖² with noise σ, D = 0, has the second as its limit for R → ∞ (the exact
    recursion of `theory.problems.quadratic`). ∎

    Args:
        setting: Setting of which d, m, P and K are read; directions are Gaussian, as in print.

    Returns:
        True, False, or None where it is open.

    Raises:
        InputError: If the distribution is not gaussian.
    """
    require(setting.distribution == "gaussian", "distribution", "be gaussian", setting.distribution)
    more = setting.m + 1  # clients than are drawn, with replacement: φ = 1
    here = Setting(d=setting.d, L=1.0, m=setting.m, M=more, P=setting.P, K=setting.K, replacement=True)
    here = here.at(_STATED.step_sizes(here).largest)
    values = here.values
    if (here.d + here.P + 1) / (2 - values["eta"] * values["rho"]) > 16 * (here.d + 4):
        return False
    bare = replace(here, D=0.0)
    alone = (
        replace(bare, D=1.0),
        replace(bare, sigma=1.0),
        replace(bare, sigma_G=1.0),
    )  # bounds are sums of these parts
    proved = any(
        each.admits(here) and all(sum(each.bound(part)) <= sum(_STATED.bound(part)) for part in alone)
        for each in SHARPER
        if each.name == "theorem-1"
    )
    return True if here.K == 1 or proved else None
