"""``decomfl bench scale``: what do products and κ cost where vectors of d numbers are large?"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.mould import BenchmarkRow, benchmark, column
from benchmarks.ways.clock import apart, in_turns
from decomfl_lab.errors import require_int, require_possible
from decomfl_lab.options import option

if TYPE_CHECKING:
    from benchmarks.ways.libraries import KappaEstimate, Problem

__all__ = ["Footprint", "ProductPrice", "ScaleOptions", "scale"]

_WARM = 30_000
"""Parameters of the net on which code is tried before it is measured, so that all of it is in memory."""
_TURNS = 15
_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 22),  # what is freed goes back to the system, and is in no later peak
    "MALLOC_TOP_PAD_": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_BEYOND_THE_MODEL = 40
"""Vectors of d numbers that the hungriest method works in."""


@dataclass(frozen=True, kw_only=True)
class ScaleOptions:
    """The options of ``decomfl bench scale``."""

    d: int = option(10_000_000, "The number of parameters.")
    products: int = option(12, "The Hessian-vector products of the estimate of κ.")


@dataclass(frozen=True, kw_only=True)
class Footprint(BenchmarkRow):
    """The peak memory of one method, in a process of its own."""

    d: int
    title = "d = {d:,}: peak of resident memory above that of the process with model and data, in vectors of d numbers"
    library: str = column("library")
    method: str = column("method")
    products: int | None = column("products", "", "Hessian-vector products of the run.")
    vectors: float | None = column("vectors", ".1f", "The peak; all that the method keeps is in it.")
    kept: int | None = column("kept", "", "Lanczos vectors among them, where the method tells.")


@dataclass(frozen=True, kw_only=True)
class ProductPrice(BenchmarkRow):
    """The time of one product: all take turns in one process, on one thread, and the fastest of each counts."""

    d: int
    title = "d = {d:,}: one Hessian-vector product, a vector of d numbers, in turns on one thread"
    library: str = column("library")
    method: str = column("method")
    milliseconds: float = column("CPU ms", ".0f", "Time of the processor.")
    gradients: float = column("gradients", ".2f", "The same over that of one gradient.")


@benchmark()
def scale(options: ScaleOptions) -> Iterator[Footprint | ProductPrice]:
    """Measure memory and time of products, of λ_max and of κ where d is large.

    The libraries installed here stand beside this lab, each called as its documentation says.

    The net has eight equal layers without bias, GELU between them, its random weights, and 32 examples, so that
    activations are small beside a vector of d numbers. "product" is the operator and two products with a vector, which
    is counted too; unless on trust, ours tries loss and first product, in float64 where it has to. The default takes
    about six minutes.
    """
    from benchmarks.ways import libraries

    d, products = require_int("d", options.d, 1000), require_int("products", options.products, 4)
    require_possible("d", d, memory=4 * _BEYOND_THE_MODEL * d)
    measure = partial(apart, env=_ENVIRONMENT)
    for library in (libraries.OURS, *libraries.installed()):
        for method in _runs(libraries.LargeProblem(_WARM), library, products):
            found = measure(f"{library}, {method}", "benchmarks.scale", library, method, str(d), str(products))
            yield Footprint(library=library, method=method, **found)
    for price in apart("products", "benchmarks.scale", "", "", str(d), "0", env={"OMP_NUM_THREADS": "1"}):
        yield ProductPrice(**price)


# One measurement, in a process of its own ------------------------------------------------------------------------


def _runs(problem: Problem, library: str, products: int) -> dict[str, Callable[[], KappaEstimate]]:
    """What is measured of a library, by name. Nothing is computed before it is run."""
    import torch

    from benchmarks.ways import libraries
    from hessian.operators.curvature import HessianOperator

    def twice(make: Callable[[], libraries.Product]) -> KappaEstimate:
        product, v = make(), torch.randn(sum(p.numel() for p in problem.parameters))
        product(v)
        product(v)
        return libraries.KappaEstimate(math.nan, 2)

    def estimate(method: str) -> KappaEstimate:
        return libraries.estimated(next(run for _, name, run in peer.estimates(problem) if name == method), 0)

    def ours(**settings: int) -> KappaEstimate:
        return libraries.our_kappa(problem, **settings)(0)

    if library == libraries.OURS:
        return {
            "product": lambda: twice(lambda: problem.operator.matvec),
            "product, trust=True": lambda: twice(lambda: HessianOperator(problem.trusted).matvec),
            "lanczos(tol=0.01)": lambda: libraries.our_lambda_max(problem)(0),
            f"effective_rank(products={products})": partial(ours, products=products),
            f"effective_rank(max_products={products})": partial(ours, max_products=products),
        }
    peer = libraries.LIBRARIES[library]
    names = [name for quantity, name, _ in peer.estimates(problem) if quantity != "trace"]
    product = partial(twice, lambda: next(iter(peer.products(problem).values())))
    return {"product": product, **{name: partial(estimate, name) for name in names}}


def _footprint(library: str, method: str, d: int, products: int) -> dict[str, Any]:
    """Fields of a ``Footprint``."""
    from benchmarks.ways.libraries import LargeProblem
    from decomfl_lab.runs.memory import peak_of, resident_bytes

    _runs(LargeProblem(_WARM), library, products)[method]()
    run = _runs(problem := LargeProblem(d), library, products)[method]
    found: list[KappaEstimate] = []
    peak = peak_of(lambda: found.append(run()), 4 * problem.d, resident_bytes())
    found = found or [run()]  # of a small model no peak is told
    return {"d": problem.d, "products": found[0].products, "vectors": peak, "kept": found[0].kept or None}


def _prices(d: int) -> list[dict[str, Any]]:
    """Fields of every ``ProductPrice``."""
    import torch

    from benchmarks.ways import libraries

    problem = libraries.LargeProblem(d)
    v = torch.randn(problem.d, generator=torch.Generator().manual_seed(0))
    products = {(libraries.OURS, name): product for name, product in libraries.our_products(problem).items()}
    for name, library in libraries.installed().items():
        products |= {(name, method): product for method, product in library.products(problem).items()}
    gradient = ("", "gradient")
    ways = {gradient: lambda _: problem.objective.gradient(problem.objective.x), **products}
    seconds = in_turns({key: partial(way, v) for key, way in ways.items()}, _TURNS, clock=time.process_time)
    return [
        {
            "d": problem.d,
            "library": library,
            "method": method,
            "milliseconds": 1e3 * taken,
            "gradients": taken / seconds[gradient],
        }
        for (library, method), taken in seconds.items()
    ]


def main(arguments: Sequence[str]) -> None:
    """Print what was measured of LIBRARY, METHOD, D, PRODUCTS as JSON; of no library: what products cost."""
    import torch

    from benchmarks.ways.libraries import quiet

    torch.set_num_threads(1)
    library, method, d, products = arguments
    with quiet():
        found = _footprint(library, method, int(d), int(products)) if library else _prices(int(d))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
