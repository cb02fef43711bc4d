"""Kernels without a GPU: what Triton compiles for one is executed by ``ptx``, and faults of every kind are planted."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from decomfl_lab.noise import reference
from tests.cases import refuses, sampled

QUICK = "square_sums or any_number or part_of_the_model or inside_the_range"
"""The checks that take least and run all kernels."""

pytest.importorskip("triton", reason="Triton is not installed (there are no builds for this system)")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter does not compile", allow_module_level=True)

from decomfl_lab.noise import triton_kernels as kernels  # noqa: E402
from tests.cases import rows_of  # noqa: E402
from tests.decomfl_lab.noise import ptx  # noqa: E402
from tests.decomfl_lab.noise.emulated import Emulated, emulated  # noqa: E402
from tests.decomfl_lab.noise.ptx import Kernel, PtxError, UnknownError  # noqa: E402
from tests.decomfl_lab.noise.test_triton import checked  # noqa: E402

# All checks of the backend ----------------------------------------------------------------------------------------


def _checked(gpu: str, chosen: str, folder: Path) -> tuple[int, int]:
    """How many of the checks pass and how many fail on this GPU."""
    own = {"EMULATED": gpu, "TRITON_CACHE_DIR": str(folder / "triton"), "TRITON_INTERPRET": "0"}
    return checked("-p", "tests.decomfl_lab.noise.emulated", "-k", chosen, **own)


@pytest.mark.thorough
def test_the_code_for_a_gpu_has_the_bits_of_the_reference(tmp_path: Path) -> None:
    passed, failed = _checked("90", QUICK, tmp_path)
    assert failed == 0
    assert passed >= 10


@pytest.mark.thorough
@pytest.mark.parametrize("gpu", ["80", "90", "100"])
def test_all_checks_of_the_backend_hold_for_a_gpu(gpu: str, tmp_path: Path) -> None:
    passed, failed = _checked(gpu, "test", tmp_path)
    assert failed == 0
    assert passed > 139


@pytest.mark.thorough
def test_contraction_would_be_seen_by_many_of_the_checks(tmp_path: Path) -> None:
    _, failed = _checked("90 fused", "test", tmp_path)
    assert failed > 40  # 47 of them do


# Faults planted in the kernels ------------------------------------------------------------------------------------

TILES, D = 20, 2500
BARRIER = re.compile(r"\tbar\.(?:warp\.)?sync[^\n]*;\n")


def _square_sums(
    edit: Callable[[str], str] = str, *, gpu: int = 90, sums: torch.Tensor | None = None, fused: bool = False
) -> bool:
    """Whether ‖z‖² of all tiles have the bits of the reference."""
    sums = torch.empty(TILES, dtype=torch.float64) if sums is None else sums
    with emulated(Emulated(gpu, edit)) as driver:
        options = {**kernels.OPTIONS, "enable_fp_fusion": fused}
        kernels.square_sums[(-(-TILES // kernels.SUMMED_TILES),)](sums, 5, 7, 0, TILES, D, **options)
    assert driver.launched == ["square_sums"]
    return sums.numpy().tobytes() == reference.tile_square_sums(5, 7, 0, TILES, D).tobytes()


def _without_barrier(n: int) -> Callable[[str], str]:
    def edit(text: str) -> str:
        found = list(BARRIER.finditer(text))
        assert len(found) == 27
        return text[: found[n].start()] + text[found[n].end() :]

    return edit


@pytest.mark.parametrize("gpu", sampled([80, 90, 100], 1))
def test_the_kernel_as_it_is_has_the_bits_and_contracted_it_has_others(gpu: int) -> None:
    assert _square_sums(gpu=gpu)
    assert not _square_sums(gpu=gpu, fused=True)


@pytest.mark.parametrize(("gpu", "n"), sampled([(gpu, n) for gpu in (80, 90, 100) for n in range(27)], 4))
def test_every_barrier_that_is_missing_is_noticed(gpu: int, n: int) -> None:
    with pytest.raises(PtxError, match="a race: two (warps|lanes of a warp) reach for byte"):
        _square_sums(_without_barrier(n), gpu=gpu)


@refuses(*rows_of(__file__)["places"], error=PtxError)
def test_a_wrong_place_in_shared_memory_is_noticed(by: int) -> None:
    _square_sums(lambda text: re.sub(r"(st\.shared\.v4\.b32 \t\[%r\d+)\]", rf"\1+{by}]", text, count=1))


# Small code -------------------------------------------------------------------------------------------------------


def _run(body: str, out: np.ndarray, *, threads: int = 64, blocks: int = 1, shared: int = 512) -> np.ndarray:
    """Run lines of PTX; %r1 is the thread, %rd2 the place of its number of 32 bits in ``out``, %r2 four times it."""
    text = f"""
.visible .entry small(
	.param .u64 .ptr .global .align 1 small_param_0
)
.reqntid {threads}
{{
	.reg .pred 	%p<4>;
	.reg .b32 	%r<20>;
	.reg .b64 	%rd<9>;
	ld.param.b64 	%rd1, [small_param_0];
	mov.u32 	%r1, %tid.x;
	shl.b32 	%r2, %r1, 2;
	mad.wide.u32 	%rd2, %r1, 4, %rd1;
{body}
	st.global.b32 	[%rd2], %r9;
	ret;
}}
"""
    Kernel(text).launch(blocks, [out.view(np.uint8)], shared)
    return out


THERE = "st.shared.b32 [%r2], %r1;\n"


def _numbers(threads: int = 64) -> np.ndarray:
    return np.zeros(threads, dtype=np.uint32)


def test_lanes_that_part_meet_again() -> None:
    """Odd threads go the long way, some of them longer; then each takes its neighbour's number."""
    body = """
	and.b32 	%r3, %r1, 1;
	setp.eq.b32 	%p1, %r3, 0;
	mov.b32 	%r4, 0;
	@%p1 bra 	$L2;
$L1:
	add.s32 	%r4, %r4, 1;
	setp.lt.u32 	%p2, %r4, %r1;
	@%p2 bra 	$L1;
$L2:
	shfl.sync.bfly.b32 	%r9, %r4, 1, 31, -1;"""
    thread = np.arange(64)
    assert (_run(body, _numbers()) == np.where(thread % 2 == 0, thread + 1, 0)).all()


def test_what_a_neighbour_wrote_is_there_after_a_barrier_alone() -> None:
    read = "xor.b32 %r3, %r2, {}; {} ld.shared.b32 %r9, [%r3];"
    thread = np.arange(64)
    for other, barrier in ((4, "bar.warp.sync -1;"), (4, "bar.sync 0;"), (128, "bar.sync 0;")):
        assert (_run(THERE + read.format(other, barrier), _numbers()) == thread ^ (other // 4)).all()
    for other, barrier, who in ((4, "", "lanes of a warp"), (128, "", "warps"), (128, "bar.warp.sync -1;", "warps")):
        with pytest.raises(PtxError, match=f"a race: two {who}"):
            _run(THERE + read.format(other, barrier), _numbers())
    assert (_run(THERE + "ld.shared.b32 %r9, [%r2];", _numbers()) == thread).all()


@refuses(*rows_of(__file__)["refused"], error=PtxError)
def test_faults_of_small_code_are_noticed(body: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "MOST_STEPS", 1000)
    _run(body, _numbers(), blocks=blocks)


UNKNOWN = """
    add.rz.f32 %r9, %r1, %r1;  mul.rn.ftz.f32 %r9, %r1, %r1;  sin.approx.f32 %r9, %r1;  max.f32 %r9, %r1, %r1;
    cvt.f32.s32 %r9, %r1;  mov.b32 %r9, %rd1;  ld.local.b32 %r9, [%r2];  bar.sync 1;
    shfl.sync.up.b32 %r9, %r1, 1, 0, -1;
"""


@pytest.mark.parametrize("line", re.findall(r"\S[^;]*;", UNKNOWN))
def test_what_is_not_known_is_refused(line: str) -> None:
    with pytest.raises(UnknownError, match=re.escape(line.rstrip(";"))):
        _run(line, _numbers())


def test_fused_products_are_rounded_once() -> None:
    from fractions import Fraction

    a, b, c = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    c = -(a * b) + np.float32(1e-9) * c  # so that what the product's rounding takes away is most of the sum
    body = "".join(f"ld.global.b32 %r{n + 3}, [%rd2+{256 * n}];\n" for n in range(3)) + "fma.rn.f32 %r9, %r3, %r4, %r5;"
    found = _run(body, np.concatenate([a, b, c]))[:64]
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert found.tolist() == [float(np.float32(float(value))) for value in exact]
    assert (found != a * b + c).any()
