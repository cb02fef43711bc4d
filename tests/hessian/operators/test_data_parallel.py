"""One operator over two processes, each with a part of the data, is that of all data."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import hessian
from decomfl_lab import InputError
from hessian import GaussNewtonOperator, HessianOperator, MeanLoss, effective_rank
from tests.hessian import problems

KINDS = (HessianOperator, GaussNewtonOperator)


def one_of_two(rank: int, folder: Path) -> None:
    """A process that has 5 examples, or the other 7: products, forms, κ, and what is said of unlike operators."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder / 'rendezvous'}", rank=rank, world_size=2, timeout=limit)
    inputs, targets = problems.data()
    rows = slice(0, 5) if rank == 0 else slice(5, None)
    f = MeanLoss(problems.mlp(nn.ReLU), cross_entropy, [(inputs[rows], targets[rows])])
    v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
    both = {kind.name: hessian.DataParallelOperator(kind(f), weight=f.weight) for kind in KINDS}
    result: dict[str, Any] = {name: (own.matvec(v), own.quad(v), own.fingerprint()) for name, own in both.items()}
    result["kappa"] = effective_rank(both["hessian"], products=20, seed=3).kappa
    with pytest.raises(InputError) as caught:
        hessian.DataParallelOperator(KINDS[rank](f), weight=f.weight)
    torch.save({**result, "refusal": str(caught.value)}, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.thorough
def test_two_processes_make_the_products_of_one_and_agree_to_the_bit(tmp_path):
    torch.multiprocessing.spawn(one_of_two, (tmp_path,), nprocs=2)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in range(2))
    f = MeanLoss(problems.mlp(nn.ReLU), cross_entropy, [problems.data()])
    v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
    for kind in KINDS:
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
