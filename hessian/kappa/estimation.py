"""κ = tr(H)/‖H‖₂ with an interval that has the coverage it states."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.errors import plural
from hessian.estimate import Estimate
from hessian.kappa.result import SEMIDEFINITE, EffectiveRank, EffectiveRankProgress, _signs
from hessian.kappa.settings import SCOUTS, Settings
from hessian.operators.counted import Counted
from hessian.operators.operator import Operator
from hessian.operators.probes import probe
from hessian.operators.whitened import WHITENED
from hessian.resume import State
from hessian.spectrum.forms import SphereForms
from hessian.spectrum.lanczos import Krylov, Lanczos, dot, missed_above

__all__ = ["BESIDE"]

PROBES, SCOUT = 2, 3
"""Stages of the probes that make the interval, and of those that only choose how many Lanczos steps to take."""

SAFETY = 4.0
"""Their variance counts so much more where steps are chosen: both may have missed an outlier (measured best of 1-8)."""

LEAST_PROBES = 3
"""The fewest that an interval rests on: each of them measures the variance too."""


BESIDE = 9
"""Vectors (d,) that an estimate holds at most beside the Lanczos vectors: the next of them, a probe, five products of
earlier ones, and two that a product with the Hessian works in (measured; the smoothed operator works in more)."""

_PROBES_A_STEP = 4
"""While more than so many probes a step are needed, Lanczos goes on: a plateau may end at another outlier."""

_WINDOW = 3
"""Steps over which the falling variance of the complement is extrapolated, to choose the steps."""

_FALL = (0.5, 2.0)
"""Ends of the power of k by which the variance is taken to fall where the products in all are foretold."""

_FARTHEST = 10_000
"""Steps more that are considered there."""


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
            w = product if q is None else (along * beta * q).neg_().add_(product)
            form, length = dot(z, w), dot(z, z)
            variance += 2 * max(dot(w, w) - (form**2 / length if length else 0.0), 0.0) / SCOUTS
            trace += form / SCOUTS
            del w  # before that of the next one is made
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
        u = self.krylov.complement_(self._z(PROBES, len(self.sampled.values)))
        # ‖u‖² = n, the dimension of the complement, so that E[uuᵀ] = P and E[uᵀHu] = tr(PHP).
        u *= math.sqrt(self.sampled.n) / (math.sqrt(dot(u, u)) or 1.0)
        product = self.forms.matvec(u) if self.sampled.wants_products else None
        form = self.forms.quad(u) if product is None else dot(u, product)
        self.sampled.add(form, u, None if product is None else self.krylov.complement_(product))

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
