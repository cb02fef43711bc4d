"""What is known of an effective rank: the estimate, its interval and how it came about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from decomfl_lab.errors import plural
from decomfl_lab.storage.files import save_picture
from hessian.estimate import Estimate
from hessian.parts import PARTS
from hessian.readings import Reading, Reported, reading_of
from hessian.spectrum.lanczos import Lanczos

if TYPE_CHECKING:
    from hessian.spectrum.density import SpectralDensity


UNDEFINED = ("H is zero along every direction tried", "H has no positive eigenvalue along any direction tried")
"""Why κ is undefined: θ is 0, or below."""

OUTER = 0.1  # a Ritz vector with a residual of at most this share of its value is taken for an eigenvector


@dataclass(frozen=True)
class EffectiveRankProgress:
    """Where an estimate stands after a product."""

    stage: str  # what is being done: "lanczos" or "probes"
    products: int  # the number of products spent so far
    lambda_max: float  # the largest Ritz value
    # how far ‖H‖₂ may be above the Ritz value of the largest magnitude, for half of the probability that the confidence
    # leaves
    residual: float
    kappa: float  # the estimate so far, NaN while nothing is known of the trace
    low: float  # the lower end of its interval, -inf until there are two probes
    high: float  # the upper end of its interval
    # The products in all that the half-width asked for will take, as far as one can tell by now; within a factor of 2
    # in nine of ten runs from the tenth product on (docs/kappa.md). None until something is known.
    needed: int | None


@dataclass(frozen=True, kw_only=True, repr=False)
class EffectiveRank(Reported):
    """The effective rank of H, in every reading of it, each with its uncertainty."""

    operator: str  # the name of the matrix, e.g. "hessian" or "gauss-newton"
    d: int  # the dimension of the matrix
    part: str  # of which part: "signed", tr(H)/‖H‖₂, the paper's; "positive", Σ max(λ, 0)/λ_max; "absolute", Σ|λ|/‖H‖₂
    kappa: float  # NaN where that is 0/0. Negative eigenvalues lower the signed one.
    # (low, high) for it, with room for a larger ‖H‖₂ that the start vector may have missed
    interval: tuple[float, float]
    confidence: float  # the confidence of the intervals
    trace: Estimate  # the trace of the part, with its standard error; its interval is ``trace_interval``
    trace_interval: tuple[float, float]  # (low, high) for it
    # how far the trace may be from ``trace`` beside sampling: what short walks do not tell of it, and rounding
    truncation: float
    lambda_max: float  # largest Ritz value: λ_max is at least that
    lambda_max_residual: float  # an eigenvalue is at most that far from it
    lambda_min: float  # smallest Ritz value: λ_min is at most that
    lambda_min_residual: float  # an eigenvalue is at most that far from it
    norm: float  # θ, the larger of |lambda_max| and |lambda_min|, of the positive part lambda_max: at most the norm
    # (θ, end): the norm is never below θ, and above the end with at most half of the probability that the confidence
    # leaves, whatever the spectrum is (``hessian.spectrum.unseen_eigenvalues``); wider by what products in fewer bits
    # than float32 are off by
    norm_interval: tuple[float, float]
    others: tuple[Reading, ...]  # κ of each other part that the same products tell, with its interval
    ritz_values: tuple[float, ...]  # all, ascending
    ritz_residuals: tuple[float, ...]  # the residual of each: an eigenvalue is at most that far from it
    # the share of the d eigenvalues at each Ritz value, as Lanczos' random start vector sees it; empty where Lanczos
    # was restarted
    ritz_weights: tuple[float, ...]
    # the share (uᵀ∇f)²/‖∇f‖² of the gradient along each Ritz vector u; empty where it was not asked for
    gradient_shares: tuple[float, ...] = ()
    steps: int  # Lanczos steps k
    probes: int  # random probes of the complement, N
    products: int  # all products with H, quadratic forms included
    quadratic_forms: int  # those that needed only vᵀHv
    limit: int  # the most products that were allowed
    rtol: float  # asked half-width of the interval, relative to κ
    reached: bool  # whether the interval is that narrow
    # The products in all that ``rtol`` takes: ``products`` where it is reached, else as foretold (see
    # ``EffectiveRankProgress``). None where κ is undefined.
    needed: int | None
    reason: str  # what happened, what to do if not reached, and what the signs mean; one line
    seed: int  # the seed of everything random
    dtype: str  # the dtype of the products
    seconds: float  # wall-clock time
    # (products, lambda_max, kappa, low, high) after each product or probe
    history: tuple[tuple[int, float, float, float, float], ...] = field(repr=False)

    def believed(self, residual: float) -> float:
        """The residual, at least ε‖H‖₂ with the ε of ``dtype``: products are no finer. It is what is printed as ±.

        With products in fewer bits, what they are off by more.
        """
        finest = torch.finfo(getattr(torch, self.dtype)).eps * abs(self.norm)
        return max(residual, finest) + self.norm - self.norm_interval[0]

    def __str__(self) -> str:
        """κ with its interval to two digits of its half-width (to six of κ at most), and what it cost.

        Where the interval is not as narrow as asked for, also whether the products ended, its half-width as a share of
        κ, and what the half-width asked for would cost.
        """
        if math.isnan(self.kappa):
            name = PARTS[self.part].name
            return f"{name} is undefined: {UNDEFINED[self.norm < 0]} ({plural(self.products, 'product')})"
        low, high = self.interval
        spent = plural(self.products, "product")
        if not self.reached and self.kappa:
            spent += ", the most allowed" if self.products >= self.limit else ""
            spent += f": ± {50 * (high - low) / abs(self.kappa):.2g} % of κ"
            asked = f"± {100 * self.rtol:.2g} %"
            spent += "" if self.needed is None else f", where {asked} takes about {plural(self.needed, 'product')}"
        return f"{self.readings[0].line(self.confidence)} ({spent}){self._remedy}"

    @property
    def _remedy(self) -> str:
        """What to ask for where κ is negative, which is no count of directions; else empty."""
        if not self.kappa < 0:
            return ""
        part = "positive" if self.lambda_max > 0 else "absolute"
        return f"; κ is negative, by negative eigenvalues: take {PARTS[part].name} (part={part!r}, --part {part})"

    def report(self) -> tuple[str, Sequence[Reading], str]:
        """κ of the part, of the others, and what it is the quotient of; see ``Reported``."""
        made = f"{plural(self.steps, 'Lanczos step')}, {plural(self.probes, 'probe')}"
        spent = f"{plural(self.products, 'product')} ({made}), {self.seconds:.1f} s; seed {self.seed}, {self.dtype}"
        title = f"κ of the {self.operator}, d = {self.d:,}: {spent}; intervals of {100 * self.confidence:g} %"
        title += self._remedy
        _, trace, norm, *_ = PARTS[self.part]
        main = reading_of(self.part, self.kappa, self.interval)
        by_name = {reading.name: reading for reading in (main, *self.others)}
        kappas = [
            by_name.get(name) or Reading(name, math.nan, words=f'{total}/{by}: not measured (part "{part}")')
            for part, (name, total, by, *_) in sorted(PARTS.items(), key=lambda item: item[0] != self.part)
        ]
        error = f"standard error {self.trace.stderr:.2g}"
        error += f", ± {self.truncation:.2g} by truncation" if self.part != "signed" else ""
        tail = f"above the interval with a probability of at most {50 * (1 - self.confidence):.3g} %"
        extremes = []
        for name, value, residual in (
            ("λ_max", self.lambda_max, self.lambda_max_residual),
            ("λ_min", self.lambda_min, self.lambda_min_residual),
        ):
            within = self.believed(residual)
            extremes.append(Reading(name, value, words=f"an eigenvalue is within {within:.2g}; others may be beyond"))
        if self.gradient_shares:
            rows = zip(self.gradient_shares, self.ritz_values, self.ritz_residuals, strict=True)
            along = [share for share, value, residual in rows if residual <= OUTER * abs(value)]
            words = f"share of ‖∇f‖² along {plural(len(along), 'outer Ritz vector')} (residual ≤ {OUTER:g} λ)"
            extremes.append(Reading("∇f", math.fsum(along), words=words))
        readings = (
            *kappas,
            Reading(trace, self.trace.value, *self.trace_interval, error),
            *([Reading(norm, self.norm, *self.norm_interval, tail)] if norm != "λ_max" else ()),
            *extremes,
        )
        return title, readings, self.reason

    def plot(self, path: str | Path, density: SpectralDensity | None = None) -> Path:
        """Draw the spectrum beside ‖H‖₂, and how κ and its interval settled, to a file (.png, .pdf, .svg); its path.

        Args:
            path: The file.
            density: The spectral density of the same matrix (``spectral_density``), for a finer curve with a band.

        Raises:
            InputError: If κ is undefined, the density is of another matrix, or the file cannot be written.
        """
        from hessian.kappa.picture import picture  # here, since matplotlib takes long to load

        return save_picture(picture(self, density), Path(path))


def _signs(lanczos: Lanczos, off: float, *, semidefinite: bool) -> str:
    """What the signs of the spectrum mean for κ, in words, where products are ``off`` by a matrix of that norm."""
    low, high = float(lanczos.ritz_values[0]), float(lanczos.ritz_values[-1])
    residual = float(lanczos.ritz_residuals[0]) + off
    finest = torch.finfo(lanczos.vectors[0].dtype).eps
    if semidefinite:
        return "this matrix has no negative eigenvalue"
    if low >= -finest * max(-low, high):
        return "no negative eigenvalue among the Ritz values; smaller ones, which they do not show, would lower tr(H)"
    if low >= -residual:
        return (
            f"λ_min = {low:.2g} is within its residual {residual:.2g} of 0, so whether eigenvalues are negative, "
            "which would lower tr(H), is not known"
        )
    if high <= 0:
        return "no positive eigenvalue among the Ritz values: κ has the sign of tr(H)"
    return (
        f"H is indefinite (λ_min/λ_max = {low / high:.2g}): negative eigenvalues lower tr(H), so signed κ is below "
        "the positive and absolute ones"
    )
