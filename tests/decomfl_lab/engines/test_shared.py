"""Shared products along low-rank directions: the losses of points that are formed one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.engines import shared
from decomfl_lab.engines.base import Engine, Line, Serial
from decomfl_lab.engines.batched import Batched
from decomfl_lab.engines.registry import make_engine
from decomfl_lab.engines.shared import Shared
from decomfl_lab.estimators.differences import Point, central, forward
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import build_model
from decomfl_lab.noise import Distribution, LowRank
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Sgd
from tests.decomfl_lab.language.tiny import answers, prompts

TOLERANCE = 3e-6
"""Of losses of about 2.3: some 13 roundings to float32."""


def objective(module: nn.Module, inputs: Tensor, targets: Tensor) -> ModuleObjective:
    return ModuleObjective(module, Layout.of(module), cross_entropy, inputs, targets, EpochBatches(6, 6, (0,)))


def images(model: str) -> ModuleObjective:
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(6, 1, 28, 28, generator=generator), torch.arange(6) % 10
    return objective(build_model(model, seed=0, in_shape=(1, 28, 28), classes=10), inputs, targets)


def text() -> ModuleObjective:
    inputs = torch.arange(6 * 12).view(6, 12) % 11
    module = build_model("gpt-tiny-tied", seed=0, in_shape=(12,), classes=11)
    return objective(module, inputs, inputs.roll(-1, 1))


def language() -> ModuleObjective:
    return objective(answers("opt"), prompts(6, 9), torch.arange(6) % 2)


def line(of: ModuleObjective, rank: int = 1, *, dtype: torch.dtype = torch.float32, **options: Any) -> Line:
    x = of.layout.flatten(of.module).to(dtype)
    return Line(Replica(x, Sgd(), **options), 5, LowRank(of.layout.shapes, rank))


def losses(engine: Engine, at: Line, points: list[Point], own: ModuleObjective) -> np.ndarray:
    return np.asarray(engine.losses(at, points, [(own, 0)]))


CASES = {
    "mlp": lambda: images("mlp"),
    "cnn-mnist": lambda: images("cnn-mnist"),
    "gpt": text,
    "opt": language,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rank", [1, 3])
def test_losses_are_those_of_points_that_are_formed(case: str, rank: int) -> None:
    own = CASES[case]()
    at = line(own, rank)
    points = [*central.points(3, 0.01), *forward.points(2, 0.05)]
    found, wanted = (losses(engine, at, points, own) for engine in (Shared(), Serial()))
    assert np.ptp(wanted) > 100 * TOLERANCE
    assert np.abs(found - wanted).max() < TOLERANCE


@pytest.mark.parametrize("function", ["_linear", "_embedding", "_moved"])
def test_a_term_left_out_is_seen(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = text()
    at, points = line(own), central.points(3, 0.01)
    wanted = losses(Serial(), at, points, own)
    plain = {
        "_linear": lambda _, h, w, bias: nn.functional.linear(h, w, bias),
        "_embedding": lambda _, rows, w: nn.functional.embedding(rows, w),
        "_moved": lambda _, w: w,
    }
    monkeypatch.setattr(shared._Beside, function, plain[function])
    assert np.abs(losses(Shared(), at, points, own) - wanted).max() > 10 * TOLERANCE


def test_clients_and_groups_of_points_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = images("mlp"), images("mlp")
    second.data = (second.data[0].flip(0), second.data[1])
    at, points = line(first, 2), central.points(4, 0.01)
    together = Shared().losses(at, points, [(first, 0), (second, 0)])
    monkeypatch.setattr("decomfl_lab.engines.batched.ON_CPU", 1 << 18)
    alone = [losses(Shared(), at, points, own) for own in (first, second)]
    assert np.abs(np.concatenate(alone) - np.asarray(together)).max() < TOLERANCE
    assert np.abs(alone[0] - alone[1]).max() > 100 * TOLERANCE


def test_no_matrix_of_points_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    own, made = images("mlp"), []
    right = shared.form_points_
    monkeypatch.setattr(shared, "form_points_", lambda *at, **more: (made.append(at[0].shape), right(*at, **more)))
    at = line(own)
    Shared().losses(at, central.points(4, 0.01), [(own, 0)])
    assert made == [(4, at.distribution.factors)]
    assert at.distribution.factors < at.x.numel() / 20


def test_auto_shares_where_all_layers_are_linear_and_directions_low_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(Shared, "losses", lambda *_: used.append(True))
    linear, convolutions = images("mlp"), images("cnn-mnist")
    make_engine("auto").losses(line(linear), forward.points(1, 0.1), [(linear, 0)])
    assert used == [True]
    make_engine("auto").losses(line(convolutions), forward.points(1, 0.1), [(convolutions, 0)])
    gaussian = Line(line(linear).replica, 5, Distribution.GAUSSIAN)
    make_engine("auto").losses(gaussian, forward.points(1, 0.1), [(linear, 0)])
    assert used == [True]


def test_other_directions_are_formed_as_batched_does() -> None:
    own = images("mlp")
    at, points = Line(line(own).replica, 5, Distribution.RADEMACHER), central.points(2, 0.01)
    found, wanted = (engine.losses(at, points, [(own, 0)]) for engine in (Shared(), Batched()))
    assert torch.equal(found, wanted)
