"""A small run, and ways to train by scalars: each is replayed from its log, goes on by it, survives being killed."""

from typing import Any

import torch
from torch import nn

from decomfl_lab.runs.configuration import TrainConfig
from tests.cases import rows_of

SMALL = TrainConfig(data="digits", model="logistic", clients=4, sampled=2, rounds=4, eval_every=2)
"""A run of no time."""

x = torch.randn(120, 6, generator=torch.Generator().manual_seed(1))
y = (x[:, 0] > 0).long()
PAIRS = list(zip(x[:100].split(20), y[:100].split(20), strict=True))
"""Five clients."""
HELD = x[100:], y[100:]
OPTIONS: dict[str, Any] = {"sampled": 2, "lr": 0.05, "batch_size": 8, "eval_every": 3, "seed": 4}


def net() -> nn.Module:
    """A model of one's own, of 47 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


ROWS = rows_of(__file__)
OTHERS = ROWS["others"]
VARIANTS: list[dict[str, Any]] = [
    *ROWS["variants"],
    {"log_kappa": True, "perturbation_schedule": {}},
    {"perturbation_schedule": {3: 5}, "lr_schedule": {4: 0.005}},
]
