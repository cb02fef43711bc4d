"""A small run, and ways to train by scalars: each is replayed from its log, goes on by it, survives being killed."""

from typing import Any

from decomfl_lab.runs.configuration import TrainConfig
from tests.cases import rows_of

SMALL = TrainConfig(data="digits", model="logistic", clients=4, sampled=2, rounds=4, eval_every=2)
"""A run of no time."""

ROWS = rows_of(__file__)
OTHERS = ROWS["others"]
VARIANTS: list[dict[str, Any]] = [
    *ROWS["variants"],
    {"log_kappa": True, "perturbation_schedule": {}},
    {"perturbation_schedule": {3: 5}, "lr_schedule": {4: 0.005}},
]
