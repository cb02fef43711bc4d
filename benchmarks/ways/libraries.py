"""Estimates of κ, λ_max and the trace by this lab and by other libraries, on a problem that all of them take.

The problem is a CNN of four convolutions (d = 28,426) trained on 1,000 digits of MNIST, mean cross-entropy over
them. Its true κ is known without sampling: tr(H) = tr(G) for piecewise affine nets, and the
Gauss-Newton matrix's trace is a finite sum over examples and classes (``gauss_newton_trace``); λ_max is a converged
Lanczos value.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

__all__ = ["LIBRARIES", "OURS", "KappaEstimate", "KappaProblem", "Library", "Peer", "estimated", "installed"]
__all__ += ["our_kappa", "our_lambda_max", "our_products", "quiet"]

OURS = "decomfl-lab"
_CONFIDENCE = 0.95
_EXAMPLES = 9
"""Purpose of the random choice of digits (see ``fixed_choice``)."""
_CHUNK = 250
"""Examples at once: of these sizes convolutions stay in the cache."""


class KappaProblem:
    """A trained CNN, its data as the libraries take them, and the truth about its Hessian."""

    def __init__(self, examples: int = 1000, steps: int = 200) -> None:
        """Train the net (Adam, batches of 50, seed 0) on so many digits, then compute the truth."""
        require_int("examples", examples, 50)
        data = load_dataset("mnist")
        self.source = data.source
        chosen = fixed_choice(len(data.train_labels), examples, _EXAMPLES)  # the embedded digits are sorted by class
        self.inputs, self.targets = data.train_images[chosen], data.train_labels[chosen]
        self.module = _trained(self.inputs, self.targets, steps)
        self.parameters = list(self.module.parameters())
        self.objective = MeanLoss(self.module, cross_entropy, [(self.inputs, self.targets)], chunk=_CHUNK)
        self.operator = HessianOperator(self.objective)
        self.loss = self.objective.value
        top = lanczos(self.operator, steps=60, seed=0, tol=1e-6)
        self.lambda_max = float(top.ritz_values.max())
        self.trace = gauss_newton_trace(GaussNewtonOperator(self.objective))

    def __str__(self) -> str:
        """The problem and the truth in a line."""
        return (
            f"CNN, d = {self.operator.d:,}, {len(self.targets):,} digits ({self.source}), loss {self.loss:.3f}: "
            f"κ = {self.kappa:.3f}, λ_max = {self.lambda_max:.2f}, tr = {self.trace:.1f}"
        )

    @property
    def kappa(self) -> float:
        """tr(H) / λ_max."""
        return self.trace / self.lambda_max


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


# Estimates -------------------------------------------------------------------------------------------------------


class KappaEstimate(NamedTuple):
    """What one run of a method gives."""

    value: float
    products: int
    interval: tuple[float, float] | None = None


Peer = tuple[str, str, Callable[[int], KappaEstimate]]
"""What is estimated ("kappa", "lambda_max" or "trace"), the call as one would write it, and a run of it with a seed."""


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def estimated(run: Callable[[int], KappaEstimate], seed: int) -> KappaEstimate:
    """A run with torch's global generator left as it was."""
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # pyhessian and curvlinops draw from it
        return run(seed)


def our_kappa(problem: KappaProblem, **settings: Any) -> Callable[[int], KappaEstimate]:
    """Runs of ``effective_rank`` with these arguments."""

    def run(seed: int) -> KappaEstimate:
        found = effective_rank(problem.operator, seed=seed, confidence=_CONFIDENCE, **settings)
        return KappaEstimate(found.kappa, found.products, found.interval)

    return run


def our_lambda_max(problem: KappaProblem) -> Callable[[int], KappaEstimate]:
    """Runs of ``lanczos``."""

    def run(seed: int) -> KappaEstimate:
        found = lanczos(problem.operator, steps=60, seed=seed, tol=0.01)
        return KappaEstimate(float(found.ritz_values.max()), found.products)

    return run


# The libraries, each called as its documentation says --------------------------------------------------------------


def _pyhessian(problem: KappaProblem) -> list[Peer]:
    module = importlib.import_module("pyhessian.hessian")

    def run(quantity: str, _seed: int) -> KappaEstimate:
        calls = itertools.count()
        product = module.hessian_vector_product

        def counted(*given: Any) -> Any:  # unlike a mock it keeps no vectors
            next(calls)
            return product(*given)

        with mock.patch.object(module, "hessian_vector_product", counted):
            theirs = module.hessian(problem.module, cross_entropy, data=(problem.inputs, problem.targets), cuda=False)
            top = theirs.eigenvalues()[0][0] if quantity != "trace" else 1.0
            trace = float(np.mean(theirs.trace())) if quantity != "lambda_max" else 1.0
            problem.module.zero_grad()
            value = {"lambda_max": top, "trace": trace, "kappa": trace / top}[quantity]
            return KappaEstimate(value, next(calls))

    names = {"lambda_max": "eigenvalues()", "trace": "trace()", "kappa": "trace() / eigenvalues()"}
    return [(quantity, name, partial(run, quantity)) for quantity, name in names.items()]


def _curvlinops_operator(problem: KappaProblem) -> Any:
    data = [(problem.inputs, problem.targets)]
    return importlib.import_module("curvlinops").HessianLinearOperator(
        problem.module, nn.CrossEntropyLoss(), problem.parameters, data, check_deterministic=False
    )


def _curvlinops(problem: KappaProblem) -> list[Peer]:
    library, operator = importlib.import_module("curvlinops"), _curvlinops_operator(problem)
    traces = {"hutchpp_trace": library.hutchpp_trace, "xtrace": library.xtrace}
    count = 30

    def top(seed: int) -> KappaEstimate:
        inner, calls = operator.to_scipy(), 0

        def matvec(v: Any) -> Any:
            nonlocal calls
            calls += 1
            return inner @ v

        counted = LinearOperator(inner.shape, matvec=matvec, dtype=inner.dtype)
        start = np.random.default_rng(seed).standard_normal(inner.shape[0]).astype(inner.dtype)
        (value,) = eigsh(counted, k=1, which="LA", tol=1e-2, v0=start, return_eigenvectors=False)
        return KappaEstimate(float(value), calls)

    def trace(name: str, _seed: int) -> KappaEstimate:
        return KappaEstimate(float(traces[name](operator, count)), count)

    def kappa(name: str, seed: int) -> KappaEstimate:
        above, below = trace(name, seed), top(seed)
        return KappaEstimate(above.value / below.value, above.products + below.products)

    peers: list[Peer] = [("lambda_max", "eigsh(k=1, tol=0.01)", top)]
    for name in traces:
        peers.append(("trace", f"{name}({count})", partial(trace, name)))
        peers.append(("kappa", f"{name}({count}) / eigsh", partial(kappa, name)))
    return peers


def _eigenthings_operator(problem: KappaProblem) -> Any:
    library = importlib.import_module("hessian_eigenthings")
    data = [(problem.inputs, problem.targets)]
    return library.HessianOperator(problem.module, data, library.supervised_loss(cross_entropy))


def _eigenthings(problem: KappaProblem) -> list[Peer]:
    library, operator = importlib.import_module("hessian_eigenthings"), _eigenthings_operator(problem)
    count = 30

    def top(seed: int, max_iter: int | None = None) -> KappaEstimate:
        found = library.lanczos(operator, k=1, max_iter=max_iter, which="LA", seed=seed)
        return KappaEstimate(float(found.eigenvalues[0]), int(found.iterations))

    def trace(seed: int) -> KappaEstimate:
        return KappaEstimate(float(library.hutch_plus_plus(operator, num_matvecs=count, seed=seed).estimate), count)

    def kappa(seed: int) -> KappaEstimate:
        above, below = trace(seed), top(seed, 10)
        return KappaEstimate(above.value / below.value, above.products + below.products)

    return [
        ("lambda_max", "lanczos(k=1)", top),
        ("lambda_max", "lanczos(k=1, max_iter=10)", partial(top, max_iter=10)),
        ("trace", f"hutch_plus_plus({count})", trace),
        ("kappa", f"hutch_plus_plus({count}) / lanczos(k=1, max_iter=10)", kappa),
    ]


# One product of each library ---------------------------------------------------------------------------------------


Product = Callable[[Tensor], Any]
"""Of v, which is d numbers: H v, or the form vᵀHv where a way gives no more."""


def our_products(problem: KappaProblem) -> dict[str, Product]:
    """Products of this lab; in those of a name with GaussNewton, H is the Gauss-Newton matrix."""
    gauss_newton = GaussNewtonOperator(problem.objective)
    return {
        "HessianOperator, graph kept": problem.operator.matvec,
        "HessianOperator(cache=0)": HessianOperator(problem.objective, cache=0).matvec,
        "GaussNewtonOperator": gauss_newton.matvec,
        "GaussNewtonOperator.quad, forward mode only": gauss_newton.quad,
    }


def _pyhessian_products(problem: KappaProblem) -> dict[str, Product]:
    module = importlib.import_module("pyhessian.hessian")
    with quiet():
        theirs = module.hessian(problem.module, cross_entropy, data=(problem.inputs, problem.targets), cuda=False)
    problem.module.zero_grad()
    shapes = [p.shape for p in problem.parameters]

    def product(v: Tensor) -> Tensor:
        parts = [part.view(shape) for part, shape in zip(v.split([s.numel() for s in shapes]), shapes, strict=True)]
        found = module.hessian_vector_product(theirs.gradsH, theirs.params, parts)
        return torch.cat([part.reshape(-1) for part in found])

    return {"one batch, graph kept": product}


def _curvlinops_products(problem: KappaProblem) -> dict[str, Product]:
    operator = _curvlinops_operator(problem)
    return {"HessianLinearOperator": lambda v: operator @ v}


def _eigenthings_products(problem: KappaProblem) -> dict[str, Product]:
    return {"HessianOperator": _eigenthings_operator(problem).matvec}


class Library(NamedTuple):
    """A library to compare with: its module, its estimates, and its products H v by what computes them."""

    module: str
    estimates: Callable[[KappaProblem], list[Peer]]
    products: Callable[[KappaProblem], dict[str, Product]]


LIBRARIES = {
    "pyhessian": Library("pyhessian", _pyhessian, _pyhessian_products),
    "curvlinops": Library("curvlinops", _curvlinops, _curvlinops_products),
    "hessian-eigenthings": Library("hessian_eigenthings", _eigenthings, _eigenthings_products),
}
"""The libraries compared with."""


def installed() -> dict[str, Library]:
    """Those of ``LIBRARIES`` that are installed here."""
    return {name: each for name, each in LIBRARIES.items() if importlib.util.find_spec(each.module) is not None}
