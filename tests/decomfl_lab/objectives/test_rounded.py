"""Losses computed in bfloat16 while replicas stay float32."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from decomfl_lab import Sgd, TrainConfig
from decomfl_lab.engines.base import Line, Serial
from decomfl_lab.estimators.differences import central
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.language.finetuning import task_dataset
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution, direction
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective, RoundedObjective
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.runs.preparation import Prepared
from decomfl_lab.runs.run import Run
from tests.cases import refuses, rows_of
from tests.decomfl_lab.language.tiny import answers, prompts
from tests.decomfl_lab.language.toy import put_toy, write_sst2

MU = 0.02


def pair(*, seed: int = 0) -> tuple[ModuleObjective, RoundedObjective]:
    """The same loss in float32 and in bfloat16."""
    module = answers("opt", seed=seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())), alpha=0.2)
    layout, ids = Layout.of(module), prompts(12, 9)
    data = (cross_entropy, ids, ids[:, -1] % 2, EpochBatches(12, 12, (0,)))
    narrow = ModuleObjective(deepcopy(module).bfloat16(), replace(layout, dtype=torch.bfloat16), *data)
    return ModuleObjective(module, layout, *data), RoundedObjective(narrow)


def start(exact: ModuleObjective) -> torch.Tensor:
    return exact.layout.flatten(exact.module)


def test_the_loss_is_that_of_the_rounded_weights() -> None:
    exact, rounded = pair()
    x = start(exact)
    assert rounded(x, 0) == rounded(x.bfloat16().float(), 0)
    with torch.no_grad():
        wanted = cross_entropy(deepcopy(exact.module).bfloat16()(exact.inputs).float(), exact.targets)
    assert rounded(x, 0) == pytest.approx(float(wanted), rel=1e-6)
    assert 1e-5 < abs(rounded(x, 0) - exact(x, 0)) < 0.05
    assert exact(x, 0) != exact(x.bfloat16().float(), 0)


def test_points_are_formed_in_float32_and_then_rounded() -> None:
    exact, rounded = pair()
    x = start(exact)
    assert x.dtype == torch.float32
    line = Line(Replica(x, Sgd()), 5, Distribution.GAUSSIAN)
    found = Serial().losses(line, central.points(2, MU), [(rounded, 0)])[0]
    steps = [torch.from_numpy(direction(5, p, len(x))) * np.float32(c) for p, c in central.points(2, MU)]
    assert found.tolist() == [rounded.narrow((x + step).bfloat16(), 0) for step in steps]
    assert found.tolist() != [rounded.narrow(x.bfloat16() + step.bfloat16(), 0) for step in steps]  # rounded twice


def test_scalars_tend_to_those_of_float32_while_mu_is_above_the_grid_and_vanish_below() -> None:
    exact, rounded = pair()
    line = Line(Replica(start(exact), Sgd()), 5, Distribution.GAUSSIAN)

    def error(mu: float) -> float:
        points = central.points(8, mu)
        g, wanted = (
            central.combine(Serial().losses(line, points, [(task, 0)])[0], np.empty(0), mu).g
            for task in (rounded, exact)
        )
        return float(np.sqrt(np.square(g - wanted).mean() / np.square(wanted).mean()))

    assert error(0.05) < 0.1 < error(1e-3)
    on_grid = Line(Replica(start(exact).bfloat16().float(), Sgd()), 5, Distribution.RADEMACHER)
    small = float(on_grid.x.abs().min()) * 2.0**-10  # of no weight half a step of the grid
    values = Serial().losses(on_grid, central.points(3, small), [(rounded, 0)])[0]
    assert len(set(values)) == 1


@pytest.fixture
def config(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    put_toy(monkeypatch)
    settings = {"clients": 4, "sampled": 2, "perturbations": 10, "rounds": 30, "lr": 0.05, "mu": 0.02, "momentum": 0.0}
    data = str(write_sst2(tmp_path / "sst2"))  # type: ignore[operator]
    return TrainConfig(task="sst2", task_data=data, model="toy", batch_size=8, compute="bfloat16", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("changed", [{}, {"local_steps": 3, "momentum": 0.9}])
def test_replicas_are_float32_and_equal_to_the_bit(config: TrainConfig, changed: dict[str, object]) -> None:
    config = replace(config, **changed)  # type: ignore[arg-type]
    start = Prepared.of(config, task_dataset(config))
    federation, module, layout = start.federation(), start.module, start.layout
    assert isinstance(federation, DeComFLFederation)
    before = federation.observer.digest()
    for _ in range(4):
        federation.advance()
    for client in federation.clients:
        client.replica.catch_up(federation.server.plan_round([client.id])[client.id].records)
        assert client.replica.x.dtype == torch.float32
        assert client.replica.digest() == federation.observer.digest() != before
    x = federation.observer.x
    assert not torch.equal(x, x.bfloat16().float())
    assert layout.dtype == torch.float32
    assert {p.dtype for p in module.parameters()} == {torch.float32}


@pytest.mark.parametrize("method", ["fedzo", "mezo", "baffle"])
def test_every_method_that_needs_losses_alone_can_have_them_so(config: TrainConfig, method: str) -> None:
    one = {"clients": 1, "sampled": 1} if method == "mezo" else {}
    assert np.isfinite(Run(replace(config, method=method, mu=0.02, rounds=2, **one)).train().test_loss).all()  # type: ignore[arg-type]


@refuses(*rows_of(__file__)["refused"])
def test_what_does_not_go_with_it_is_refused(values: dict[str, object]) -> None:
    TrainConfig(**{"task": "sst2", "compute": "bfloat16", **values})  # type: ignore[arg-type]
