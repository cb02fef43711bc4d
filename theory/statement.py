"""A bound as a program: its terms by name, its conditions by name, the step sizes that they allow."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

from scipy import optimize

from decomfl_lab.errors import InputError, require, require_choice
from theory.formula import Formula
from theory.setting import LAWS, Setting

__all__ = ["Statement", "StepSizes", "Variant"]

Variant = Literal["stated", "corrected"]


@dataclass(frozen=True)
class StepSizes:
    """How large η may be.

    Attributes:
        conditions: Name -> largest η that it allows.
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


@dataclass(frozen=True, kw_only=True)
class Statement:
    """measured ≤ Σ terms whenever η and μ keep the conditions.

    Attributes:
        name: As on the command line.
        variant: stated (as printed, to the letter) or corrected (proved in ``docs/theory.md``).
        left: What is bounded, in words and symbols.
        source: LaTeX label or line in the paper.
        terms: Name -> formula; the bound is their sum.
        eta: Condition's name -> largest η.
        mu: Condition's name -> largest μ.
        laws: Of the directions for which it is made.
        single_step: Made for K = 1 only.
        assumptions: What it needs, in words.
        note: What to know about it: how a gap of the print was read, what is proved where.
    """

    name: str
    variant: Variant
    left: str
    source: str
    terms: Mapping[str, Formula]
    eta: Mapping[str, Formula] = field(default_factory=dict)
    mu: Mapping[str, Formula] = field(default_factory=dict)
    laws: tuple[str, ...] = LAWS
    single_step: bool = False
    assumptions: str = ""
    note: str = ""

    def applies(self, setting: Setting) -> bool:
        """Whether it is made for the setting's law and K."""
        return setting.law in self.laws and (setting.K == 1 or not self.single_step)

    def _values(self, setting: Setting, formulas: Mapping[str, Formula], **point: float) -> dict[str, float]:
        require_choice("law", setting.law, self.laws)
        require(setting.K == 1 or not self.single_step, "K", f"be 1 in {self.name}", setting.K)
        if any("rho_kappa" in formula.symbols for formula in formulas.values()):
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
            InputError: If a constant that a term needs was not given, or the law or K are not the statement's.
        """
        values = self._values(setting, self.terms, **point)
        return self._tuple(*(formula(values) for formula in self.terms.values()))

    def step_sizes(self, setting: Setting) -> StepSizes:
        """The largest η by every condition."""
        values = self._values(setting, self.eta)
        return StepSizes({name: formula(values) for name, formula in self.eta.items()})

    def largest_mu(self, setting: Setting) -> StepSizes:
        """The largest μ by every condition, at the setting's η where it matters."""
        values = self._values(setting, self.mu)
        return StepSizes({name: formula(values) for name, formula in self.mu.items()})

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
            return sum(formula(here) for formula in self.terms.values())

        if not math.isfinite(largest):
            raise InputError(f"eta must be bounded by a condition for its best value to be sought, got {self.name}")
        top = math.log(largest)
        found = optimize.minimize_scalar(total, bounds=(top - 80.0, top), method="bounded", options={"xatol": 1e-10})
        return math.exp(found.x) if total(found.x) < total(top) else largest

    def best_mu(self, setting: Setting, share: float = 0.1) -> float:
        """The largest μ whose terms are at most ``share`` of the others: rate-optimal, for smaller ones gain nothing.

        Terms with μ are in proportion to μ². Smaller μ is never worse in exact arithmetic; losses in floating point
        make their difference over μ the worse the smaller it is.
        """
        require(0 < share < math.inf, "share", "be a finite number above 0", share)
        values = {**self._values(setting, self.terms), "mu": 1.0}
        smoothing = sum(formula(values) for formula in self.terms.values() if "mu" in formula.symbols)
        others = sum(formula(values) for formula in self.terms.values() if "mu" not in formula.symbols)
        return math.sqrt(share * others / smoothing) if smoothing else math.inf
