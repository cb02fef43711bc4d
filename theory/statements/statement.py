"""A bound as a program: its terms by name, its conditions by name, the step sizes that they allow."""

import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from html import escape
from typing import Any, Final, cast

import sympy as sp
from scipy import optimize

from decomfl_lab.errors import InputError, Told, require, require_choice
from theory.notation.formula import formula, names_in, unit_of, value_of, written
from theory.notation.setting import DISTRIBUTIONS, Setting
from theory.notation.setting import Variant as Variant
from theory.notation.symbols import GIVEN
from theory.notation.units import F, Unit, X, require_one_unit
from theory.statements.algorithms import Step, decomfl
from theory.statements.left_sides import AVERAGE, Left

Constant = float | Callable[[Any, Setting], float]
"""The value of a symbol of one's own: a number, or a function of the problem and the setting."""


ONE_HESSIAN: Final = "−H ⪯ ∇²f_i(x; ξ) ⪯ H for all i, ξ and x, with one 0 ⪯ H"
"""What a bound assumes whose κ is that of one H for all clients, not that of ∇²f alone."""


@dataclass(frozen=True)
class StepSizes:
    """How large η may be."""

    conditions: Mapping[str, float]  # every condition's name and the largest η that it allows

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


@dataclass(frozen=True, repr=False)
class Statement(Told):
    """A bound: left side ≤ Σ terms whenever η and μ keep the conditions.

    >>> from theory.notation.symbols import D, L, R, eta, kappa, m, sigma
    >>> terms = {"start": 2 * D / (R * eta), "noise": 2 * L * eta * kappa * sigma**2 / m}
    >>> print(Statement("mine", terms=terms, eta={"descent": 1 / (8 * L * kappa)}))
    mine: (1/R) Σ_r E‖∇f(x_r)‖² ≤ 2D/(Rη) + 2Lηκσ²/m for η ≤ 1/(8Lκ)

    Attributes:
        name: What it is called, on the command line too.
        variant: stated (as the paper prints it, to the letter), corrected (proved in ``docs/theory.md``), sharper
            (proved there too, with smaller terms), wider (likewise, for a larger η), or None for a bound of your own.
        left: What is bounded: ``theory.AVERAGE``, ``LAST_GRADIENT``, ``LAST_LOSS``, ``LAST_DISTANCE`` or a ``Left`` of
            your own.
        step: The local step that it is said of: DeComFL's, with the differences and the momentum of the setting, or one
            of your own, see ``theory.statements.algorithms.Step``, which is simulated.
        constants: What symbols of your own are, by name: a number, or a function of the problem and the setting.
        source: The LaTeX label or line of the paper that it comes from.
        terms: Every term's name and formula, a sympy expression in ``theory.notation.symbols``; the bound is their sum.
        eta: Every condition's name and the largest η that it allows, a formula.
        mu: Every condition's name and the largest μ that it allows, a formula.
        distributions: The distributions of the directions for which it is made.
        rate_mu: The same of what its rate needs in print, beside the bound.
        single_step: Whether it is made for K = 1 only.
        without: Those of sigma, sigma_G and mu that it takes to be 0.
        central: Whether it is made for central differences only; others are for both kinds.
        assumptions: What it needs, in words.
        note: What to know about it: how a gap of the print was read, what is proved where.

    Raises:
        InputError: If a formula is no expression in known symbols, the left side is none, or ``without`` has another
            name.
        UnitError: If the units of a bound of your own do not fit: terms to the left side, η to X²/F, μ to X.
    """

    name: str
    _: KW_ONLY
    terms: Mapping[str, sp.Expr]
    eta: Mapping[str, sp.Expr] = field(default_factory=dict)
    mu: Mapping[str, sp.Expr] = field(default_factory=dict)
    rate_mu: Mapping[str, sp.Expr] = field(default_factory=dict)
    variant: Variant | None = None
    left: Left = AVERAGE
    step: Step = decomfl
    constants: Mapping[str, Constant] = field(default_factory=dict)
    source: str = ""
    distributions: tuple[str, ...] = DISTRIBUTIONS
    single_step: bool = False
    without: tuple[str, ...] = ()
    central: bool = False
    assumptions: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for part in ("terms", "eta", "mu", "rate_mu"):
            require(isinstance(getattr(self, part), Mapping), part, "map names to formulas", getattr(self, part))
            kept = {name: formula(f"{part}[{name!r}]", each) for name, each in getattr(self, part).items()}
            object.__setattr__(self, part, kept)
        require(isinstance(self.left, Left), "left", "be a theory.Left", self.left)
        for name in self.without:
            require_choice("without", name, ("sigma", "sigma_G", "mu"))
        for name in self.constants:
            require(
                name in self.symbols, "constants", f"be of its own symbols {', '.join(self.symbols) or '(none)'}", name
            )
        named = bool(self.terms) and all(name.isidentifier() for name in self.terms)
        require(named, "terms", "be one or more formulas, named by words without spaces", list(self.terms))
        if self.variant is None:
            require_one_unit(_units(self.terms) | {self.left.text: self.left.unit})
            require_one_unit({"η": X**2 / F, **_units(self.eta)})
            require_one_unit({"μ": X, **_units({**self.mu, **self.rate_mu})})

    @property
    def one_hessian(self) -> bool:
        """Whether its κ must be that of one H that dominates every ±∇²f_i(·; ξ)."""
        return ONE_HESSIAN in self.assumptions

    @property
    def title(self) -> str:
        """Its name and variant, as in text."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    def __str__(self) -> str:
        limits = [f"η ≤ {written(each)}" for each in self.eta.values()]
        if self.eta and not self.with_eta:
            formulas = ", ".join(map(written, self.eta.values()))
            limits = [f"η = min({formulas})" if len(self.eta) > 1 else f"η = {formulas}"]
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
    def with_eta(self) -> bool:
        """Whether η is in a term; a bound without it is one for the largest admissible η alone."""
        return any("eta" in names_in(each) for each in self.terms.values())

    @cached_property
    def with_momentum(self) -> bool:
        """Whether it is made for momentum too: whether β is in a formula."""
        return any("beta" in names_in(each) for each in (*self.terms.values(), *self.eta.values()))

    def _values(self, setting: Setting, formulas: Mapping[str, sp.Expr], **point: float) -> dict[str, float]:
        """The values of the symbols in ``formulas``; InputError if the statement is not made for such a setting."""
        require_choice("distribution", setting.distribution, self.distributions)
        require(setting.K == 1 or not self.single_step, "K", f"be 1 in {self.name}", setting.K)
        for name in self.without:
            require(getattr(setting, name) == 0, name, f"be 0 in {self.name}", getattr(setting, name))
        require(setting.central or not self.central, "central", f"be true in {self.name}", setting.central)
        require(setting.beta == 0 or self.with_momentum, "beta", f"be 0 in {self.name}", setting.beta)
        if any("rho_kappa" in names_in(each) for each in formulas.values()):
            setting.require("kappa")
        numbers = {name: float(value) for name, value in self.constants.items() if not callable(value)}
        return {**setting.values, **numbers, **point}

    @cached_property
    def _tuple(self) -> Callable[..., tuple[float, ...]]:
        make: Any = namedtuple
        return cast(Callable[..., tuple[float, ...]], make("Bound", list(self.terms)))

    def bound(self, setting: Setting, **point: float) -> tuple[float, ...]:
        """The terms at these constants, as a named tuple whose sum is the bound.

        Args:
            setting: The constants; η may be larger than the conditions allow.
            point: Symbols that no setting has: a = ‖∇f‖, delta = ‖x_{i,r}^k − x_r‖ at a point, and those of your own.

        Raises:
            InputError: If a constant that a term needs was not given, or the distribution or K are not the statement's.
        """
        values = self._values(setting, self.terms, **point)
        return self._tuple(*(value_of(each, values) for each in self.terms.values()))

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the symbols in its formulas that no setting gives a value."""
        formulas = (*self.terms.values(), *self.eta.values(), *self.mu.values())
        return tuple(sorted({name for each in formulas for name in names_in(each)} - GIVEN))

    def own(self, problem: Any, setting: Setting, **given: float) -> dict[str, float]:
        """The values of its ``symbols`` on this problem, those ``given`` in place of the ``constants``.

        Raises:
            InputError: If what is given belongs to none of them, or a value is no finite number.
        """
        values_of: dict[str, float] = {}
        values = {**self.constants, **given}
        for name in self.symbols:
            if name not in values:
                raise InputError(f"{name} must be given a value by Statement(constants={{{name!r}: ...}}), got none")
        for name, value in values.items():
            require_choice("constant", name, self.symbols)
            try:
                values_of[name] = float(value(problem, setting) if callable(value) else value)
            except (AttributeError, ArithmeticError, TypeError, ValueError) as error:  # whatever a user's function does
                why = f" ({error})"
                if isinstance(error, AttributeError) and error.obj is problem:
                    why = f", which has no {error.name}"
                on = f"{type(problem).__name__}{why}"
                raise InputError(f"{name} must have a value on every problem, got none on {on}") from error
            require(math.isfinite(values_of[name]), name, "be a finite number", values_of[name])
        return values_of

    def step_sizes(self, setting: Setting, **point: float) -> StepSizes:
        """The largest η by every condition; ``point`` as in ``bound``."""
        values = self._values(setting, self.eta, **point)
        return StepSizes({name: value_of(each, values) for name, each in self.eta.items()})

    def largest_mu(self, setting: Setting, **point: float) -> StepSizes:
        """The largest μ by every condition, at the setting's η where it matters; ``point`` as in ``bound``."""
        values = self._values(setting, self.mu, **point)
        return StepSizes({name: value_of(each, values) for name, each in self.mu.items()})

    def largest_rate_mu(self, setting: Setting) -> StepSizes:
        """The largest μ by every condition of its printed rate."""
        values = self._values(setting, self.rate_mu)
        return StepSizes({name: value_of(each, values) for name, each in self.rate_mu.items()})

    def admits(self, setting: Setting, **point: float) -> bool:
        """Whether the setting's η and μ keep every condition (a rounding error over is within)."""
        setting.require("eta")
        assert setting.eta is not None
        slack = 1 + 1e-12
        sizes, mu = self.step_sizes(setting, **point), self.largest_mu(setting, **point)
        return setting.eta <= slack * sizes.largest and setting.mu <= slack * mu.largest

    def best_eta(self, setting: Setting) -> float:
        """The admissible η with the smallest bound: the rate-optimal step size for these constants.

        Every bound is A/η + a polynomial in η with coefficients ≥ 0, convex in η: one minimum. InputError if no
        condition bounds η and the bound has no minimum.
        """
        largest = self.step_sizes(setting).largest
        values = self._values(setting, self.terms)

        def total(log_eta: float) -> float:
            here = {**values, "eta": math.exp(log_eta)}
            return sum(value_of(each, here) for each in self.terms.values())

        if not math.isfinite(largest):
            raise InputError(f"eta must be bounded by a condition for its best value to be sought, got {self.name}")
        top = math.log(largest)
        least = optimize.minimize_scalar(total, bounds=(top - 80.0, top), method="bounded", options={"xatol": 1e-10})
        return math.exp(least.x) if total(least.x) < total(top) else largest

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


def _mathml(expression: sp.Expr) -> str:
    """A formula in the symbols of ``theory.notation.symbols`` as presentation MathML, without the element around it."""
    written: str = sp.mathml(expression.doit(), printer="presentation", mul_symbol="")
    return written.replace("<mo></mo>", "")


def inequality(each: Statement) -> str:
    """A statement as one MathML element: its left side, the sum of its terms, its conditions on η and μ."""
    right = "<mo>+</mo>".join(f"<mrow>{_mathml(term)}</mrow>" for term in each.terms.values())
    limits = [("η", each.eta), ("μ", each.mu)]
    conditions = "".join(
        f"<mo>,</mo><mspace width='1em'/><mi>{name}</mi><mo>≤</mo>{_mathml(limit)}"
        for name, found in limits
        for limit in found.values()
    )
    return f"<math display='block'><mtext>{escape(each.left.text)}</mtext><mo>≤</mo>{right}{conditions}</math>"
