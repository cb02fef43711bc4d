"""How much memory a server and a client really need, in models of d parameters: the paper's memory table, measured.

Every row is measured in a process of its own, which first does a round of a small model, so that all code and
workspaces are there. It then prepares the role; a fork of it, whose peaks begin at what is held, does the round:

    peak = VmPeak after the round − VmSize before there was a model        (Linux, /proc/self/status)

Nothing is sampled. The allocator maps every block of ``_BLOCK`` bytes or more by itself and unmaps it when it is freed
(glibc's MALLOC_MMAP_THRESHOLD_), so the peak counts the vectors that live at once, of torch, numpy and numba alike, to
the page of 4 KiB, also where a model is smaller than what an interpreter's resident memory varies by. Resident memory
(VmHWM) can be measured beside it, as a check by other means, for models of 16 MB and more.
"""

import json
import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from decomfl_lab.engines.base import Serial
from decomfl_lab.errors import InputError, require_choice, require_int, require_possible
from decomfl_lab.estimators.differences import forward
from decomfl_lab.layout import Layout
from decomfl_lab.methods.fedzo import FedZO, FedZOClient
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.processes import environment
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Reply
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.registry import make_replica
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import GridSgd, Momentum, Sgd, UpdateRule
from decomfl_lab.storage.tables import table_beside

_LAYERS = 8
"""Layers of the model, all of one size: φ = d/8."""
_BLOCK = 1 << 14
"""Bytes from which the allocator maps a block by itself."""
_WARM = 100_000
"""Parameters of the model that every role is tried on before it is measured."""

ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(_BLOCK),
    "MALLOC_TOP_PAD_": "0",  # the heap of the smaller ones grows by no more than it needs
    "PYTHONMALLOC": "malloc",  # Python's own arenas are mappings too
    "OMP_NUM_THREADS": "1",  # threads have stacks, and a process with threads cannot be forked
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}

_LAW = Distribution.RADEMACHER
"""The directions that are made fastest; none needs memory."""

_FORKS = multiprocessing.get_context("fork")

Round = Callable[[], object]


@dataclass(frozen=True)
class Role:
    """A side of the protocol whose memory is measured."""

    what: str  # words that say who it is, and which vectors live at the peak
    # makes of a module the round to be measured, which holds what the role holds between rounds
    prepare: Callable[[nn.Module], Round]
    vectors: int  # number of vectors of d elements that live at the peak
    layers: int = 0  # number of layers of φ elements that live at the peak


def _server(module: nn.Module, *, with_model: bool) -> Round:
    replica = None
    if with_model:
        layout = Layout.of(module)
        replica = Replica(layout.flatten(module), Sgd())
        layout.bind(module, replica.x)  # the module's own weights go
    server = Server(M=4, m=4, K=2, P=Schedule(1), eta=Schedule(0.01), seed=0, replica=replica)

    def round_() -> None:
        plans = server.plan_round()
        scalars = np.ones((2, 1), dtype=np.float32)
        server.aggregate(Reply(i, plan.round, scalars) for i, plan in plans.items())

    return round_


def _objective(module: nn.Module) -> ModuleObjective:
    width = next(module.parameters()).shape[1]
    inputs, targets = torch.ones(1, width), torch.zeros(1, width)
    return ModuleObjective(module, Layout.of(module), nn.functional.mse_loss, inputs, targets, EpochBatches(1, 1, (0,)))


def _client(module: nn.Module, *, rule: UpdateRule, K: int, lean: bool = False, corrected: bool = False) -> Round:
    x = Layout.of(module).flatten(module)
    replica = make_replica(rule.begin(x), rule, corrected=corrected)
    objective = _objective(module)
    objective.layout.bind(module, replica.x)  # the module's own weights go
    client = Client(0, replica, objective, forward, 1e-3, lean=lean)
    server = Server(M=1, m=1, K=K, P=Schedule(1), eta=Schedule(1e-6), seed=0, distribution=_LAW)
    server.plan_round()
    server.aggregate([Reply(0, 0, np.ones((K, 1), dtype=np.float32))])

    def round_() -> None:  # rebuilds round 0, measures round 1, and corrects that where it was not reverted
        server.aggregate([client.handle(server.plan_round()[0])])
        if corrected:
            client.replica.catch_up(server.plan_round()[0].records)

    return round_


def _fedzo(module: nn.Module) -> Round:
    objective = _objective(module)
    method = FedZO(rule=Sgd(), perturbations=1, mu=1e-3, estimator="forward", distribution=_LAW)
    client = FedZOClient(0, objective, method, seed=0, engine=Serial())
    x = _sent(module)

    def round_() -> object:
        trained, _ = client.train(x, 1e-6, 2)
        return trained - x  # the update that is sent up

    return round_


def _fedavg(module: nn.Module, *, kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> Round:
    objective, loss = _objective(module), nn.functional.mse_loss
    x = _sent(module)
    optimizer = kind(module.parameters(), lr=1e-6, foreach=False)

    def round_() -> object:  # as one would write it, with gradients where torch leaves them
        trained = x.clone()
        objective.layout.bind(module, trained)
        for _ in range(2):
            optimizer.zero_grad()
            loss(module(objective.inputs), objective.targets).backward()
            optimizer.step()
        optimizer.zero_grad()
        return trained - x

    round_()  # it has taken part before, and keeps what its optimizer noted
    objective.layout.bind(module, x)
    return round_


def _sent(module: nn.Module) -> torch.Tensor:
    """What the server sent, of which the module's own weights are views."""
    layout = Layout.of(module)
    x = layout.flatten(module)
    layout.bind(module, x)
    return x


_PREPARE: dict[str, Callable[..., Round]] = {
    "server": _server,
    "client": _client,
    "fedzo": _fedzo,
    "fedavg": _fedavg,
}
"""What prepares a role, by its name in the table."""
_OPTIONS: dict[str, Any] = {
    "sgd": Sgd(),
    "momentum": Momentum(0.9),
    "grid": GridSgd(-20),
    "torch-momentum": partial(torch.optim.SGD, momentum=0.9),
    "torch-adam": torch.optim.Adam,
}
"""The rules and optimizers by their names in the table."""


_HERE = "decomfl_lab.methods.memory"  # also where it is run by itself
ROLES: dict[str, Role] = {}
for _name, _row in table_beside(_HERE, "memory.toml").items():
    _own = {key: value for key, value in _row.items() if key in ("what", "vectors", "layers")}
    _more = {key: _OPTIONS.get(value, value) for key, value in _row.items() if key not in (*_own, "prepare")}
    ROLES[_name] = Role(prepare=partial(_PREPARE[_row["prepare"]], **_more), **_own)


def _model(d: int) -> nn.Module:
    """Eight linear layers of one size with about d parameters in all."""
    width = max(round((d / _LAYERS) ** 0.5), 1)
    layers = [nn.utils.skip_init(nn.Linear, width, width, bias=False) for _ in range(_LAYERS)]
    for layer in layers:
        nn.init.constant_(layer.weight, 1 / width)
    return nn.Sequential(*layers)


def _measure(name: str, d: int) -> dict[str, object]:
    """A row, in a process that is thrown away after it."""
    role = ROLES[name]
    role.prepare(_model(_WARM))()  # a fork has yet to map the code
    # Blocks that take all gaps of the heap that are large enough for one: the next is mapped, while these are held.
    ballast: list[torch.Tensor] = []
    before = status_bytes("VmSize")
    while before is not None and status_bytes("VmSize") == before:
        ballast.append(torch.empty(_BLOCK, dtype=torch.uint8))
    mapped = status_bytes("VmSize")
    module = _model(d)
    sizes = [p.numel() for p in module.parameters()]
    round_ = role.prepare(module)
    del module

    def mapped_peak() -> int | None:
        round_()
        return status_bytes("VmPeak")

    peak = _forked(mapped_peak)
    above = None if peak is None or mapped is None else peak - mapped
    del ballast
    d, share = sum(sizes), max(sizes) / sum(sizes)
    models = None if above is None else above / (4 * d)
    expected = role.vectors + role.layers * share
    peaks = {"peak_bytes": above, "models": models}
    return {"role": name, "d": d, **peaks, "phi_share": share, "expected": expected}


def _forked(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a fork of this process; InputError if it does not end well."""
    reader, writer = _FORKS.Pipe(duplex=False)
    child = _FORKS.Process(target=lambda: writer.send(work()))
    child.start()
    writer.close()
    with suppress(EOFError):
        answer = reader.recv()
    child.join()
    if child.exitcode:
        raise InputError(f"a measurement must end well, but ended with status {child.exitcode}")
    return answer


def main(arguments: Sequence[str]) -> None:
    """Print a row as JSON for each ROLE:D; the environment must be that of ``memory_rows``."""
    torch.set_num_threads(1)
    jobs = [argument.split(":") for argument in arguments]
    for name in dict.fromkeys(name for name, _ in jobs):
        ROLES[name].prepare(_model(_WARM))()  # compiled once for all
    for name, d in jobs:
        print(json.dumps(_forked(partial(_measure, name, int(d)))), flush=True)


def memory_rows(
    d: Sequence[int],
    roles: Sequence[str] = tuple(ROLES),
    *,
    program: Sequence[str] = ("-m", _HERE),
) -> Iterator[dict[str, Any]]:
    """Rows for every role at every size, as they are measured: the peak of mapped memory during a role's round.

    A row has role, d, peak_bytes (above the process without a model), models (peak_bytes / 4d), phi_share (φ/d) and
    expected (what the role should need, in models); peaks are None where the system does not tell.

    Args:
        d: Sizes of the model, which has about that many parameters, in eight equal layers.
        roles: Keys of ``ROLES``.
        program: Arguments of Python for a program that calls ``main``.

    Raises:
        InputError: If a role is unknown, a size is not positive, or a process fails.
    """
    for size in d:
        require_possible("d", require_int("d", size, 1), memory=4 * size)
    for role in roles:
        require_choice("role", role, ROLES)
    jobs = [f"{role}:{size}" for size in d for role in roles]
    command = [sys.executable, *program, *jobs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(ENVIRONMENT)) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise InputError(f"measuring {', '.join(jobs)} must end well, but ended with {process.returncode}")


_SMALLEST_PEAK = 16 << 20
"""Bytes of the smallest model whose peak memory is told: below, the process's own pages outweigh it."""


def status_bytes(field: str) -> int | None:
    """Bytes of a field of /proc/self/status, as VmPeak, or VmRSS for what is resident; None where there is no such."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


def peak_of(work: Callable[[], object], model_bytes: int, without_model: int | None) -> float | None:
    """Peak resident memory during ``work`` above that of the process without the model, in models."""
    if without_model is None or model_bytes < _SMALLEST_PEAK:
        return None
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    except OSError:
        return None
    work()
    peak = status_bytes("VmHWM")
    return None if peak is None else (peak - without_model) / model_bytes


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads the rows may go, as where time is over
    main(sys.argv[1:])
