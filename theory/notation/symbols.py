"""The paper's symbols for formulas in Python, each with its unit: ``from theory.notation.symbols import D, L, R, eta``.

Every symbol is a positive sympy symbol, so ``sqrt(eta**2)`` is ``eta``. NOTATION.md says what the paper's symbols mean;
those that the corrected statements need besides are explained here. ``symbol`` makes others.
"""

from typing import Any, Final

import sympy as sp
from sympy.printing.pretty.pretty_symbology import pretty_symbol

from decomfl_lab.errors import InputError, require
from theory.notation.units import ONE, F, Unit, X

UNITS: Final[dict[sp.Symbol, Unit]] = {}


def _symbols(names: str, unit: Unit) -> Any:
    symbols = sp.symbols(names, positive=True, seq=True)
    UNITS.update(dict.fromkeys(symbols, unit))
    return symbols if len(symbols) > 1 else symbols[0]


def symbol(name: str, unit: Unit = ONE) -> Any:
    """A symbol of your own; a statement's ``constants``, or a check, say what it is.

        alpha = theory.symbol("alpha", F / X**2)

    The name is a word without spaces; the same name and unit give the same symbol.

    Raises:
        InputError: If the name is no such word or belongs to a symbol of another unit, or the unit is no ``Unit``.
    """
    require(name.isidentifier(), "name", "be a word without spaces", name)
    require(isinstance(unit, Unit), "unit", "be a theory.Unit, as theory.F / theory.X**2", unit)
    made = sp.Symbol(name, positive=True)
    if UNITS.setdefault(made, unit) != unit:
        raise InputError(f"name must be new for a symbol of unit {unit}, got {name!r} of unit {UNITS[made]}")
    LETTERS.setdefault(name, pretty_symbol(name))
    return made


d, m, M, P, K, R, kappa = _symbols("d m M P K R kappa", ONE)
L = _symbols("L", F / X**2)
eta = _symbols("eta", X**2 / F)
mu = _symbols("mu", X)
D = _symbols("D", F)
alpha = _symbols("alpha", F / X**2)  # of the PL inequality ½‖∇f‖² ≥ α(f − f*), or of strong convexity
H3 = _symbols("H3", F / X**3)  # Lipschitz constant of the Hessians ∇²f_i(·; ξ)
Q = _symbols("Q", X**2)  # ‖x_0 − x*‖²
sigma, sigma_G, G = _symbols("sigma sigma_G G", F / X)  # noqa: N816
a = _symbols("a", F / X)  # ‖∇f(x_r)‖, or the norm of the gradient at the point of a lemma
delta = _symbols("delta", X)  # ‖x_{i,r}^k − x_r‖, root mean square
phi = _symbols("phi", ONE)  # (M − m)/(M − 1) for clients sampled without replacement, 1 for those with
rho = _symbols("rho", ONE)  # E‖(1/P) Σ_p z_p z_pᵀ v‖² / ‖v‖²
rho_kappa = _symbols("rho_kappa", ONE)  # the same weighted by a Hessian of effective rank κ, in units of L
s2 = _symbols("s2", ONE)  # ‖∇f^μ(x) − ∇f(x)‖² ≤ μ²L² s₂
s6 = _symbols("s6", ONE)  # E‖z‖⁶
s4 = _symbols("s4", ONE)  # ‖∇f^μ(x) − ∇f(x)‖² ≤ ¼μ⁴H₃² s₄
s8 = _symbols("s8", ONE)  # E‖z‖⁸
tail = _symbols("tail", ONE)  # Pr[χ²_{dP+4} ≥ 2dP]
beta = _symbols("beta", ONE)  # momentum; of FedCom in Table 1 what it sends up, as a share of d scalars
epsilon = _symbols("epsilon", (F / X) ** 2)  # a bound on an average of E‖∇f‖²

GIVEN: Final = frozenset(map(str, UNITS)) - {"epsilon"}
"""Names of the symbols that a setting or a point gives a value; others are for a statement to give."""

LETTERS: Final[dict[str, str]] = {
    "eta": "η", "mu": "μ", "sigma": "σ", "sigma_G": "σ_G", "kappa": "κ", "delta": "δ", "phi": "φ", "rho": "ρ",
    "rho_kappa": "ρ_κ", "s2": "s₂", "s4": "s₄", "s6": "s₆", "s8": "s₈", "beta": "β", "epsilon": "ε", "alpha": "α",
    "H3": "H₃",
}  # fmt: skip
"""How names that are not single Latin letters are printed."""

MOMENTS: Final[dict[str, str]] = {
    "phi": "φ = (M − m)/(M − 1)",
    "rho": "ρ = E‖(1/P) Σ_p z_p z_pᵀ v‖²/‖v‖², for Gaussian z 1 + (d + 1)/P",
    "rho_kappa": "ρ_κ = ρ weighted by a Hessian of effective rank κ, for Gaussian z 1 + (κ + 1)/P",
    "s2": "s₂ of the bias ‖E g z − ∇f(x)‖² ≤ μ²L²s₂, for Gaussian z d",
    "s4": "s₄ of the bias ‖E g z − ∇f(x)‖² ≤ ¼μ⁴H₃²s₄, for Gaussian z d²",
    "s6": "s₆ = E‖z‖⁶, for Gaussian z d(d + 2)(d + 4)",
    "s8": "s₈ = E‖z‖⁸, for Gaussian z d(d + 2)(d + 4)(d + 6)",
}
"""What the symbols are that stand for moments of z and of the sampling of clients; ``Setting`` has their values."""
