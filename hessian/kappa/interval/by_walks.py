"""κ of the positive part, Σ max(λ, 0)/λ_max, and of |H|, Σ|λ|/‖H‖₂, with an interval."""

import copy
import dataclasses
import math
from collections.abc import Iterator

from msgspec import structs
from torch import Tensor

from decomfl_lab.storage.outside import SavedEstimate
from hessian.kappa.interval.estimation import _Run
from hessian.kappa.settings import Settings
from hessian.operators.operator import Operator
from hessian.parts import PARTS
from hessian.readings import Reading, reading_of
from hessian.spectrum.walks import Walks

_LANCZOS = 1 / 3  # the share of the products that Lanczos takes at most: what walks may be short of is depth

_USED = 0.8  # the share of the half-width asked for that walks may use, as ‖H‖₂ takes some too

_COUPLED = 4.0  # so many times must the coupling of Lanczos' space fit into what walks may use

_SURE = 1.5  # the first walk goes so many times as deep as is best, to see that it is


class PartRun(_Run):
    """An estimate of tr f(H), f(λ) = max(λ, 0) or |λ|: of what Lanczos found, and of walks in what it left.

    With the rows of Q the k Lanczos vectors, T = QHQᵀ, P = I − QᵀQ and HQᵀ = QᵀT + qcᵀ,

        tr T₊ + tr(PHP)₊ ≤ tr H₊ ≤ tr T₊ + tr(PHP)₊ + ‖c‖

    The first as max(λ, 0) is convex; the second as tr(A + B)₊ ≤ tr A₊ + tr B₊, and the coupling of the two spaces by
    qcᵀ has the eigenvalues ±‖c‖ alone. ‖c‖ = β_k is about as large as the largest eigenvalues that are left. Of the
    forms of PHP ``Walks`` has bounds. And |λ| = 2 max(λ, 0) − λ.
    """

    least_probes = 1
    cost = 8
    beside_large = _Run.beside + 1  # of a walk there are two vectors, and the noise of products takes two more

    def __init__(self, operator: Operator, settings: Settings) -> None:
        self.which = PARTS[settings.part].which
        self.fine: float | None = None  # the gap at which a walk ends, once it is chosen
        self.costs: list[tuple[float, float]] = []  # what each depth of the first walk would cost, and its truncation
        super().__init__(operator, settings, None)

    def _forms(self, n: int = 0) -> Walks:
        return Walks(n, self.settings.part)

    @property
    def walks(self) -> Walks:
        """The walks so far."""
        assert isinstance(self.sampled, Walks)
        return self.sampled

    @property
    def _samples(self) -> int:
        return sum(len(walk.alphas) for walk in self.walks.walks)

    @property
    def finished(self) -> bool:
        if not self.deflated or self.krylov.following is None:
            return self.deflated
        if (
            self.settings.products is None
            and self.sampled.values
            and (not self._norm_will_do or self._is_coarsest or self._narrow())
        ):
            return True
        return self._affordable < 1

    def _deflated_enough(self) -> bool:
        """Whether walks are the better use of the products that are left; see ``_Run``."""
        k, left = self.krylov.steps, self.operator.d - self.krylov.steps
        whole = 0 < left <= self._affordable and (self.settings.products is not None or left <= k)
        if not whole and k >= math.ceil(_LANCZOS * self.settings.limit):
            return True
        if whole or not super()._deflated_enough():
            return False
        # What both spaces have together is not known better than to the coupling, which falls from step to step.
        known = _USED * self.settings.rtol * self._spread()[1] if self.predicted else math.inf
        return self.krylov.invariant or k >= self.basis or _COUPLED * self._coupling <= known

    def _spread(self) -> tuple[float, float]:
        # A form of max(λ, 0) or of |λ| varies no more than the scouts', and the part is at least what T has of it.
        variance, trace = super()._spread()
        return variance, max(abs(trace) if self.settings.part == "absolute" else trace, self._inside() - self._coupling)

    def _inside(self) -> float:
        return float(PARTS[self.settings.part].of(self.krylov.result().ritz_values.numpy()).sum()) + self._coupling

    @property
    def _coupling(self) -> float:
        """How far the sum of both spaces may be from the whole's, on either side of the middle."""
        return PARTS[self.settings.part].share * float(self.krylov.coupling.norm())

    def _probe(self) -> None:
        """One step of a walk. How fine the first is to be is chosen on the way, and others go on until they are."""
        walks, number = self.walks, len(self.walks.walks) - 1
        if walks.over or len(walks.values) > max(number, 0) > 0 or (number == 0 and self.fine is not None):
            number += 1
            walks.begin(self._beside(number))
        # All of the space is taken out: rounding along an outlier that is inside grows from step to step.
        walks.step(self.operator, self.krylov.complement_)
        walks.take(number)
        if number == 0:
            self.fine = self._chosen()
        elif not walks.over and walks.gaps[number] > (self.fine or 0.0):
            del walks.values[number], walks.gaps[number]  # not yet

    def _chosen(self) -> float | None:
        """The truncation at which walks are fine enough, once the first one is; else None.

        Each depth m has a cost: the products of as many walks as the half-width asked for takes; or, with ``products``
        or where those that are left do not do, the error that as many walks as they pay for would leave. The least is
        known once it has risen for a while.
        """
        walks, settings, m = self.walks, self.settings, len(self.walks.walks[0].alphas)
        sampling = settings.normal * math.sqrt(walks.moments()[0])
        trace, left = self._trace()[0], self._affordable + m
        error = walks.truncation + sampling / math.sqrt(left // m)
        cost = left * (1 + error / (abs(trace) or 1.0))  # above any number of products that does
        room = _USED * settings.rtol * trace - self._room(trace)
        if settings.products is None and room > 0:
            cost = min(cost, m * max(1.0, sampling / room) ** 2)
        self.costs.append((cost, walks.truncation))
        best = min(range(m), key=lambda j: self.costs[j][0])
        if walks.over:
            return walks.truncation
        return self.costs[best][1] if m >= max(_SURE * (best + 1), best + 3) else None

    def _trace(self) -> tuple[float, float, float]:
        if self.krylov.following is not None and not self.sampled.values:
            return math.nan, -math.inf, math.inf
        return super()._trace()

    def _room(self, trace: float) -> float:
        walked = self.walks.truncation if self.sampled.values else 0.0
        return super()._room(trace) + self._coupling + walked + self._noise

    @property
    def _noise(self) -> float:
        """How much the noise E of products may change tr|H|: ‖E‖_* ≤ n‖Ev‖ in the mean; half of it for tr H₊."""
        measured = self.operator.noise.size * math.sqrt(self.operator.d)  # ‖E‖_* ≤ √d‖E‖_F
        return PARTS[self.settings.part].share * max(self.walks.noise * self.walks.n, measured)

    def _needed_in_all(self) -> int | None:
        return self.products if self.finished and self._narrow() else None

    def _wanting(self) -> str:
        t = self._trace()[0]
        sampling = self.settings.normal * self.walks.stderr if self.sampled.values else math.inf
        by = f"sampling makes ± {100 * sampling / t:.2g} % of it, truncation ± {100 * self._room(t) / t:.2g} %"
        return f": {by}; more products lower both"

    def _parts(self) -> Iterator[Reading]:
        """κ of every part of H: the same space and the same walks, of which another f is taken."""
        if self.krylov.following is None or not self.sampled.values:
            yield from super()._parts()
            return
        for part in PARTS:
            other = copy.copy(self)
            other.settings = dataclasses.replace(self.settings, part=part)
            other.which, other.sampled, other._norms = PARTS[part].which, self.walks.of(part), None
            other.inside, other.beyond = other._inside(), [other._beyond(self.settings.tail)]
            if other._theta > 0:
                yield reading_of(part, other._trace()[0] / other._theta, other._interval())

    def _decide_anew(self) -> None:
        """See ``_Run``; walks that are too short for the half-width begin anew."""
        super()._decide_anew()
        kept = self.deflated and self.fine is not None and bool(self.sampled.values)
        if kept and self.settings.products is None:
            kept = _USED * self.settings.rtol * self._trace()[0] > self.walks.truncation
        if not kept:
            self.fine, self.costs = None, []
            self.sampled = self._forms(self.operator.d - len(self.krylov.vectors) if self.deflated else 0)

    def state(self) -> tuple[dict[str, Tensor], SavedEstimate]:
        tensors, values = super().state()
        return tensors, structs.replace(values, fine=self.fine, costs=self.costs)

    def restore(self, tensors: dict[str, Tensor], values: SavedEstimate) -> None:
        super().restore(tensors, values)
        self.fine, self.costs = values.fine, values.costs
