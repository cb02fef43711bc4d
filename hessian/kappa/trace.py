"""``hessian.trace``: tr(H) with a confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from decomfl_lab.datasets.given import Data
from decomfl_lab.errors import known_options, plural
from decomfl_lab.objectives.batch_loss import LossFunction
from hessian.estimate import Jsonable, to_its_width
from hessian.kappa.effective_rank import effective_rank
from hessian.kappa.settings import Settings
from hessian.operators.asked import Source
from hessian.operators.options import CurvatureKeywords

__all__ = ["Trace", "trace"]


@dataclass(frozen=True, kw_only=True)
class Trace(Jsonable):
    """The trace of H.

    Attributes:
        operator: The name of the matrix.
        d: Its dimension.
        value: The estimate.
        stderr: Its standard error; 0 where the Lanczos vectors span everything.
        interval: (low, high) for tr(H), with ``confidence``.
        confidence: The confidence of the interval.
        products: All products with H.
        rtol: Asked half-width of the interval, relative to the value.
        reached: Whether the interval is that narrow.
        remarks: What is to be said of H beside its numbers.
        seed: The seed of everything random.
    """

    operator: str
    d: int
    value: float
    stderr: float
    interval: tuple[float, float]
    confidence: float
    products: int
    rtol: float
    reached: bool
    remarks: str
    seed: int

    def __str__(self) -> str:
        value, low, high = to_its_width(self.value, *self.interval)
        short = "" if self.reached else f", not within ± {self.rtol:.2g}"
        spent = plural(self.products, "product")
        return f"tr(H) = {value}, {100 * self.confidence:g} % interval {low} .. {high} ({spent}{short})"


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
    **options: Unpack[CurvatureKeywords],
) -> Trace:
    """tr(H) with a confidence interval: what Lanczos found, and probes of what it left.

    It is the trace of ``effective_rank``, which is over when κ's interval is narrow enough: that of the trace is then
    at least as narrow, for κ's has room for ‖H‖₂ as well.

    Args:
        model: See ``effective_rank``.
        loss: See ``effective_rank``.
        data: See ``effective_rank``.
        rtol: Half-width of the interval to reach, relative to the trace.
        confidence: The confidence of the interval, in (0, 1).
        max_products: The most products to spend.
        products: The number of products to spend instead; as many as H has dimensions make the trace exact.
        seed: The seed of everything random, 0..2**64-1.
        options: Which matrix: those of ``curvature``.

    Raises:
        InputError: See ``effective_rank``.
    """
    found = effective_rank(
        model,
        loss,
        data,
        rtol=rtol,
        confidence=confidence,
        max_products=max_products,
        products=products,
        seed=seed,
        **options,
    )
    low, high = found.trace_interval
    value = found.trace.value
    return Trace(
        operator=found.operator,
        d=found.d,
        value=value,
        stderr=found.trace.stderr,
        interval=(low, high),
        confidence=confidence,
        products=found.products,
        rtol=rtol,
        reached=max(high - value, value - low) <= rtol * abs(value),
        remarks=found.reason,
        seed=seed,
    )
