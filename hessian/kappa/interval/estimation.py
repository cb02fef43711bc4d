"""κ = tr(H)/‖H‖₂ with an interval that has the coverage it states: the run behind ``effective_rank`` and ``trace``."""

import dataclasses
import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from decomfl_lab.errors import plural, require
from decomfl_lab.storage.outside import SavedEstimate
from hessian.estimate import Estimate
from hessian.kappa.result import UNDEFINED, EffectiveRank, EffectiveRankProgress, _signs
from hessian.kappa.settings import SCOUTS, Settings
from hessian.operators.operator import Counted, Operator
from hessian.operators.probes import probe
from hessian.parts import PARTS
from hessian.readings import Reading, reading_of
from hessian.spectrum.forms import LARGE, SKETCH, SphereForms
from hessian.spectrum.lanczos import Krylov, basis_that_fits, dot, require_room
from hessian.spectrum.unseen_eigenvalues import UNLIKELY

Array = NDArray[np.float64]

PROBES, SCOUT = 2, 3
"""Stages of the probes that make the interval, and of the one that only chooses how many Lanczos steps to take."""

SAFETY = 4.0
"""The scout's variance counts so much more where steps are chosen: it may have missed an outlier (best of 1 to 8)."""

FEW = 8  # so many dimensions are rather spanned by Lanczos than sampled

GROSS = 5.0
"""A ‖H‖₂ larger by so many times the half-width asked for must be as good as excluded, or that is not reached."""

LOOKED_AT, ALIKE, BULK = 3, 4.0, 0.9
"""A bulk: of the variance BULK is in eigenvalues beyond the first ALIKE near each Ritz value of so many steps."""

LEAST_PROBES = 3  # the fewest that an interval rests on: each of them measures the variance too


BESIDE = 6
"""Vectors (d,) that an estimate holds at most beside the Lanczos vectors: a probe, five products of earlier ones in
half of the digits, and two that a product with the Hessian works in (measured; the smoothed operator takes more)."""

BESIDE_LARGE = 4  # the same from ``forms.LARGE`` elements on: what is kept of products is a sketch

_PROBES_A_STEP = 4
"""While more than so many probes a step are needed, Lanczos goes on: a plateau may end at another outlier."""

_WINDOW = 3  # steps over which the falling variance of the complement is extrapolated, to choose the steps

_FALL = (0.5, 2.0)
"""Ends of the power of k by which the variance is taken to fall where the products in all are foretold."""

_FARTHEST = 10_000  # steps more that are considered there


class _Run:
    """An estimate that advances by a product, or a probe, at a time; all decisions are functions of its state."""

    which = "magnitude"  # what κ is a quotient by: the largest magnitude of an eigenvalue, or the largest eigenvalue
    least_probes = LEAST_PROBES
    cost = 1  # the products of a probe, about
    beside, beside_large = BESIDE, BESIDE_LARGE

    def __init__(self, operator: Operator, settings: Settings, trace_operator: Operator | None) -> None:
        self.settings = settings
        self.operator = Counted(operator, noisy=True)
        self.forms = self.operator if trace_operator is None else Counted(trace_operator, noisy=True)
        # Once a basis with fewer vectors than there may be steps is full, Lanczos goes on by restarts.
        beside = self.beside if operator.d < LARGE else self.beside_large
        self.basis = settings.basis
        if settings.max_basis is None:
            self.basis = basis_that_fits(operator, self.basis, beside, restarts=True)
        self.short = self.basis < settings.basis  # whether free memory bounds the basis
        bounded = self.basis < settings.steps
        require_room(operator, self.basis, beside, restarts=bounded)
        self.krylov = Krylov(self.operator, settings.seed, self.basis if bounded else None)
        self.scouts: list[tuple[Tensor, Tensor]] = []  # Pz₀ and PHz₀ of each
        self.predicted: list[tuple[float, float]] = []  # after each step: variance of a probe, trace
        self.deflated = False  # whether Lanczos is over
        self.inside = 0.0  # tr(QHQᵀ)
        self.sampled = self._forms()
        self.history: list[tuple[int, float, float, float, float]] = []
        self.seconds = 0.0
        self.beyond: list[float] = []  # after each step: how far above θ, relative to it, ‖H‖₂ may be
        self.excluded = False  # whether a grossly larger one is as good as excluded
        self._norms: tuple[int, Array, Array] | None = None  # steps, and ‖H‖₂ as a distribution after them
        self.hurried = False  # whether time bounds the products
        self._paced: tuple[int, float] | None = None  # the products after the first of this process, and the time then
        self._started = time.perf_counter()

    # What happens next

    @property
    def products(self) -> int:
        """The number spent so far, on both operators."""
        return self.operator.products + (self.forms.products if self.forms is not self.operator else 0)

    @property
    def _samples(self) -> int:
        """Products spent on samples."""
        return len(self.sampled.values)

    def keep_within(self, seconds: float) -> None:
        """Allow no more products than go into the seconds that are left, at the pace of all but the first."""
        first, since = self._paced or (self.products, 0.0)
        if self.products <= first:
            return
        pace = (time.perf_counter() - since) / (self.products - first)
        # An interval rests on a few samples, and before the first there is one step more.
        least = 0 if self.settings.trace is not None else LEAST_PROBES + (not self.deflated) - self._samples
        most = max(SCOUTS + 4, self.products + max(least, int(seconds / pace), 0))
        if most < self.settings.limit:
            fixed = None if self.settings.products is None else most
            self.settings = dataclasses.replace(self.settings, max_products=most, products=fixed)
            self.hurried = True

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        if not self.deflated:
            return False
        if self.krylov.following is None or self.settings.trace is not None:
            return True
        if self.settings.products is None and len(self.sampled.values) >= self.least_probes:
            return self._affordable < 1 or self._narrow() or not self._norm_will_do or self._is_coarsest
        return self._affordable < 1

    @property
    def _norm_will_do(self) -> bool:
        """Whether ‖H‖₂ is known well enough for the half-width asked for; where it is not, no number of probes does."""
        return self.excluded and self.beyond[-1] < self.settings.rtol

    @property
    def _price(self) -> int:
        """Products of a step: with another operator's forms one more, for tr(QGQᵀ)."""
        return 1 if self.forms is self.operator else 2

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
            self.beyond.append(self._beyond(self.settings.tail))
            self.excluded = self._excludes()
            if self.krylov.before:
                self.scouts = []  # restarted: what is left of them is beside vectors that are no longer kept
            if self.scouts:
                # The variance of a probe and the trace, as the scouts see them after this step. The variance is
                # 2‖PHP‖_F² less the part along P, which the fixed length takes out: 2‖PHPz₀ − ρ Pz₀‖². Each step takes
                # its new vector v out of Pz₀ and PHz₀; from the latter
                #
                #     P H P z₀ = P H z₀ − P H QᵀQ z₀ = P H z₀ − (v·z₀) β q,    since
                #     H Qᵀ = Qᵀ T + q cᵀ, c = (0, ..., 0, β)
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
            if self._deflated_enough():
                # Fix k, and the part of the trace that is inside the space.
                self.deflated, self.scouts = True, []
                self.krylov.finish()
                self.sampled = self._forms(self.operator.d - len(self.krylov.vectors))
                self.inside = self._inside()
        else:
            self._probe()
        self._note()
        if self._paced is None:
            self._paced = self.products, time.perf_counter()  # the first one is tried, and tells no pace

    def _note(self) -> None:
        """Add what is known to the history."""
        theta = self._theta
        top = float(self.krylov.result().ritz_values[-1]) if self.krylov.steps else math.nan
        kappa = self._trace()[0] / theta if theta > 0 else math.nan
        self.history.append((self.products, top, kappa, *self._interval()))

    def _forms(self, n: int = 0) -> SphereForms:
        """The forms of probes of a space of n dimensions, none yet."""
        return SphereForms(n)

    def _inside(self) -> float:
        """The part of the trace that is inside the space."""
        if self.settings.trace is not None:
            return 0.0
        if self.forms is self.operator:
            return float(self.krylov.projected.trace())
        return math.fsum(self.forms.quad(q) for q in self.krylov.vectors)

    def _probe(self) -> None:
        """One probe of the complement: its product or, once the variance is known, its quadratic form."""
        u = self._beside(len(self.sampled.values))
        Hu = self.forms.matvec(u) if self.sampled.wants_products else None
        form = self.forms.quad(u) if Hu is None else dot(u, Hu)
        if Hu is not None:
            same = self.forms is self.operator  # another operator's product may have parts in all of the space
            Hu = self.krylov.complement_of_product_(Hu) if same else self.krylov.complement_(Hu)
        self.sampled.add(form, u, Hu, partial(self._z, PROBES))

    def _beside(self, index: int) -> Tensor:
        """Probe number ``index`` of the complement: ‖u‖² = n, its dimension, so E[uuᵀ] = P and E[uᵀHu] = tr(PHP)."""
        return self.sampled.on_sphere_(self.krylov.complement_(self._z(PROBES, index)))

    def _z(self, stage: int, index: int) -> Tensor:
        """Gaussian vector number ``index`` of a stage, (d,)."""
        return probe(self.operator, self.settings.seed, stage, index)

    def _deflated_enough(self) -> bool:
        """Whether probes are the better use of the products that are left."""
        settings, k = self.settings, self.krylov.steps
        left = (self.operator.d - k) * self._price
        if settings.products is not None and settings.trace is None and 0 < left <= self._affordable:
            return False  # as many vectors as span everything make κ exact, and no probe is needed
        if self.krylov.invariant and not self._spans_sooner():  # T's eigenvalues are H's own, and more would start anew
            return True
        if settings.trace is not None:  # only θ is wanted, to which no probe adds anything
            done = self.excluded and self._reach(*self._interval()) <= settings.rtol / 5
            return k >= settings.limit or (settings.products is None and done)
        if k >= self.basis and self._norm_will_do:
            return True
        if settings.products is not None:
            # Two thirds of the budget at most, so that three probes are left, and four where half of it pays for them.
            probes = min(4, max(LEAST_PROBES, settings.limit // 2))
            most = min(2 * settings.limit // 3, settings.limit - probes) // self._price
            return k >= most or self._samples_a_bulk()
        if self._affordable <= LEAST_PROBES or 3 * k >= 2 * settings.limit:  # the rest must pay for an interval
            return True
        if not self.predicted:  # the steps were taken for a number of products, without scouts
            return self._norm_will_do
        # Lanczos goes on while a step saves its product in probes, and while so many are needed that a variance which
        # no longer falls is taken for a plateau before another outlier.
        now = self._needed(self.predicted[-1][0], self.beyond[-1])
        if not self._norm_will_do:
            return False
        if self._spans_sooner():
            return False
        then = self._needed(_next([variance for variance, _ in self.predicted]), _next(self.beyond))
        return now <= self.least_probes or ((now - then) * self.cost < 1 and now <= SAFETY * _PROBES_A_STEP * k)

    def _samples_a_bulk(self) -> bool:
        """Whether the rest of a fixed budget is for probes, as steps take next to nothing out of the variance.

        The start vector is a scout, at no price: about dw eigenvalues are near a Ritz value of weight w in it. Where
        one alone is, dw is χ² of one degree of freedom, above ALIKE in one of 20; in a bulk all are far more.
        """
        k, d, left = self.krylov.steps, self.operator.d, self._affordable
        if k < LOOKED_AT or self.krylov.before or left <= self._price or not self.excluded:
            return False
        values, s = torch.linalg.eigh(self.krylov.projected[:LOOKED_AT, :LOOKED_AT])
        counts = d * s[0].square()
        trace = float(counts @ values)
        squares = (values - trace / d).square()
        if float((counts - ALIKE).clamp(min=0) @ squares) <= BULK * float(counts @ squares):
            return False
        # Such a spectrum is crowded to its end, and θ's distance from it falls as k⁻²: a step more must gain less for
        # θ than the probes lose that it costs.
        gained = 4 * self._beyond(1.0) ** 2 / k * trace**2
        return gained <= 2 * float(counts @ squares) * (1 / (left - self._price) - 1 / left)

    def _spans_sooner(self) -> bool:
        """Whether as few steps as an interval needs probes make κ exact."""
        if not self.predicted:
            return False
        left = self.operator.d - self.krylov.steps
        return 0 < left <= min(self._affordable, max(FEW, self._needed(self.predicted[-1][0], self.beyond[-1])))

    def _spread(self) -> tuple[float, float]:
        """The variance of a probe, and the trace, as the scouts see them."""
        return self.predicted[-1]

    def _needed(self, variance: float, beyond: float) -> float:
        """Probes of this variance for the half-width asked for, by the scouts' trace, were they many."""
        # The half-width of the trace's interval that makes κ's reach rtol·|κ|, 0 where none does: with ‖H‖₂ up to
        # θ(1 + s) the quotient of the two, which are independent, reaches as far as w² + s² = rtol².
        width = abs(self._spread()[1]) * math.sqrt(max(self.settings.rtol**2 - beyond**2, 0.0))
        return (self.settings.normal / width) ** 2 * SAFETY * variance if width > 0 else math.inf

    # What is known

    @property
    def _theta(self) -> float:
        """θ, the largest magnitude of a Ritz value, or the largest of them."""
        if not self.krylov.steps:
            return math.nan
        ritz = self.krylov.result().ritz_values
        return float(ritz[-1] if self.which == "largest" else ritz.abs().max())

    def _norm_distribution(self) -> tuple[Array, Array]:
        """‖H‖₂ as a distribution, values and their weights (``Hidden``)."""
        if self.krylov.following is None:  # T's eigenvalues are all that H has
            return np.array([self._theta]), np.array([1.0])
        if self._norms is None or self._norms[0] != self.krylov.steps:
            values, weights = self.krylov.result().hidden.norms(self.which)
            self._norms = (self.krylov.steps, np.maximum(values, self._theta), weights)
        return self._norms[1:]

    def _beyond(self, probability: float) -> float:
        """How far above θ, relative to it, ‖H‖₂ is with this probability at most; no nearer than θ has still to rise.

        Where the start vector hardly contains even the vector of θ, as one of forty does, the bound is θ itself.
        """
        theta = self._theta
        if self.krylov.following is None or not theta > 0:
            return 0.0
        hidden = self.krylov.result().hidden
        return max(hidden.above(probability, self.which), hidden.risen(self.which), theta) / theta - 1

    def _excludes(self) -> bool:
        """Whether a grossly larger ‖H‖₂ is as good as excluded."""
        if self.krylov.following is None:
            return True
        lanczos = self.krylov.result()
        size = float(lanczos.ritz_values[lanczos.top].abs()) or 1.0
        return lanczos.hidden.excludes(GROSS * self.settings.rtol * self._theta / size, self.which)

    def _trace(self) -> tuple[float, float, float]:
        """The estimate of tr(H) and the ends of its interval, with room for the rounding of products."""
        if self.settings.trace is not None:
            t, low, high = (self.settings.trace,) * 3
        elif self.krylov.following is None:
            t, low, high = (self.inside,) * 3
        elif self.sampled.values:
            t = self.inside + self.sampled.mean
            low, high = (self.inside + end for end in self.sampled.interval(self.settings.confidence))
        else:  # the scouts' guess, which no interval rests on
            return self.predicted[-1][1] if self.predicted else math.nan, -math.inf, math.inf
        return t, low - self._room(t), high + self._room(t)

    def _room(self, trace: float) -> float:
        """How far the trace may be from its estimate for another reason than sampling."""
        return self._rounding(trace) + self._coarse(trace)

    def _coarse(self, trace: float) -> float:
        """Room for products in fewer bits, E: tr(E) in the trace, and ‖E‖₂ in θ, as if it were in the trace."""
        size, theta = self.operator.noise.size, self._theta
        if size == 0:
            return self.forms.noise.trace
        return self.forms.noise.trace + (abs(trace) * size / (theta - size) if theta > size else math.inf)

    @property
    def _too_coarse(self) -> bool:
        """Whether no number of products in so few bits does for the half-width asked for."""
        noisy = self.operator.noise.size > 0
        return noisy and self._coarse(trace := self._trace()[0]) >= self.settings.rtol * abs(trace)

    @property
    def _is_coarsest(self) -> bool:
        """Whether more products lower nothing but the smaller part of the trace's error, where they are too coarse."""
        t, low, high = self._trace()
        return self._too_coarse and high - low <= 6 * self._coarse(t)

    def _rounding(self, trace: float) -> float:
        """Room for the rounding of products, and of sums of d terms in float64, in the trace."""
        products = 10 * max(self.operator.precision, self.forms.precision)
        sums = math.sqrt(self.operator.d) * torch.finfo(torch.float64).eps
        return (products + sums) * (abs(trace) + abs(self._theta))

    def _interval(self) -> tuple[float, float]:
        """κ's interval: the quotient of t and ‖H‖₂, both as distributions, is in it with the confidence.

        They are independent: the one is of the probes, the other of Lanczos' start vector. The far end is the trace's
        own over θ, the least that ‖H‖₂ can be.
        """
        theta = self._theta
        _, low, high = self._trace()
        if not theta > 0:
            return (math.nan, math.nan) if theta == 0 else (-math.inf, math.inf)
        near, far = low / theta, high / theta
        low = self._end(near, far, 1) if low > 0 else near
        if self.settings.part != "signed" or self.operator.semidefinite:  # κ is in [1, d] then
            value = self._trace()[0] / theta
            low, far = max(low, min(value, 1.0)), min(far, max(value, self.operator.d))
        return low, -self._end(-far, -near, -1) if high < 0 else far

    def _end(self, near: float, far: float, sign: int) -> float:
        """The end near 0 for sign·t > 0, of which ``near`` and ``far`` are the ends were ‖H‖₂ = θ."""
        if not self.sampled.values:  # the trace is known
            return near / (1 + self.beyond[-1])
        (norms, weights), room = self._norm_distribution(), self._room(self._trace()[0])

        def below(end: float, room: float) -> float:
            """The probability that sign·t/‖H‖₂ is below the end."""
            within = sign * (end * norms + room) - self.inside
            chances = self.sampled.below(within) if sign > 0 else 1 - self.sampled.below(within)
            return float(weights @ chances)

        # The far end has half of the error where ‖H‖₂ = θ, and less where it is larger: the near one has what is left,
        # but is no higher than with ‖H‖₂ = θ. It is 0 where hardly anything is known of ‖H‖₂.
        tail = self.settings.tail
        left = 2 * tail - min(1 - below(far, -room), tail)
        least = 1e-9 * near
        if below(least, room) >= left:
            return 0.0
        if below(near, room) <= left:
            return near
        return float(brentq(lambda end: below(end, room) - left, least, near, rtol=1e-9))

    def _reach(self, low: float, high: float) -> float:
        """How far κ's interval reaches from κ to its farther side, relative to κ."""
        kappa = self._trace()[0] / self._theta if self._theta > 0 else math.nan
        if math.isnan(kappa):  # H is zero along every direction tried
            return 0.0
        far = max(high - kappa, kappa - low)
        if far <= 2 * self._rounding(self._trace()[0]) / self._theta:  # as near as products tell, be κ 0 or not
            return 0.0
        return far / abs(kappa) if kappa else math.inf

    def _narrow(self) -> bool:
        """Whether the interval is as narrow as asked for."""
        if self.krylov.following is None and self.settings.trace is None:  # it is exact
            return True
        enough = self.settings.trace is not None or len(self.sampled.values) >= self.least_probes
        return enough and self.excluded and self._reach(*self.history[-1][3:]) <= self.settings.rtol

    def _needed_in_all(self) -> int | None:
        """The products that the half-width asked for takes, by what is known now; None if that is nothing.

        After k steps a probe has the variance V_k; N probes make the half-width w, N = V q²/w². V is taken to go on
        falling by the power of k by which it fell since k/2, and the sum of steps and probes is least somewhere.
        """
        k, sampled = min(self.krylov.steps, len(self.predicted) or self.krylov.steps), self.sampled
        if self.finished and self._narrow():
            return self.products
        if self.settings.trace is not None or not self._theta > 0 or self._too_coarse:
            return None
        if self.krylov.ended is not None and not self._norm_will_do:
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
        total = SCOUTS + (k + more) * self._price + probes
        return max(math.ceil(float(total.min())), self.products + 1)

    def progress(self) -> EffectiveRankProgress:
        """Where the run stands."""
        products, top, kappa, low, high = self.history[-1]
        stage = "probes" if self.deflated else "lanczos"
        residual = self._theta * self.beyond[-1] if self.beyond else math.nan
        return EffectiveRankProgress(stage, products, top, residual, kappa, low, high, self._needed_in_all())

    # The result

    def result(self) -> EffectiveRank:
        """All that is known."""
        lanczos = self.krylov.result()
        theta = self._theta
        t, t_low, t_high = self._trace()
        low, high = self._interval()
        reached = theta > 0 and self._narrow()
        size, probes = self.operator.noise.size, len(self.sampled.values)
        reasons = [self._outcome(reached)]
        # What the machine, and not the settings, decided.
        if self.short and self.krylov.steps >= self.basis:
            reasons.append(f"the memory that was free has room for {plural(self.basis, 'Lanczos vector')}")
        if self.hurried:
            reasons.append(f"the time that was allowed is that of {plural(self.settings.limit, 'product')}")
        if theta > 0:
            reasons.append(_signs(lanczos, size, semidefinite=self.operator.semidefinite))
        return EffectiveRank(
            operator=self.operator.name,
            d=self.operator.d,
            part=self.settings.part,
            kappa=t / theta if theta > 0 else math.nan,
            interval=(low, high),
            confidence=self.settings.confidence,
            trace=Estimate(t, self.sampled.stderr if probes else 0.0, probes),
            trace_interval=(t_low, t_high),
            truncation=0.0 if math.isnan(t) else self._room(t),
            lambda_max=float(lanczos.ritz_values[-1]),
            lambda_max_residual=float(lanczos.ritz_residuals[-1]),
            lambda_min=float(lanczos.ritz_values[0]),
            lambda_min_residual=float(lanczos.ritz_residuals[0]),
            norm=theta,
            norm_interval=(theta - min(size, abs(theta)), theta * (1 + self.beyond[-1]) + size),
            others=tuple(each for each in self._parts() if each.name != PARTS[self.settings.part].name),
            ritz_values=tuple(lanczos.ritz_values.tolist()),
            ritz_residuals=tuple(lanczos.ritz_residuals.tolist()),
            ritz_weights=() if lanczos.weights is None else tuple(lanczos.weights.tolist()),
            steps=lanczos.products,
            probes=probes,
            products=self.products,
            quadratic_forms=self.forms.quadratic_forms,
            limit=self.settings.limit,
            rtol=self.settings.rtol,
            reached=reached,
            needed=self._needed_in_all(),
            reason="; ".join(reasons),
            seed=self.settings.seed,
            dtype=str(self.operator.dtype).removeprefix("torch."),
            seconds=self.seconds + time.perf_counter() - self._started,
            history=tuple(self.history),
        )

    def _parts(self) -> Iterator[Reading]:
        """κ of each part that these products tell."""
        ritz = self.krylov.result().ritz_values
        top, theta = float(ritz[-1]), float(ritz.abs().max())  # whatever this run's own part is
        if self.krylov.following is None:
            for part, of_part in PARTS.items():
                total = float(of_part.of(ritz).sum())
                by = top if of_part.which == "largest" else theta
                if by > 0:
                    room = self._rounding(total) + self._coarse(total)
                    room += of_part.share * math.sqrt(self.operator.d) * self.operator.noise.size  # ‖E‖_* ≤ √d‖E‖_F
                    yield reading_of(part, total / by, ((total - room) / by, (total + room) / by))
        elif self.operator.semidefinite and top > 0:
            for part in PARTS:
                yield reading_of(part, self._trace()[0] / top, self._interval())

    def _outcome(self, reached: bool) -> str:
        """What happened, and what to do."""
        theta, beyond = self._theta, self.beyond[-1]
        share = f"{100 * self.settings.rtol:.3g} %"
        if not theta > 0:
            return f"{UNDEFINED[theta < 0]}, so {PARTS[self.settings.part].name} is undefined"
        if self.settings.trace is not None and reached:
            return f"tr(H) was known, ‖H‖₂ is within {beyond:.2g} after {plural(self.products, 'product')}"
        if self.krylov.following is None and self.settings.trace is None:
            return f"the {len(self.krylov.vectors)} Lanczos vectors span everything: κ is exact"
        if reached:
            return f"within {share} of κ after {self.products} products"
        # With a fixed number of products a bulk is sampled rather than its end looked for (``_samples_a_bulk``).
        if not self._norm_will_do and not (self.settings.products is not None and self.excluded):
            beyond = max(beyond, self._beyond(UNLIKELY))
            if self.krylov.ended is not None:  # the space of the start vector is whole: it sees no more than it has
                told = "its start vector sees no more than rounding; take float64, or another seed"
                return f"not within {share}: ‖H‖₂ may be {beyond:.2g} larger; {told}"
            more = f"allow more than {self.settings.limit} products"
            return f"not within {share}: ‖H‖₂ may be {beyond:.2g} larger; {more}"
        if self._too_coarse:
            trace = self._trace()[0]
            off = f"what its products are off by alone makes ± {100 * self._coarse(trace) / abs(trace):.2g} % of it"
            return f"not within {share} of κ after {self.products} products: {off}; take more bits"
        needed = self._needed_in_all()
        more = self._wanting() if needed is None else f": about {needed} would be needed"
        return f"not within {share} of κ after {self.products} products{more}"

    def _wanting(self) -> str:
        """What makes the interval wide, where no number of products is foretold."""
        return ""

    # Checkpoints

    def identity(self) -> dict[str, Any]:
        """What tells this run from all others."""
        forms = None if self.forms is self.operator else self.forms.fingerprint()
        return {"operator": self.operator.fingerprint(), "trace_operator": forms} | self.settings.identity

    def state(self) -> tuple[dict[str, Tensor], SavedEstimate]:
        """Everything that decides how the run goes on."""
        tensors, krylov = self.krylov.state()
        images, sampled = self.sampled.state()
        tensors |= images | {f"scout.{i}.{j}": v for i, scout in enumerate(self.scouts) for j, v in enumerate(scout)}
        return tensors, SavedEstimate(
            krylov=krylov,
            products=(self.operator.products, self.operator.quadratic_forms),
            forms=(self.forms.products, self.forms.quadratic_forms),
            predicted=self.predicted,
            beyond=self.beyond,
            excluded=self.excluded,
            deflated=self.deflated,
            inside=self.inside,
            sampled=sampled,
            history=self.history,
            seconds=self.seconds + time.perf_counter() - self._started,
            basis=self.basis if self.short else None,
            asked=self._asked,
        )

    @property
    def _asked(self) -> tuple[float, float, int, bool]:
        """How far the run goes."""
        settings = self.settings
        return settings.rtol, settings.confidence, settings.limit, settings.products is None

    def restore(self, tensors: dict[str, Tensor], values: SavedEstimate) -> None:
        """Go on from a ``state``."""
        for name, tensor in tensors.items():
            kept = SKETCH if name.startswith("image.") and self.operator.d >= LARGE else self.operator.d
            fits = tensor.shape == (kept,) or not name.startswith(("scout.", "image."))
            require(fits, f"{name} in the checkpoint", f"have shape ({kept},)", tuple(tensor.shape))
        self.krylov.restore(tensors, values.krylov)
        names = sorted(name for name in tensors if name.startswith("scout."))
        scouts = [tensors[name].to(self.operator.device) for name in names]
        self.scouts = list(zip(scouts[::2], scouts[1::2], strict=True))
        self.operator.products, self.operator.quadratic_forms = values.products
        self.forms.products, self.forms.quadratic_forms = values.forms
        self.predicted, self.beyond, self.history = values.predicted, values.beyond, values.history
        self.excluded, self.deflated, self.inside = values.excluded, values.deflated, values.inside
        self.sampled.restore(tensors, values.sampled, self.operator.device)
        self.seconds = values.seconds
        if values.basis is not None:
            self.basis, self.short = values.basis, True
            self.krylov.max_basis = self.basis
        if values.asked not in (None, self._asked) and self.krylov.steps:
            self._decide_anew()
            self.history.pop()
            self._note()

    def _decide_anew(self) -> None:
        """Another half-width, confidence or number of products is asked for than of the products so far.

        Where Lanczos would have gone on for it, it goes on: its next vector and the scouts are made again, by a product
        each, and probes are drawn anew, as those there are know less of the space. Else more probes follow.
        """
        self.beyond[-1] = self._beyond(self.settings.tail)
        self.excluded = self._excludes()
        if not self.deflated or self.krylov.following is None:
            return
        probes = len(self.sampled.values)
        if self.settings.products is None and self._norm_will_do and self.predicted and probes >= self.least_probes:
            # By the scouts: where the probes themselves decided, those that look alike by chance would be kept.
            wanting = self._needed(self.predicted[-1][0] / SAFETY, self.beyond[-1]) - probes
            if wanting <= probes:  # fewer than would be drawn anew
                return
        self.deflated = False
        self.deflated = self._deflated_enough()
        if self.deflated:
            return
        self.sampled, self.inside = self._forms(), 0.0
        self.krylov.resume()
        for number in range(SCOUTS if self.predicted else 0):
            z = self._z(SCOUT, number)
            product = self.krylov.complement_(self.operator.matvec(z))
            self.scouts.append((self.krylov.complement_(z), product))


def _next(values: list[float]) -> float:
    """What falls as it did over the last few steps is foretold for the next one; 0 where nothing is known."""
    now, before = values[-1], values[-1 - _WINDOW : -_WINDOW]
    return now * min(now / before[0], 1.0) ** (1 / _WINDOW) if before and before[0] > 0 else 0.0
