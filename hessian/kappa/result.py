"""What is known of an effective rank: the estimate, its interval and how it came about."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from decomfl_lab.errors import plural
from decomfl_lab.files import save_picture
from hessian.estimate import Estimate, Jsonable, to_its_width
from hessian.spectrum.lanczos import Lanczos

if TYPE_CHECKING:
    from hessian.spectrum.density import SpectralDensity


PARTS = {
    "signed": ("κ", "tr(H)", "‖H‖₂"),
    "positive": ("κ₊", "Σ max(λ, 0)", "λ_max"),
    "absolute": ("κ of |H|", "Σ|λ|", "‖H‖₂"),
}
"""What κ of each part of H is called, and what it is the quotient of."""


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


@dataclass(frozen=True, kw_only=True)
class EffectiveRank(Jsonable):
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
    # leaves, whatever the spectrum is (``hessian.spectrum.unseen_eigenvalues``)
    norm_interval: tuple[float, float]
    # Σ max(λ, 0)/λ_max; None where H may be indefinite (``SpectralDensity.kappas`` measures it)
    kappa_positive: Estimate | None
    kappa_absolute: Estimate | None  # Σ|λ|/max|λ|; None likewise
    ritz_values: tuple[float, ...]  # all, ascending
    ritz_residuals: tuple[float, ...]  # the residual of each: an eigenvalue is at most that far from it
    # the share of the d eigenvalues at each Ritz value, as Lanczos' random start vector sees it; empty where Lanczos
    # was restarted
    ritz_weights: tuple[float, ...]
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
        """The residual, at least ε‖H‖₂ with the ε of ``dtype``: products are no finer. It is what is printed as ±."""
        return max(residual, torch.finfo(getattr(torch, self.dtype)).eps * self.norm)

    def __str__(self) -> str:
        """κ with its interval to two digits of its half-width (to six of κ at most), and what it cost.

        Where the interval is not as narrow as asked for, also whether the products ended, its half-width as a share of
        κ, and what the half-width asked for would cost.
        """
        if math.isnan(self.kappa):
            return f"κ is undefined: H is zero along every direction tried ({plural(self.products, 'product')})"
        low, high = self.interval
        value, low_end, high_end = to_its_width(self.kappa, low, high)
        percent = f"{100 * self.confidence:g} %"
        spent = plural(self.products, "product")
        if not self.reached and self.kappa:
            spent += ", the most allowed" if self.products >= self.limit else ""
            spent += f": ± {50 * (high - low) / abs(self.kappa):.2g} % of κ"
            asked = f"± {100 * self.rtol:.2g} %"
            spent += "" if self.needed is None else f", where {asked} takes about {plural(self.needed, 'product')}"
        return f"{PARTS[self.part][0]} = {value}, {percent} interval {low_end} .. {high_end} ({spent})"

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

    def summary(self) -> str:
        """The result in words, a line for each reading of κ."""
        percent, (name, trace, norm) = f"{100 * self.confidence:g} %", PARTS[self.part]
        lines = [
            f"{self.operator}, d = {self.d}: {plural(self.products, 'product')} "
            f"({plural(self.steps, 'Lanczos step')}, {plural(self.probes, 'probe')}), seed {self.seed}, {self.dtype}",
            f"{name} = {trace}/{norm} = {self.kappa:.4g}, {percent} interval "
            f"[{self.interval[0]:.4g}, {self.interval[1]:.4g}]",
            f"{trace} = {self.trace.value:.4g} ± {self.trace.stderr:.2g} by sampling"
            f"{f', ± {self.truncation:.2g} by truncation' if self.part != 'signed' else ''}, "
            f"{percent} interval [{self.trace_interval[0]:.4g}, {self.trace_interval[1]:.4g}]",
            f"λ_max = {self.lambda_max:.5g} (residual {self.believed(self.lambda_max_residual):.2g}), "
            f"λ_min = {self.lambda_min:.4g} (residual {self.believed(self.lambda_min_residual):.2g}), "
            f"{norm} ≥ {self.norm:.5g}, and above {self.norm_interval[1]:.5g} with a probability of at most "
            f"{50 * (1 - self.confidence):.3g} %",
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


def _signs(lanczos: Lanczos) -> str:
    """What the signs of the spectrum mean for κ."""
    low, high = float(lanczos.ritz_values[0]), float(lanczos.ritz_values[-1])
    residual, finest = float(lanczos.ritz_residuals[0]), torch.finfo(lanczos.ritz_values.dtype).eps
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
