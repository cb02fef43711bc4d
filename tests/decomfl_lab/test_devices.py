"""Devices: names, bits, and the batched engine that works on them. All of it runs on the CPU as well."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab import InputError, LowPrecision, Sgd, TrainConfig, noise
from decomfl_lab.devices import describe, find_device, free_memory, room, use_tf32_
from decomfl_lab.engines import vmap as batched
from decomfl_lab.engines.base import Line, Serial
from decomfl_lab.engines.vmap import Batched
from decomfl_lab.estimators.differences import central
from decomfl_lab.laws import devices as device_checks
from decomfl_lab.laws.devices import RUNS, checks, require_bits
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import build_model
from decomfl_lab.noise import Distribution, Format
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective
from decomfl_lab.replicas.rebuild import project
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.runs.run import Run
from decomfl_lab.storage.provenance import read_provenance
from tests.cases import refused

CPU = torch.device("cpu")
SMALL = TrainConfig(data="digits", model="mlp", clients=3, sampled=2, rounds=2, perturbations=3, batch_size=16)


def test_a_device_is_named() -> None:
    assert find_device("cpu") == CPU
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="device must be one of cpu, cuda, cuda:N, auto, got 'nonsense'"):
        find_device("nonsense")
    with pytest.raises(InputError, match="device must have a number for N, as cuda:1, got 'cuda:N'"):
        find_device("cuda:N")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``torch.cuda`` says so from now on: its functions by name, with what each gives."""

    def says(**values: object) -> None:
        functions = {name: lambda *_, value=value: value for name, value in values.items()}
        monkeypatch.setattr(torch, "cuda", SimpleNamespace(**functions))

    return says


def test_one_of_several_gpus_is_named_by_its_number(cuda: Callable[..., None]) -> None:
    cuda(is_available=True, device_count=2, current_device=0)
    assert [find_device(name).index for name in ("cuda:0", "cuda:1", "cuda", "auto")] == [0, 1, 0, 0]
    rule = "device must be one of the 2 GPUs that torch sees, from cuda:0 to cuda:1, got 'cuda:2'"
    with pytest.raises(InputError, match=rule):
        find_device("cuda:2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "words",
    [["train"], ["paper"], ["bench", "rebuild"], ["verify"], ["kappa", "--data", "digits", "--model", "logistic"]],
)
def test_a_device_that_is_not_there_is_refused_before_anything_is_done(
    words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refused(capsys, *words, "--device", "cuda:1").strip()
    assert told.startswith("decomfl: error: device must be cpu or auto here (torch ")
    assert told.endswith("got 'cuda:1'")
    assert list(here.iterdir()) == []


@pytest.mark.skipif("triton" in noise.available_backends(), reason="there is a GPU")
def test_a_gpu_without_triton_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="backend 'triton' cannot run here: "):
        project(torch.ones(1, 3), [(1, 0)], backend="triton")


def test_a_run_goes_on_on_another_device_and_says_so(tmp_path: Path) -> None:
    Run(replace(SMALL, rounds=1)).train(out=tmp_path)
    assert "devices" not in read_provenance(tmp_path)
    elsewhere = Run(SMALL, device="auto")
    elsewhere.hands["devices"] = ["another"]
    elsewhere.train(out=tmp_path)
    first, then = read_provenance(tmp_path)["devices"]
    assert (first.startswith("cpu ("), then) == (True, "another")


# TF32 -------------------------------------------------------------------------------------------------------------

GPU = torch.device("cuda", 0)
new_switches = pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch has the old ones only")


@pytest.fixture
def _switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    yield
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.fp32_precision = "none"
    use_tf32_(False)


@new_switches
@pytest.mark.usefixtures("_switches")
@pytest.mark.parametrize("before", ["none", "tf32"])
def test_tf32_is_off_and_on_whatever_is_set_for_all_of_torch(before: str) -> None:
    for on in (False, True, False):
        torch.backends.fp32_precision = before
        use_tf32_(on)
        parts = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
        assert {part.fp32_precision for part in parts} == {"tf32" if on else "ieee"}
        assert describe(GPU) == ("cuda (a card, products in TF32)" if on else "cuda (a card)")
        assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == on  # and can be read
        assert torch.get_float32_matmul_precision() == ("high" if on else "highest")
    use_tf32_(True)
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    with pytest.raises(RuntimeError):
        _ = torch.backends.cudnn.allow_tf32  # torch refuses to say
    assert describe(GPU) == "cuda (a card, products in TF32)"
    torch.backends.cudnn.rnn.fp32_precision = torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert describe(GPU) == "cuda (a card)"


@pytest.mark.usefixtures("_switches")
def test_a_torch_that_has_only_the_old_switches_is_read_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decomfl_lab.devices._parts", lambda *owners: [])
    for on in (True, False):
        use_tf32_(on)
        assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == on
        assert describe(GPU) == ("cuda (a card, products in TF32)" if on else "cuda (a card)")


# Memory -----------------------------------------------------------------------------------------------------------


def test_what_a_recorded_graph_keeps_for_itself_is_not_free(cuda: Callable[..., None]) -> None:
    def segment(total: int, used: int, pool: tuple[int, int], device: int = 1) -> dict[str, Any]:
        return {"device": device, "total_size": total, "allocated_size": used, "segment_pool_id": pool}

    segments = [segment(100, 60, (0, 0)), segment(50, 20, (0, 3)), segment(7, 0, (0, 4)), segment(900, 1, (0, 3), 0)]
    cuda(mem_get_info=(1000, 2000), memory_reserved=157, memory_allocated=80, memory_snapshot=segments)
    assert free_memory(torch.device("cuda", 1)) == room(torch.device("cuda", 1)) == 1000 + 157 - 80 - 37


# Bits -------------------------------------------------------------------------------------------------------------


def test_every_check_of_bits_holds_here() -> None:
    found = list(checks(CPU, sizes=(1, 129), rounds=2))
    assert [check.what for check in found if not check.holds] == []
    assert len(found) == 3 * len(Distribution) + len(RUNS)
    assert all(check.cases >= 2 for check in found)


def axpy_otherwise(right: Any, y: torch.Tensor, *of: Any, **named: Any) -> None:
    right(y, *of, **named)
    y.view(torch.int32)[-1] ^= 1


def project_otherwise(right: Any, *of: Any, **named: Any) -> Any:
    found = right(*of, **named)
    return found if "backend" in named else torch.nextafter(found, found + 1)


def replica_otherwise(right: Any, *of: Any, **named: Any) -> Any:
    replica = right(*of, **named)
    replica.x.view(torch.uint8)[0] ^= 1
    return replica


@pytest.mark.parametrize(
    ("part", "otherwise", "named"),
    [
        ("axpy_", axpy_otherwise, {f"directions: {law}" for law in Distribution}),
        ("project", project_otherwise, {f"projections ⟨v, z⟩: {law}" for law in Distribution}),
        ("Replica", replica_otherwise, {f"replay of a run: {name}" for name in RUNS}),
    ],
)
def test_a_direction_a_projection_or_a_replay_that_is_off_by_one_bit_is_named(
    part: str, otherwise: Any, named: set[str], plant: Any
) -> None:
    plant(device_checks, part, otherwise)
    assert {check.what for check in checks(CPU, sizes=(129,), rounds=1) if not check.holds} == named
    if part == "axpy_":
        told = "device must give the bits of the CPU, but directions: gaussian differs on cpu"
        with pytest.raises(InputError, match=told):
            require_bits(CPU)


# The batched engine -----------------------------------------------------------------------------------------------


def _objective(module: nn.Module, *, client: int = 0, n: int = 24, shape: tuple[int, ...] = (1, 28, 28)) -> Any:
    layout, generator = Layout.of(module), torch.Generator().manual_seed(client)
    inputs, targets = torch.rand(n, *shape, generator=generator), torch.randint(10, (n,), generator=generator)
    batches = EpochBatches(n, 10, (client,))
    return ModuleObjective(module, layout, cross_entropy, inputs.to(layout.dtype), targets, batches)


class Recorded(batched.Passes):
    """Passes whose graphs are made up; ``recorded`` has the sizes as they come to be recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[int] = []

    def twice(self, x: torch.Tensor) -> Any:
        """2x, by a graph of this size if there is one."""
        return self._by_graph(len(x), lambda x: 2 * x, [x])

    def _recorded(self, work: Any, tensors: Any) -> Any:  # type: ignore[override]
        self.recorded.append(len(tensors[0]))
        place, out = torch.zeros_like(tensors[0]), torch.zeros_like(tensors[0])
        return SimpleNamespace(replay=lambda: out.copy_(work(place))), [place], out


def test_a_pass_is_recorded_when_it_comes_again_in_the_place_of_what_was_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "KEPT", 2)
    passes = Recorded()
    for size in (5, 3, 5, 5, 3, 2, 5, 2, 3, 2):
        x = torch.rand(size)
        first = passes.twice(x)
        kept = first.clone()
        passes.twice(torch.rand(5))  # a later pass does not write to an earlier result
        assert torch.equal(first, 2 * x)
        assert torch.equal(first, kept)
    # Size 2 took the place of 3: without its own, 5 would have been recorded again.
    assert passes.recorded == [5, 3, 2]


def test_a_point_in_16_bits_is_formed_in_32() -> None:
    module = build_model("mlp", seed=0, in_shape=(1, 28, 28), classes=10)
    objective = _objective(module)
    rule = LowPrecision(Sgd(), Format.BFLOAT16, "nearest")
    replica = Replica(objective.layout.flatten(module).bfloat16(), rule)
    line, points = Line(replica, 5, Distribution.GAUSSIAN), central.points(2, 1e-3)
    found = Batched().losses(line, points, [(objective, 0)])
    assert found == pytest.approx(Serial().losses(line, points, [(objective, 0)]), rel=1e-5)
    assert len(set(found[0])) == 4


def test_what_has_no_net_is_refused_or_left_to_serial() -> None:
    def bowl(x: torch.Tensor, step: int) -> float:
        return float(x.square().sum()) + step

    line, points = Line(Replica(torch.ones(5), Sgd()), 1, Distribution.GAUSSIAN), central.points(2, 0.1)
    with pytest.raises(InputError, match="objective must be a ModuleObjective for the batched engine, got"):
        Batched().losses(line, points, [(bowl, 0)])
    assert np.array_equal(
        Batched(strict=False).losses(line, points, [(bowl, 3)]), Serial().losses(line, points, [(bowl, 3)])
    )
