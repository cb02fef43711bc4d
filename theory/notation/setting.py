"""The constants of a statement: dimensions, step size, smoothness, noise; checked by name."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, Self, get_args

from decomfl_lab.errors import InputError, is_number, require, require_choice, require_int
from decomfl_lab.options import REQUIRED, option, require_options

DISTRIBUTIONS: Final = ("gaussian", "sphere", "rademacher")
RARE: Final = "Constants of some statements alone"
"""The group of options that few statements have."""
Variant = Literal["stated", "corrected", "sharper", "wider"]
"""The forms of a bound: as printed, as proved in ``docs/theory.md``, with smaller terms, for a larger η."""
VARIANTS: Final[tuple[Variant, ...]] = get_args(Variant)


def second_moment_factor(distribution: str, *, d: int, P: int) -> float:
    """ρ = E‖(1/P) Σ_p z_p z_pᵀ v‖²/‖v‖²: 1 + (d + 1)/P (gaussian), 1 + (d − 1)/P (sphere, rademacher).

    E‖z zᵀv‖² is (d + 2)‖v‖² for Gaussian z and d‖v‖² where ‖z‖² = d; P − 1 of P pairs of directions are different.
    """
    return 1 + (d + (1 if require_choice("distribution", distribution, DISTRIBUTIONS) == "gaussian" else -1)) / P


def effective_factor(distribution: str, *, d: int, P: int, kappa: float) -> float:
    """ρ_κ with E‖(1/P) Σ_p z_p z_pᵀ v‖²_H ≤ L ρ_κ ‖v‖²: 1 + (κ+1)/P, on the sphere 1 + (κd + d − 2)/(P(d + 2)).

    For 0 ⪯ H ⪯ L I with tr H ≤ κL. Source: [DeComFL, Lemma of the covariance matrix]; E z zᵀ v vᵀ z zᵀ =
    γ (‖v‖² I + 2 v vᵀ), γ = 1 (gaussian), d/(d + 2) (sphere); rademacher has −2 diag(v²) besides, which H ⪰ 0 lowers.
    """
    if require_choice("distribution", distribution, DISTRIBUTIONS) == "sphere":
        return 1 + (kappa * d + d - 2) / (P * (d + 2))
    return 1 + (kappa + 1) / P


def sixth_moment(distribution: str, *, d: int) -> float:
    """s₆ = E‖z‖⁶: d(d + 2)(d + 4) (gaussian), d³ (sphere, rademacher)."""
    each = float(d)
    return (
        each * (each + 2) * (each + 4)
        if require_choice("distribution", distribution, DISTRIBUTIONS) == "gaussian"
        else each**3
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The constants that bounds and step-size conditions are made of, in the paper's symbols: its fields are options.

    Raises:
        InputError: That names the constant, the rule and the value.
    """

    d: int = option(REQUIRED, "Number of parameters, as 28938 or 1e9.", ge=1)
    L: float = option(REQUIRED, "Lipschitz constant of the gradients. [F/X²]", gt=0)
    m: int = option(1, "Number of clients sampled a round.")
    M: int | None = option(None, "Number of clients. [default: m]", ge=1)
    P: int = option(1, "Number of directions a local step.", ge=1)
    K: int = option(1, "Number of local steps a round.", ge=1)
    R: int = option(1, "Number of rounds.", ge=1)
    eta: float | None = option(None, "Step size η. [X²/F]", gt=0)
    mu: float = option(0.0, "Smoothing μ of the finite difference; 0 is its limit. [X]", ge=0)
    sigma: float = option(0.0, "Standard deviation σ of the stochastic gradients. [F/X]", ge=0)
    sigma_G: float = option(0.0, "Gradient dissimilarity σ_G of the clients. [F/X]", ge=0)
    D: float = option(1.0, "Distance f(x_0) − f(x*) of the first loss from the least. [F]", ge=0)
    kappa: float | None = option(None, "Effective rank κ = tr H/L of the H that the statement assumes.")
    beta: float = option(0.0, "Momentum β in torch's form.", ge=0, lt=1)
    distribution: str = option(
        "gaussian",
        f"Distribution of the directions: {', '.join(DISTRIBUTIONS)}. [default: the statement's first]",
        flag="--distribution --law",
        choices=DISTRIBUTIONS,
    )
    replacement: bool = option(False, "Clients are sampled with replacement, as in the paper's proofs.")
    G: float | None = option(None, "Largest norm of a stochastic gradient. [F/X]", RARE, ge=0)
    H3: float | None = option(None, "Lipschitz constant H₃ of the Hessians of every f_i(·; ξ). [F/X³]", RARE, ge=0)
    alpha: float | None = option(None, "Constant α of the PL inequality or of strong convexity. [F/X²]", RARE)
    Q: float | None = option(None, "Squared distance ‖x_0 − x*‖² of the start from the minimiser. [X²]", RARE, ge=0)
    central: bool = False
    """Whether the scalars are central differences, not forward ones: a statement says it."""

    def __post_init__(self) -> None:
        require_options(self)
        require_int("m", self.m, 1, None if self.M is None or self.replacement else self.M)
        if (kappa := self.kappa) is not None:
            require(is_number(kappa) and 1.0 <= kappa <= self.d, "kappa", f"be in 1..d = {self.d}", kappa)
        if (alpha := self.alpha) is not None:
            most = f"be above 0 and at most L = {self.L:g}"
            require(is_number(alpha) and 0.0 < alpha <= self.L, "alpha", most, alpha)

    @property
    def clients(self) -> int:
        """M."""
        return self.m if self.M is None else self.M

    @property
    def phi(self) -> float:
        """Variance of a mean over m sampled clients, as a share of 1/m of theirs: (M − m)/(M − 1); 1 with replacement.

        With M = 1 there is nothing to sample: 0.
        """
        if self.clients == 1:
            return 0.0
        return 1.0 if self.replacement else (self.clients - self.m) / (self.clients - 1)

    @cached_property
    def values(self) -> dict[str, float]:
        """Every symbol with its value, those that follow from others included; those not given are left out."""
        from scipy import special  # which help and errors do without

        s6 = sixth_moment(self.distribution, d=self.d)
        given = {
            **{name: float(getattr(self, name)) for name in ("d", "L", "m", "P", "K", "R", "mu", "sigma", "sigma_G")},
            "M": float(self.clients),
            "D": self.D,
            "phi": self.phi,
            "rho": second_moment_factor(self.distribution, d=self.d, P=self.P),
            # ‖E g z − ∇f(x)‖² ≤ μ²L² s₂ for every L-smooth f: d (gaussian, sphere), 9d/4 (rademacher).
            "s2": 9 * self.d / 4 if self.distribution == "rademacher" else float(self.d),
            "s6": s6,
            # ‖E g z − ∇f(x)‖² ≤ ¼μ⁴H₃² s₄ where ∇²f is H₃-Lipschitz: d², for rademacher (d + 2√d/3)².
            "s4": (self.d + (2 / 3 * math.sqrt(self.d) if self.distribution == "rademacher" else 0.0)) ** 2,
            # E‖z‖⁸: d(d + 2)(d + 4)(d + 6) (gaussian), d⁴ (sphere, rademacher).
            "s8": s6 * (self.d + 6.0 if self.distribution == "gaussian" else self.d),
            "beta": self.beta,
            "tail": float(special.chdtrc(self.d * self.P + 4, 2 * self.d * self.P)),  # of χ² with dP + 4 degrees
        }
        if self.kappa is not None:
            given["rho_kappa"] = effective_factor(self.distribution, d=self.d, P=self.P, kappa=self.kappa)
        optional = {name: getattr(self, name) for name in ("eta", "kappa", "G", "H3", "alpha", "Q")}
        return given | {name: float(value) for name, value in optional.items() if value is not None}

    def at(self, eta: float) -> Self:
        """The same with another η."""
        return replace(self, eta=eta)

    def require(self, *names: str) -> None:
        """Raise InputError for the first of the optional constants ``names`` that was not given."""
        for name in names:
            if getattr(self, name) is None:
                raise InputError(f"{name} must be given here, got None")
