"""Programs on torch tensors: strides, dtypes, threads, blocks, limits; 16-bit and grid rules in training."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab import GridSgd, InputError, LowPrecision, Sgd, noise
from decomfl_lab.engines.base import Line
from decomfl_lab.noise import Distribution, Format, Program, backends
from decomfl_lab.replicas import rebuild
from decomfl_lab.replicas.rebuild import form_points_, project, rebuild_
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Step
from tests.cases import refuses, sampled
from tests.decomfl_lab.federations.direct import LAB, but


def _program(names=("x",), *, pairs: int = 3, distribution: Distribution = Distribution.GAUSSIAN) -> Program:  # type: ignore[no-untyped-def]
    program = Program(names)
    for key in range(2):
        program.noise(names[-1], key, np.linspace(-1, 1, pairs), distribution)
        for name in names[:-1]:
            program.add(name, names[-1], 0.5)
    return program


def _strided(kind: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of ``shape`` whose elements lie in memory in the way that ``kind`` says."""
    match kind:
        case "transposed":
            return torch.zeros(shape[::-1], dtype=dtype).permute(*range(len(shape))[::-1])
        case "every second":
            return torch.zeros((*shape, 2), dtype=dtype)[..., 1]
        case "channels last" if len(shape) == 4:
            return torch.zeros(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)
        case "offset":
            return torch.zeros((shape[0] + 3, *shape[1:]), dtype=dtype)[2:-1]
    return torch.zeros(shape, dtype=dtype)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "BLOCK", 37)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", ["plain", "transposed", "every second", "channels last", "offset"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5, 4, 3, 7), (300,), (1, 1)])
def test_strided_tensors_have_the_bits_of_the_row_major_vector(
    kind: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    start = torch.linspace(-1, 1, int(np.prod(shape)), dtype=dtype)
    wanted = {name: start.clone().numpy() for name in ("x", "m")}
    noise.run(_program(("x", "m")), wanted, d=start.numel(), backend="numpy")
    piece = {name: _strided(kind, shape, dtype) for name in ("x", "m")}
    for tensor in piece.values():
        tensor.copy_(start.view(shape))
    around = piece["x"].storage_offset(), piece["x"].untyped_storage().nbytes()
    rebuild_(_program(("x", "m")), [piece], workers=2)
    for name, tensor in piece.items():
        assert tensor.reshape(-1).numpy().tobytes() == wanted[name].tobytes()
    assert around == (piece["x"].storage_offset(), piece["x"].untyped_storage().nbytes())


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["plain", "transposed"])
def test_16_bit_tensors_that_go_through_in_blocks_are_those_in_one_piece(kind: str, dtype: torch.dtype) -> None:
    start, program = torch.linspace(-1, 1, 300).to(dtype), _program()
    piece = _strided(kind, (3, 100), dtype)
    piece.copy_(start.view(3, 100))
    whole = {"x": start.float().numpy().copy()}
    noise.run(program, whole, d=300, backend="numpy")
    rebuild_(program, [{"x": piece}])
    assert torch.equal(piece.reshape(-1), torch.from_numpy(whole["x"]).to(dtype))


def test_a_rebuild_needs_the_model_and_blocks_only() -> None:
    """numpy reports its allocations to tracemalloc: fused rebuilds of 16-bit and strided models stay small."""
    import tracemalloc

    n = 2_000_000
    x = torch.zeros(n)
    program = _program(pairs=10)
    rebuild_(program, [{"x": x[:1000]}])  # compiled before measuring
    tracemalloc.start()
    rebuild_(program, [{"x": x}], workers=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.02 * 4 * n


@refuses(
    ([], "pieces must hold at least one piece"),
    ([{"y": torch.zeros(3)}], r"piece must hold \('x',\), got \('y',\)"),
    ([{"x": torch.zeros(3, dtype=torch.int32)}], "dtype of x must be one of .*, got torch.int32"),
    ([{"x": torch.zeros(1).expand(4)}], "x must hold each element once"),
    ([{"x": torch.zeros(9).as_strided((3, 3), (1, 1))}], "x must hold each element once"),
    ([{"x": torch.zeros(0)}], "pieces must hold at least one element"),
    ([{"x": torch.zeros(3, device="meta")}], "device of x must be a CPU or CUDA device"),
)
def test_tensors_that_cannot_be_rebuilt_are_refused(pieces) -> None:  # type: ignore[no-untyped-def]
    rebuild_(_program(), pieces)


# 16 bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Format)
def test_narrowing_to_nearest_is_torchs_conversion(kind: Format) -> None:
    """All exponents, all rounding cases: ties, overflow, subnormals, infinities, NaN, both zeros."""
    high = np.arange(0, 1 << 16, dtype=np.uint32) << np.uint32(16)
    low = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xEFFF, 0xFFFF], dtype=np.uint32)
    values = (high[:, None] | low).reshape(-1).view(np.float32)
    wanted = torch.from_numpy(values.copy()).to(getattr(torch, kind)).float().numpy()
    for backend in noise.available_backends():
        if backend == "triton":
            continue  # an interpreter needs minutes for so many; its own tests narrow less
        program = Program(["x"])
        program.narrow("x", kind)
        found = values.copy()
        noise.run(program, {"x": found}, d=found.size, backend=backend)
        same = (found.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(found) & np.isnan(wanted))
        assert same.all(), values[~same][:5]


@pytest.mark.parametrize("kind", Format)
def test_stochastic_rounding_is_unbiased_and_goes_to_a_neighbour(kind: Format) -> None:
    n = 200_000
    dtype = getattr(torch, kind)
    for value in (1.0 + 0.3 * 2.0**-7, -0.1, 3.3e-6, 1e-3):
        program = Program(["x"])
        program.narrow_randomly("x", kind, seed=5, place=0)
        x = np.full(n, value, dtype=np.float32)
        noise.run(program, {"x": x}, d=n)
        assert torch.equal(torch.from_numpy(x).to(dtype).float(), torch.from_numpy(x)), "not a number of the format"
        low, high = np.unique(x)  # both neighbours, and nothing else
        assert low < np.float32(value) < high
        step = high - low
        # The chance is cut to 13 or 16 bits, so the mean may be off by 2^-13 of a step, and by its standard error.
        assert abs(x.astype(np.float64).mean() - np.float32(value)) < step * (2.0**-13 + 5 * 0.5 / np.sqrt(n))
        other = np.full(n, value, dtype=np.float32)
        again = Program(["x"])
        again.narrow_randomly("x", kind, seed=5, place=1)
        noise.run(again, {"x": other}, d=n)
        agreement = (other == x).mean()  # two vectors of one step are rounded independently
        p = (np.float32(value) - low) / step
        assert abs(agreement - (p * p + (1 - p) * (1 - p))) < 5 / np.sqrt(n) + 2.0**-12


@pytest.mark.parametrize(("rounding", "share"), [("nearest", 0.0), ("stochastic", 1.0), ("compensated", 1.0)])
def test_16_bit_replicas_take_small_steps_that_plain_rounding_forgets(rounding: Any, share: float) -> None:
    """Steps of 1e-4 on weights of 0.5, which are a twentieth of half a unit in bfloat16's last place."""
    x = torch.full((10_000,), 0.5)
    low, full = Replica(x.bfloat16(), LowPrecision(Sgd(), rounding=rounding)), Replica(x, Sgd())
    for seed in range(200):
        for replica in (low, full):
            replica.step_(Step(seed, np.ones(1, dtype=np.float32), 1e-4, Distribution.RADEMACHER))
    moved, right = low.x.float() - x, full.x - x
    assert float(moved @ right / (right @ right)) == pytest.approx(share, abs=0.15)


# The grid ----------------------------------------------------------------------------------------------------


def test_a_client_on_the_grid_keeps_no_snapshot() -> None:
    case = but(M=1, K=3, rule=GridSgd(-16), mu=2.0**-10, shapes=((40,),))
    client: Any = LAB.client(case, 0)
    client.replica.snapshot = None
    plan = LAB.server(case).plan_round([0])[0]
    before = client.replica.digest()
    client.handle(plan)
    assert client.replica.digest() == before


def test_leaving_the_grids_range_is_refused_and_changes_nothing() -> None:
    rule = GridSgd(-20)
    x = rule.begin(torch.full((1000,), 7.9))
    replica = Replica(x, rule, sizes=(400, 600))
    before = replica.digest()
    with pytest.raises(InputError, match=r"updates must stay within their limits \[4.0, 8.0\], but do not at \d+"):
        replica.step_(Step(1, np.ones(1, dtype=np.float32), 0.5, Distribution.GAUSSIAN))
    assert replica.digest() == before


# Points and projections ---------------------------------------------------------------------------------------


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    ("backend", "dtype", "law"), sampled(product(sorted({"numpy", noise.cpu_backend()}), DTYPES, Distribution), 8)
)
def test_points_formed_together_have_the_bits_of_a_line_s(
    backend: str, dtype: torch.dtype, law: Distribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "LEAST_WORK", 0)
    x = torch.randn(1001, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[3], x[5], x[7] = float("nan"), float("inf"), -0.0
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    low = LowPrecision(Sgd(), Format(str(dtype).removeprefix("torch."))) if x.element_size() == 2 else None
    line = Line(Replica(x, low or Sgd()), 7, law)
    at = [(0, 0.0), (2, 1e-3), (2, -1e-3), (40, 0.3), (2, 7.0), (1, -0.0)]
    points, alone = torch.empty(len(at), 1001, dtype=wide), torch.empty(1001, dtype=wide)
    streams, coefficients = [(7, p) for p, _ in at], [c for _, c in at]
    for workers in (1, 3):
        form_points_(points.fill_(9), x, streams, coefficients, law, backend=backend, workers=workers)
        for point, (p, c) in zip(points, at, strict=True):
            line.form_([alone], p, c)
            assert torch.equal(point.view(torch.int32), alone.view(torch.int32))
    form_points_(points, x, streams, [0.0] * len(at), law)
    assert torch.equal(points.view(torch.int32), x.to(wide).expand(len(at), -1).contiguous().view(torch.int32))


X, POINTS, LAW = torch.zeros(5), torch.zeros(2, 5), Distribution.GAUSSIAN
TWO, GRID = [(1, 0), (1, 1)], GridSgd(-20)
STEP = Step(1, np.ones(1, dtype=np.float32), 0.5, LAW)


@refuses(
    (
        lambda: form_points_(POINTS, X, [(1, 0)], [1.0], LAW),
        r"points must be contiguous torch.float32 \(1, 5\), got",
    ),
    (
        lambda: form_points_(POINTS, X.double(), TWO, [1.0, 2.0], LAW),
        r"points must be contiguous torch.float64 \(2, 5\), got",
    ),
    (lambda: form_points_(POINTS, X, TWO, [1.0], LAW), "coefficients must be 2, got 1"),
    (lambda: form_points_(POINTS, POINTS, TWO, [1.0, 2.0], LAW), "x must be a contiguous vector"),
    (lambda: project(POINTS.T, [(1, 0)]), "vectors must be contiguous float32 or float64"),
    (lambda: project(POINTS, [(-1, 0)]), "seed must be an integer"),
    (lambda: Replica(torch.tensor([9.0]), GRID), r"largest \|x\| must be at most 8.0 = 2\^23 · 2\^-20, got 9.0"),
    (lambda: Replica(torch.tensor([0.1]), GRID), "x must be on the grid of GridSgd"),
    (lambda: Replica(torch.tensor([-0.0]), GRID), "x must be on the grid of GridSgd"),  # arithmetic brings back +0
    (lambda: Replica(X, Sgd()).step_back_(STEP), "only the steps of a GridSgd rule can be undone"),
)
def test_points_projections_and_models_off_the_grid_that_do_not_fit_are_refused(attempt: Callable[[], Any]) -> None:
    attempt()
