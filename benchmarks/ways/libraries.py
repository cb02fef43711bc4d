"""Estimates of κ by this lab and by other libraries, on a problem that all of them take.

The problem is a CNN of four convolutions (d = 28,426) trained on 1,000 digits of MNIST, mean cross-entropy over
them. Its true κ is known without sampling: tr(H) = tr(G) for piecewise affine nets, and the
Gauss-Newton matrix's trace is a finite sum over examples and classes (``gauss_newton_trace``); λ_max is a converged
Lanczos value.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.datasets.splits import fixed_choice
from decomfl_lab.errors import require_int
from hessian.kappa.beside import by_pyhessian
from hessian.kappa.effective_rank import effective_rank
from hessian.operators.curvature import GaussNewtonOperator, HessianOperator
from hessian.operators.gauss_newton_trace import gauss_newton_trace
from hessian.operators.mean_loss import MeanLoss
from hessian.spectrum.lanczos import lanczos

OURS = "decomfl-lab"
_CONFIDENCE = 0.95
_TRACE_PRODUCTS = 30  # products that the traces of curvlinops and hessian-eigenthings are given
_EXAMPLES = 9  # purpose of the random choice of digits (see ``fixed_choice``)
_CHUNK = 250  # examples at once: of these sizes convolutions stay in the cache


class KappaProblem:
    """A trained CNN, its data as the libraries take them, and the truth about its Hessian."""

    def __init__(self, examples: int = 1000, steps: int = 200) -> None:
        """Train the net (Adam, batches of 50, seed 0) on so many digits, then compute the truth."""
        require_int("examples", examples, 50)
        data = load_dataset("mnist")
        self.source = data.source
        chosen = fixed_choice(len(data.train_labels), examples, _EXAMPLES)  # the embedded digits are sorted by class
        self.inputs, self.targets = data.train_images[chosen], data.train_labels[chosen]
        # Adam, with batches of 50 and seed 0.
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
            drawn = torch.randint(len(self.targets), (50,), generator=generator)
            optimizer.zero_grad()
            cross_entropy(module(self.inputs[drawn]), self.targets[drawn]).backward()
            optimizer.step()
        optimizer.zero_grad()
        self.module = module
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


# Estimates -------------------------------------------------------------------------------------------------------


class KappaEstimate(NamedTuple):
    """What one run of a method gives."""

    value: float  # its κ
    products: int  # Hessian-vector products that it took
    interval: tuple[float, float] | None = None  # of 95 %; None of a method without


KappaRun = Callable[[int], KappaEstimate]  # a run of a method with a seed


def our_kappa(problem: KappaProblem, **settings: Any) -> KappaRun:
    """Runs of ``effective_rank`` with these arguments."""

    def run(seed: int) -> KappaEstimate:
        rank = effective_rank(problem.operator, seed=seed, confidence=_CONFIDENCE, **settings)
        return KappaEstimate(rank.kappa, rank.products, rank.interval)

    return run


# The libraries, each called as its documentation says --------------------------------------------------------------


def _pyhessian(problem: KappaProblem) -> dict[str, KappaRun]:
    def run(seed: int) -> KappaEstimate:
        theirs = by_pyhessian(problem.objective, seed=seed)
        return KappaEstimate(theirs.kappa, theirs.products)

    return {"trace() / eigenvalues()": run}


def _curvlinops(problem: KappaProblem) -> dict[str, KappaRun]:
    library, data = importlib.import_module("curvlinops"), [(problem.inputs, problem.targets)]
    operator = library.HessianLinearOperator(
        problem.module, nn.CrossEntropyLoss(), problem.parameters, data, check_deterministic=False
    )

    def run(name: str, seed: int) -> KappaEstimate:
        trace = float(getattr(library, name)(operator, _TRACE_PRODUCTS))
        inner, calls = operator.to_scipy(), 0

        def matvec(v: Any) -> Any:
            nonlocal calls
            calls += 1
            return inner @ v

        counted = LinearOperator(inner.shape, matvec=matvec, dtype=inner.dtype)
        start = np.random.default_rng(seed).standard_normal(inner.shape[0]).astype(inner.dtype)
        (top,) = eigsh(counted, k=1, which="LA", tol=1e-2, v0=start, return_eigenvectors=False)
        return KappaEstimate(trace / float(top), _TRACE_PRODUCTS + calls)

    return {f"{name}({_TRACE_PRODUCTS}) / eigsh": partial(run, name) for name in ("hutchpp_trace", "xtrace")}


def _eigenthings(problem: KappaProblem) -> dict[str, KappaRun]:
    library = importlib.import_module("hessian_eigenthings")
    data = [(problem.inputs, problem.targets)]
    operator = library.HessianOperator(problem.module, data, library.supervised_loss(cross_entropy))

    def run(seed: int) -> KappaEstimate:
        trace = float(library.hutch_plus_plus(operator, num_matvecs=_TRACE_PRODUCTS, seed=seed).estimate)
        # Its own stop ends after two products, a third off the truth.
        top = library.lanczos(operator, k=1, max_iter=10, which="LA", seed=seed)
        return KappaEstimate(trace / float(top.eigenvalues[0]), _TRACE_PRODUCTS + int(top.iterations))

    return {f"hutch_plus_plus({_TRACE_PRODUCTS}) / lanczos(k=1, max_iter=10)": run}


LIBRARIES: dict[str, Callable[[KappaProblem], dict[str, KappaRun]]] = {
    "pyhessian": _pyhessian,
    "curvlinops": _curvlinops,
    "hessian-eigenthings": _eigenthings,
}
"""The libraries compared with, and the estimates of κ of each, by the call as one would write it."""


def installed() -> dict[str, Callable[[KappaProblem], dict[str, KappaRun]]]:
    """Those of ``LIBRARIES`` that are installed here."""
    modules = {name: name.replace("-", "_") for name in LIBRARIES}
    return {name: LIBRARIES[name] for name, module in modules.items() if importlib.util.find_spec(module) is not None}
