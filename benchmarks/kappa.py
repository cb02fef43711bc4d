"""``decomfl bench kappa``: how good is κ for how many products? This lab and other libraries on one problem."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.mould import BenchmarkRow, benchmark, column
from benchmarks.ways.clock import in_turns
from decomfl_lab.errors import require_int, require_possible
from decomfl_lab.options import option

if TYPE_CHECKING:
    from benchmarks.ways.libraries import KappaEstimate, KappaProblem

__all__ = ["ComparisonOptions", "ComparisonRow", "comparison_rows", "kappa"]

_COST_REPEATS = 7


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """The options of ``decomfl bench kappa``."""

    seeds: int = option(100, "The number of runs of our two estimates, whose coverage is counted.")
    library_seeds: int = option(10, "The number of runs of everything else.")
    products: int = option(20, "The number of Hessian-vector products of those runs.")
    rtol: float = option(0.05, "The half-width that the estimate with its own stop is asked for.")
    examples: int = option(1000, "The number of digits in the loss.")


@dataclass(frozen=True, kw_only=True)
class ComparisonRow(BenchmarkRow):
    """What one method reached: an estimate of κ, λ_max or the trace, or one Hessian-vector product."""

    title = "{problem}"
    problem: str
    library: str = column("library")
    quantity: str = column("quantity")  # kappa, lambda_max, trace or product
    method: str = column("method")
    seeds: int = column("runs", "", "The number of runs, each with randomness of its own.")
    products: float = column("products", "g", "Hessian-vector products a run (median).")
    relative_error: float = column(
        "error", ".2%", "The median of |estimate / truth - 1| over the runs; of a product ‖Hv - reference‖/‖reference‖."
    )
    rms_error: float = column("rms", ".2%", "The root mean square of the same errors.")
    coverage: float | None = column("coverage", ".1%", "The share of runs whose 95 % interval holds the truth.")
    half_width: float | None = column("half-width", ".1%", "Half of the interval's width over the truth (median).")
    seconds: float = column("s", ".2f", "Seconds of a run (median).")
    gradients: float | None = column(
        "gradients", ".2f", "The time of one Hessian-vector product over that of one gradient."
    )


def quoted(rows: Sequence[ComparisonRow], options: ComparisonOptions) -> tuple[str, str]:
    """What the README says: κ with this lab's own stop, beside the library that comes nearest to the truth."""
    estimates = [row for row in rows if row.quantity == "kappa"]
    (ours,) = (row for row in estimates if row.method == _own_stop(options))
    others = [row for row in estimates if row.coverage is None]
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
    """Compare estimates of κ, λ_max and the trace with the truth.

    The libraries installed here stand beside them.

    The problem is a CNN (d = 28,426) trained on digits of MNIST; its trace is known exactly. The default takes about
    half an hour on two cores; --examples 400 --seeds 60 --library-seeds 3 about eight minutes; --seeds 10
    --library-seeds 2 about three.
    """
    from benchmarks.ways.libraries import KappaProblem

    counts = require_int("seeds", options.seeds, 1), require_int("library_seeds", options.library_seeds, 1)
    products = require_int("products", options.products, 4)
    require_possible("seeds and products", (*counts, products), operations=1e6 * sum(counts) * products)
    yield from comparison_rows(KappaProblem(options.examples), options)


def comparison_rows(problem: KappaProblem, options: ComparisonOptions) -> Iterator[ComparisonRow]:
    """The rows of a problem, whose training has taken its time."""
    from benchmarks.ways import libraries

    fixed, free = {"products": options.products}, {"rtol": options.rtol}
    ours: list[libraries.Peer] = [
        ("kappa", f"effective_rank(products={options.products})", libraries.our_kappa(problem, **fixed)),
        ("kappa", _own_stop(options), libraries.our_kappa(problem, **free)),
        ("lambda_max", "lanczos(tol=0.01)", libraries.our_lambda_max(problem)),
    ]
    methods = [(libraries.OURS, peer) for peer in ours]
    for name, library in libraries.installed().items():
        with libraries.quiet():
            methods += [(name, peer) for peer in library.estimates(problem)]
    for library_name, (quantity, method, run) in methods:
        counted = library_name == libraries.OURS and quantity == "kappa"  # of these the coverage is counted
        found, seconds = [], []
        for seed in range(options.seeds if counted else options.library_seeds):
            started = time.perf_counter()
            found.append(libraries.estimated(run, seed))
            seconds.append(time.perf_counter() - started)
        yield _estimates(problem, library_name, quantity, method, found, seconds)
    yield from _products(problem)


def _estimates(
    problem: KappaProblem,
    library: str,
    quantity: str,
    method: str,
    found: Sequence[KappaEstimate],
    seconds: Sequence[float],
) -> ComparisonRow:
    """The row of a method's runs."""
    truth = {"kappa": problem.kappa, "trace": problem.trace, "lambda_max": problem.lambda_max}[quantity]
    errors = np.array([abs(each.value / truth - 1.0) for each in found])
    intervals = [each.interval for each in found if each.interval is not None]
    return ComparisonRow(
        problem=str(problem),
        library=library,
        quantity=quantity,
        method=method,
        seeds=len(found),
        products=float(np.median([each.products for each in found])),
        relative_error=float(np.median(errors)),
        rms_error=float(math.sqrt(np.mean(errors**2))),
        coverage=float(np.mean([low <= truth <= high for low, high in intervals])) if intervals else None,
        half_width=float(np.median([(high - low) / 2 / truth for low, high in intervals])) if intervals else None,
        seconds=float(np.median(seconds)),
        gradients=None,
    )


def _products(problem: KappaProblem) -> Iterator[ComparisonRow]:
    """One product of each library in gradients of the same loss, measured in turns; the fastest of each counts."""
    import torch

    from benchmarks.ways import libraries

    v = torch.randn(problem.operator.d, generator=torch.Generator().manual_seed(1))
    ours = libraries.our_products(problem)
    products = {(libraries.OURS, method): product for method, product in ours.items()}
    for name, library in libraries.installed().items():
        with libraries.quiet():
            products |= {(name, method): product for method, product in library.products(problem).items()}
    gradient = ("", "gradient")
    ways: dict[tuple[str, str], Callable[[], Any]] = {
        gradient: partial(problem.objective.gradient, problem.objective.x)
    }
    ways |= {key: partial(product, v) for key, product in products.items()}
    with libraries.quiet():
        seconds = in_turns(ways, _COST_REPEATS)
        values = {key: product(v) for key, product in products.items()}
    references = {False: ours["HessianOperator, graph kept"](v), True: ours["GaussNewtonOperator"](v)}
    for (library_name, method), value in values.items():
        reference = references["GaussNewton" in method]
        if isinstance(value, float):  # vᵀHv
            error = abs(value / float(v @ reference) - 1.0)
        else:
            error = float((value - reference).norm() / reference.norm())
        taken = seconds[library_name, method]
        yield ComparisonRow(
            problem=str(problem),
            library=library_name,
            quantity="product",
            method=method,
            seeds=1,
            products=1.0,
            relative_error=error,
            rms_error=error,
            coverage=None,
            half_width=None,
            seconds=taken,
            gradients=taken / seconds[gradient],
        )
