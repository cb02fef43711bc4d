"""How good is κ for how many products? This layer and the libraries on one problem, in one run.

The problem: a CNN of four convolutions (d = 28,426) trained on 1,000 digits of MNIST, mean cross-entropy over them. Its
true κ is known without sampling: tr(H) = tr(G) for piecewise affine nets, and the Gauss-Newton matrix's trace is a
finite sum over examples and classes (``gauss_newton_trace``); λ_max is a converged Lanczos value.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.errors import require_int
from decomfl_lab.runs.evaluation import fixed_choice
from hessian.kappa.effective_rank import effective_rank
from hessian.operators.curvature import GaussNewtonOperator, HessianOperator
from hessian.operators.exact import gauss_newton_trace
from hessian.operators.mean_loss import MeanLoss
from hessian.spectrum.lanczos import lanczos

__all__ = ["LIBRARIES", "KappaRow", "Problem", "kappa_rows"]

LIBRARIES = {"pyhessian": "pyhessian", "curvlinops": "curvlinops", "hessian-eigenthings": "hessian_eigenthings"}
"""The libraries compared with, and the modules they are; those that are not installed are left out."""
OURS = "decomfl-lab"
CONFIDENCE = 0.95
_COST_REPEATS = 7
_EXAMPLES = 9
"""Purpose of the random choice of digits (see ``fixed_choice``)."""
_CHUNK = 250
"""Examples at once: of these sizes convolutions stay in the cache."""


@dataclass(frozen=True)
class KappaRow:
    """What one method reached.

    Attributes:
        library: The library that the method belongs to.
        quantity: "kappa", "lambda_max", "trace", or "product" for the cost of one Hessian-vector product.
        method: The call, as one would write it.
        seeds: The number of runs, each with randomness of its own.
        products: The number of Hessian-vector products a run (median).
        relative_error: The error |estimate / truth - 1| (median over the runs); for a product ‖Hv - reference‖ /
            ‖reference‖.
        rms_error: The root mean square of the same errors.
        coverage: The share of the runs whose 95 % interval holds the truth; None where the method states no interval.
        half_width: The half of the interval's width over the truth (median), or None.
        seconds: The time of a run (median).
        gradients: The seconds of a product over those of a gradient of the same loss; None for estimates.
    """

    library: str
    quantity: str
    method: str
    seeds: int
    products: float
    relative_error: float
    rms_error: float
    coverage: float | None
    half_width: float | None
    seconds: float
    gradients: float | None = None


class Found(NamedTuple):
    """The outcome of one run of a method."""

    value: float
    products: int
    interval: tuple[float, float] | None = None


class Problem:
    """A trained CNN, its data, and the truth about its Hessian."""

    def __init__(self, examples: int = 1000, steps: int = 200) -> None:
        """Train the net (Adam, batches of 50, seed 0) on so many digits, then compute the truth."""
        require_int("examples", examples, 50)
        data = load_dataset("mnist")
        self.source = data.source
        chosen = fixed_choice(len(data.train_labels), examples, _EXAMPLES)  # the embedded digits are sorted by class
        self.inputs, self.targets = data.train_images[chosen], data.train_labels[chosen]
        self.module = _trained(self.inputs, self.targets, steps)
        self.objective = MeanLoss(self.module, cross_entropy, [(self.inputs, self.targets)], chunk=_CHUNK)
        self.loss = self.objective.value
        self.operator = HessianOperator(self.objective)
        top = lanczos(self.operator, steps=60, seed=0, tol=1e-6)
        self.lambda_max = float(top.ritz_values.max())
        self.trace = gauss_newton_trace(GaussNewtonOperator(self.objective))

    @property
    def kappa(self) -> float:
        """tr(H) / λ_max."""
        return self.trace / self.lambda_max

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The net's, as the libraries take them."""
        return list(self.module.parameters())


def _trained(inputs: Tensor, targets: Tensor, steps: int) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for _ in range(steps):
        chosen = torch.randint(len(targets), (50,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(module(inputs[chosen]), targets[chosen]).backward()
        optimizer.step()
    optimizer.zero_grad()
    return module


def kappa_rows(
    problem: Problem,
    *,
    seeds: int = 200,
    library_seeds: int = 10,
    products: int = 20,
    rtol: float = 0.05,
    on_run: Callable[[int, int], None] | None = None,
) -> Iterator[KappaRow]:
    """Rows of the comparison, as they are measured.

    Args:
        problem: The trained network and its true κ.
        seeds: The number of runs of our estimate, with a fixed number of products and with its own, to count coverage.
        library_seeds: The number of runs of everything else.
        products: The fixed number of products.
        rtol: The asked half-width of our estimate that chooses its own number.
        on_run: A function that is called with (runs done, runs in all).
    """
    for name, value in (("seeds", seeds), ("library_seeds", library_seeds)):
        require_int(name, value, 1)
    require_int("products", products, 4)
    fixed: Peer = ("kappa", f"effective_rank(products={products})", _ours(problem, products=products))
    free: Peer = ("kappa", f"effective_rank(rtol={rtol:g})", _ours(problem, rtol=rtol))
    top: Peer = ("lambda_max", "lanczos(tol=0.01)", _our_lambda_max(problem))
    methods = [(OURS, seeds, fixed), (OURS, seeds, free), (OURS, library_seeds, top)]
    for library in _installed():
        with _quiet():
            methods += [(library, library_seeds, peer) for peer in _PEERS[library](problem)]
    truths = {"kappa": problem.kappa, "trace": problem.trace, "lambda_max": problem.lambda_max}
    done, total = 0, sum(count for _, count, _ in methods)
    for library, count, (quantity, method, run) in methods:
        found, seconds = [], []
        for seed in range(count):
            started = time.perf_counter()
            found.append(_quietly(run, seed))
            seconds.append(time.perf_counter() - started)
            done += 1
            if on_run is not None:
                on_run(done, total)
        yield _row(library, quantity, method, truths[quantity], found, seconds)
    yield from _costs(problem)


def _row(
    library: str, quantity: str, method: str, truth: float, found: Sequence[Found], seconds: Sequence[float]
) -> KappaRow:
    errors = np.array([abs(each.value / truth - 1.0) for each in found])
    intervals = [each.interval for each in found if each.interval is not None]
    return KappaRow(
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
    )


def _installed() -> list[str]:
    return [library for library, module in LIBRARIES.items() if importlib.util.find_spec(module) is not None]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _quietly(run: Callable[[int], Found], seed: int) -> Found:
    """A run with torch's global generator left as it was."""
    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # pyhessian and curvlinops draw from it
        return run(seed)


def _ours(problem: Problem, **settings: Any) -> Callable[[int], Found]:
    def run(seed: int) -> Found:
        found = effective_rank(problem.operator, seed=seed, confidence=CONFIDENCE, **settings)
        return Found(found.kappa, found.products, found.interval)

    return run


def _our_lambda_max(problem: Problem) -> Callable[[int], Found]:
    def run(seed: int) -> Found:
        found = lanczos(problem.operator, steps=60, seed=seed, tol=0.01)
        return Found(float(found.ritz_values.max()), found.products)

    return run


# The libraries, each called as its documentation says --------------------------------------------------------------


Peer = tuple[str, str, Callable[[int], Found]]
"""Quantity, method, run."""


def _pyhessian(problem: Problem) -> list[Peer]:
    module = importlib.import_module("pyhessian.hessian")

    def run(quantity: str, _seed: int) -> Found:
        with mock.patch.object(module, "hessian_vector_product", wraps=module.hessian_vector_product) as product:
            theirs = module.hessian(problem.module, cross_entropy, data=(problem.inputs, problem.targets), cuda=False)
            top = theirs.eigenvalues()[0][0] if quantity != "trace" else 1.0
            trace = float(np.mean(theirs.trace())) if quantity != "lambda_max" else 1.0
            problem.module.zero_grad()
            value = {"lambda_max": top, "trace": trace, "kappa": trace / top}[quantity]
            return Found(value, product.call_count)

    names = {"lambda_max": "eigenvalues()", "trace": "trace()", "kappa": "trace() / eigenvalues()"}
    return [(quantity, name, partial(run, quantity)) for quantity, name in names.items()]


def _curvlinops_operator(problem: Problem) -> Any:
    data = [(problem.inputs, problem.targets)]
    return importlib.import_module("curvlinops").HessianLinearOperator(
        problem.module, nn.CrossEntropyLoss(), problem.parameters, data, check_deterministic=False
    )


def _curvlinops(problem: Problem) -> list[Peer]:
    library, operator = importlib.import_module("curvlinops"), _curvlinops_operator(problem)
    traces = {"hutchpp_trace": library.hutchpp_trace, "xtrace": library.xtrace}
    count = 30

    def top(seed: int) -> Found:
        inner, calls = operator.to_scipy(), 0

        def matvec(v: Any) -> Any:
            nonlocal calls
            calls += 1
            return inner @ v

        counted = LinearOperator(inner.shape, matvec=matvec, dtype=inner.dtype)
        start = np.random.default_rng(seed).standard_normal(inner.shape[0]).astype(inner.dtype)
        (value,) = eigsh(counted, k=1, which="LA", tol=1e-2, v0=start, return_eigenvectors=False)
        return Found(float(value), calls)

    def trace(name: str, _seed: int) -> Found:
        return Found(float(traces[name](operator, count)), count)

    def kappa(name: str, seed: int) -> Found:
        above, below = trace(name, seed), top(seed)
        return Found(above.value / below.value, above.products + below.products)

    peers: list[Peer] = [("lambda_max", "eigsh(k=1, tol=0.01)", top)]
    for name in traces:
        peers.append(("trace", f"{name}({count})", partial(trace, name)))
        peers.append(("kappa", f"{name}({count}) / eigsh", partial(kappa, name)))
    return peers


def _eigenthings_operator(problem: Problem) -> Any:
    library = importlib.import_module("hessian_eigenthings")
    data = [(problem.inputs, problem.targets)]
    return library.HessianOperator(problem.module, data, library.supervised_loss(cross_entropy))


def _eigenthings(problem: Problem) -> list[Peer]:
    library, operator = importlib.import_module("hessian_eigenthings"), _eigenthings_operator(problem)
    count = 30

    def top(seed: int, max_iter: int | None = None) -> Found:
        found = library.lanczos(operator, k=1, max_iter=max_iter, which="LA", seed=seed)
        return Found(float(found.eigenvalues[0]), int(found.iterations))

    def trace(seed: int) -> Found:
        return Found(float(library.hutch_plus_plus(operator, num_matvecs=count, seed=seed).estimate), count)

    def kappa(seed: int) -> Found:
        above, below = trace(seed), top(seed, 10)
        return Found(above.value / below.value, above.products + below.products)

    return [
        ("lambda_max", "lanczos(k=1)", top),
        ("lambda_max", "lanczos(k=1, max_iter=10)", partial(top, max_iter=10)),
        ("trace", f"hutch_plus_plus({count})", trace),
        ("kappa", f"hutch_plus_plus({count}) / lanczos(k=1, max_iter=10)", kappa),
    ]


_PEERS: dict[str, Callable[[Problem], list[Peer]]] = {
    "pyhessian": _pyhessian,
    "curvlinops": _curvlinops,
    "hessian-eigenthings": _eigenthings,
}


# What a product costs ----------------------------------------------------------------------------------------------


def _costs(problem: Problem) -> Iterator[KappaRow]:
    """One product of each library in gradients of the same loss, measured in turns; the fastest of each counts."""
    v = torch.randn(problem.operator.d, generator=torch.Generator().manual_seed(1))
    x = problem.objective.x
    gauss_newton = GaussNewtonOperator(problem.objective)
    ways: dict[tuple[str, str], Callable[[], Any]] = {
        (OURS, "HessianOperator, graph kept"): lambda: problem.operator.matvec(v),
        (OURS, "HessianOperator(cache=0)"): partial(HessianOperator(problem.objective, cache=0).matvec, v),
        (OURS, "GaussNewtonOperator"): lambda: gauss_newton.matvec(v),
        (OURS, "GaussNewtonOperator.quad, forward mode only"): lambda: gauss_newton.quad(v),
    }
    for library in _installed():
        with _quiet():
            ways |= {(library, name): partial(product, v) for name, product in _PRODUCTS[library](problem).items()}
    times = dict.fromkeys(ways, math.inf)
    gradient = math.inf
    values: dict[tuple[str, str], Any] = {}
    for _ in range(_COST_REPEATS):
        gradient = min(gradient, _timed(lambda: problem.objective.gradient(x))[0])
        for key, way in ways.items():
            seconds, values[key] = _timed(way)
            times[key] = min(times[key], seconds)
    references = {"hessian": problem.operator.matvec(v), "gauss-newton": gauss_newton.matvec(v)}
    for key, value in values.items():
        reference = references["gauss-newton" if "GaussNewton" in key[1] else "hessian"]
        if isinstance(value, float):
            error = abs(value / float(v @ reference) - 1.0)
        else:
            error = float((value - reference).norm() / reference.norm())
        seconds = times[key]
        yield KappaRow(key[0], "product", key[1], 1, 1.0, error, error, None, None, seconds, seconds / gradient)


def _timed(way: Callable[[], Any]) -> tuple[float, Any]:
    with _quiet():
        started = time.perf_counter()
        value = way()
        return time.perf_counter() - started, value


def _pyhessian_products(problem: Problem) -> dict[str, Callable[[Tensor], Tensor]]:
    module = importlib.import_module("pyhessian.hessian")
    with _quiet():
        theirs = module.hessian(problem.module, cross_entropy, data=(problem.inputs, problem.targets), cuda=False)
    problem.module.zero_grad()
    shapes = [p.shape for p in problem.parameters]

    def product(v: Tensor) -> Tensor:
        parts = [part.view(shape) for part, shape in zip(v.split([s.numel() for s in shapes]), shapes, strict=True)]
        found = module.hessian_vector_product(theirs.gradsH, theirs.params, parts)
        return torch.cat([part.reshape(-1) for part in found])

    return {"one batch, graph kept": product}


def _curvlinops_products(problem: Problem) -> dict[str, Callable[[Tensor], Tensor]]:
    operator = _curvlinops_operator(problem)
    return {"HessianLinearOperator": lambda v: operator @ v}


def _eigenthings_products(problem: Problem) -> dict[str, Callable[[Tensor], Tensor]]:
    return {"HessianOperator": _eigenthings_operator(problem).matvec}


_PRODUCTS: dict[str, Callable[[Problem], dict[str, Callable[[Tensor], Tensor]]]] = {
    "pyhessian": _pyhessian_products,
    "curvlinops": _curvlinops_products,
    "hessian-eigenthings": _eigenthings_products,
}
