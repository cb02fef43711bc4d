"""One process of a data-parallel operator: python -m tests.hessian.operators.distributed_worker RANK WORLD FOLDER."""

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab.errors import InputError
from hessian import DataParallelOperator, GaussNewtonOperator, HessianOperator, MeanLoss, effective_rank
from tests.hessian import problems

CUT = 5
"""Examples of the first process; the second has the rest."""


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder / 'rendezvous'}", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    inputs, targets = problems.data()
    rows = slice(0, CUT) if rank == 0 else slice(CUT, None)
    f = MeanLoss(problems.mlp(nn.ReLU), cross_entropy, [(inputs[rows], targets[rows])])
    v = torch.linspace(-1, 1, f.d, dtype=torch.float64)
    result: dict[str, Any] = {}
    for kind in (HessianOperator, GaussNewtonOperator):
        operator = DataParallelOperator(kind(f), weight=f.weight)
        result[kind.name] = (operator.matvec(v), operator.quad(v), operator.fingerprint())
    result["kappa"] = effective_rank(
        DataParallelOperator(HessianOperator(f), weight=f.weight), products=20, seed=3
    ).kappa
    mine = (HessianOperator, GaussNewtonOperator)[rank]
    try:
        DataParallelOperator(mine(f), weight=f.weight)
    except InputError as error:
        result["refusal"] = str(error)
    torch.save(result, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
