"""Two processes, each with a part of the data, against one with all of them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hessian import GaussNewtonOperator, HessianOperator, MeanLoss, effective_rank
from tests.hessian import problems

ROOT = Path(__file__).parents[3]


@pytest.mark.thorough
def test_two_processes_make_the_products_of_one_and_agree_to_the_bit(tmp_path):
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.hessian.operators.distributed_worker", str(rank), "2", str(tmp_path)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], errors

    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    f = MeanLoss(problems.mlp(nn.ReLU), cross_entropy, [problems.data()])
    v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
    for kind in (HessianOperator, GaussNewtonOperator):
        product, form, fingerprint = first[kind.name]
        assert torch.equal(product, second[kind.name][0])
        assert (form, fingerprint) == second[kind.name][1:]
        # 5 of 12 examples weigh 5/12: two halves would be off by far more than rounding
        torch.testing.assert_close(product, kind(f).matvec(v), rtol=1e-12, atol=1e-14)
        assert form == pytest.approx(kind(f).quad(v), rel=1e-12)
    assert first["kappa"] == second["kappa"]
    assert first["kappa"] == pytest.approx(effective_rank(HessianOperator(f), products=20, seed=3).kappa, rel=1e-9)
    assert first["refusal"] == second["refusal"]
    assert first["refusal"].startswith("operators of all processes must have one name, dimension and dtype, got")
