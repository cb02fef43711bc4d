"""κ = tr(H)/‖H‖₂ with an interval that has the coverage it states."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor, nn

from decomfl_lab.datasets.given import Data
from decomfl_lab.errors import InputError, known_options, plural, require, require_finite_positive, require_int
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.pictures import save_picture
from hessian.counted import Counted
from hessian.curvature import HessianOperator
from hessian.estimate import Estimate, Plain, require_confidence
from hessian.forms import SphereForms
from hessian.krylov import Krylov, Lanczos, dot, missed_above, require_room
from hessian.mean_loss import MeanLoss, Weights, enabled
from hessian.operator import Operator
from hessian.probes import probe
from hessian.resume import Checkpoint, State
from hessian.whitened import WHITENED, WhitenedOperator

if TYPE_CHECKING:
    from hessian.density import SpectralDensity

__all__ = ["EffectiveRank", "EffectiveRankProgress", "effective_rank"]

PROBES, SCOUT = 2, 3
"""Stages of the probes that make the interval, and of those that only choose how many Lanczos steps to take."""

SCOUTS = 2
"""Probes that choose the number of steps."""

SAFETY = 4.0
"""Their variance counts so much more where steps are chosen: both may have missed an outlier (measured best of 1-8)."""

FINEST = 1e-12
"""The least ``rtol``: numbers of 64 bits are no finer."""

LEAST_PROBES = 3
"""The fewest that an interval rests on: each of them measures the variance too."""

SEMIDEFINITE = ("gauss-newton", "fisher")
"""Operators without negative eigenvalues by construction: signed, positive and absolute κ are one."""

BESIDE = 11
"""Vectors (d,) that an estimate holds at most beside the Lanczos vectors: the next of them, a probe, five products of
earlier ones, and four that a product with the Hessian works in (measured; the smoothed operator works in more)."""

_PROBES_A_STEP = 4
"""While more than so many probes a step are needed, Lanczos goes on: a plateau may end at another outlier."""

_WINDOW = 3
"""Steps over which the falling variance of the complement is extrapolated, to choose the steps."""

_FALL = (0.5, 2.0)
"""Ends of the power of k by which the variance is taken to fall where the products in all are foretold."""

_FARTHEST = 10_000
"""Steps more that are considered there."""


@dataclass(frozen=True)
class EffectiveRankProgress:
    """Where an estimate stands after a product.

    Attributes:
        stage: What is being done: "lanczos" or "probes".
        products: The number of products spent so far.
        lambda_max: The largest Ritz value.
        residual: How far ‖H‖₂ may be above the Ritz value of the largest magnitude.
        kappa: The estimate so far, NaN while nothing is known of the trace.
        low: The lower end of its interval, -inf until there are two probes.
        high: The upper end of its interval.
        needed: The products in all that the half-width asked for will take, as far as one can tell by now; within a
            factor of 2 in nine of ten runs from the tenth product on (docs/kappa.md). None until something is known.
    """

    stage: str
    products: int
    lambda_max: float
    residual: float
    kappa: float
    low: float
    high: float
    needed: int | None


@dataclass(frozen=True, kw_only=True)
class EffectiveRank(Plain):
    """The effective rank of H, in every reading of it, each with its uncertainty.

    Attributes:
        operator: The name of the matrix, e.g. "hessian" or "gauss-newton".
        d: The dimension of the matrix.
        kappa: tr(H)/‖H‖₂, the paper's κ; NaN where H = 0. Negative eigenvalues lower it.
        interval: (low, high) for it: the trace's interval over all norms in [θ, θ + ``Lanczos.top_error``].
        confidence: The confidence of the intervals.
        trace: tr(H), with its standard error; its interval is ``trace_interval``.
        trace_interval: (low, high) for it.
        lambda_max: Largest Ritz value: λ_max is at least that.
        lambda_max_residual: An eigenvalue is at most that far from it.
        lambda_min: Smallest Ritz value: λ_min is at most that.
        lambda_min_residual: An eigenvalue is at most that far from it.
        norm: θ, the larger of |lambda_max| and |lambda_min|: ‖H‖₂ is at least that.
        missed: λ_max is above its Ritz value by more than missed·(λ_max − λ_min) with probability below 1 %.
        kappa_positive: Σ max(λ, 0)/λ_max; None where H may be indefinite (``SpectralDensity.kappas`` measures it).
        kappa_absolute: Σ|λ|/max|λ|; None likewise.
        ritz_values: All, ascending.
        ritz_residuals: The residual of each: an eigenvalue is at most that far from it.
        ritz_weights: The share of the d eigenvalues at each Ritz value, as Lanczos' random start vector sees it; empty
            where Lanczos was restarted.
        steps: Lanczos steps k.
        probes: Random probes of the complement, N.
        products: All products with H, quadratic forms included.
        quadratic_forms: Those that needed only vᵀHv.
        rtol: Asked half-width of the interval, relative to κ.
        reached: Whether the interval is that narrow.
        needed: The products in all that ``rtol`` takes: ``products`` where it is reached, else as foretold (see
            ``EffectiveRankProgress``). None where κ is undefined.
        reason: What happened, what to do if not reached, and what the signs mean; one line.
        seed: The seed of everything random.
        dtype: The dtype of the products.
        seconds: Wall-clock time.
        history: (products, lambda_max, kappa, low, high) after each product or probe.
    """

    operator: str
    d: int
    kappa: float
    interval: tuple[float, float]
    confidence: float
    trace: Estimate
    trace_interval: tuple[float, float]
    lambda_max: float
    lambda_max_residual: float
    lambda_min: float
    lambda_min_residual: float
    norm: float
    missed: float
    kappa_positive: Estimate | None
    kappa_absolute: Estimate | None
    ritz_values: tuple[float, ...]
    ritz_residuals: tuple[float, ...]
    ritz_weights: tuple[float, ...]
    steps: int
    probes: int
    products: int
    quadratic_forms: int
    rtol: float
    reached: bool
    needed: int | None
    reason: str
    seed: int
    dtype: str
    seconds: float
    history: tuple[tuple[int, float, float, float, float], ...] = field(repr=False)

    def believed(self, residual: float) -> float:
        """The residual, at least ε‖H‖₂ with the ε of ``dtype``: products are no finer. It is what is printed as ±."""
        return max(residual, torch.finfo(getattr(torch, self.dtype)).eps * self.norm)

    def __str__(self) -> str:
        """κ with its interval to two digits of its half-width (to six of κ at most), and what it cost.

        Where the interval is not as narrow as asked for, its half-width and what that would cost.
        """
        if math.isnan(self.kappa):
            return f"κ is undefined: H is zero along every direction tried ({plural(self.products, 'product')})"
        low, high = self.interval
        largest = max(abs(end) for end in (self.kappa, low, high) if math.isfinite(end))
        finest = 5 - _decade(largest)
        half = (high - low) / 2
        places = max(0, min(1 - _decade(half), finest) if math.isfinite(half) and half > 0 else finest)
        value, low_end, high_end = (f"{end:.{places}f}" for end in (self.kappa, low, high))
        percent = f"{100 * self.confidence:g} %"
        spent = plural(self.products, "product")
        if not self.reached and self.kappa:
            spent += f": ± {half / abs(self.kappa):.2g}, where ± {self.rtol:.2g} takes about {self.needed}"
        return f"κ = {value}, {percent} interval {low_end} .. {high_end} ({spent})"

    def plot(self, path: str | Path, density: SpectralDensity | None = None) -> Path:
        """Draw the spectrum beside ‖H‖₂, and how κ and its interval settled, to a file (.png, .pdf, .svg); its path.

        Args:
            path: The file.
            density: The spectral density of the same matrix (``spectral_density``), for a finer curve with a band.

        Raises:
            InputError: If κ is undefined, the density is of another matrix, or the file cannot be written.
        """
        from hessian.picture import picture  # here, since matplotlib takes long to load

        return save_picture(picture(self, density), Path(path))

    def summary(self) -> str:
        """The result in words, a line for each reading of κ."""
        percent = f"{100 * self.confidence:g} %"
        lines = [
            f"{self.operator}, d = {self.d}: {plural(self.products, 'product')} "
            f"({plural(self.steps, 'Lanczos step')}, {plural(self.probes, 'probe')}), seed {self.seed}, {self.dtype}",
            f"κ = tr(H)/‖H‖₂ = {self.kappa:.4g}, {percent} interval [{self.interval[0]:.4g}, {self.interval[1]:.4g}]",
            f"tr(H) = {self.trace.value:.4g} ± {self.trace.stderr:.2g}, "
            f"{percent} interval [{self.trace_interval[0]:.4g}, {self.trace_interval[1]:.4g}]",
            f"λ_max = {self.lambda_max:.5g} (residual {self.believed(self.lambda_max_residual):.2g}), "
            f"λ_min = {self.lambda_min:.4g} (residual {self.believed(self.lambda_min_residual):.2g}), "
            f"‖H‖₂ = {self.norm:.5g}; "
            f"a larger λ_max by more than {100 * self.missed:.3g} % of λ_max − λ_min is excluded with 99 %",
        ]
        for name, value in (
            ("Σ max(λ, 0)/λ_max", self.kappa_positive),
            ("Σ|λ|/max|λ|", self.kappa_absolute),
        ):
            shown = "not measured (a spectral density does)"
            if value is not None:
                shown = f"{value.value:.4g} ± {value.stderr:.2g}"
            lines.append(f"{name} = {shown}")
        return "\n".join([*lines, self.reason])


@dataclass(frozen=True)
class Settings:
    """The arguments that decide the result."""

    rtol: float
    confidence: float
    max_products: int
    products: int | None
    seed: int
    trace: float | None
    max_basis: int | None = None

    def __post_init__(self) -> None:
        require(require_finite_positive("rtol", self.rtol) >= FINEST, "rtol", f"be at least {FINEST:g}", self.rtol)
        require_confidence(self.confidence)
        require_int("seed", self.seed, 0, 2**64 - 1)
        finite = self.trace is None or math.isfinite(self.trace)
        require(finite, "trace", "be a finite number where it is known", self.trace)
        name = "max_products" if self.products is None else "products"
        require_int(name, self.limit, SCOUTS + 4)
        if self.max_basis is not None:
            require_int("max_basis", self.max_basis, 4)

    @property
    def limit(self) -> int:
        """Products at most."""
        return self.max_products if self.products is None else self.products

    @property
    def basis(self) -> int:
        """Lanczos vectors at most: with probes to come two thirds of the products are steps at most."""
        most = math.ceil(2 * self.limit / 3) if self.trace is None else self.limit
        return most if self.max_basis is None else min(most, self.max_basis)

    @property
    def normal(self) -> float:
        """The two-sided quantile of the confidence for many samples."""
        return float(ndtri(0.5 + self.confidence / 2))


@known_options
def effective_rank(
    model: Operator | nn.Module,
    loss: LossFunction | None = None,
    data: Data | None = None,
    *,
    rtol: float = 0.05,
    confidence: float = 0.95,
    max_products: int = 200,
    products: int | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    on_progress: Callable[[EffectiveRankProgress], None] | None = None,
    trace_operator: Operator | None = None,
    trace: float | None = None,
    max_basis: int | None = None,
    whiten: Tensor | None = None,
    weights: Weights | None = None,
    weight_decay: float = 0.0,
    trust: bool = False,
) -> EffectiveRank:
    """κ = tr(H)/‖H‖₂ with a confidence interval, by Lanczos and probes of what Lanczos left.

    With Q the k Lanczos vectors (rows), T = Q H Qᵀ and P = I − QᵀQ,

        tr(H) = tr(T) + E[uᵀHu],    u = Pz √(d − k)/‖Pz‖,    θ = max |eig(T)| ≤ ‖H‖₂

    so the products that find θ also take the outliers out of the trace, whose variance they dominate:
    Var ≤ 2‖PHP‖_F² in place of 2‖H‖_F². For Gaussian z, u is uniform on a sphere of the complement, so the mean is
    exact, and a part of PHP that is a multiple of P adds no variance.

    1. *Lanczos* until the residual of θ is small (rtol/5) and one more step would save less than one product of
       probes. How the variance falls with k is read off two scouts, E‖PHPz₀‖² = ‖PHP‖_F² for every k from the
       single product Hz₀. Scouts are no samples of the trace, so k is independent of the samples that make the
       interval.
    2. *Probes*, at least 3, until the interval is as narrow as asked for. What a probe's product says of the variance,
       ‖PHu‖², says far more than the spread of few forms does, so the interval (see ``SphereForms``) is nearly as wide
       with 3 probes as with many; and it knows about the forms' skewness, which Student's t does not.

    With ``products`` = B nothing is decided on the way: 2B/3 steps, and probes for the rest (for 20 to 30 products
    no rule with scouts did better); where B ≥ d, the d steps that make κ exact.

    Args:
        model: H as an operator, or the module that has it.
        loss: The loss(outputs, targets) of a module, the mean over the examples of a batch, or its loss(model, batch),
            if the first parameter is called ``model``; None with an operator, and for the module's own loss.
        data: The data of a module: batches (inputs, targets) in a list or a DataLoader, a Dataset, or a pair of
            tensors or arrays; None with an operator. H is then the Hessian of the mean loss over these data in the
            module's trainable parameters (``MeanLoss`` says what it asks for, and has more options).
        rtol: Half-width of κ's interval to reach, relative to κ.
        confidence: The confidence of the interval, in (0, 1).
        max_products: The most products to spend.
        products: The number of products to spend instead (fewer only if the Lanczos vectors span everything).
        seed: The seed of everything random, 0..2**64-1.
        checkpoint: A file that is written along the way (a tenth of the time at most), and gone on from if it is there,
            to the same bits.
        on_progress: A function that is called after every product.
        trace_operator: An operator of the same trace whose quadratic forms are cheaper (the Gauss-Newton matrix of
            a piecewise-affine network): all probes are taken with it, tr(QGQᵀ) by k more forms, and H gives only θ.
        trace: tr(H) where it is known (``gauss_newton_trace``): then there are only Lanczos steps, until the residual
            of θ is small, or ``products`` of them, and the interval is that of θ alone.
        max_basis: The most Lanczos vectors to keep, at least 4, where memory is short: probes take over after so many
            steps. Where the trace is known, Lanczos goes on by thick restarts. None: as many as the products allow.
        whiten: The vector s (d,) by which a method scales its directions, u = s ⊙ z: everything here is then of DHD,
            D = diag(s), in the place of H, ``trace_operator`` and ``trace`` included.
        weights: Of a module's data: see ``MeanLoss``.
        weight_decay: λ of a penalty (λ/2)‖x‖² on a module's parameters, whose curvature is λI.
        trust: Whether a module, its loss and its data are taken for one function of x without being tried, and torch's
            derivatives for that function's; ``reason`` then says so.

    **Memory.** At most ``max_basis`` + ``BESIDE`` vectors (d,) are alive at a time, beside the module, x, and the
    graphs and activations of the pieces of the data.

    Returns:
        κ, its interval and all that it is made of. Where the interval asked for is not reached, ``reached`` is
        False, the interval is still valid, and ``reason`` says what would be needed.

    Raises:
        InputError: If an argument breaks a rule, a product is not finite, the checkpoint is of another run, or the
            device has no room for the Lanczos vectors; it says for how many it has.

    Source: Krylov-aware deflation: Chen and Hallman 2023; κ: DeComFL, Assumption 4.
    """
    own = {"weights": weights, "weight_decay": weight_decay, "trust": trust}
    operator = base = _operator(model, loss, data, own)
    settings = Settings(rtol, confidence, max_products, products, seed, trace, max_basis)
    if trace is not None:
        require(trace_operator is None, "trace_operator", "be None where the trace is known", trace_operator)
    if trace_operator is not None:
        require(trace_operator.d == operator.d, "trace_operator", f"have dimension {operator.d}", trace_operator.d)
    if whiten is not None:
        operator = WhitenedOperator(operator, whiten)
        trace_operator = trace_operator and WhitenedOperator(trace_operator, whiten)
    restarts = trace is not None and settings.basis < settings.limit
    require_room(operator, settings.basis, BESIDE, restarts=restarts)
    with enabled():
        run = _Run(operator, settings, trace_operator)
        file = Checkpoint(checkpoint, run.identity)
        if state := file.load():
            run.restore(*state)
        while not run.finished:
            run.advance()
            file.save(run.state, last=run.finished)
            if on_progress is not None:
                on_progress(run.progress())
    result = run.result()
    inner = getattr(base, "inner", base)  # of a whitened one
    remarks = [getattr(each, "remark", "") for each in (getattr(inner, "objective", None), inner)]
    return dataclasses.replace(result, reason="; ".join([result.reason, *filter(None, remarks)]))


def _operator(
    model: Operator | nn.Module, loss: LossFunction | None, data: Data | None, own: dict[str, Any]
) -> Operator:
    """H of the arguments of ``effective_rank``."""
    if isinstance(model, nn.Module):
        if data is None:
            raise InputError("data must be given with a module, got None")
        return HessianOperator(MeanLoss(model, loss, data, **own))
    require(loss is None and data is None, "loss and data", "be None with an operator, which has them", "something")
    given = [name for name, value in own.items() if value]
    require(not given, " and ".join(given), "be given with a module, and not with an operator", given)
    known = all(hasattr(model, name) for name in ("matvec", "quad", "d", "dtype", "device"))
    require(known, "model", "be a torch module or an operator (hessian.Operator)", type(model).__name__)
    return model


class _Run:
    """An estimate that advances by a product, or a probe, at a time; all decisions are functions of its state."""

    def __init__(self, operator: Operator, settings: Settings, trace_operator: Operator | None) -> None:
        self.settings = settings
        self.operator = Counted(operator)
        self.forms = self.operator if trace_operator is None else Counted(trace_operator)
        self.krylov = Krylov(self.operator, settings.seed, None if settings.trace is None else settings.max_basis)
        self.scouts: list[tuple[Tensor, Tensor]] = []  # Pz₀ and PHz₀ of each
        self.predicted: list[tuple[float, float]] = []  # after each step: variance of a probe, trace
        self.deflated = False  # whether Lanczos is over
        self.inside = 0.0  # tr(QHQᵀ)
        self.sampled = SphereForms()
        self.history: list[tuple[int, float, float, float, float]] = []
        self.seconds = 0.0
        self._known = (0, math.nan, math.nan)  # steps, θ and how far ‖H‖₂ may be above it
        self._started = time.perf_counter()

    # What happens next

    @property
    def products(self) -> int:
        """The number spent so far, on both operators."""
        return self.operator.products + (self.forms.products if self.forms is not self.operator else 0)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        if not self.deflated:
            return False
        if self.krylov.following is None or self.settings.trace is not None:
            return True
        return self._affordable < 1 or (self.settings.products is None and self._narrow())

    @property
    def _affordable(self) -> int:
        """Probes that the products left pay for, once tr(QGQᵀ) of another operator is paid."""
        owed = 0 if self.deflated or self.forms is self.operator else self.krylov.steps
        return self.settings.limit - self.products - owed

    def advance(self) -> None:
        """Spend one product, or one probe."""
        # Scouts come first: their products Hz₀ must be there before Lanczos takes its vectors out of them.
        scouting = self.settings.products is None and self.settings.trace is None and not self.krylov.steps
        if scouting and len(self.scouts) < SCOUTS:
            z = self._z(SCOUT, len(self.scouts))
            self.scouts.append((z, self.operator.matvec(z)))
        elif not self.deflated:
            self.krylov.step()
            if self.scouts:
                self._predict()
            if self._deflated_enough():
                self._finish_lanczos()
        else:
            self._sample()
        self.history.append(self._row())

    def _z(self, stage: int, index: int) -> Tensor:
        return probe(self.operator, self.settings.seed, stage, index)

    def _predict(self) -> None:
        """Append the variance of a probe and the trace, as the scouts see them after this step.

        The variance is 2‖PHP‖_F² less the part along P, which the fixed length takes out: 2‖PHPz₀ − ρ Pz₀‖². Each
        step takes its new vector v out of Pz₀ and PHz₀; from the latter

            P H P z₀ = P H z₀ − P H QᵀQ z₀ = P H z₀ − (v·z₀) β q,    since H Qᵀ = Qᵀ T + q cᵀ, c = (0, ..., 0, β)
        """
        variance, trace = 0.0, float(self.krylov.projected.trace())
        v, beta, q = self.krylov.vectors[-1], float(self.krylov.coupling[-1]), self.krylov.following
        for z, product in self.scouts:
            along = dot(v, z)
            z.sub_(v, alpha=along)
            product.sub_(v, alpha=dot(v, product))
            w = product if q is None else product - along * beta * q
            form, length = dot(z, w), dot(z, z)
            variance += 2 * max(dot(w, w) - (form**2 / length if length else 0.0), 0.0) / SCOUTS
            trace += form / SCOUTS
        self.predicted.append((variance, trace))

    def _deflated_enough(self) -> bool:
        """Whether probes are the better use of the products that are left."""
        settings, k = self.settings, self.krylov.steps
        left = (self.operator.d - k) * (1 if self.forms is self.operator else 2)
        if settings.products is not None and settings.trace is None and 0 < left <= self._affordable:
            return False  # as many vectors as span everything make κ exact, and no probe is needed
        if self.krylov.invariant:  # T's eigenvalues are H's own, and more steps would start anew
            return True
        if settings.trace is not None:  # only θ is wanted, to which no probe adds anything
            done = settings.products is None and self.krylov.result(settings.rtol / 5).converged
            return done or k >= settings.limit
        if k >= settings.basis:
            return True
        if settings.products is not None:
            # Two thirds of the budget; a third with a trace_operator, which then spends k forms on tr(QGQᵀ). At least
            # two probes are left in any case, and up to four where half of the budget pays for them.
            probes = min(4, settings.limit // 2)
            most = 2 * settings.limit // 3 if self.forms is self.operator else settings.limit // 3
            return k >= min(most, settings.limit - probes)
        if self._affordable <= LEAST_PROBES or 3 * k >= 2 * settings.limit:  # the rest must pay for an interval
            return True
        if self.operator.d - k <= LEAST_PROBES:  # as many steps as an interval needs probes make κ exact
            return False
        if not self.krylov.result(settings.rtol / 5).converged:  # no probe makes θ better
            return False
        # Lanczos goes on while a step saves its product in probes, and while so many are needed that a variance which
        # no longer falls is taken for a plateau before another outlier.
        now, then = (self._needed(SAFETY * variance) for variance in self._variances())
        return now <= LEAST_PROBES or (now - then < 1 and now <= SAFETY * _PROBES_A_STEP * k)

    def _variances(self) -> tuple[float, float]:
        """The variance of a probe now, and after one more step at the rate of the last few."""
        now, before = self.predicted[-1][0], self.predicted[-1 - _WINDOW : -_WINDOW]
        return now, now * (now / before[0][0]) ** (1 / _WINDOW) if before and before[0][0] > 0 else 0.0

    def _needed(self, variance: float) -> float:
        """Probes for the half-width asked for, by the scouts' trace, were they many."""
        width = self._width(self.predicted[-1][1])
        return (self.settings.normal / width) ** 2 * variance if width > 0 else math.inf

    def _finish_lanczos(self) -> None:
        """Fix k, and the part of the trace that is inside the space."""
        self.deflated, self.scouts = True, []
        self.sampled = SphereForms(self.operator.d - len(self.krylov.vectors))
        if self.settings.trace is not None:
            return
        if self.forms is self.operator:
            self.inside = float(self.krylov.projected.trace())
        else:
            self.inside = math.fsum(self.forms.quad(q) for q in self.krylov.vectors)

    def _sample(self) -> None:
        """One probe of the complement: its product or, once the variance is known, its quadratic form."""
        u = self.krylov.complement(self._z(PROBES, len(self.sampled.values)))
        # ‖u‖² = n, the dimension of the complement, so that E[uuᵀ] = P and E[uᵀHu] = tr(PHP).
        u *= math.sqrt(self.sampled.n) / (math.sqrt(dot(u, u)) or 1.0)
        product = self.forms.matvec(u) if self.sampled.wants_products else None
        form = self.forms.quad(u) if product is None else dot(u, product)
        self.sampled.add(form, u, None if product is None else self.krylov.complement(product))

    # What is known

    def _norm(self) -> tuple[float, float]:
        """θ and how far ‖H‖₂ may be above it."""
        if self._known[0] != self.krylov.steps:
            lanczos = self.krylov.result()
            self._known = (self.krylov.steps, float(lanczos.ritz_values[lanczos.top].abs()), lanczos.top_error)
        return self._known[1:]

    def _trace(self, play: float = 0.0) -> tuple[float, float, float]:
        """The estimate of tr(H) and the ends of its interval, to be divided by norms that differ by ``play``."""
        if self.settings.trace is not None:
            return self.settings.trace, self.settings.trace, self.settings.trace
        if self.krylov.following is None:
            return self.inside, self.inside, self.inside
        if not self.sampled.values:  # the scouts' guess, which no interval rests on
            return self.predicted[-1][1] if self.predicted else math.nan, -math.inf, math.inf
        t = self.inside + self.sampled.mean
        low, high = self.sampled.interval(self.settings.confidence, abs(t) * play)
        return t, self.inside + low, self.inside + high

    def _estimate(self) -> Estimate:
        """The trace with its standard error."""
        samples = len(self.sampled.values)
        return Estimate(self._trace()[0], self.sampled.stderr if samples else 0.0, samples)

    def _interval(self) -> tuple[float, float]:
        """κ's interval: all quotients of the trace's interval and the norms in [θ, θ + slack], and rounding."""
        theta, slack = self._norm()
        t, low, high = self._trace(slack / theta if theta > 0 else 0.0)
        if not theta > 0:
            return (math.nan, math.nan) if theta == 0 else (-math.inf, math.inf)
        # Room for the rounding of products, all that is left where nothing is sampled.
        rounding = 10 * torch.finfo(self.operator.dtype).eps * (abs(t) + theta)
        low, high = low - rounding, high + rounding
        return (
            low / (theta if low < 0 else theta + slack),
            high / (theta if high > 0 else theta + slack),
        )

    def _reach(self) -> float:
        """How far κ's interval reaches from κ to its farther side, relative to κ, after the last product."""
        _, _, kappa, low, high = self.history[-1]
        if math.isnan(kappa):  # H is zero along every direction tried
            return 0.0
        return max(high - kappa, kappa - low) / abs(kappa) if kappa else math.inf

    def _narrow(self) -> bool:
        """Whether the interval is as narrow as asked for."""
        enough = self.settings.trace is not None or self.krylov.following is None
        return (enough or len(self.sampled.values) >= LEAST_PROBES) and self._reach() <= self.settings.rtol

    def _width(self, trace: float) -> float:
        """Half-width of the trace's interval that makes κ's reach at most rtol·|κ| to either side.

        The far side is |t − w|/(θ + slack): with ρ = θ/(θ + slack) it is within rtol of t/θ if wρ ≤ t (rtol − 1 + ρ).
        """
        theta, slack = self._norm()
        rho = theta / (theta + slack) if theta > 0 else 1.0
        return abs(trace) * min(self.settings.rtol, (self.settings.rtol - 1 + rho) / rho)

    def _needed_in_all(self) -> int | None:
        """The products that the half-width asked for takes, by what is known now; None if that is nothing.

        After k steps a probe has the variance V_k; N probes make the half-width w, N = V q²/w². V is taken to go on
        falling by the power of k by which it fell since k/2, and the sum of steps and probes is least somewhere.
        """
        k, sampled = self.krylov.steps, self.sampled
        if self.finished and self._narrow():
            return self.products
        if self.settings.trace is not None or not self._norm()[0] > 0:
            return None
        half = max(1, k // 2)
        if len(sampled.values) >= LEAST_PROBES:
            variance, trace = sampled.moments()[0], self._trace()[0]
        elif self.predicted:
            variance, trace = self.predicted[-1]
        else:
            return None
        trace = max(abs(trace), math.sqrt(variance / (len(sampled.values) or SCOUTS)))  # no better known than to that
        if self.predicted:
            before = self.predicted[half - 1][0]
        else:  # without scouts: what Ritz vectors took out of it
            ritz = self.krylov.result().ritz_values.abs().sort().values
            before = variance + 2 * float(ritz[: len(ritz) - half].square().sum())
        fall = math.log(before / variance) / math.log(k / half) if before > variance > 0 and k > half else 0.0
        more = np.arange(_FARTHEST)
        probes = (self.settings.normal / self.settings.rtol / trace) ** 2 * variance if trace else 0.0
        probes = np.maximum(LEAST_PROBES, probes * ((k + more) / k) ** -np.clip(fall, *_FALL))
        # with another operator's forms every step costs a form too, for tr(QGQᵀ)
        total = SCOUTS + (k + more) * (1 if self.forms is self.operator else 2) + probes
        return max(math.ceil(float(total.min())), self.products + 1)

    def _row(self) -> tuple[int, float, float, float, float]:
        theta = self._norm()[0]
        top = float(self.krylov.result().ritz_values[-1]) if self.krylov.steps else math.nan
        kappa = self._trace()[0] / theta if theta > 0 else math.nan
        return (self.products, top, kappa, *self._interval())

    def progress(self) -> EffectiveRankProgress:
        """Where the run stands."""
        products, top, kappa, low, high = self.history[-1]
        stage = "probes" if self.deflated else "lanczos"
        return EffectiveRankProgress(stage, products, top, self._norm()[1], kappa, low, high, self._needed_in_all())

    # The result

    def result(self) -> EffectiveRank:
        """All that is known."""
        lanczos = self.krylov.result()
        theta, _ = self._norm()
        t, t_low, t_high = self._trace()
        low, high = self._interval()
        reached = theta > 0 and self._narrow()
        positive, absolute = self._by_sign(lanczos)
        return EffectiveRank(
            operator=self.operator.name,
            d=self.operator.d,
            kappa=t / theta if theta > 0 else math.nan,
            interval=(low, high),
            confidence=self.settings.confidence,
            trace=self._estimate(),
            trace_interval=(t_low, t_high),
            lambda_max=float(lanczos.ritz_values[-1]),
            lambda_max_residual=float(lanczos.ritz_residuals[-1]),
            lambda_min=float(lanczos.ritz_values[0]),
            lambda_min_residual=float(lanczos.ritz_residuals[0]),
            norm=theta,
            missed=missed_above(self.operator.d, lanczos.products),
            kappa_positive=positive,
            kappa_absolute=absolute,
            ritz_values=tuple(lanczos.ritz_values.tolist()),
            ritz_residuals=tuple(lanczos.ritz_residuals.tolist()),
            ritz_weights=() if lanczos.weights is None else tuple(lanczos.weights.tolist()),
            steps=lanczos.products,
            probes=len(self.sampled.values),
            products=self.products,
            quadratic_forms=self.forms.quadratic_forms,
            rtol=self.settings.rtol,
            reached=reached,
            needed=self._needed_in_all(),
            reason=f"{self._outcome(reached)}; {_signs(lanczos)}",
            seed=self.settings.seed,
            dtype=str(self.operator.dtype).removeprefix("torch."),
            seconds=self.seconds + time.perf_counter() - self._started,
            history=tuple(self.history),
        )

    def _outcome(self, reached: bool) -> str:
        """What happened, and what to do."""
        theta, slack = self._norm()
        share = f"{100 * self.settings.rtol:.3g} %"
        if not theta > 0:
            return "H is zero along every direction tried, so κ is undefined"
        t = self._trace()[0]
        if self.settings.trace is not None and reached:
            return f"tr(H) was known, ‖H‖₂ is within {slack / theta:.2g} after {plural(self.products, 'product')}"
        if self.krylov.following is None and self.settings.trace is None:
            return f"the {len(self.krylov.vectors)} Lanczos vectors span everything: κ is exact"
        if reached:
            return f"within {share} of κ after {self.products} products"
        width = self._width(t)
        if width <= 0:
            full = self.krylov.steps == self.settings.max_basis
            return f"not within {share}: ‖H‖₂ may be {slack / theta:.2g} larger; allow more than " + (
                f"{self.settings.max_basis} Lanczos vectors" if full else f"{self.settings.limit} products"
            )
        return f"not within {share} of κ after {self.products} products: about {self._needed_in_all()} would be needed"

    def _by_sign(self, lanczos: Lanczos) -> tuple[Estimate | None, Estimate | None]:
        """κ of the positive part and of the absolute values, where they are known without a density."""
        top, norm = float(lanczos.ritz_values[-1]), self._norm()[0]
        if self.krylov.following is None:
            ritz = lanczos.ritz_values
            sums = ((float(ritz.clamp(min=0).sum()), top), (float(ritz.abs().sum()), norm))
            positive, absolute = (Estimate(total / by, 0.0, 0) if by > 0 else None for total, by in sums)
            return positive, absolute
        if self.operator.name.removeprefix(WHITENED) not in SEMIDEFINITE or not top > 0:
            return None, None
        trace = self._estimate()
        both = Estimate(trace.value / top, trace.stderr / top, trace.samples)
        return both, both

    # Checkpoints

    def identity(self) -> dict[str, Any]:
        """What tells this run from all others."""
        forms = None if self.forms is self.operator else self.forms.fingerprint()
        return {"operator": self.operator.fingerprint(), "trace_operator": forms} | dataclasses.asdict(self.settings)

    def state(self) -> State:
        """Everything that decides how the run goes on."""
        tensors, krylov = self.krylov.state()
        images, sampled = self.sampled.state()
        tensors |= images | {f"scout.{i}.{j}": v for i, scout in enumerate(self.scouts) for j, v in enumerate(scout)}
        return tensors, {
            "krylov": krylov,
            "products": [self.operator.products, self.operator.quadratic_forms],
            "forms": [self.forms.products, self.forms.quadratic_forms],
            "predicted": self.predicted,
            "deflated": self.deflated,
            "inside": self.inside,
            "sampled": sampled,
            "history": self.history,
            "seconds": self.seconds + time.perf_counter() - self._started,
        }

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Go on from a ``state``."""
        self.krylov.restore(tensors, values["krylov"])
        names = sorted(name for name in tensors if name.startswith("scout."))
        scouts = [tensors[name].to(self.operator.device) for name in names]
        self.scouts = list(zip(scouts[::2], scouts[1::2], strict=True))
        self.operator.products, self.operator.quadratic_forms = values["products"]
        self.forms.products, self.forms.quadratic_forms = values["forms"]
        self.predicted = [(variance, trace) for variance, trace in values["predicted"]]
        self.deflated, self.inside = values["deflated"], values["inside"]
        self.sampled.restore(tensors, values["sampled"], self.operator.device)
        self.history = [tuple(row) for row in values["history"]]
        self.seconds = values["seconds"]


def _decade(value: float) -> int:
    """The power of ten of a number's first digit."""
    return math.floor(math.log10(value)) if value > 0 else 0


def _signs(lanczos: Lanczos) -> str:
    """What the signs of the spectrum mean for κ."""
    low, high = float(lanczos.ritz_values[0]), float(lanczos.ritz_values[-1])
    if low >= -float(lanczos.ritz_residuals[0]):  # within its residual of 0 it has no sign
        return "no negative eigenvalue among the Ritz values, so little or none is cancelled in tr(H)"
    if high <= 0:
        return "no positive eigenvalue among the Ritz values: κ has the sign of tr(H)"
    return (
        f"H is indefinite (λ_min/λ_max = {low / high:.2g}): negative eigenvalues lower tr(H), so signed κ is below "
        "the positive and absolute ones"
    )
