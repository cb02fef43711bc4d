"""Does the interval of κ hold? Many runs on matrices whose κ is known, counted.

The matrices are dense and small, so the truth is exact and thousands of runs take a minute. Probes and start vectors
are Gaussian, so a diagonal matrix stands for all matrices of its eigenvalues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.func import hessian
from torch.nn.functional import cross_entropy, gelu, linear, mse_loss

from decomfl_lab.errors import require_choice, require_int
from hessian.kappa.effective_rank import effective_rank
from hessian.operators.operator import DenseOperator

__all__ = ["PROBES", "SPECTRA", "CoverageRun", "counted", "coverage_runs"]

PROBES = (0, 3, 6, 12, 24, 48)
"""Ends of the classes of probes that runs are counted by."""


def _diagonal(*parts: Any) -> Callable[[], DenseOperator]:
    """The matrix of these eigenvalues."""
    return lambda: DenseOperator(torch.diag(torch.from_numpy(np.concatenate([np.atleast_1d(part) for part in parts]))))


def _net(widths: Sequence[int], act: Callable[[Tensor], Tensor], steps: int) -> Callable[[], DenseOperator]:
    """The Hessian, in float64, of a net trained on 150 digits of 4 × 4 pixels by so many steps of Adam.

    It tells the digits' remainders by its last width apart, or is an autoencoder if that is its first.
    """

    def make() -> DenseOperator:
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
            for i in range(0, len(tensors), 2):
                h = linear(act(h) if i else h, tensors[i], tensors[i + 1])
            return mse_loss(h, x) if widths[-1] == widths[0] else cross_entropy(h, y)

        w = torch.cat([part.double().flatten() for part in parts]).requires_grad_()
        optimizer = torch.optim.Adam([w], lr=5e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            loss(w).backward()
            optimizer.step()
        H = hessian(loss)(w.detach())
        return DenseOperator((H + H.T) / 2)

    return make


SPECTRA: dict[str, Callable[[], DenseOperator]] = {
    "flat": _diagonal(np.linspace(0.5, 1.5, 300)),
    "few outliers": _diagonal([40.0, 25.0, 11.0, 6.0, -4.0], np.linspace(-0.2, 1.0, 195)),
    "one dominant": _diagonal(100.0, np.linspace(0.0, 1.0, 299)),
    "indefinite": _diagonal([30.0, 20.0, -12.0], np.linspace(-0.8, 1.2, 297)),
    "power law": _diagonal(1 / np.arange(1.0, 401.0)),
    "ReLU net": _net((16, 6, 6, 4), torch.relu, 150),
    "tanh net": _net((16, 6, 6, 4), torch.tanh, 150),
    "untrained GELU net": _net((16, 7, 5), gelu, 0),
    "autoencoder": _net((16, 5, 16), torch.tanh, 200),
}
"""Matrices of 156 to 400 dimensions, by what their spectrum is like."""


@dataclass(frozen=True)
class CoverageRun:
    """One estimate, beside the truth.

    Attributes:
        spectrum: The name of the matrix.
        d: The dimension of the matrix.
        truth: The matrix's κ = tr(H)/‖H‖₂.
        seed: The seed of the estimate.
        kappa: The estimate of κ.
        low: The lower end of its interval.
        high: The upper end of its interval.
        steps: The number of Lanczos steps.
        probes: The number of probes.
        products: The number of products with H in all.
    """

    spectrum: str
    d: int
    truth: float
    seed: int
    kappa: float
    low: float
    high: float
    steps: int
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
        InputError: If a name is unknown or a setting breaks a rule.
    """
    for name in spectra:
        require_choice("spectra", name, tuple(SPECTRA))
    for name in spectra:
        operator = SPECTRA[name]()
        values = torch.linalg.eigvalsh(operator.matrix)
        truth = float(values.sum() / values.abs().max())
        for seed in seeds:
            require_int("seed", seed, 0)
            found = effective_rank(operator, seed=seed, **settings)
            yield CoverageRun(
                name, operator.d, truth, seed, found.kappa, *found.interval, found.steps, found.probes, found.products
            )


def counted(runs: Sequence[CoverageRun], by: str) -> pd.DataFrame:
    """What the runs came to, a row for each spectrum, each class of probes, or all.

    Args:
        runs: What ``coverage_runs`` yielded, at least one.
        by: What to count by: "spectrum", "probes" or "all".

    Returns:
        Columns: name; runs; coverage, the share of intervals that hold the truth, and its standard error; too_low and
        too_high, the shares of intervals on either side of the truth; rms, of κ/truth − 1; half_width over the truth
        (median); products (mean) and most_products.
    """
    frame = pd.DataFrame(runs)
    frame["too_low"], frame["too_high"] = frame.high < frame.truth, frame.low > frame.truth
    frame["coverage"] = ~(frame.too_low | frame.too_high)
    frame["square"] = (frame.kappa / frame.truth - 1) ** 2
    frame["half_width"] = (frame.high - frame.low) / (2 * frame.truth.abs())
    groups: Any = {"spectrum": frame.spectrum, "all": np.repeat("all", len(frame))}.get(by)
    if groups is None:
        require_choice("by", by, ("spectrum", "probes", "all"))
        groups = np.take(
            [f"{low + 1} to {high} probes" for low, high in pairwise(PROBES)]
            + [f"more than {PROBES[-1]} probes", "no probes"],
            np.where(frame.probes == 0, -1, np.searchsorted(PROBES, frame.probes) - 1),
        )
        order = frame.assign(name=groups).sort_values("probes").name.drop_duplicates()
    else:
        order = pd.Series(groups).drop_duplicates()
    table = frame.groupby(groups).agg(
        runs=("coverage", "size"),
        coverage=("coverage", "mean"),
        too_low=("too_low", "mean"),
        too_high=("too_high", "mean"),
        rms=("square", lambda x: float(np.sqrt(x.mean()))),
        half_width=("half_width", "median"),
        products=("products", "mean"),
        most_products=("products", "max"),
    )
    table.insert(2, "stderr", np.sqrt(table.coverage * (1 - table.coverage) / table.runs))
    return table.loc[order].rename_axis("name").reset_index()
