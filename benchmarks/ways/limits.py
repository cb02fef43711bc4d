"""The least time that a rebuild would need here: this machine's instructions and memory, measured."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir

from benchmarks.ways.clock import fastest
from decomfl_lab.noise import Distribution, spec
from decomfl_lab.noise.lanes import I32, Lanes

__all__ = ["limits"]


def _lane_operations(distribution: Distribution, pairs: int, dtype: str = "float32") -> float:
    """32-bit lane operations that one element and direction needs, were every one a single instruction.

    A Philox round is two products of 64 bits, two shifts and four exclusive ors on the low halves of 64-bit
    lanes: 16 for the four words of a block. Masks, truncations and the key schedule are not counted: they need
    no instruction of their own, or one for a whole tile. Box-Muller's are counted in the code that is compiled.
    """
    words = spec.ROUNDS * 16 / spec.WORDS
    if distribution is Distribution.RADEMACHER:
        add = 4 if dtype == "float64" else 1  # to float64 and its sum: two lanes each
        return words * -(-pairs // 32) / pairs + 2 + add  # shift, choose between c and -c, add
    update = 6 if dtype == "float64" else 2
    return words + _box_muller_operations() / 2 + update + (distribution is Distribution.SPHERE)


@cache
def _box_muller_operations() -> int:
    """The instructions of two normal numbers, counted in the code that is compiled."""
    from decomfl_lab.noise.numba_cpu import box_muller

    kind = ir.VectorType(I32, spec.LANES)
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), [kind, kind]), "count")
    builder = ir.IRBuilder(function.append_basic_block())
    box_muller(*(Lanes(builder, argument) for argument in function.args))
    # A bitcast gives a register another type, and costs no instruction.
    return sum(at.opname != "bitcast" for at in builder.block.instructions)


@cache
def _instruction_rate() -> float:
    """32-bit lane operations a second of one core, on twelve independent chains of vector sums and xors."""
    import numba

    from decomfl_lab.noise.numba_cpu import on_rows

    chains, links = 3, 64

    @on_rows
    def burst(builder: Any, x: Any, a: Any) -> None:
        values = [Lanes.load(builder, x, I32, 32 * n, 32) for n in range(chains)]
        step = values[0].spread(a)
        for n in range(links):
            values = [value ^ step if n % 2 else value + step for value in values]
        for n, value in enumerate(values):
            value.store(x, 32 * n)

    @numba.njit
    def run(x: Any, a: Any, times: int) -> None:
        for _ in range(times):
            burst(x, a)

    x, times = np.ones(32 * chains, dtype=np.uint32), 200_000
    seconds = fastest(lambda: run(x, np.uint32(12345), times))
    return times * links * 32 * chains / seconds


@cache
def _bandwidth() -> float:
    """Bytes a second that one core reads and writes while it scales 256 MB in place."""
    x = np.ones(1 << 26, dtype=np.float32)

    def scale() -> None:
        np.multiply(x, np.float32(1.0), out=x)

    return 2 * x.nbytes / fastest(scale)


@cache
def _gpu_rates(device: str) -> tuple[float, float]:
    """The GPU's 32-bit integer operations a second, by its clock and units, and bytes a second when it scales 1 GB."""
    found = torch.cuda.get_device_properties(torch.device(device))
    hertz = 1e3 * getattr(found, "clock_rate", float("inf"))
    x = torch.ones(1 << 28, device=device)

    def scale() -> None:
        x.mul_(1.0)

    seconds = fastest(scale, lambda: torch.cuda.synchronize(device))
    return 64 * found.multi_processor_count * hertz, 2 * 4 * x.numel() / seconds


def limits(distribution: Distribution, pairs: int, *, dtype: str, workers: int, device: str) -> tuple[float, str]:
    """(ns per element and pair, what binds): the least that the workers of this CPU, or the GPU, would need.

    Instructions: the lane operations of the specification at the measured rate of independent ones, on a GPU at the
    rate of its 64 integer units a multiprocessor. Bandwidth: one read and one write of the model in all, at the
    measured rate; models within the cache need less.
    """
    operations, bytes_ = _gpu_rates(device) if device != "cpu" else (_instruction_rate(), _bandwidth())
    passes = 2 if distribution is Distribution.SPHERE else 1  # the first for the norm of the direction
    instructions = passes * _lane_operations(distribution, pairs, dtype) / operations
    size = getattr(torch, dtype).itemsize
    bandwidth = 2 * size / bytes_ / pairs
    both = {"instructions": 1e9 * instructions, "bandwidth": 1e9 * bandwidth}
    binds = max(both, key=lambda name: both[name])
    return both[binds] / workers, binds
