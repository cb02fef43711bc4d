"""An engine on probation: faults that its first answers show, what takes its place, and how little that costs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import decomfl_lab as lab
from decomfl_lab import InputError, Sgd
from decomfl_lab.engines import threads, tried
from decomfl_lab.engines.base import Engine, Line, SampleLoss, Serial
from decomfl_lab.engines.batched import Batched
from decomfl_lab.engines.registry import make_engine
from decomfl_lab.engines.tried import Tried
from decomfl_lab.estimators.differences import Point, Values
from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.batch_loss import BatchLoss
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.replicas.replica import Replica
from tests.nets import Around, seeded

_generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(20, 4, generator=_generator), torch.randint(3, (20,), generator=_generator)
POINTS: list[Point] = [(0, 1e-3), (0, -1e-3), (1, 1e-3)]


def net() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))  # type: ignore[no-any-return]


def branching() -> nn.Module:
    """It takes a tensor's value in an ``if``, which no vmap can."""
    return Around(net(), after=lambda z: z if z.sum() > -1e9 else -z)


def problem(module: nn.Module) -> tuple[Line, list[SampleLoss]]:
    """A line from the module's parameters, and the losses of two clients."""
    layout = Layout.of(module)
    line = Line(Replica(layout.flatten(module), Sgd()), 5, Distribution.GAUSSIAN)
    loss = BatchLoss.of(cross_entropy)
    first = ModuleObjective(module, layout, loss, X, Y, EpochBatches(10, 10, (0,)), torch.arange(10))
    return line, [(first, 0), (first.of(torch.arange(10, 20), EpochBatches(10, 10, (1,))), 0)]


def losses(engine: Engine, module: nn.Module | None = None) -> Values:
    line, samples = problem(net() if module is None else module)
    return engine.losses(line, POINTS, samples)


def gradients(engine: Engine, module: nn.Module | None = None) -> tuple[Values, Tensor]:
    line, samples = problem(net() if module is None else module)
    return engine.gradients([line.x, line.x], samples)


class Wrong(Serial):
    """Serial, whose losses and gradients go through a fault; it counts its calls."""

    def __init__(self, of_losses: Callable[[Any], Any] = lambda v: v, of_slopes: Any = lambda g: g) -> None:
        super().__init__()
        self.of_losses, self.of_slopes, self.calls, self.released = of_losses, of_slopes, 0, False

    def losses(self, line: Line, points: Sequence[Point], samples: Sequence[SampleLoss]) -> Any:
        self.calls += 1
        return self.of_losses(super().losses(line, points, samples))

    def gradients(self, points: Sequence[Tensor], samples: Sequence[SampleLoss]) -> Any:
        values, slopes = super().gradients(points, samples)
        return self.of_losses(values), self.of_slopes(slopes)

    def release(self) -> None:
        self.released = True


def _last(values: Any) -> Any:
    values[-1] = 1.01 * values[-1]
    return values


FAULTS: dict[str, Callable[[Any], Any]] = {
    "one per cent more": lambda values: 1.01 * values,
    "one per cent less": lambda values: 0.99 * values,
    "the last client's alone": _last,
    "clients exchanged": lambda values: values[::-1].copy(),
    "a sum for a mean": lambda values: 10 * values,
    "nothing": lambda values: 0 * values,
}


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["auto", "threads"])
@pytest.mark.parametrize("fault", FAULTS)
def test_losses_that_are_not_the_plain_ones_are_caught(fault: str, name: str) -> None:
    with pytest.raises(InputError, match=rf"engine must give the losses of the module .* plain does, got .* by {name}"):
        losses(Tried(Wrong(FAULTS[fault]), name))


@pytest.mark.parametrize("factor", [1.01, 0.99, 0.0, 10.0])
def test_gradients_of_another_size_are_caught(factor: float) -> None:
    with pytest.raises(InputError, match="engine must give the gradients of the module"):
        gradients(Tried(Wrong(of_slopes=lambda slopes: factor * slopes), "auto"))


@pytest.mark.parametrize("fault", [lambda v: v, lambda v: (1 + 1e-5) * v, lambda v: v + 1e-7])
def test_what_rounding_explains_passes_and_is_given_as_it_is(fault: Callable[[Any], Any]) -> None:
    found = losses(Tried(Wrong(fault), "auto"))
    assert np.array_equal(found, fault(losses(Serial())))


@pytest.mark.parametrize("name", ["auto", "threads", "batched", "plain", "serial"])
def test_the_labs_engines_pass_their_probation(name: str) -> None:
    engine = Tried(make_engine(name), name)
    assert np.allclose(torch.as_tensor(losses(engine)), losses(Serial()), rtol=1e-5)
    assert torch.allclose(gradients(engine)[1], gradients(Serial())[1], atol=1e-5)


def test_the_comparison_is_what_catches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: with a tolerance of 2 % what is 1 % off passes."""
    monkeypatch.setattr(tried, "AGREES", 0.02)
    losses(Tried(Wrong(FAULTS["one per cent more"]), "auto"))


# --- what an engine cannot do -----------------------------------------------------------------------------------------


def test_where_vmap_fails_serial_takes_the_place_of_an_automatic_engine_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Tried(Batched(), "auto")
    with caplog.at_level(logging.INFO, "decomfl_lab"):
        found = losses(engine, branching())
    assert isinstance(engine.engine, Serial)
    assert "evaluated by the engine serial" in caplog.text
    assert np.array_equal(found, losses(Serial(), branching()))
    assert torch.equal(gradients(engine, branching())[1], gradients(Serial(), branching())[1])


@pytest.mark.parametrize("ask", [losses, gradients])
def test_where_vmap_fails_an_engine_that_was_asked_for_is_refused_by_name(ask: Callable[..., Any]) -> None:
    with pytest.raises(
        InputError, match=r"engine must be one that takes this model and loss, .*got batched \("
    ) as error:
        ask(Tried(Batched(), "batched"), branching())
    assert "\n" not in str(error.value)


# --- in a run ---------------------------------------------------------------------------------------------------------


def _one_per_cent(monkeypatch: pytest.MonkeyPatch) -> None:
    right = threads.mean_losses
    monkeypatch.setattr(threads, "mean_losses", lambda *args: tuple(1.01 * value for value in right(*args)))


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_a_run_whose_engine_is_off_is_stopped_in_its_first_round(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _one_per_cent(monkeypatch)
    with pytest.raises(InputError, match=f"engine must give the losses of the module .* by {engine}"):
        lab.train(net(), cross_entropy, [(X, Y)], rounds=1, engine=engine)


def test_a_run_on_trust_has_no_probation(monkeypatch: pytest.MonkeyPatch) -> None:
    _one_per_cent(monkeypatch)
    on_trust = lab.train(net(), cross_entropy, [(X, Y)], rounds=1, engine="threads", trust=True)
    plain = lab.train(net(), cross_entropy, [(X, Y)], rounds=1, engine="serial")
    assert on_trust.metrics.train_loss.iloc[0] == pytest.approx(1.01 * plain.metrics.train_loss.iloc[0], rel=1e-4)


def test_a_run_with_a_model_that_vmap_cannot_take_is_trained_automatically_and_refused_where_asked() -> None:
    assert lab.train(branching(), cross_entropy, [(X, Y)], rounds=2).verify()
    with pytest.raises(InputError, match="engine must be one that takes this model and loss"):
        lab.train(branching(), cross_entropy, [(X, Y)], rounds=1, engine="batched")
