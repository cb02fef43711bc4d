"""``examples/kappa.py`` is short, runs as it stands, and its interval holds the κ of the dense Hessian."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from hessian import MeanLoss
from tests.hessian.problems import dense_hessian

EXAMPLE = Path(__file__).parents[2] / "examples" / "kappa.py"


def kappa_of_dense_hessian() -> float:
    """tr(H)/‖H‖₂ in float64."""
    spec = importlib.util.spec_from_file_location("examples_kappa", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with torch.random.fork_rng(devices=[]):
        module = example.trained().double()
        batches = list(example.loader())
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    f = MeanLoss(module, cross_entropy, [(images.double(), labels)])
    values = torch.linalg.eigvalsh(dense_hessian(f, module, images.double(), labels))
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
