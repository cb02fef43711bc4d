"""Residual networks, and BatchNorm in federated replay: f_i is a function of x and the batch, and nothing drifts."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab import InputError, TrainConfig, noise
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import build_model, num_parameters
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.normalisation import (
    calibrated,
    drifting,
    freeze_,
    use_batch_statistics_,
    uses_batch_statistics,
)
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.runs.configuration import TREATMENTS
from decomfl_lab.runs.run import Run
from tests.cases import rows_of

TINY = TrainConfig(
    data="digits",
    model="resnet8-bn",
    clients=4,
    sampled=2,
    rounds=3,
    local_steps=2,
    perturbations=2,
    lr=0.001,
    batch_size=40,
    eval_every=3,
    test_examples=60,
    calibration_examples=50,
)

COUNTS = {(name, tuple(shape)): count for name, shape, count in rows_of(__file__)["counts"]}


def _model(name: str = "resnet8-bn", in_shape: tuple[int, ...] = (1, 8, 8)) -> nn.Module:
    return build_model(name, seed=0, in_shape=in_shape, classes=10)


def _images(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def _objective(module: nn.Module, n: int = 40) -> ModuleObjective:
    """Batches of n = 40 examples, which forward passes of 16 would cut, from 3n."""
    data = _images(3 * n), torch.arange(3 * n) % 10
    return ModuleObjective(module, Layout.of(module), cross_entropy, *data, EpochBatches(3 * n, n, (0,)))


def _treated(treatment: str) -> nn.Module:
    module = _model()
    if treatment == "frozen":
        freeze_(module, _images(50, seed=1))
    else:
        use_batch_statistics_(module)
    return module


# The networks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "in_shape"), COUNTS)
def test_parameters_are_counted_exactly(name: str, in_shape: tuple[int, ...]) -> None:
    module = _model(name, in_shape)
    n, normed, w = (3 if "20" in name else 1), name.endswith("-bn"), (8 if "half" in name else 16)
    formula = 9 * in_shape[0] * w + 9 * w**2 * (42 * n - 10) + 40 * w + 10
    formula += (28 * n + 2) * w if normed else 15 * n + 2
    assert num_parameters(module) == COUNTS[name, in_shape] == formula
    assert module.eval()(torch.zeros(2, *in_shape)).shape == (2, 10)


def test_depth_and_resolution_are_those_of_the_paper() -> None:
    module = _model("resnet20", (3, 32, 32))
    weighted = [part for part in module.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    assert len(weighted) == 20
    sizes = []
    for part in weighted[:-1]:
        part.register_forward_hook(lambda _part, _given, output: sizes.append(tuple(output.shape[1:])))
    module(torch.zeros(1, 3, 32, 32))
    assert sizes == [(16, 32, 32)] * 7 + [(32, 16, 16)] * 6 + [(64, 8, 8)] * 6


def test_without_normalisation_blocks_begin_as_the_identity() -> None:
    module = _model("resnet20")
    inputs = _images(60)
    with torch.no_grad():
        first = module[:3](inputs)  # type: ignore[index]
        last = module[:-4](inputs)  # type: ignore[index]
        assert torch.equal(last[:, :16], first[:, :, ::4, ::4])
        assert not last[:, 16:].any()
        assert not module(inputs).any()


# BatchNorm as a function of x and the batch -------------------------------------------------------------------


def _wander(objective: ModuleObjective, x: Tensor) -> None:
    """A history that is no one's business: other points, other batches, perturbed and differentiated."""
    for step in range(3):
        objective(x + 0.1 * step, step)
        objective.along(x, step, 7, 1, 0.1, Distribution.GAUSSIAN)
        objective.value_and_gradient(x, step)
    with calibrated(objective.module, _images(20, seed=3)):
        objective.module(_images(5))


def _buffers(module: nn.Module) -> dict[str, bytes]:
    return {name: buffer.numpy().tobytes() for name, buffer in module.named_buffers()}


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_a_loss_does_not_depend_on_what_was_evaluated_before(treatment: str) -> None:
    objective = _objective(_treated(treatment))
    x = objective.layout.flatten(objective.module)
    before = _buffers(objective.module)
    assert bool(before) == (treatment == "frozen")
    losses = [objective(x, 0), objective(x, 0)]
    _wander(objective, x)
    losses.append(objective(x, 0))
    assert losses[0] == losses[1] == losses[2]
    assert _buffers(objective.module) == before
    assert not any(map(drifting, objective.module.modules()))


class _Naive(ModuleObjective):
    """What ModuleObjective refuses: BatchNorm that keeps running averages, perturbed forward passes included."""

    def __init__(self, objective: ModuleObjective) -> None:
        self.__dict__.update(objective.__dict__)
        self.module = copy.deepcopy(objective.module).train()


def test_running_statistics_break_replay_and_are_refused_by_name() -> None:
    module = _model().eval()
    layout = Layout.of(module)
    x = layout.flatten(module)
    clients = [_Naive(_objective(module)) for _ in range(2)]
    _wander(clients[1], x)
    found = []
    for client in clients:  # the same x, after two histories
        client(x, 0)
        client.module.eval()
        found.append(client(x, 0))
    assert found[0] != found[1]
    assert _buffers(clients[0].module) != _buffers(clients[1].module)
    refused = r"module '1' \(BatchNorm2d\) must be in eval mode or keep no running statistics"
    with pytest.raises(InputError, match=refused):
        _objective(module.train())
    with pytest.raises(InputError, match="batchnorm must be one of batch, frozen, got 'running'"):
        replace(TINY, batchnorm="running")


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("c", [0.0, 1e-2])
def test_a_layer_at_a_time_has_the_same_bits(treatment: str, c: float) -> None:
    objective = _objective(_treated(treatment), n=16)
    x = objective.layout.flatten(objective.module)
    z = noise.direction(5, 1, x.numel())
    moved = x + torch.from_numpy(np.float32(c) * z)
    assert objective.along(x, 1, 5, 1, c, Distribution.GAUSSIAN) == objective(moved, 1)


# Calibration ---------------------------------------------------------------------------------------------------


def test_calibrated_statistics_are_the_mean_and_variance_of_what_arrives() -> None:
    module, images = _treated("batch"), _images(30)
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    arrived: list[Tensor] = []
    hooks = [part.register_forward_pre_hook(lambda _part, given: arrived.append(given[0])) for part in norms]
    with torch.no_grad():
        of_the_batch = module(images)
    for hook in hooks:
        hook.remove()
    with calibrated(module, images), torch.no_grad():
        for part, h in zip(norms, arrived, strict=True):
            assert part.running_mean is not None
            assert part.running_var is not None
            assert torch.allclose(part.running_mean, h.mean((0, 2, 3)), atol=1e-5)
            assert torch.allclose(part.running_var, h.transpose(0, 1).flatten(1).var(1), rtol=1e-4)
        assert not uses_batch_statistics(module)
        assert torch.allclose(module(images), of_the_batch, atol=0.05)  # they differ by n / (n - 1) alone
        assert torch.allclose(module(images)[:4], module(images[:4]), atol=1e-5)  # an affine function of each example


# Federations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["resnet8", "resnet8-bn"])
@pytest.mark.parametrize("method", ["decomfl", "decomfl-projection", "fedzo", "fedavg", "baffle", "mezo"])
def test_every_method_trains_them_and_repeats(method: str, model: str) -> None:
    config = TINY.but(method, model=model, rounds=1)
    first, second = Run(config).train(), Run(config).train()
    assert first.test_loss.item() == second.test_loss.item() < 3
    if method == "decomfl" and model.endswith("-bn"):
        lean = Run(replace(config, lean=True)).train()
        assert lean.test_loss.item() == first.test_loss.item()
