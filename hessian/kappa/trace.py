"""``hessian.trace``: tr(H) with a confidence interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from decomfl_lab.datasets.batches import Data
from decomfl_lab.errors import known_options, plural
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.objectives.function import enabled
from hessian.kappa.interval.estimation import Array, _Run
from hessian.kappa.settings import Settings
from hessian.operators.options import CurvatureKeywords
from hessian.operators.selection import Source, curvature
from hessian.readings import Reading, Reported


@dataclass(frozen=True, kw_only=True, repr=False)
class Trace(Reported):
    """The trace of H."""

    operator: str  # the name of the matrix
    d: int  # its dimension
    value: float  # the estimate
    stderr: float  # its standard error; 0 where the Lanczos vectors span everything
    interval: tuple[float, float]  # (low, high) for tr(H), with ``confidence``
    confidence: float  # the confidence of the interval
    products: int  # all products with H
    rtol: float  # asked half-width of the interval, relative to the value
    reached: bool  # whether the interval is that narrow
    remarks: str  # what is to be said of H beside its numbers
    seed: int  # the seed of everything random

    def __str__(self) -> str:
        short = "" if self.reached else f", not within ± {100 * self.rtol:.2g} % of it"
        return f"{self._reading.line(self.confidence)} ({plural(self.products, 'product')}{short})"

    @property
    def _reading(self) -> Reading:
        return Reading("tr(H)", self.value, *self.interval, f"standard error {self.stderr:.2g}")

    def report(self) -> tuple[str, Sequence[Reading], str]:
        return f"{self}; {self.operator}, d = {self.d:,}, seed {self.seed}", [self._reading], self.remarks


class _TraceRun(_Run):
    """An estimate for which ‖H‖₂ is θ, whatever it is: κ's interval is then that of the trace, divided by a number."""

    def _norm_distribution(self) -> tuple[Array, Array]:
        return np.array([self._theta]), np.array([1.0])

    def _beyond(self, probability: float) -> float:  # noqa: ARG002
        return 0.0

    def _excludes(self) -> bool:
        return True


@known_options
def trace(
    model: Source,
    loss: LossFunction | None = None,
    data: Data | None = None,
    *,
    rtol: float = Settings.rtol,
    confidence: float = Settings.confidence,
    max_products: int = Settings.max_products,
    products: int | None = Settings.products,
    seed: int = Settings.seed,
    max_basis: int | None = Settings.max_basis,
    **options: Unpack[CurvatureKeywords],
) -> Trace:
    """tr(H) with a confidence interval: what Lanczos found, and probes of what it left, as in ``effective_rank``.

    Lanczos' steps only take the variance out of the probes here: how well ‖H‖₂ is known does not matter.

    Args:
        model: See ``curvature``.
        loss: See ``curvature``.
        data: See ``curvature``.
        rtol: Half-width of the interval to reach, relative to the trace.
        confidence: The confidence of the interval, in (0, 1).
        max_products: The most products to spend.
        products: The number of products to spend instead; as many as H has dimensions make the trace exact.
        seed: The seed of everything random, 0..2**64-1.
        max_basis: The most Lanczos vectors (d,) to keep, at least 4; as many as the products allow by default.
        options: Which matrix: those of ``curvature``.

    Raises:
        InputError: See ``effective_rank``.
    """
    operator = curvature(model, loss, data, **options)
    settings = Settings(rtol, confidence, max_products, products, seed, max_basis=max_basis)
    with enabled():
        run = _TraceRun(operator, settings, None)
        while not run.finished:
            run.advance()
        rank = run.result()
    low, high = rank.trace_interval
    value = rank.trace.value
    return Trace(
        operator=rank.operator,
        d=rank.d,
        value=value,
        stderr=rank.trace.stderr,
        interval=(low, high),
        confidence=confidence,
        products=rank.products,
        rtol=rtol,
        reached=max(high - value, value - low) <= rtol * abs(value),
        remarks="; ".join(operator.remarks),
        seed=seed,
    )
