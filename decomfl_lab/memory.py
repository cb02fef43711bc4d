"""How much memory a server and a client really need, in models of d parameters: the paper's memory table, measured.

Each role runs one round in a process of its own. Its peak of resident memory (Linux's VmHWM, reset just before
the round) above what the process held before there was a model is divided by the model's size; the model itself
is in it. Freed memory is given back at once (MALLOC_MMAP_THRESHOLD_), so a peak is one of live memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn

from decomfl_lab.bench import peak_of, resident_bytes
from decomfl_lab.client import Client
from decomfl_lab.errors import InputError, require_choice, require_int
from decomfl_lab.fedavg import FedZOClient
from decomfl_lab.messages import Reply
from decomfl_lab.objective import EpochBatches, ModuleObjective
from decomfl_lab.replica import Layout, Replica
from decomfl_lab.rules import GridSgd, Momentum, Sgd, UpdateRule
from decomfl_lab.schedules import Schedule
from decomfl_lab.server import Server
from decomfl_lab.zo import central

__all__ = ["ROLES", "MemoryRow", "memory_rows"]

_LAYERS = 8
"""Layers of the model, all of one size: φ = d/8."""
_P = 3


def _server(with_model: bool) -> Callable[[nn.Module | None], Callable[[], None]]:
    def prepare(module: nn.Module | None) -> Callable[[], None]:
        replica = None
        if with_model:
            assert module is not None
            layout = Layout.of(module)
            replica = Replica(layout.flatten(module), Sgd())
            layout.bind(module, replica.x)  # the module's own weights go
        server = Server(M=4, m=4, K=2, P=Schedule(_P), eta=Schedule(0.01), seed=0, replica=replica)

        def round_() -> None:
            plans = server.plan_round()
            scalars = np.ones((2, _P), dtype=np.float32)
            server.aggregate(Reply(i, plan.round, scalars) for i, plan in plans.items())

        return round_

    return prepare


def _objective(module: nn.Module) -> ModuleObjective:
    width = next(module.parameters()).shape[1]
    inputs, targets = torch.ones(4, width), torch.zeros(4, width)
    return ModuleObjective(module, Layout.of(module), nn.functional.mse_loss, inputs, targets, EpochBatches(4, 4, (0,)))


def _client(rule: UpdateRule, K: int, *, lean: bool = False) -> Callable[[nn.Module | None], Callable[[], None]]:
    def prepare(module: nn.Module | None) -> Callable[[], None]:
        assert module is not None
        x = Layout.of(module).flatten(module)
        replica = Replica(rule.snap(x) if isinstance(rule, GridSgd) else x, rule)
        del x
        client = Client(0, replica, _objective(module), central, 1e-3, lean=lean)
        client.objective.layout.bind(module, replica.x)  # type: ignore[attr-defined]  # the module's own weights go
        server = Server(M=1, m=1, K=K, P=Schedule(_P), eta=Schedule(1e-6), seed=0)

        def round_() -> None:
            for _ in range(2):  # the second one rebuilds
                server.aggregate([client.handle(server.plan_round()[0])])

        return round_

    return prepare


def _fedzo(module: nn.Module | None) -> Callable[[], None]:
    assert module is not None
    x = Layout.of(module).flatten(module)  # what the server sent
    objective = _objective(module)
    objective.layout.bind(module, x)
    client = FedZOClient(0, objective, central, rule=Sgd(), P=_P, mu=1e-3, seed=0)

    def round_() -> None:
        own, _ = client.train(x, 1e-6, 2)
        _ = own - x  # the update that is sent up

    return round_


ROLES: dict[str, tuple[str, Callable[[nn.Module | None], Callable[[], None]]]] = {
    "server": ("DeComFL server without a model", _server(False)),
    "server-model": ("DeComFL server that keeps the model", _server(True)),
    "client-k1": ("DeComFL client, K = 1: x and the point x + μz", _client(Sgd(), 1)),
    "client": ("DeComFL client, K > 1: x, the point and a snapshot", _client(Sgd(), 2)),
    "client-momentum": ("the same with momentum: state and its snapshot too", _client(Momentum(0.9), 2)),
    "client-lean-k1": ("lean DeComFL client, K = 1: x and a layer", _client(Sgd(), 1, lean=True)),
    "client-lean-grid": ("lean DeComFL client, K > 1, on a grid: x and a layer", _client(GridSgd(-20), 2, lean=True)),
    "fedzo": ("FedZO client: the model sent, its copy, the point, the update", _fedzo),
}
"""Name: (what it is, how to prepare a round)."""


@dataclass(frozen=True)
class MemoryRow:
    """Peak of a role's round.

    Attributes:
        role: A key of ``ROLES``.
        what: In words.
        d: Parameters.
        phi: Parameters of the largest layer.
        peak_models: Peak above the process without a model, in models; None where the system does not tell.
    """

    role: str
    what: str
    d: int
    phi: int
    peak_models: float | None


def _model(d: int) -> nn.Module:
    width = max(round((d / _LAYERS) ** 0.5), 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(_LAYERS)))


def _measure(role: str, d: int) -> MemoryRow:
    what, prepare = ROLES[require_choice("role", role, ROLES)]
    prepare(_model(2_000))()  # compiled and warm before memory is looked at
    without_model = resident_bytes()
    module = _model(d) if role != "server" else None
    sizes = [p.numel() for p in module.parameters()] if module is not None else [d]
    round_ = prepare(module)
    peak = peak_of(round_, 4 * sum(sizes), without_model)
    return MemoryRow(role, what, sum(sizes), max(sizes), peak)


def memory_rows(d: Sequence[int], roles: Sequence[str] = tuple(ROLES)) -> Iterator[MemoryRow]:
    """Rows for every role at every size, each measured in a fresh process.

    Raises:
        InputError: If a role is unknown, a size is not positive, or a process fails.
    """
    for size in d:
        require_int("d", size, 1)
        for role in roles:
            require_choice("role", role, ROLES)
            done = subprocess.run(
                [sys.executable, "-m", "decomfl_lab.memory", role, str(size)],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
            )
            if done.returncode:
                raise InputError(f"measuring {role} at d={size} must end well, but ended with {done.returncode}")
            yield MemoryRow(**json.loads(done.stdout))


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(sys.argv[1], int(sys.argv[2])))))
