"""What the Triton backend must do, on a GPU or in Triton's interpreter; ``test_triton`` runs this file.

The interpreter has to be chosen before Triton is first imported, so these tests get a process of their own:

    TRITON_INTERPRET=1 python -m pytest tests/decomfl_lab/noise/triton_checks.py
"""

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from decomfl_lab import InputError, Momentum, noise
from decomfl_lab.laws import Implementation
from decomfl_lab.laws.check import LAWS, check_law
from decomfl_lab.noise import Distribution, Format, Op, Program, backends, reference, triton_gpu, triton_kernels
from decomfl_lab.replicas.rebuild import form_points_, project
from decomfl_lab.replicas.replica import Replica, step_together_
from decomfl_lab.replicas.rules import Step

DEVICE = "cpu" if triton_gpu.INTERPRETED else "cuda"
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

SPECIAL = np.array(
    [
        *(0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0**-149, 2.0**-127, 3.4028235e38, 2.0**-126),
        # float16: the largest number, the ties beside it, the smallest normal number, subnormals and their ties
        *(65504.0, 65519.996, 65520.0, -65520.0, 65536.0, 2.0**-14, 2.0**-14 * (1 - 2.0**-11), 2.0**-24, 2.0**-25),
        *(3 * 2.0**-25, 1.0001 * 2.0**-25, -5 * 2.0**-25, 2.0**-26, 1 + 2.0**-11, 1 + 3 * 2.0**-11),
        # bfloat16: ties to even, both ways, and overflow
        *(1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8 + 2.0**-20), 3.3961775e38, 3.3895314e38),
    ],
    dtype=np.float32,
)


@pytest.fixture(autouse=triton_gpu.INTERPRETED)
def _bounds(plant: Any) -> None:
    """An IndexError where a kernel reads or writes beside the tensors that it was given."""
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    given: list[tuple[int, int]] = []  # the first byte of each tensor's memory, and the one behind its last

    def tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
        for value in values:
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, tuple):
                yield from tensors(value)

    def prepare(prepared: Any, *of: Any) -> Any:
        found = prepared(*of)
        memory = [tensor.untyped_storage() for tensor in tensors([*found[0], *found[1].values()])]
        given[:] = [(own.data_ptr(), own.data_ptr() + own.nbytes()) for own in memory]
        return found

    def require_inside(places: Any, mask: Any) -> None:
        wanted = places.data[mask.data]
        size = places.get_element_ty().primitive_bitwidth // 8
        inside = np.zeros(wanted.shape, dtype=bool)
        for begin, end in given:
            inside |= (wanted >= begin) & (wanted + np.uint64(size) <= end)
        if not inside.all():
            raise IndexError("a kernel must stay inside its tensors")

    def load(right: Any, builder: Any, places: Any, mask: Any, *rest: Any) -> Any:
        require_inside(places, mask)
        return right(builder, places, mask, *rest)

    def store(right: Any, builder: Any, places: Any, value: Any, mask: Any, *rest: Any) -> Any:
        require_inside(places, mask)
        return right(builder, places, value, mask, *rest)

    plant(GridExecutor, "_init_args_hst", prepare)
    plant(InterpreterBuilder, "create_masked_load", load)
    plant(InterpreterBuilder, "create_masked_store", store)


class OfTriton(Implementation):
    """The lab's own, of which the laws look at this backend alone."""

    def backends(self) -> dict[str, noise.Backend]:
        return {"triton": triton_gpu}


def _assert_same(actual: np.ndarray, wanted: np.ndarray) -> None:
    """Same bits; a NaN that arithmetic makes has other bits on other processors."""
    assert actual.dtype == wanted.dtype
    nan = np.isnan(wanted)
    assert (np.isnan(actual) == nan).all()
    unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64}[actual.dtype.itemsize]
    different = np.flatnonzero((actual.view(unsigned) != wanted.view(unsigned)) & ~nan)
    assert not different.size, (different[:5], actual[different[:5]], wanted[different[:5]])


# Words and normals ------------------------------------------------------------------------------------------


@triton.jit
def _box_muller_kernel(z, w, count: tl.int32, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    w0, w1 = tl.load(w + at).to(tl.uint32, bitcast=True), tl.load(w + count + at).to(tl.uint32, bitcast=True)
    z0, z1 = triton_kernels._box_muller(w0, w1)
    tl.store(z + at, z0)
    tl.store(z + count + at, z1)


@triton.jit
def _shifted_kernel(x, by: tl.constexpr):
    tl.store(x + by + tl.arange(0, 4), tl.load(x + by + tl.arange(0, 4)))


@pytest.mark.skipif(not triton_gpu.INTERPRETED, reason="a GPU does not say where a kernel writes")
def test_a_kernel_that_leaves_its_tensors_is_noticed() -> None:
    x = torch.zeros(8)
    _shifted_kernel[(1,)](x, by=4)
    for by in (5, -1):
        with pytest.raises(Exception, match="a kernel must stay inside its tensors"):
            _shifted_kernel[(1,)](x, by=by)


def test_normals_of_many_words_have_the_bits_of_the_reference() -> None:
    n, block = 1 << 17, 1 << 12
    w = np.random.default_rng(1).integers(0, 2**32, (2, n), dtype=np.uint32)
    edges = np.array([0, 1, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 0xB504F3FF, 0xB5050000], dtype=np.uint32)
    w[:, : edges.size**2] = np.array(np.meshgrid(edges, edges)).reshape(2, -1)
    z = torch.zeros(2, n, dtype=torch.float32, device=DEVICE)
    words = torch.from_numpy(w.view(np.int32)).to(DEVICE)
    _box_muller_kernel[(n // block,)](z, words, n, BLOCK=block, **triton_kernels.OPTIONS)
    _assert_same(z.cpu().numpy(), np.stack(reference.box_muller(*w)))


@pytest.mark.parametrize("name", [name for name in LAWS if "backends" in LAWS[name].parts])
def test_the_laws_of_the_stream_hold(name: str) -> None:
    """Known answers, slices near and far, square sums and programs, whatever is drawn and however it is cut."""
    outcome = check_law(LAWS[name], OfTriton(), cases=20, seed=1)
    assert outcome.status == "holds", outcome.counterexample


def test_square_sums_have_the_specified_order() -> None:
    for first_tile, tiles, d in ((0, 1, 1), (0, 20, 2500), (3, 17, 2433), (2**33, 5, 2**50), (10, 3, 1280)):
        ours, wanted = (
            source.tile_square_sums(2**63 + 5, 7, first_tile, tiles, d) for source in (triton_gpu, reference)
        )
        assert ours.tobytes() == wanted.tobytes()
    assert noise.sphere_scale(3, 1, 2500, "triton") == noise.sphere_scale(3, 1, 2500, "numpy")


# Projections ------------------------------------------------------------------------------------------------


STREAMS = [(2**64 - 3, 0), (5, 1), (5, 33), (2**63 + 7, 2**32 - 1), (0, 0)]


def _vectors(d: int, dtype: type) -> np.ndarray:
    """Numbers of very different sizes, so that every order of adding has its own bits; infinite ones and NaN."""
    rng = np.random.default_rng(d)
    v = rng.normal(size=(4, d)) * 2.0 ** rng.integers(-20, 20, (4, d))
    v[2, d // 2], v[2, d // 4], v[2, 0] = np.inf, -np.inf, -0.0
    v[3, d - 1] = np.nan
    return v.astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("law", Distribution)
def test_projections_have_the_bits_of_the_reference(
    law: Distribution, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "SLICE", 256)
    v = _vectors(877, dtype)  # three slices, and one of a tile
    wanted = noise.project(v, STREAMS, distribution=law, backend="numpy")
    assert np.isfinite(wanted[:2]).all()
    assert not np.isfinite(wanted[2:]).any()
    sums = 2 * v.shape[0] * len(STREAMS)  # of a slice
    for at_once in (1, 2 * sums, 1 << 23) if law is Distribution.RADEMACHER else (2 * sums,):
        monkeypatch.setattr(triton_gpu, "SUMS_AT_ONCE", at_once)
        found = project(torch.from_numpy(v).to(DEVICE), STREAMS, distribution=law, backend="triton").cpu().numpy()
        _assert_same(found, wanted)
    if law is Distribution.SPHERE:
        _assert_same(noise.project(v, STREAMS, distribution=law, backend="triton"), wanted)


def test_projections_of_any_number_of_vectors_directions_and_elements() -> None:
    for m, streams, d in ((1, STREAMS[:1], 1), (3, STREAMS[:4], 128), (2, STREAMS[:3], 129), (2, [], 5)):
        v = _vectors(max(d, 4), np.float32)[:m, :d].copy()
        found = project(torch.from_numpy(v).to(DEVICE), streams, backend="triton").cpu().numpy()
        wanted = noise.project(v, streams, backend="numpy")
        _assert_same(found, wanted)


def test_projections_add_slices_of_8192_elements_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    v = _vectors(8192 + 130, np.float64)[:1].copy()
    on_device = torch.from_numpy(v).to(DEVICE)
    wanted = noise.project(v, STREAMS[:1], backend="numpy")
    assert project(on_device, STREAMS[:1], backend="triton").cpu().numpy().tobytes() == wanted.tobytes()
    monkeypatch.setattr(backends, "SLICE", 4096)  # a planted fault: another order is seen
    assert project(on_device, STREAMS[:1], backend="triton").cpu().numpy().tobytes() != wanted.tobytes()


@pytest.mark.parametrize("law", Distribution)
def test_projections_far_beyond_two_to_the_32_have_the_bits_of_the_reference(law: Distribution) -> None:
    v = _vectors(300, np.float32)
    keys, places = np.array([2**64 - 3, 5], dtype=np.uint64), np.array([2**32 - 1, 40])
    scales = np.array([1.5, 0.75], dtype=np.float32)
    for first in (2**32 - 128, 2**39 + 128):
        found, wanted = (s.project(v, first, keys, places, law, scales) for s in (triton_gpu, reference))
        _assert_same(found, wanted)


# Points -----------------------------------------------------------------------------------------------------


LISTED = [(5, 0), (5, 0), (7, 3), (5, 0), (2**64 - 3, 2**32 - 1), (7, 3), (9, 9)]
COEFFICIENTS = [0.0, 1e-3, -0.7, -1e-3, 1e30, 0.7, -0.0]


def _one_by_one(x: torch.Tensor, law: Distribution, d: int, first: int) -> np.ndarray:
    points = []
    for (seed, p), c in zip(LISTED, COEFFICIENTS, strict=True):
        point = x.cpu().to(torch.float64 if x.dtype == torch.float64 else torch.float32, copy=True).numpy()
        program = Program(["x"])
        program.noise("x", seed, [c], law, p)
        if c:
            noise.run(program, {"x": point}, d=d, first=first, backend="numpy")
        points.append(point)
    return np.stack(points)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("law", Distribution)
def test_points_formed_together_have_the_bits_of_each_alone(law: Distribution, dtype: torch.dtype) -> None:
    for d in (1, 127, 601):
        x = torch.from_numpy(_start((d,), d, np.float64)).to(dtype).to(DEVICE)
        wanted = _one_by_one(x, law, d, 0)
        points = torch.full(wanted.shape, 7.0, dtype=torch.from_numpy(wanted).dtype, device=DEVICE)
        form_points_(points, x, LISTED, COEFFICIENTS, law, backend="triton")
        found = points.cpu().numpy()
        _assert_same(found, wanted)
        if dtype in (torch.float32, torch.float64):  # where c = 0 NaN too
            assert found[0].tobytes() == found[-1].tobytes() == x.cpu().numpy().tobytes()


@pytest.mark.parametrize("first", [1, 77, 2**32 - 50, 2**39 + 77])
def test_points_of_a_part_of_the_model_anywhere(first: int) -> None:
    x = torch.from_numpy(_start((300,), 1, np.float32)).to(DEVICE)
    points = torch.empty(len(LISTED), 300, device=DEVICE)
    rows: dict[tuple[int, int], list[int]] = {}
    for n, at in enumerate(LISTED):
        rows.setdefault(at, []).append(n)
    c = np.array(COEFFICIENTS, dtype=np.float32)
    triton_gpu.form_points(points, x, rows, c, Distribution.GAUSSIAN, d=2**40, first=first)
    _assert_same(points.cpu().numpy(), _one_by_one(x, Distribution.GAUSSIAN, 2**40, first))


def test_rows_that_lie_beyond_two_to_the_32_bytes_and_elements() -> None:
    size = 900 if triton_gpu.INTERPRETED else 2**32 + 900  # the interpreter copies whole tensors
    if not triton_gpu.INTERPRETED and torch.cuda.mem_get_info()[0] < 2**36:
        pytest.skip("64 GiB of a GPU's memory are needed")
    z = noise.direction(5, 3, size, first=size - 300, count=300)
    x, points = torch.zeros(size, device=DEVICE), torch.empty(2, size, device=DEVICE)
    form_points_(points, x, [(5, 2), (5, 3)], [1.0, 0.5], Distribution.GAUSSIAN, backend="triton")
    assert points[1, -300:].cpu().numpy().tobytes() == (np.float32(0.5) * z).tobytes()
    points.zero_()
    points[1, -300:] = 1.0
    found = project(points, [(5, 3)], backend="triton").cpu().numpy()
    assert found[:, 0] == pytest.approx([0.0, z.sum(dtype=np.float64)], rel=1e-9)


# Programs ---------------------------------------------------------------------------------------------------


def _append(program: Program, op: Op, rng: np.random.Generator) -> None:
    to, of = (str(rng.choice(program.registers)) for _ in range(2))
    seed, p = int(rng.integers(0, 2**64, dtype=np.uint64)), int(rng.choice([0, 30, 2**32 - 8]))
    a = float(rng.choice([-1.5, 0.1, 1.0, 3e-3, 1e-30, 7.0]))
    kind = Format(rng.choice(list(Format)))
    match op:
        case Op.NOISE:
            c = rng.normal(size=rng.integers(0, 6)) * rng.choice([1e-3, 1.0])
            program.noise(to, seed, c, Distribution(rng.choice(list(Distribution))), p)
        case Op.FILL:
            program.fill(to, a)
        case Op.SCALE | Op.OFFSET:
            getattr(program, op.name.lower())(to, a)
        case Op.ADD:
            program.add(to, of, a)
        case Op.COPY | Op.MULTIPLY | Op.DIVIDE_INTO | Op.MAXIMUM:
            getattr(program, op.name.lower())(to, of)
        case Op.SQUARE_ROOT | Op.SIGN:
            getattr(program, op.name.lower())(to)
        case Op.SNAP | Op.LIMIT:
            getattr(program, op.name.lower())(to, abs(a))
        case Op.NARROW:
            program.narrow(to, kind)
        case Op.NARROW_RANDOMLY:
            program.narrow_randomly(to, kind, seed, p)


WIDE_OPS = [op for op in Op if op not in (Op.NARROW, Op.NARROW_RANDOMLY)]  # those of float64 too


def _random_program(names: int, seed: int, *, narrow: bool = True) -> Program:
    """Every Op at least once, in any order, on any registers."""
    rng = np.random.default_rng(seed)
    program = Program([f"r{n}" for n in range(names)])
    program.copy("scratch", "r0")
    ops = list(Op) if narrow else WIDE_OPS
    for op in rng.permutation([*ops, *rng.choice(ops, 10)]):
        _append(program, Op(op), rng)
    return program


def _start(shape: tuple[int, ...], seed: int, dtype: type) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), rng.normal(size=shape))
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _both(program: Program, start: Sequence[np.ndarray], **options: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """What numpy and Triton make of a program's tensors, the rows of ``start``, and the count that both find."""
    results, counts = [], []
    for backend in ("numpy", "triton"):
        memory = {name: row.copy() for name, row in zip(program.names, start, strict=True)}
        counts.append(noise.run(program, memory, backend=backend, **options))
        results.append(np.stack(list(memory.values())))
    assert counts[1] == counts[0]
    return results[0], results[1], counts[0]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_random_programs_have_the_bits_of_the_reference(seed: int, dtype: type) -> None:
    names = 1 + seed % 3
    program = _random_program(names, seed, narrow=dtype == np.float32)
    d, first, size = 1100, (0, 77, 131, 256)[seed % 4], 601
    start = _start((names, size), seed, dtype)
    wanted, found, broken = _both(program, start, d=d, first=first)
    _assert_same(found, wanted)
    *kept, tried = _both(program, start, d=d, first=first, store=False)
    assert tried == broken
    assert all(each.tobytes() == start.tobytes() for each in kept)


@pytest.mark.parametrize(("op", "dtype"), [*((op, np.float32) for op in Op), *((op, np.float64) for op in WIDE_OPS)])
def test_every_instruction_on_special_numbers(op: Op, dtype: type) -> None:
    a, b = (part.reshape(-1).astype(dtype) for part in np.meshgrid(SPECIAL, SPECIAL))
    for n in range(4):
        program = Program(["a", "b"])
        program.copy("scratch", "b")
        for seed in (n, n + 10):
            _append(program, op, np.random.default_rng(seed))
        wanted, found, _ = _both(program, (a, b), d=5000, first=3)
        _assert_same(found, wanted)


def test_narrowing_has_the_bits_of_the_reference_nan_included() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 4000, dtype=np.uint32)
    small = (2.0**-14 * rng.normal(size=3000)).astype(np.float32)
    start = np.concatenate([SPECIAL, -SPECIAL, bits.view(np.float32), small])
    for kind in Format:
        for randomly in (False, True):
            program = Program(["x"])
            if randomly:
                program.narrow_randomly("x", kind, 5, 2**32 - 1)
            else:
                program.narrow("x", kind)
            wanted, found, _ = _both(program, [start], d=2**20, first=99)
            assert found.tobytes() == wanted.tobytes(), (kind, randomly)


def test_eight_tensors_are_the_most() -> None:
    program = _random_program(8, 4)
    wanted, found, _ = _both(program, _start((8, 140), 4, np.float32), d=140)
    _assert_same(found, wanted)
    program = _random_program(9, 4)
    with pytest.raises(InputError, match="names must be at most 8 on a GPU, got 9"):
        noise.run(program, {name: np.zeros(3, np.float32) for name in program.names}, d=3, backend="triton")


@pytest.mark.parametrize(("replicas", "together"), [(4, True), (5, False)])
def test_more_replicas_than_fit_in_one_program_step_alone(replicas: int, together: bool) -> None:
    """Ten clients by projection, K > 1, would be a program of 10 or 20 tensors."""
    own = [Replica(torch.full((140,), float(i)), Momentum(0.9), backend="triton") for i in range(replicas)]
    steps = [Step(3, np.array([0.5, i], np.float32), 0.1, Distribution.GAUSSIAN) for i in range(replicas)]
    wanted = [Replica(each.x, each.rule, backend="numpy") for each in own]
    assert step_together_(own, steps) is together
    for each, step, alone in zip(own, steps, wanted, strict=True):
        if together:
            alone.step_(step)
        assert each.digest() == alone.digest()


# Tensors ----------------------------------------------------------------------------------------------------


def _views(dtypes: tuple[torch.dtype, ...], layout: str, seed: int) -> list[torch.Tensor]:
    """Tensors of one shape with the special numbers, as far as their types have them."""
    tensors = []
    for n, dtype in enumerate(dtypes):
        full = torch.from_numpy(_start((6, 8, 14), seed + n, np.float32)).to(dtype).to(DEVICE)
        view = {
            "contiguous": full,
            "transposed": full.transpose(0, 2),
            "sliced": full[1:5, ::2, 3:11],
            "channels last": full[None].contiguous(memory_format=torch.channels_last)[0],
            "scalar": full[0, 0, 5],
            "one of them": full
            if n
            else torch.empty(14, 6, 8, dtype=dtype, device=DEVICE).copy_(full.permute(2, 0, 1)),
        }[layout]
        tensors.append(view if layout != "one of them" or n else view.permute(1, 2, 0))
    assert len({tensor.shape for tensor in tensors}) == 1
    return tensors


def _as_reference(program: Program, tensors: list[torch.Tensor], d: int, first: int) -> tuple[int, list[torch.Tensor]]:
    """The program in float32 or float64 copies, in numpy."""
    wide = torch.float64 if torch.float64 in {t.dtype for t in tensors} else torch.float32
    copies = [tensor.to("cpu", wide, copy=True).contiguous().reshape(-1) for tensor in tensors]
    memory = {name: copy.numpy() for name, copy in zip(program.names, copies, strict=True)}
    broken = noise.run(program, memory, d=d, first=first, backend="numpy")
    return broken, [
        _rounded(copy, tensor.dtype).view(tensor.shape) for tensor, copy in zip(tensors, copies, strict=True)
    ]


def _rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``tensor.to(dtype)`` but for the bits of NaN in 16 bits: those of ``reference.narrow``, whatever torch's are."""
    nan = {torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}
    if dtype not in nan:
        return tensor.to(dtype)
    bits = tensor.to(dtype).view(torch.int16)
    return torch.where(tensor.isnan(), torch.tensor(nan[dtype], dtype=torch.int16), bits).view(dtype)


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """Bits of the elements in row-major order, NaN of 32 and 64 bits replaced by one."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.dtype in (torch.bfloat16, torch.float16):
        return flat.view(torch.int16).numpy()
    array = flat.numpy()
    return np.where(np.isnan(array), array.dtype.type(np.nan), array).view(f"i{array.itemsize}")


MIXTURES = [*((dtype, dtype) for dtype in FLOATS), (torch.bfloat16, torch.float32), (torch.float32, torch.float64)]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "channels last", "scalar", "one of them"])
@pytest.mark.parametrize("dtypes", MIXTURES)
def test_tensors_of_any_type_and_stride(
    dtypes: tuple[torch.dtype, ...], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_gpu, "COPIED_AT_ONCE", 150)
    tensors = _views(dtypes, layout, 3)
    program = _random_program(2, 2, narrow=False)
    for name, dtype in zip(program.names, dtypes, strict=True):
        if dtype in (torch.bfloat16, torch.float16):
            program.narrow(name, Format(str(dtype).removeprefix("torch.")))
    size, first, d = tensors[0].numel(), 45, 1000
    before = [_bits(tensor) for tensor in tensors]
    broken, wanted = _as_reference(program, tensors, d, first)
    assert triton_gpu.run_on_device(program, tensors, d=d, first=first, store=False) == broken > 0
    assert all((_bits(tensor) == bits).all() for tensor, bits in zip(tensors, before, strict=True))
    assert triton_gpu.run_on_device(program, tensors, d=d, first=first, store=True) == broken
    for tensor, right in zip(tensors, wanted, strict=True):
        assert tensor.numel() == size
        assert (_bits(tensor) == _bits(right)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_number_is_read_and_every_float32_rounded_to_it(dtype: torch.dtype) -> None:
    every = torch.arange(2**16).to(torch.int16).view(dtype)
    program = Program(["x", "y"])
    program.copy("y", "x")
    wide = torch.empty(2**16, device=DEVICE)
    triton_gpu.run_on_device(program, [every.to(DEVICE), wide], d=2**16, first=0, store=True)
    assert (_bits(wide) == _bits(every.float())).all()
    bits = np.random.default_rng(0).integers(0, 2**32, 2**15, dtype=np.uint32)
    values = torch.from_numpy(np.concatenate([SPECIAL, bits.view(np.float32)]))
    half = torch.empty(values.numel(), dtype=dtype, device=DEVICE)
    triton_gpu.run_on_device(program, [values.to(DEVICE), half], d=2**16, first=0, store=True)
    assert (_bits(half) == _bits(_rounded(values, dtype))).all()
    narrowed = torch.from_numpy(reference.narrow(values.numpy(), Format(str(dtype).removeprefix("torch."))))
    assert (_bits(half.float()) == _bits(narrowed)).all()


def test_types_that_a_program_cannot_have_are_refused() -> None:
    program = Program(["x", "y"])
    program.copy("y", "x")
    x, y = torch.zeros(3, dtype=torch.float64, device=DEVICE), torch.zeros(3, dtype=torch.float16, device=DEVICE)
    with pytest.raises(InputError, match="dtypes must not mix 64 and 16 bits"):
        triton_gpu.run_on_device(program, [x, y], d=3, first=0, store=True)
    program.narrow("y", Format.FLOAT16)
    with pytest.raises(InputError, match="dtypes must be float32 where 16 bits are wanted"):
        triton_gpu.run_on_device(program, [x, x.clone()], d=3, first=0, store=True)


def test_strided_tensors_keep_what_lies_between_their_elements() -> None:
    whole = torch.full((40, 10), 7.0, device=DEVICE)
    program = Program(["x"])
    program.fill("x", 1.0)
    triton_gpu.run_on_device(program, [whole[:, ::3]], d=160, first=0, store=True)
    assert (whole[:, ::3] == 1).all()
    assert whole.sum().item() == 160 + 7 * 240


@pytest.mark.parametrize("size", [1, 127, 513, 2000])
def test_limits_count_the_elements_inside_the_range_only(size: int) -> None:
    program = Program(["x"])
    program.limit("x", 0.5)  # nothing is wrong yet
    program.offset("x", 1.0)
    program.limit("x", 0.5)  # everything is, and the registers of elements outside the range too
    program.limit("x", 1.0)
    x = torch.zeros(size, device=DEVICE)
    x[0] = float("nan")
    assert triton_gpu.run_on_device(program, [x], d=5000, first=77, store=False) == size + 2
    assert (x[1:] == 0).all()


def test_kernels_are_launched_under_the_device_of_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that make the norms of sphere directions too, which are numbers of the host."""
    kernels = {"run_program", "tile_products", "add_in_order", "form_points", "square_sums"}
    under: list[torch.device] = []
    launched: dict[str, set[torch.device]] = {}

    class Under:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            under.append(self.device)

        def __exit__(self, *_error: object) -> None:
            under.pop()

    class Watched:
        def __getattr__(self, name: str) -> object:
            if name in kernels:
                launched.setdefault(name, set()).add(under[-1])
            return getattr(triton_kernels, name)

    monkeypatch.setattr(torch.cuda, "device", Under)
    on_a_card = mock.patch.multiple(
        triton_gpu, INTERPRETED=False, _device=lambda: under[-1], _there=lambda tensor: tensor, kernels=Watched()
    )
    x, points = torch.ones(300, device=DEVICE), torch.empty(1, 300, device=DEVICE)
    program = Program(["x"])
    program.noise("x", 5, [1.0], Distribution.SPHERE, 0)
    with on_a_card, np.errstate(all="ignore"):
        noise.sphere_scale.cache_clear()
        triton_gpu.run_on_device(program, [x], d=300, first=0, store=True)
        noise.sphere_scale.cache_clear()
        triton_gpu.project_on_device(points, [(5, 0)], Distribution.SPHERE)
        noise.sphere_scale.cache_clear()
        form_points_(points, x, [(5, 0)], [1.0], Distribution.SPHERE, backend="triton")
    assert launched == {name: {x.device} for name in kernels}
