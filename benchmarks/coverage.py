"""``decomfl bench coverage``: does the interval of κ hold? Many estimates where κ is known, counted.

The matrices are dense and small, so the truth is exact and thousands of runs take a minute. Probes and start vectors
are Gaussian, so a diagonal matrix stands for all matrices of its eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.mould import BenchmarkRow, benchmark, column, names
from decomfl_lab.errors import require_choice, require_int, require_possible
from decomfl_lab.options import option

if TYPE_CHECKING:
    from torch import Tensor

    from hessian.operators.operator import DenseOperator

__all__ = ["PROBES", "SPECTRA", "CoverageCount", "CoverageOptions", "CoverageRun", "counted", "coverage"]
__all__ += ["coverage_runs"]

PROBES = (0, 3, 6, 12, 24, 48)
"""Ends of the classes of probes that runs are counted by."""


@dataclass(frozen=True, kw_only=True)
class CoverageOptions:
    """The options of ``decomfl bench coverage``."""

    seeds: int = option(100, "The number of estimates of every matrix, each with randomness of its own.")
    rtol: float = option(0.05, "The half-width that the estimates are asked for.")
    products: int = option(0, "The number of products of each estimate; 0 takes as many as --rtol needs.")
    max_products: int = option(1000, "The most products that an estimate may take.")
    confidence: float = option(0.95, "The confidence that is stated for every interval.")
    spectra: str | None = option(
        None, "The matrices, joined by commas; the error for another lists them. [default: all]"
    )


@dataclass(frozen=True, kw_only=True)
class CoverageCount(BenchmarkRow):
    """What some of the estimates came to: those of a spectrum, of a class of probes, or all."""

    title = "κ by {asked}: {confidence:.0%} intervals of {estimates:,} estimates, counted by {by}"
    asked: str
    estimates: int
    by: str
    name: str = column("")
    runs: int = column("runs")
    coverage: float = column(
        "coverage",
        "{coverage:.1%} ± {stderr:.1%}",
        "The share of intervals that hold the truth, with its standard error.",
    )
    stderr: float
    too_low: float = column("too low", ".1%", "The share of intervals that end below the truth.")
    too_high: float = column("too high", ".1%", "The share of intervals that begin above it.")
    rms: float = column("rms error", ".2%", "Of κ/truth − 1.")
    half_width: float = column("half-width", ".2%", "Half of the interval's width over the truth (median).")
    products: float = column("products", ".1f", "Products with the matrix (mean).")
    most_products: int = column("most")


@benchmark()
def coverage(options: CoverageOptions) -> Iterator[CoverageCount]:
    """Count how often the interval of κ holds, where κ is known.

    The matrices are diagonal ones of five kinds of spectrum and Hessians of four small nets, 156 to 400 dimensions.
    The tables count by spectrum, by the probes that an interval rests on, and all. 100 seeds take some 20 seconds.
    """
    work = require_int("seeds", options.seeds, 1) * max(1, require_int("products", options.products, 0))
    require_possible("seeds and products", (options.seeds, options.products), operations=1e6 * work)
    runs = list(
        coverage_runs(
            seeds=range(options.seeds),
            spectra=names("spectra", options.spectra, SPECTRA),
            rtol=options.rtol,
            products=options.products or None,
            max_products=options.max_products,
            confidence=options.confidence,
        )
    )
    asked = f"{options.products} products" if options.products else f"rtol {options.rtol:g}"
    for by in ("spectrum", "probes", "all"):
        yield from counted(runs, by, asked=asked)


def _diagonal(*parts: Any) -> Callable[[], DenseOperator]:
    """The matrix of these eigenvalues."""

    def make() -> DenseOperator:
        import torch

        from hessian.operators.operator import DenseOperator

        eigenvalues = np.concatenate([np.atleast_1d(part) for part in parts])
        return DenseOperator(torch.diag(torch.from_numpy(eigenvalues)))

    return make


def _net(widths: Sequence[int], activation: str, steps: int) -> Callable[[], DenseOperator]:
    """The Hessian, in float64, of a net trained on 150 digits of 4 × 4 pixels by ``steps`` steps of Adam.

    The net classifies digits by their remainder modulo its last width; where that is the first one, it is an
    autoencoder.
    """

    def make() -> DenseOperator:
        import torch
        from sklearn.datasets import load_digits
        from torch.nn.functional import cross_entropy, linear, mse_loss

        from hessian.operators.operator import DenseOperator

        act = getattr(torch.nn.functional, activation)
        digits = load_digits()
        x = torch.tensor(digits.images[:150] / 16).reshape(-1, 4, 2, 4, 2).mean(dim=(2, 4)).flatten(1)
        y = torch.tensor(digits.target[:150]) % widths[-1]
        generator = torch.Generator().manual_seed(0)
        parts = []
        for n_in, n_out in pairwise(widths):
            parts += [torch.randn(n_out, n_in, generator=generator).double() * (2 / n_in) ** 0.5, torch.zeros(n_out)]

        def loss(w: Tensor) -> Tensor:
            tensors = [p.view_as(part) for p, part in zip(w.split([p.numel() for p in parts]), parts, strict=True)]
            h = x
            # Weights and biases in turns; the activation stands before every layer but the first.
            for i in range(0, len(tensors), 2):
                h = linear(act(h) if i else h, tensors[i], tensors[i + 1])
            return mse_loss(h, x) if widths[-1] == widths[0] else cross_entropy(h, y)

        w = torch.cat([part.double().flatten() for part in parts]).requires_grad_()
        optimizer = torch.optim.Adam([w], lr=5e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            loss(w).backward()
            optimizer.step()
        H = torch.func.hessian(loss)(w.detach())
        return DenseOperator((H + H.T) / 2)

    return make


SPECTRA: dict[str, Callable[[], DenseOperator]] = {
    "flat": _diagonal(np.linspace(0.5, 1.5, 300)),
    "few outliers": _diagonal([40.0, 25.0, 11.0, 6.0, -4.0], np.linspace(-0.2, 1.0, 195)),
    "one dominant": _diagonal(100.0, np.linspace(0.0, 1.0, 299)),
    "indefinite": _diagonal([30.0, 20.0, -12.0], np.linspace(-0.8, 1.2, 297)),
    "power law": _diagonal(1 / np.arange(1.0, 401.0)),
    "ReLU net": _net((16, 6, 6, 4), "relu", 150),
    "tanh net": _net((16, 6, 6, 4), "tanh", 150),
    "untrained GELU net": _net((16, 7, 5), "gelu", 0),
    "autoencoder": _net((16, 5, 16), "tanh", 200),
}
"""Matrices of 156 to 400 dimensions, by what their spectrum is like."""


@dataclass(frozen=True)
class CoverageRun:
    """One estimate, beside the truth.

    Attributes:
        spectrum: The name of the matrix.
        d: The dimension of the matrix.
        truth: The matrix's κ = tr(H)/‖H‖₂.
        kappa: The estimate of κ.
        low: The lower end of its interval.
        high: The upper end of its interval.
        probes: The number of probes.
        products: The number of products with H in all.
    """

    spectrum: str
    d: int
    truth: float
    kappa: float
    low: float
    high: float
    probes: int
    products: int


def coverage_runs(
    *, seeds: Sequence[int], spectra: Sequence[str] = tuple(SPECTRA), **settings: Any
) -> Iterator[CoverageRun]:
    """Estimates of κ on every matrix with every seed, as they are made.

    Args:
        seeds: The seeds of the estimates.
        spectra: The names of matrices in ``SPECTRA``.
        settings: The arguments of ``effective_rank``: rtol, products, confidence, ...

    Raises:
        InputError: If a setting breaks a rule.
    """
    import torch

    from hessian.kappa.effective_rank import effective_rank

    for name in spectra:
        operator = SPECTRA[name]()
        values = torch.linalg.eigvalsh(operator.matrix)
        truth = float(values.sum() / values.abs().max())
        for seed in seeds:
            found = effective_rank(operator, seed=seed, **settings)
            yield CoverageRun(name, operator.d, truth, found.kappa, *found.interval, found.probes, found.products)


def counted(runs: Sequence[CoverageRun], by: str, *, asked: str = "") -> list[CoverageCount]:
    """What the runs came to.

    Args:
        runs: What ``coverage_runs`` yielded, at least one.
        by: What to count by: "spectrum", "probes" or "all".
        asked: What the estimates were asked for, in words.

    Returns:
        A row for each spectrum, for each class of probes, or one for all.
    """
    require_choice("by", by, ("spectrum", "probes", "all"))
    groups: dict[str, list[CoverageRun]] = {}
    for run in sorted(runs, key=lambda run: run.probes) if by == "probes" else runs:
        name = {"spectrum": run.spectrum, "probes": _class_of(run.probes), "all": "all"}[by]
        groups.setdefault(name, []).append(run)
    return [_count(own, asked=asked, estimates=len(runs), by=by, name=name) for name, own in groups.items()]


def _class_of(probes: int) -> str:
    """The name of the class of ``PROBES`` that a number of probes belongs to."""
    if probes == 0:
        return "no probes"
    for low, high in pairwise(PROBES):
        if probes <= high:
            return f"{low + 1} to {high} probes"
    return f"more than {PROBES[-1]} probes"


def _count(runs: Sequence[CoverageRun], **names_: Any) -> CoverageCount:
    """The row of these runs."""
    too_low = sum(run.high < run.truth for run in runs) / len(runs)
    too_high = sum(run.low > run.truth for run in runs) / len(runs)
    held = sum(run.low <= run.truth <= run.high for run in runs) / len(runs)
    return CoverageCount(
        **names_,
        runs=len(runs),
        coverage=held,
        stderr=(held * (1 - held) / len(runs)) ** 0.5,
        too_low=too_low,
        too_high=too_high,
        rms=float(np.sqrt(np.mean([(run.kappa / run.truth - 1) ** 2 for run in runs]))),
        half_width=float(np.median([(run.high - run.low) / (2 * abs(run.truth)) for run in runs])),
        products=float(np.mean([run.products for run in runs])),
        most_products=max(run.products for run in runs),
    )
