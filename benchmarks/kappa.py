"""``decomfl bench kappa``: how good is κ for how many products? This lab and other libraries on one problem."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.mould import BenchmarkRow, benchmark, column
from decomfl_lab.errors import require_possible
from decomfl_lab.options import option

if TYPE_CHECKING:
    from benchmarks.ways.libraries import KappaEstimate, KappaProblem


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """The options of ``decomfl bench kappa``."""

    seeds: int = option(100, "The number of runs of our two estimates, whose coverage is counted.", ge=1)
    library_seeds: int = option(10, "The number of runs of everything else.", ge=1)
    products: int = option(20, "The number of Hessian-vector products of those runs.", ge=4)
    rtol: float = option(0.05, "The half-width that the estimate with its own stop is asked for.")
    examples: int = option(1000, "The number of digits in the loss.")


@dataclass(frozen=True, kw_only=True)
class ComparisonRow(BenchmarkRow):
    """What one method reached."""

    title = "{problem}"
    problem: str
    library: str = column("library")
    method: str = column("method")
    seeds: int = column("runs", "", "The number of runs, each with randomness of its own.")
    products: float = column("products", "g", "Hessian-vector products a run (median).")
    rms_error: float = column("rms", ".2%", "The root mean square of estimate / truth - 1 over the runs.")
    coverage: float | None = column("coverage", ".1%", "The share of runs whose 95 % interval holds the truth.")
    half_width: float | None = column("half-width", ".1%", "Half of the interval's width over the truth (median).")
    seconds: float = column("s", ".2f", "Seconds of a run (median).")


def quoted(rows: Sequence[ComparisonRow], options: ComparisonOptions) -> tuple[str, str]:
    """What the README says: κ with this lab's own stop, beside the library that comes nearest to the truth."""
    (ours,) = (row for row in rows if row.method == _own_stop(options))
    others = [row for row in rows if row.coverage is None]
    best = min(others, key=lambda row: row.rms_error, default=None)
    beside = "" if best is None else f"; {_error(best)}, by {best.library}"
    return f"error of κ of a CNN (root mean square of {ours.seeds} runs)", f"{_error(ours)}{beside}"


def _error(row: ComparisonRow) -> str:
    return f"{100 * row.rms_error:.1f} % after {row.products:g} products"


def _own_stop(options: ComparisonOptions) -> str:
    """The call of the estimate that stops by itself."""
    return f"effective_rank(rtol={options.rtol:g})"


@benchmark(quoted)
def kappa(options: ComparisonOptions) -> Iterator[ComparisonRow]:
    """Compare estimates of κ with the truth.

    The libraries installed here stand beside them.

    The problem is a CNN (d = 28,426) trained on digits of MNIST; its trace is known exactly. By the seconds that runs
    were recorded with, the default takes some twenty minutes on two cores, and --examples 400 --seeds 20
    --library-seeds 2 some two.
    """
    from benchmarks.ways.libraries import KappaProblem

    counts, products = (options.seeds, options.library_seeds), options.products
    require_possible("seeds and products", (*counts, products), operations=1e6 * sum(counts) * products)
    yield from comparison_rows(KappaProblem(options.examples), options)


def comparison_rows(problem: KappaProblem, options: ComparisonOptions) -> Iterator[ComparisonRow]:
    """The rows of a problem, whose training has taken its time."""
    import torch

    from benchmarks.ways import libraries

    ours = {
        f"effective_rank(products={options.products})": libraries.our_kappa(problem, products=options.products),
        _own_stop(options): libraries.our_kappa(problem, rtol=options.rtol),
    }
    methods = [(libraries.OURS, ours, options.seeds)]
    for name, estimates in libraries.installed().items():
        with warnings.catch_warnings(action="ignore"):  # the libraries' own
            methods.append((name, estimates(problem), options.library_seeds))
    for library_name, runs, seeds in methods:
        for method, run in runs.items():
            results, seconds = [], []
            for seed in range(seeds):
                started = time.perf_counter()
                with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)  # curvlinops draws from torch's global generator
                    results.append(run(seed))
                seconds.append(time.perf_counter() - started)
            yield measured_row(problem, library_name, method, results, seconds)


def measured_row(
    problem: KappaProblem, library: str, method: str, found: Sequence[KappaEstimate], seconds: Sequence[float]
) -> ComparisonRow:
    """The row of a method's runs."""
    truth = problem.kappa
    intervals = [each.interval for each in found if each.interval is not None]
    return ComparisonRow(
        problem=str(problem),
        library=library,
        method=method,
        seeds=len(found),
        products=float(np.median([each.products for each in found])),
        rms_error=float(np.sqrt(np.mean([(each.value / truth - 1.0) ** 2 for each in found]))),
        coverage=float(np.mean([low <= truth <= high for low, high in intervals])) if intervals else None,
        half_width=float(np.median([(high - low) / 2 / truth for low, high in intervals])) if intervals else None,
        seconds=float(np.median(seconds)),
    )
