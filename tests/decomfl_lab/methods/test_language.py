"""Federations that fine-tune causal models by scalars alone: the laws of replicas hold for them as for any module."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab.estimators.differences import central
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution, Format, direction
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective, mean_losses
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import LowPrecision, Momentum, Sgd, UpdateRule
from tests.cases import sampled
from tests.decomfl_lab.language.tiny import ARCHITECTURES, answers, prompts

M, B = 3, 6
RULES: dict[str, UpdateRule] = {
    "sgd": Sgd(),
    "momentum": Momentum(0.9, weight_decay=1e-3),
    "bfloat16": LowPrecision(Sgd(), Format.BFLOAT16, "stochastic"),
    "float16": LowPrecision(Sgd(), Format.FLOAT16, "compensated"),
}


def _objective(module: nn.Module, i: int) -> ModuleObjective:
    ids = prompts(B, 9, seed=i)
    return ModuleObjective(module, Layout.of(module), cross_entropy, ids, ids[:, -1] % 2, EpochBatches(B, 4, (0, i)))


def federation(module: nn.Module, rule: UpdateRule, *, K: int, lean: bool = False) -> tuple[Server, list[Client]]:
    x = Layout.of(module).flatten(module)
    if isinstance(rule, LowPrecision):
        x = x.to(getattr(torch, rule.dtype))
    clients = [Client(i, Replica(x, rule), _objective(module, i), central, 1e-3, lean=lean) for i in range(M)]
    server = Server(M=M, m=2, K=K, P=Schedule(2), eta=Schedule(1e-2), seed=0, replica=Replica(x, rule))
    return server, clients


def run(server: Server, clients: list[Client], rounds: int) -> list[np.ndarray]:
    """The scalars that were sent."""
    sent = []
    for _ in range(rounds):
        replies = [clients[i].handle(plan) for i, plan in server.plan_round().items()]
        sent += [reply.scalars for reply in replies]
        server.aggregate(replies)
    return sent


@pytest.mark.parametrize("rule", sampled(["sgd", "bfloat16", "float16"], 1))
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_layer_at_a_time_measures_what_the_whole_point_does(kind: str, rule: str) -> None:
    """To the rounding of losses around 0.7 in float32, over 2μ = 2e-3, also where the model has 16 bits."""
    dense, lean = (run(*federation(answers(kind), RULES[rule], K=2, lean=lean), 2) for lean in (False, True))
    assert np.allclose(dense, lean, rtol=0, atol=2e-4)
    assert np.abs(dense).max() > 0.02


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_loss_along_a_direction_is_that_of_the_moved_model(kind: str) -> None:
    module = answers(kind)
    layout = Layout.of(module)
    x = layout.flatten(module)
    objective = _objective(module, 0)
    along = objective.along(x, 0, 5, 1, 1e-2, Distribution.GAUSSIAN)
    layout.bind(module, x + 1e-2 * torch.from_numpy(direction(5, 1, layout.d)))
    moved = mean_losses(module, [cross_entropy], *objective.batch(0))[0]
    assert along == pytest.approx(moved, rel=1e-6)
    assert abs(along - objective(x, 0)) > 1e-4
