"""A bound as a program: its terms by name, its conditions by name, the step sizes that they allow."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, cast

import sympy as sp
from scipy import optimize

from decomfl_lab.errors import InputError, require, require_choice
from theory.formula import formula, names_in, unit_of, value_of, written
from theory.setting import DISTRIBUTIONS, Setting
from theory.units import F, Unit, X, require_one_unit

__all__ = ["AVERAGE", "Statement", "StepSizes", "Variant"]

Variant = Literal["stated", "corrected"]
AVERAGE: Final = "(1/R) Σ_r E‖∇f(x_r)‖²"


@dataclass(frozen=True)
class StepSizes:
    """How large η may be.

    Attributes:
        conditions: Every condition's name and the largest η that it allows.
    """

    conditions: Mapping[str, float]

    @property
    def largest(self) -> float:
        """The largest admissible η."""
        return min(self.conditions.values(), default=math.inf)

    @property
    def binding(self) -> str:
        """The name of the condition that it comes from; the first of equals."""
        return min(self.conditions, key=lambda name: self.conditions[name], default="")


def _units(formulas: Mapping[str, sp.Expr]) -> dict[str, Unit]:
    return {name: unit_of(each) for name, each in formulas.items() if each != 0}


@dataclass(frozen=True)
class Statement:
    """A bound: left side ≤ Σ terms whenever η and μ keep the conditions.

    >>> from theory.symbols import D, L, R, eta, kappa, m, sigma
    >>> terms = {"start": 2 * D / (R * eta), "noise": 2 * L * eta * kappa * sigma**2 / m}
    >>> print(Statement("mine", terms=terms, eta={"descent": 1 / (8 * L * kappa)}))
    mine: (1/R) Σ_r E‖∇f(x_r)‖² ≤ 2D/(Rη) + 2Lηκσ²/m for η ≤ 1/(8Lκ)

    Attributes:
        name: What it is called, on the command line too.
        variant: stated (as the paper prints it, to the letter), corrected (proved in ``docs/theory.md``), or None for
            a bound of your own.
        left: What is bounded, as a statement of ``theory.bounds`` writes it.
        source: The LaTeX label or line of the paper that it comes from.
        terms: Every term's name and formula, a sympy expression in ``theory.symbols``; the bound is their sum.
        eta: Every condition's name and the largest η that it allows, a formula.
        mu: Every condition's name and the largest μ that it allows, a formula.
        distributions: The distributions of the directions for which it is made.
        single_step: Whether it is made for K = 1 only.
        central: Whether it is made for central differences only; others are for both kinds.
        assumptions: What it needs, in words.
        note: What to know about it: how a gap of the print was read, what is proved where.

    Raises:
        InputError: If a formula is no expression in the symbols of ``theory.symbols``.
        UnitError: If the units of a bound of your own do not fit: terms among each other, η to X²/F, μ to X.
    """

    name: str
    _: KW_ONLY
    terms: Mapping[str, sp.Expr]
    eta: Mapping[str, sp.Expr] = field(default_factory=dict)
    mu: Mapping[str, sp.Expr] = field(default_factory=dict)
    variant: Variant | None = None
    left: str = AVERAGE
    source: str = ""
    distributions: tuple[str, ...] = DISTRIBUTIONS
    single_step: bool = False
    central: bool = False
    assumptions: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for part in ("terms", "eta", "mu"):
            kept = {name: formula(f"{part}[{name!r}]", each) for name, each in getattr(self, part).items()}
            object.__setattr__(self, part, kept)
        named = bool(self.terms) and all(name.isidentifier() for name in self.terms)
        require(named, "terms", "be one or more formulas, named by words without spaces", list(self.terms))
        if self.variant is None:
            require_one_unit(_units(self.terms) | ({self.left: (F / X) ** 2} if self.left == AVERAGE else {}))
            require_one_unit({"η": X**2 / F, **_units(self.eta)})
            require_one_unit({"μ": X, **_units(self.mu)})

    @property
    def title(self) -> str:
        """Its name and variant, as in text."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def __str__(self) -> str:
        limits = [f"η ≤ {written(each)}" for each in self.eta.values()]
        limits += [f"μ ≤ {written(each)}" for each in self.mu.values()]
        bound = " + ".join(map(written, self.terms.values()))
        return f"{self.title}: {self.left} ≤ {bound}" + (f" for {', '.join(limits)}" if limits else "")

    def applies(self, setting: Setting) -> bool:
        """Whether it is made for the setting's distribution, K, differences and momentum."""
        return (
            setting.distribution in self.distributions
            and (setting.K == 1 or not self.single_step)
            and (setting.central or not self.central)
            and (setting.beta == 0 or self.with_momentum)
        )

    @cached_property
    def with_momentum(self) -> bool:
        """Whether it is made for momentum too: whether β is in a formula."""
        return any("beta" in names_in(each) for each in (*self.terms.values(), *self.eta.values()))

    def _values(self, setting: Setting, formulas: Mapping[str, sp.Expr], **point: float) -> dict[str, float]:
        require_choice("distribution", setting.distribution, self.distributions)
        require(setting.K == 1 or not self.single_step, "K", f"be 1 in {self.name}", setting.K)
        require(setting.central or not self.central, "central", f"be true in {self.name}", setting.central)
        require(setting.beta == 0 or self.with_momentum, "beta", f"be 0 in {self.name}", setting.beta)
        if any("rho_kappa" in names_in(each) for each in formulas.values()):
            setting.require("kappa")
        return {**setting.values, **point}

    @cached_property
    def _tuple(self) -> Callable[..., tuple[float, ...]]:
        make: Any = namedtuple
        return cast(Callable[..., tuple[float, ...]], make("Bound", list(self.terms)))

    def bound(self, setting: Setting, **point: float) -> tuple[float, ...]:
        """The terms at these constants, as a named tuple whose sum is the bound.

        Args:
            setting: The constants; η may be larger than the conditions allow.
            point: Symbols that belong to a point and not to a setting: a = ‖∇f‖, delta = ‖x_{i,r}^k − x_r‖.

        Raises:
            InputError: If a constant that a term needs was not given, or the distribution or K are not the statement's.
        """
        values = self._values(setting, self.terms, **point)
        return self._tuple(*(value_of(each, values) for each in self.terms.values()))

    def step_sizes(self, setting: Setting) -> StepSizes:
        """The largest η by every condition."""
        values = self._values(setting, self.eta)
        return StepSizes({name: value_of(each, values) for name, each in self.eta.items()})

    def largest_mu(self, setting: Setting) -> StepSizes:
        """The largest μ by every condition, at the setting's η where it matters."""
        values = self._values(setting, self.mu)
        return StepSizes({name: value_of(each, values) for name, each in self.mu.items()})

    def admits(self, setting: Setting) -> bool:
        """Whether the setting's η and μ keep every condition (a rounding error over is within)."""
        setting.require("eta")
        assert setting.eta is not None
        slack = 1 + 1e-12
        sizes, mu = self.step_sizes(setting), self.largest_mu(setting)
        return setting.eta <= slack * sizes.largest and setting.mu <= slack * mu.largest

    def best_eta(self, setting: Setting) -> float:
        """The admissible η with the smallest bound: the rate-optimal step size for these constants.

        Every bound is A/η + a polynomial in η with coefficients ≥ 0, convex in η: one minimum.

        Raises:
            InputError: If no condition bounds η and the bound has no minimum.
        """
        largest = self.step_sizes(setting).largest
        values = self._values(setting, self.terms)

        def total(log_eta: float) -> float:
            here = {**values, "eta": math.exp(log_eta)}
            return sum(value_of(each, here) for each in self.terms.values())

        if not math.isfinite(largest):
            raise InputError(f"eta must be bounded by a condition for its best value to be sought, got {self.name}")
        top = math.log(largest)
        found = optimize.minimize_scalar(total, bounds=(top - 80.0, top), method="bounded", options={"xatol": 1e-10})
        return math.exp(found.x) if total(found.x) < total(top) else largest

    def best_mu(self, setting: Setting, share: float = 0.1) -> float:
        """The largest μ whose terms are at most ``share`` of the others: rate-optimal, for smaller ones gain nothing.

        Terms with μ are in proportion to one power of it, μ² or μ⁴. Smaller μ is never worse in exact arithmetic;
        losses in floating point make their difference over μ the worse the smaller it is.
        """
        require(0 < share < math.inf, "share", "be a finite number above 0", share)
        values = {**self._values(setting, self.terms), "mu": 1.0}
        at_1, at_2 = (
            sum(value_of(each, {**values, "mu": mu}) for each in self.terms.values() if "mu" in names_in(each))
            for mu in (1.0, 2.0)
        )
        others = sum(value_of(each, values) for each in self.terms.values() if "mu" not in names_in(each))
        return math.pow(share * others / at_1, 1 / math.log2(at_2 / at_1)) if at_1 else math.inf
