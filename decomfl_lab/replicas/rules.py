"""Update rules that replay: (record) → z → update, in separately rounded operations of a fixed order.

A rule turns the scalars g_p of one local step into a change of x (and of its own state). It does so by writing
elementwise instructions into a ``noise.Program``, so every rule can be fused over a whole lag, runs on every
backend, and has the same bits on a whole vector as on any slice of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import InputError, require, require_finite_positive, require_int
from decomfl_lab.noise import SCRATCH, Distribution, Format, Program
from decomfl_lab.records.record import ScalarArray
from decomfl_lab.records.seeds import StepSeed, step_seed, stream_of

if TYPE_CHECKING:
    from torch import Tensor

_SNAPPED = 1 << 16
"""Elements that are put on a grid at a time."""


@dataclass(frozen=True)
class Step:
    """One local step: its seed s_r^k (or P of them), scalars g_p (P,), learning rate η and distribution of z.

    A step that a client takes before it sends anything has its scalars where they were measured, perhaps on a GPU; it
    is never the ``last`` of its round, which is a record's.
    """

    seed: StepSeed
    scalars: ScalarArray | Tensor
    eta: float
    distribution: Distribution
    last: bool = True


class UpdateRule(ABC):
    """How a local step moves x."""

    slots: tuple[str, ...] = ()
    """Names of the optimizer's state vectors, all of x's shape."""
    pool: int | None = None
    """The size S of the pool that directions must come from (``Seeding.POOL``); None if they need not."""
    reversible: bool = False
    """Whether ``emit_reverse`` undoes a step to the bit."""
    correctable: bool = False
    """Whether ``emit_correction`` exchanges one step for another, up to rounding."""
    scaling: str | None = None
    """The slot s that directions are multiplied with, u = s ⊙ z; None where they are z.

    The rule must leave s alone but in the ``last`` step of a round, since clients measure all steps along u.
    """

    def start(self, slot: str) -> float:  # noqa: ARG002
        """The number that a state vector is full of at the start."""
        return 0.0

    @abstractmethod
    def emit(self, program: Program, step: Step) -> None:
        """Write the instructions of ``step`` on the registers "x" and the slots."""

    def emit_reverse(self, program: Program, step: Step) -> None:  # noqa: ARG002
        """Write the instructions that undo ``step``; InputError for a rule that is not ``reversible``."""
        raise InputError(f"only the steps of a GridSgd rule can be undone by arithmetic, got {self}")

    def begin(self, x: Tensor) -> Tensor:
        """The vector nearest to x at which a replica of this rule can start."""
        return x

    def admit(self, x: Tensor) -> None:
        """InputError if a replica of this rule cannot start at x."""
        wanted = "be float32 or float64 (16-bit replicas need a LowPrecision rule)"
        require(x.dtype.is_floating_point and x.dtype.itemsize >= 4, "dtype of x", wanted, x.dtype)


class Group(NamedTuple):
    """Consecutive pieces of x with a learning rate, and a rule of one kind, of their own."""

    pieces: int  # how many
    rule: UpdateRule  # how they move
    factor: float = 1.0  # c ≥ 0: where a step has the learning rate η, they have fl(ηc)


def programs_of(groups: Sequence[Group], steps: Sequence[Step]) -> list[Program]:
    """The program of each piece of x: these steps, by the rule and the learning rate of its group."""
    programs: list[Program] = []
    for group in groups:
        program = Program(["x", *group.rule.slots])
        for step in steps:
            group.rule.emit(program, replace(step, eta=step.eta * group.factor))
        programs += [program] * group.pieces
    return programs


def _check_weight_decay(weight_decay: float) -> None:
    sound = np.isfinite(weight_decay) and weight_decay >= 0
    require(sound, "weight_decay", "be finite and at least 0", weight_decay)


def _coefficients(step: Step, factor: float) -> NDArray[np.float32] | Tensor:
    """c_p = (factor/P) g_p, each rounded once, to float32; shape (P,), where the scalars are."""
    g = step.scalars
    if isinstance(g, np.ndarray):
        return ((factor / len(g)) * g.astype(np.float64)).astype(np.float32)
    return ((factor / len(g)) * g.double()).float()


def add_directions(program: Program, to: str, step: Step, coefficients: NDArray[np.float32] | Tensor) -> None:
    """Emit to ← to + Σ_p c_p z_p, term by term."""
    if isinstance(step.seed, int):
        program.noise(to, step.seed, coefficients, step.distribution)
        return
    for p in range(len(coefficients)):
        seed, first = stream_of(step.seed, p)
        program.noise(to, seed, coefficients[p : p + 1], step.distribution, first)


def add_estimate(program: Program, to: str, step: Step, factor: float) -> None:
    """Emit to ← to + factor · (1/P) Σ_p g_p z_p, term by term; each coefficient is rounded once, to float32."""
    add_directions(program, to, step, _coefficients(step, factor))


@dataclass(frozen=True)
class Sgd(UpdateRule):
    """ZO-SGD with decoupled order: x ← (1 − ηλ)x, then x ← x − (η/P) g_p z_p for p = 0..P-1.

    In real arithmetic this is torch's SGD, x ← x − η((1/P) Σ_p g_p z_p + λx).

    Source: [DeComFL, eq. (multiple_perturbation), Algorithm 4].
    """

    weight_decay: float = 0.0  # λ ≥ 0

    def __post_init__(self) -> None:
        _check_weight_decay(self.weight_decay)

    def emit(self, program: Program, step: Step) -> None:
        if self.weight_decay:
            program.scale("x", 1.0 - step.eta * self.weight_decay)
        add_estimate(program, "x", step, -step.eta)

    @property
    def correctable(self) -> bool:  # type: ignore[override]
        """See ``UpdateRule.correctable``: without weight decay, which would scale x between the two."""
        return not self.weight_decay

    def emit_correction(self, program: Program, taken: Step, step: Step | None, *, wide: bool) -> None:
        """Write x ← x + (η/P) Σ_p (g_{i,p} − g_p) z_p: x has taken the step ``taken`` instead of ``step``.

        The difference of the coefficients is exact in float64 (but for hopelessly unequal sizes) and is rounded to
        float32, as every coefficient is; for a float64 x what that cuts off follows as a second term.

        Args:
            program: The program that the instructions are added to.
            taken: The step that was taken, with the client's scalars g_i.
            step: The step to be taken in its place, along the same directions; None takes ``taken`` back.
            wide: Whether x is float64.

        Source: [DeComFL, eq. (sync)].
        """
        wanted = np.zeros(1) if step is None else np.asarray(_coefficients(step, -step.eta)).astype(np.float64)
        difference = wanted - np.asarray(_coefficients(taken, -taken.eta))
        high = difference.astype(np.float32)
        add_directions(program, "x", taken, high)
        if wide:
            add_directions(program, "x", taken, (difference - high).astype(np.float32))


@dataclass(frozen=True)
class Momentum(UpdateRule):
    """ZO-SGD with momentum: m ← βm + w(λx + (1/P) Σ_p g_p z_p), x ← x − ηm.

    ``convention`` fixes w: "torch" has w = 1 (torch.optim.SGD, which the authors' code uses), "paper" has
    w = 1 − β (the paper's appendix). Order: m is scaled, then gets the decay term, then p = 0..P-1, then x
    moves; each product and sum is rounded on its own.

    Source: [DeComFL, appendix "Advanced Optimizers"].
    """

    beta: float  # β in [0, 1)
    convention: Literal["torch", "paper"] = "torch"  # "torch" or "paper"
    weight_decay: float = 0.0  # λ ≥ 0

    def __post_init__(self) -> None:
        _check_weight_decay(self.weight_decay)
        require(0.0 <= self.beta < 1.0, "momentum", "be in [0, 1)", self.beta)
        require(self.convention in ("torch", "paper"), "convention", "be torch or paper", self.convention)

    slots = ("momentum",)  # m

    def emit(self, program: Program, step: Step) -> None:
        weight = 1.0 - self.beta if self.convention == "paper" else 1.0
        program.scale("momentum", self.beta)
        if self.weight_decay:
            program.add("momentum", "x", weight * self.weight_decay)
        add_estimate(program, "momentum", step, weight)
        program.add("x", "momentum", -step.eta)


@dataclass(frozen=True)
class SignSgd(UpdateRule):
    """ZO-SignSGD: x ← (1 − ηλ)x − η sign(ĝ), ĝ = (1/P) Σ_p g_p z_p.

    Source: Liu, Chen, Chen and Hong, "signSGD via zeroth-order oracle", ICLR 2019.
    """

    weight_decay: float = 0.0  # λ ≥ 0, decoupled

    def __post_init__(self) -> None:
        _check_weight_decay(self.weight_decay)

    def emit(self, program: Program, step: Step) -> None:
        program.fill(SCRATCH, 0.0)
        add_estimate(program, SCRATCH, step, 1.0)
        program.sign(SCRATCH)
        if self.weight_decay:
            program.scale("x", 1.0 - step.eta * self.weight_decay)
        program.add("x", SCRATCH, -step.eta)


@dataclass(frozen=True)
class AdaMM(UpdateRule):
    """ZO-AdaMM: Adam with AMSGrad's maximum and no bias correction, so a step needs no count of steps.

        ĝ = (1/P) Σ_p g_p z_p,   m ← β₁m + (1 − β₁)ĝ,   v ← β₂v + (1 − β₂)ĝ²,   v̂ ← max(v̂, v),
        x ← (1 − ηλ)x − η m/(√v̂ + ε)

    Source: Chen et al., "ZO-AdaMM", NeurIPS 2019, Algorithm 1, without the projection.
    """

    beta1: float = 0.9  # β₁ in [0, 1)
    beta2: float = 0.999  # β₂ in [0, 1)
    epsilon: float = 1e-8  # ε > 0
    weight_decay: float = 0.0  # λ ≥ 0, decoupled

    def __post_init__(self) -> None:
        _check_weight_decay(self.weight_decay)
        require(0.0 <= self.beta1 < 1.0, "beta1", "be in [0, 1)", self.beta1)
        require(0.0 <= self.beta2 < 1.0, "beta2", "be in [0, 1)", self.beta2)
        require_finite_positive("epsilon", self.epsilon)

    slots = ("momentum", "variance", "maximum")  # first moment m, second moment v and its maximum v̂

    def emit(self, program: Program, step: Step) -> None:
        program.fill(SCRATCH, 0.0)
        add_estimate(program, SCRATCH, step, 1.0)
        program.scale("momentum", self.beta1)
        program.add("momentum", SCRATCH, 1.0 - self.beta1)
        program.multiply(SCRATCH, SCRATCH)
        program.scale("variance", self.beta2)
        program.add("variance", SCRATCH, 1.0 - self.beta2)
        program.maximum("maximum", "variance")
        program.copy(SCRATCH, "maximum")
        program.square_root(SCRATCH)
        program.offset(SCRATCH, self.epsilon)
        program.divide_into(SCRATCH, "momentum")
        if self.weight_decay:
            program.scale("x", 1.0 - step.eta * self.weight_decay)
        program.add("x", SCRATCH, -step.eta)


@dataclass(frozen=True)
class LowPrecision(UpdateRule):
    """Another rule on 16-bit replicas: float32 inside a step, 16 bits between two steps.

    ``rounding`` says what happens after every step to x and to the rule's state:

    - "stochastic": to one of the two neighbours at random, so that small updates survive on average. The bits
      come from the step's seed under a tag of their own, so every replica rounds alike.
    - "compensated": to the nearest, and what was cut off is kept in a 16-bit vector ``<name>.low`` that is
      added back before the next step.
    - "nearest": plain 16-bit training, which forgets every update below half a unit in the last place. It is
      there to compare with.
    """

    rule: UpdateRule  # the rule
    dtype: Format = Format.BFLOAT16  # "bfloat16" or "float16"
    rounding: Literal["stochastic", "compensated", "nearest"] = "stochastic"  # "stochastic", "compensated" or "nearest"

    def __post_init__(self) -> None:
        require(self.dtype in tuple(Format), "dtype", f"be one of {', '.join(Format)}", self.dtype)
        known = ("stochastic", "compensated", "nearest")
        require(self.rounding in known, "rounding", f"be one of {', '.join(known)}", self.rounding)
        require(not isinstance(self.rule, LowPrecision | GridSgd), "rule", "be a float32 rule", self.rule)
        whole = self.rule.scaling is None and not self.rule.pool
        require(whole, "rule", "be one of directions that are neither scaled nor of a pool", self.rule)

    @property
    def _vectors(self) -> tuple[str, ...]:
        return ("x", *self.rule.slots)

    @property
    def slots(self) -> tuple[str, ...]:  # type: ignore[override]
        """The rule's, and with compensation one for each vector's lost part."""
        low = tuple(f"{name}.low" for name in self._vectors) if self.rounding == "compensated" else ()
        return (*self.rule.slots, *low)

    def emit(self, program: Program, step: Step) -> None:
        if self.rounding == "compensated":
            for name in self._vectors:
                program.add(name, f"{name}.low")
        self.rule.emit(program, step)
        for place, name in enumerate(self._vectors):
            if self.rounding == "stochastic":
                program.narrow_randomly(name, self.dtype, step_seed(step.seed), place)
                continue
            if self.rounding == "compensated":
                program.copy(f"{name}.low", name)
            program.narrow(name, self.dtype)
            if self.rounding == "compensated":
                program.add(f"{name}.low", name, -1.0)
                program.narrow(f"{name}.low", self.dtype)

    def begin(self, x: Tensor) -> Tensor:
        """See ``UpdateRule.begin``: in 16 bits."""
        import torch

        return x.to(getattr(torch, self.dtype))

    def admit(self, x: Tensor) -> None:
        require(str(x.dtype) == f"torch.{self.dtype}", "dtype of x", f"be {self.dtype} for {self}", x.dtype)


@dataclass(frozen=True)
class GridSgd(UpdateRule):
    """ZO-SGD on a grid, x ← x + u with u = −(η/P) Σ_p g_p z_p rounded to a multiple of q = 2^exponent.

    Sums and differences of multiples of q below 2²⁴q are exact in float32, so ``emit_reverse`` undoes a step
    by arithmetic, to the bit: local steps need no snapshot. Admitted are |u| ≤ 2²²q and |x| ≤ 2²³q (also for
    float64 replicas); a step that leaves this range is refused before anything is written.
    """

    exponent: int = -20  # log₂ q; −20 resolves 1e-6 and admits |x| ≤ 8

    reversible = True
    _BITS: ClassVar[int] = 23

    def __post_init__(self) -> None:
        require_int("exponent", self.exponent, -100, 100)

    @property
    def quantum(self) -> float:
        """The grid's step q."""
        return 2.0**self.exponent

    @property
    def largest(self) -> float:
        """The largest |x| that is admitted."""
        return 2.0 ** (self.exponent + self._BITS)

    def begin(self, x: Tensor) -> Tensor:
        """See ``UpdateRule.begin``: the nearest point of the grid, ties to even."""
        on_grid = x.new_empty(x.shape)
        for part, snapped in zip(x.split(_SNAPPED), on_grid.split(_SNAPPED), strict=True):  # in float64, by blocks
            snapped.copy_(part.double().div_(self.quantum).round_().mul_(self.quantum))
        return on_grid.add_(0.0)  # not −0, which arithmetic would not bring back

    def admit(self, x: Tensor) -> None:
        import torch

        super().admit(x)
        size = float(x.abs().max())
        require(size <= self.largest, "largest |x|", f"be at most {self.largest} = 2^23 · 2^{self.exponent}", size)
        if not torch.equal(self.begin(x).view(torch.uint8), x.contiguous().view(torch.uint8)):
            raise InputError(f"x must be on the grid of {self}: start at rule.begin(x)")

    def _emit(self, program: Program, step: Step, sign: float) -> None:
        program.fill(SCRATCH, 0.0)
        add_estimate(program, SCRATCH, step, -step.eta)
        program.limit(SCRATCH, self.largest / 2)
        program.snap(SCRATCH, self.quantum)
        program.add("x", SCRATCH, sign)
        program.limit("x", self.largest)

    def emit(self, program: Program, step: Step) -> None:
        self._emit(program, step, 1.0)

    def emit_reverse(self, program: Program, step: Step) -> None:
        self._emit(program, step, -1.0)
