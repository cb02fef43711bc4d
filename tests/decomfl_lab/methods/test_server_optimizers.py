"""FedAdagrad, FedAdam, FedYogi: the server's steps against the recursion written out, resumed, and refused."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import decomfl_lab as lab
from decomfl_lab import Run, TrainConfig
from decomfl_lab.federations.averaging import SERVER_OPTIMIZERS, FedAvgFederation, ServerOptimizer
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.runs.folder import CHECKPOINT_FILE
from decomfl_lab.runs.run import load_run
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from tests.cases import refuses, rows_of

SMALL: dict[str, Any] = {
    "data": "digits", "model": "logistic", "clients": 5, "sampled": 3, "rounds": 6, "eval_every": 3, "batch_size": 32,
}  # fmt: skip


class Drifting:
    """A client whose model ends a known way from the server's."""

    def __init__(self, way: list[float]) -> None:
        self.way, self.steps_taken = torch.tensor(way, dtype=torch.float64), 0

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        self.steps_taken += K
        return x + self.way / self.steps_taken, 0.0


def test_each_server_optimizer_is_the_recursion_of_the_paper() -> None:
    ways, lr, b1, b2, tau = ([0.5, -0.25, 0.0], [1.5, 0.25, 1e-4]), 0.1, 0.9, 0.99, 1e-3
    setting: Any = SimpleNamespace(x=torch.zeros(3, dtype=torch.float64), sampled=2, seed=0, present=Schedule(2))
    for name in SERVER_OPTIMIZERS:
        server = ServerOptimizer(name=name, lr=lr, beta1=b1, beta2=b2, tau=tau)
        federation = FedAvgFederation(setting, list(map(Drifting, ways)), K=1, eta=Schedule(1.0), optimizer=server)
        x, m, v = [0.0] * 3, [0.0] * 3, [tau**2] * 3
        for r in range(5):
            federation.advance()
            for j in range(3):
                delta = (ways[0][j] + ways[1][j]) / 2 / (r + 1)
                m[j] = b1 * m[j] + (1 - b1) * delta
                sign = math.copysign(1, v[j] - delta**2)
                v[j] = {
                    "sgd": 0.0,
                    "adagrad": v[j] + delta**2,
                    "adam": b2 * v[j] + (1 - b2) * delta**2,
                    "yogi": v[j] - (1 - b2) * delta**2 * sign,
                }[name]
                x[j] += lr * delta if name == "sgd" else lr * m[j] / (math.sqrt(v[j]) + tau)
        assert federation.x.tolist() == pytest.approx(x, rel=1e-12), name


@refuses(
    (lambda own: own.pop("server.v"), "checkpoint must have server.v, which the server keeps"),
    (lambda own: own["server.v"].neg_(), "server.v of the checkpoint must be finite numbers"),
    (lambda own: own.update({"server.m": torch.zeros(3)}), "server.m of the checkpoint must be torch.float64"),
)
def test_a_checkpoint_without_what_the_server_keeps_is_refused(damage: Any, tmp_path: Path) -> None:
    Run(TrainConfig("fedavg", **SMALL, server_optimizer="adam")).train(out=tmp_path)
    tensors, values = read_checkpoint(tmp_path / CHECKPOINT_FILE)
    tensors = {name: each.clone() for name, each in tensors.items()}
    damage(tensors)
    write_checkpoint(tmp_path / CHECKPOINT_FILE, tensors, values)
    load_run(tmp_path)


@refuses(*rows_of(__file__)["refused"])
def test_values_out_of_range_or_of_no_use_are_refused(options: dict[str, Any]) -> None:
    lab.FedAvg(**options)


def test_files_of_runs_with_the_plain_mean_are_as_before() -> None:
    assert not [name for name in TrainConfig("fedavg").to_dict() if name.startswith("server")]
    assert TrainConfig("fedavg", server_optimizer="adam").to_dict()["server_optimizer"] == "adam"
