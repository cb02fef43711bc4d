"""``examples/kappa.py`` is short, runs as it stands, and its interval holds the κ of the dense Hessian."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

EXAMPLE = Path(__file__).parents[2] / "examples" / "kappa.py"


def kappa_of_dense_hessian() -> float:
    """tr(H)/‖H‖₂ in float64, from the H that all unit vectors' products make."""
    spec = importlib.util.spec_from_file_location("examples_kappa", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with torch.random.fork_rng(devices=[]):
        module = example.trained().double()
        batches = list(example.loader())
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    shapes = {name: p.shape for name, p in module.named_parameters()}

    def loss(x: Tensor) -> Tensor:
        parts = x.split([shape.numel() for shape in shapes.values()])
        tensors = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return cross_entropy(functional_call(module, tensors, (images.double(),)), labels)

    x = torch.cat([p.detach().flatten() for p in module.parameters()])
    gradient = torch.func.grad(loss)
    _, product = torch.func.vjp(gradient, x)
    H = torch.func.vmap(lambda v: product(v)[0], chunk_size=64)(torch.eye(len(x), dtype=torch.float64))
    values = torch.linalg.eigvalsh(H)
    return float(values.sum() / values.abs().max())


@pytest.mark.thorough
def test_the_example_prints_an_interval_that_holds_and_draws_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = re.match(r"κ = ([\d.]+), 95 % interval ([\d.]+) \.\. ([\d.]+) \(\d+ products\)\n", done.stdout)
    assert shown is not None
    kappa, low, high = map(float, shown.groups())
    assert low < kappa < high < 1.2 * low
    assert low <= kappa_of_dense_hessian() <= high
    assert (tmp_path / "kappa.png").stat().st_size > 10_000
