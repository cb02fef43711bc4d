"""Engines: the same scalars up to rounding, the same bits for any number of threads."""

import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from benchmarks.round import RoundOptions, round_
from benchmarks.ways.mezo import scalar_error
from benchmarks.ways.step import MU, EngineStep
from decomfl_lab import InputError, Momentum, Sgd, TrainConfig, noise
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.engines import threads
from decomfl_lab.engines.base import Engine, Line, Plain
from decomfl_lab.engines.kernels import cnn as fused
from decomfl_lab.engines.kernels import engine as fused_engine
from decomfl_lab.engines.kernels import tiles
from decomfl_lab.engines.kernels.cnn import Network, pixels
from decomfl_lab.engines.kernels.engine import Fused
from decomfl_lab.engines.registry import ENGINES, make_engine
from decomfl_lab.engines.threads import Threads
from decomfl_lab.estimators.differences import central, forward, projection
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.layout import Layout
from decomfl_lab.methods.hiso import Whitened
from decomfl_lab.models.registry import build_model
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.protocol.client import Client, handle_all
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.runs.preparation import Prepared
from tests.cases import refuses

TOLERANCE = 2.3 * 2.0**-19 / (2 * MU)
"""A loss of 2.3 rounded some 16 times to float32, and divided by 2μ; of scalars whose typical size is about 1."""


REFUSED = "engine must be one of auto, fused, threads, batched, serial, plain, got 'fast'"


def _error(engine: Engine, model: str, batch: int = 20) -> float:
    step = EngineStep(model, batch=batch, clients=2, P=2)
    projected = scalar_error(step.slopes(engine), step.wide_slopes())  # rounding may put a unit across its kink
    return max(scalar_error(step.scalars(engine), step.reference()), projected)


@pytest.mark.parametrize("model", ["cnn-mnist", "cnn-fashion", "mlp", "logistic"])
def test_engines_agree_with_losses_in_float64(model: str) -> None:
    for name in ENGINES:
        assert _error(make_engine(name), model) < TOLERANCE


def _without_a_part(right: Any, self: Network, x: Any, images: Any, labels: Any, *of: Any) -> Any:
    losses, gradient = right(self, x, images, labels, *of)
    gradient *= len(labels) > 1
    return losses, gradient


FAULTS: dict[str, tuple[Any, str, Callable[..., Any], str, bool]] = {
    "directions turned": (
        Line, "form_", lambda right, own, point, p, c, **of: right(own, point, p, -c, **of), "serial", False
    ),
    "a chunk dropped": (
        threads, "mean_losses", lambda right, m, f, x, y, chunk: right(m, f, x[:16], y[:16], chunk), "threads", False
    ),
    "an image dropped": (
        Network, "losses", lambda right, own, x, images, y, of: right(own, x, images[1:], y[1:], of), "fused", False
    ),
    "a part dropped": (Network, "gradient", _without_a_part, "fused", True),
    "a slice missed": (
        noise, "project", lambda right, v, streams, **of: right(v[:, :8192].copy(), streams, **of), "fused", True
    ),
}  # fmt: skip
"""Whose function is another one, the engine that uses it, and whether slopes are measured with it, or scalars."""


@pytest.mark.parametrize("fault", FAULTS)
def test_the_tolerance_catches_planted_faults(fault: str, plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, wrong, name, slopes = FAULTS[fault]
    step = EngineStep("cnn-mnist", batch=20, clients=2, P=2)
    measure, reference = (step.slopes, step.wide_slopes()) if slopes else (step.scalars, step.reference())
    monkeypatch.setattr(fused_engine, "PART", 19)  # of 20 images one is another part
    assert scalar_error(measure(make_engine(name)), reference) < TOLERANCE
    plant(owner, attribute, wrong)
    assert scalar_error(measure(make_engine(name)), reference) > 10 * TOLERANCE


@pytest.mark.parametrize("place", ["0.weight", "0.bias", "3.weight", "7.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_not_finite_has_no_finite_loss(place: str, value: float) -> None:
    module = build_model("cnn-mnist", seed=0, in_shape=(1, 28, 28), classes=10)
    with torch.no_grad():
        module.get_parameter(place).view(-1)[0] = value
    layout = Layout.of(module)
    network = Network(module, layout, (1, 28, 28))
    images = torch.randn(3, 1, 28, 28)
    labels = np.zeros(3, dtype=np.int64)
    found, gradient = network.gradient(layout.flatten(module), pixels(images), labels, network.slopes_workspace())
    assert not np.isfinite(found).any()
    assert not np.isfinite(gradient).all()


def test_narrow_tiles_have_the_bits_of_wide_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow tiles are all that machines without AVX-512 have; the width must not show in a bit."""
    module = build_model("cnn-fashion", seed=0, in_shape=(1, 28, 28), classes=10)
    layout = Layout.of(module)
    images, labels = pixels(torch.rand(3, 1, 28, 28)), np.array([0, 4, 9])

    def found() -> list[bytes]:
        network = Network(module, layout, (1, 28, 28))
        both = network.gradient(layout.flatten(module), images, labels, network.slopes_workspace())
        return [each.tobytes() for each in both]

    wide = found()
    monkeypatch.setattr(fused, "panel", lambda channels: tiles.BLOCK)
    assert found() == wide


class Doubled(nn.Linear):
    """It only looks like a layer that the kernel has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


LINEAR, FROZEN = nn.Linear(4, 4), nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
FROZEN[1].bias.requires_grad_(False)
FLAT = nn.Flatten()


@refuses(
    (nn.Sequential(FLAT, nn.Linear(4, 3), nn.Tanh()), "layer '2' must be Conv2d, MaxPool2d, Flatten, Linear or ReLU"),
    (
        nn.Sequential(nn.Conv2d(1, 2, 1, dilation=2), FLAT, nn.Linear(8, 3)),
        "layer '0' must have one group, no dilation",
    ),
    (nn.Sequential(FLAT, LINEAR, nn.Flatten(), nn.Linear(4, 3)), "layer '2' must be the only one, of all"),
    (nn.Sequential(nn.MaxPool2d(2), FLAT, nn.Linear(1, 3)), "layer '0' must come after Conv2d and before Flatten"),
    (nn.Sequential(nn.Conv2d(1, 3, 2), FLAT), "module must end in a Linear layer"),
    (nn.Sequential(FLAT, Doubled(4, 4)), "layer '1' must be Conv2d"),
    (nn.Sequential(FLAT, LINEAR, LINEAR), "module must hold each layer once"),
    (FROZEN, r"parameters must all be trainable for the fused engine, got \['1.bias'\]"),
    (LINEAR, "module must be a Sequential for the fused engine, got Linear"),
)
def test_nets_that_the_kernel_lacks_are_refused_by_layer(module: nn.Module) -> None:
    Network(module, Layout.of(module), (1, 2, 2))


def _objective(loss: Any = cross_entropy, *, tanh: bool = False, dtype: torch.dtype = torch.float32) -> ModuleObjective:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh() if tanh else nn.ReLU(), nn.Linear(5, 3)).to(dtype)
    targets = torch.randint(3, (20,)) if loss is cross_entropy else torch.randn(20, 3, dtype=dtype)
    inputs = torch.randn(20, 1, 2, 3, dtype=dtype)
    return ModuleObjective(module, Layout.of(module), loss, inputs, targets, EpochBatches(20, 9, (0,)))


def _line(objective: ModuleObjective) -> Line:
    x = torch.linspace(-1, 1, objective.layout.d, dtype=objective.layout.dtype)
    return Line(Replica(x, Sgd()), 5, Distribution.GAUSSIAN)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (_objective(tanh=True), "layer '2' must be Conv2d"),
        (_objective(mse_loss), "loss must be torch's cross_entropy for the fused engine, got"),
        (_objective(dtype=torch.float64), "dtype must be float32 for the fused engine, got torch.float64"),
    ],
)
def test_auto_takes_threads_where_the_kernel_cannot(objective: ModuleObjective, message: str) -> None:
    line, points = _line(objective), central.points(3, 0.1)
    found = make_engine("auto").losses(line, points, [(objective, 1)])
    assert np.array_equal(found, Threads().losses(line, points, [(objective, 1)]))
    with pytest.raises(InputError, match=message):
        Fused().losses(line, points, [(objective, 1)])
    losses, gradients = make_engine("auto").gradients([line.x], [(objective, 1)])
    value, gradient = objective.value_and_gradient(line.x, 1)
    assert (losses[0], gradients[0].numpy().tobytes()) == (value, gradient.numpy().tobytes())
    with pytest.raises(InputError, match=message):
        Fused().gradients([line.x], [(objective, 1)])


@pytest.mark.parametrize("label", [-100, 3])
def test_a_class_that_the_net_lacks_is_refused(label: int) -> None:
    objective = _objective()
    objective.targets[:] = label
    with pytest.raises(InputError, match=r"targets must be classes in 0\.\.2, got"):
        Fused().losses(_line(objective), central.points(1, 0.1), [(objective, 0)])
    with pytest.raises(InputError, match=r"targets must be classes in 0\.\.2, got"):
        make_engine("auto").gradients([_line(objective).x], [(objective, 0)])


@given(st.integers(0, 999), st.integers(1, 1000), st.sampled_from(Distribution), st.sampled_from([Sgd(), Whitened()]))
def test_a_part_of_a_point_has_the_bits_of_the_whole(
    first: int, count: int, distribution: Distribution, rule: Any
) -> None:
    x, stop = torch.linspace(-1, 1, 1000), min(first + count, 1000)
    line = Line(Replica(x, rule), 7, distribution)
    if line.scale is not None:
        line.scale.copy_(x.exp())
    whole, part = torch.empty(2, 1000), torch.empty(2, stop - first)
    line.form_(list(whole), 3, 1e-3)
    line.form_(list(part), 3, 1e-3, first=first)
    assert torch.equal(part, whole[:, first:stop])


def test_threads_leave_torchs_number_of_threads_alone_and_use_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, own, inside = _objective(), torch.get_num_threads(), []
    right = threads.mean_losses

    def watching(*args: Any) -> tuple[float, ...]:
        inside.append((threading.get_ident(), torch.get_num_threads()))
        return right(*args)

    monkeypatch.setattr(threads, "mean_losses", watching)
    Threads(3).losses(_line(objective), central.points(10, 0.1), [(objective, 0)])
    assert torch.get_num_threads() == own
    assert {count for _, count in inside} == {1}
    assert threading.get_ident() not in {thread for thread, _ in inside}


def _federation(engine: Engine, *, K: int = 1, estimator: Any = central, mu: float = 1e-3) -> DeComFLFederation:
    module = build_model("mlp", seed=0, in_shape=(1, 8, 8), classes=10)
    layout, rule = Layout.of(module), Momentum(0.9)
    x, data = layout.flatten(module), load_dataset("digits")
    images, labels = data.train_images, data.train_labels
    clients = [
        Client(
            i,
            Replica(x, rule),
            ModuleObjective(
                module, layout, cross_entropy, images[i::4][:50], labels[i::4][:50], EpochBatches(50, 20, (0, i))
            ),
            estimator,
            mu,
            engine=engine,
        )
        for i in range(4)
    ]
    server = Server(M=4, m=3, K=K, P=Schedule(3), eta=Schedule(0.01), seed=0)
    return DeComFLFederation(server, clients, Replica(x, rule))


@pytest.mark.parametrize(
    ("kind", "K", "estimator"), [*product((Threads, Fused), (1, 3), (central,)), (Fused, 2, projection)]
)
def test_digests_do_not_depend_on_the_number_of_threads(
    kind: type[Threads], K: int, estimator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_engine, "PART", 7)  # several parts a batch
    digests = set()
    for workers in (1, 2, 5):
        federation = _federation(kind(workers), K=K, estimator=estimator)
        for _ in range(5):
            federation.advance()
        digests.add(federation.observer.digest())
        for client in federation.clients:
            client.replica.catch_up(federation.server.plan_round([client.id])[client.id].records)
            assert client.replica.digest() == federation.observer.digest()
    assert len(digests) == 1


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("K", "estimator"), [(1, central), (1, forward), (2, central), (1, projection), (3, projection)]
)
def test_clients_that_measure_together_reply_as_alone(name: str, K: int, estimator: Any) -> None:
    together, alone = (_federation(make_engine(name), K=K, estimator=estimator) for _ in range(2))
    for _ in range(3):
        plans = together.server.plan_round()
        replies = handle_all([together.clients[i] for i in plans], list(plans.values()))
        single = [alone.clients[i].handle(plan) for i, plan in plans.items()]
        for a, b in zip(replies, single, strict=True):
            assert (a.client, a.round, a.loss) == (b.client, b.round, b.loss)
            assert a.scalars.tobytes() == b.scalars.tobytes()
        together.server.aggregate(replies)
    assert [c.steps_taken for c in together.clients] == [c.steps_taken for c in alone.clients]


def test_clients_at_different_points_do_not_measure_together() -> None:
    """A replica that went wrong must show in its scalars."""
    federation = _federation(Threads())
    plans = federation.server.plan_round([0, 1])
    right = [federation.clients[i].handle(plan) for i, plan in plans.items()]
    federation.clients[1].replica.own()
    federation.clients[1].replica.x[0] += 1.0
    federation.clients[0].steps_taken = federation.clients[1].steps_taken = 0
    wrong = handle_all(federation.clients[:2], list(plans.values()))
    assert np.array_equal(wrong[0].scalars, right[0].scalars)
    assert not np.array_equal(wrong[1].scalars, right[1].scalars)


def test_the_engine_is_an_option_of_a_run() -> None:
    dataset = load_dataset("digits")
    settings = {"data": "digits", "model": "mlp", "clients": 3, "sampled": 2}
    federation = Prepared.of(TrainConfig(**settings, engine="plain"), dataset).federation()  # type: ignore[arg-type]
    assert isinstance(federation, DeComFLFederation)
    assert type(federation.clients[0].engine) is Plain
    with pytest.raises(InputError, match=REFUSED):
        make_engine("fast")
    with pytest.raises(InputError, match="workers must be an integer of at least 1, got 0"):
        Threads(0)


@pytest.mark.thorough
def test_rows_of_the_bench_hang_together() -> None:
    rows = list(round_.rows(RoundOptions(batch=4, clients=2, perturbations=1, repeats=1, engine="fused,serial")))
    engines_of = {"central": ["in place", "fused", "serial"], "projection": ["fused", "serial"]}
    for estimator, names in engines_of.items():
        assert [row.engine for row in rows if row.estimator == estimator] == names
    baseline = rows[0]
    assert baseline.ratio == 1.0
    for row in rows:
        assert row.ratio == pytest.approx(baseline.seconds / row.seconds)
        assert row.scalar_error < TOLERANCE
