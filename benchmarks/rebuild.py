"""How fast is a rebuild? Ratios to the plain way, measured side by side in one process.

The plain way seeds a ``torch.Generator``, draws z with ``randn`` and adds it with ``add_``, direction after
direction: what a direct reading of the paper does, and what the authors' code does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir

from decomfl_lab.devices import find_device
from decomfl_lab.errors import require_choice, require_int, require_possible
from decomfl_lab.noise import Distribution, Program, cpu_backend, in_dimension, load_backend, spec, sphere_scale
from decomfl_lab.noise.lanes import I32, Lanes
from decomfl_lab.replicas.rebuild import rebuild_
from decomfl_lab.runs.memory import apart, peak_of, resident_bytes

__all__ = ["Row", "Setting", "limits", "measure", "rebuild_rows"]

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
_SECONDS = 0.4
"""Time that a measurement should last."""
_LONG = 5.0
"""Seconds beyond which a measurement is not repeated."""
_PLAIN_WORK = 250_000_000
"""Elements times pairs that the plain way is measured on; its time per pair does not depend on their number."""


@dataclass(frozen=True)
class Setting:
    """One rebuild: ``pairs`` missed directions of one step on a model of d parameters."""

    distribution: Distribution
    d: int
    pairs: int
    workers: int
    dtype: str = "float32"
    backend: str | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_choice("distribution", self.distribution, Distribution)
        require_choice("dtype", self.dtype, DTYPES)
        require_int("d", self.d, 1)
        require_int("pairs", self.pairs, 1)
        require_int("workers", self.workers, 1, 1024)
        require_possible("d", self.d, memory=4 * self.d)
        require_possible("d and pairs", (self.d, self.pairs), operations=self.d * self.pairs)
        if find_device(self.device).type == "cpu":
            load_backend(self.backend)


@dataclass(frozen=True)
class Row:
    """What was measured of one rebuild.

    Attributes:
        distribution: Distribution of the directions.
        backend: Name of the backend that made them.
        device: "cpu" or "cuda".
        dtype: Type of the model's numbers.
        d: Number of parameters.
        pairs: Number of directions that were missed.
        workers: Number of CPU threads.
        ns_per_element_pair: Nanoseconds of a rebuild / (d · pairs).
        plain_ns: Nanoseconds of the plain way / (d · pairs), with the number of threads that is fastest for it.
        plain_default_ns: Nanoseconds of the plain way with torch's own number of threads.
        ratio: plain_ns / ns_per_element_pair.
        limit_ns: The least nanoseconds that this machine's instructions and memory would need; see ``limits``.
        share_of_limit: limit_ns / ns_per_element_pair.
        limited_by: "instructions" or "bandwidth".
        peak_models: Peak memory during the rebuild in models, the model itself included; None for small ones.
        plain_peak_models: Peak memory of the plain way, counted in the same way.
    """

    distribution: str
    backend: str
    device: str
    dtype: str
    d: int
    pairs: int
    workers: int
    ns_per_element_pair: float
    plain_ns: float
    plain_default_ns: float
    ratio: float
    limit_ns: float
    share_of_limit: float
    limited_by: str
    peak_models: float | None
    plain_peak_models: float | None


def _best(work: Callable[[], None], synchronize: Callable[[], None] = lambda: None) -> float:
    """Seconds of the fastest of several runs; the first, in which pages fault, counts only if it is very long."""
    times: list[float] = []
    while len(times) < 4 or (sum(times) < _SECONDS and len(times) < 1000):
        started = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - started)
        if times[0] > _LONG:
            return times[0]
        if sum(times) > _LONG and len(times) > 1:
            break
    return min(times[1:])


# The machine's limits ----------------------------------------------------------------------------------------


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
    if distribution is Distribution.LOW_RANK:  # of rank 1: the product of two factors, which are few
        return 1 + update
    return words + _box_muller_operations() / 2 + update + (distribution is Distribution.SPHERE)


@cache
def _box_muller_operations() -> int:
    from decomfl_lab.noise.numba_cpu import box_muller

    kind = ir.VectorType(I32, spec.LANES)
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), [kind, kind]), "count")
    builder = ir.IRBuilder(function.append_basic_block())
    box_muller(*(Lanes(builder, argument) for argument in function.args))
    free = ("bitcast",)
    return sum(at.opname not in free for at in builder.block.instructions)


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
    seconds = _best(lambda: run(x, np.uint32(12345), times))
    return times * links * 32 * chains / seconds


@cache
def _bandwidth() -> float:
    """Bytes a second that one core reads and writes while it scales 256 MB in place."""
    x = np.ones(1 << 26, dtype=np.float32)

    def scale() -> None:
        np.multiply(x, np.float32(1.0), out=x)

    return 2 * x.nbytes / _best(scale)


@cache
def _gpu_rates() -> tuple[float, float]:
    """The GPU's 32-bit integer operations a second, by its clock and units, and bytes a second when it scales 1 GB."""
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    hertz = 1e3 * getattr(found, "clock_rate", float("inf"))
    x = torch.ones(1 << 28, device="cuda")

    def scale() -> None:
        x.mul_(1.0)

    seconds = _best(scale, torch.cuda.synchronize)
    return 64 * found.multi_processor_count * hertz, 2 * 4 * x.numel() / seconds


def limits(setting: Setting) -> tuple[float, str]:
    """(ns per element and pair, what binds): the least that the workers of this CPU, or the GPU, would need.

    Instructions: the lane operations of the specification at the measured rate of independent ones, on a GPU at the
    rate of its 64 integer units a multiprocessor. Bandwidth: one read and one write of the model in all, at the
    measured rate; models within the cache need less.
    """
    operations, bytes_ = _gpu_rates() if setting.device == "cuda" else (_instruction_rate(), _bandwidth())
    passes = 2 if setting.distribution is Distribution.SPHERE else 1  # the norm, once a direction
    instructions = passes * _lane_operations(setting.distribution, setting.pairs, setting.dtype) / operations
    size = DTYPES[setting.dtype].itemsize
    bandwidth = 2 * size / bytes_ / setting.pairs
    both = {"instructions": 1e9 * instructions, "bandwidth": 1e9 * bandwidth}
    binds = max(both, key=lambda name: both[name])
    return both[binds] / setting.workers, binds


# Memory ------------------------------------------------------------------------------------------------------


# Measuring ---------------------------------------------------------------------------------------------------


def _rebuild(setting: Setting, x: torch.Tensor, seed: int) -> Callable[[], None]:
    program = Program(["x"])
    coefficients = np.linspace(-1e-3, 1e-3, setting.pairs)
    program.noise("x", seed, coefficients, in_dimension(setting.distribution, x.numel()))
    backend = "triton" if setting.device == "cuda" else setting.backend

    def work() -> None:
        sphere_scale.cache_clear()  # a sphere's norms are part of the work
        rebuild_(program, [{"x": x}], backend=backend, workers=setting.workers)

    return work


def _plain(setting: Setting, x: torch.Tensor, pairs: int) -> Callable[[], None]:
    generator = torch.Generator(device=setting.device)

    def work() -> None:
        generator.manual_seed(1)
        for p in range(pairs):
            z = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
            x.add_(z, alpha=1e-3 * (p + 1))

    return work


def measure(settings: Sequence[Setting]) -> Iterator[Row]:
    """Rows of settings that share d, dtype and device, measured in this process, one after another."""
    d, dtype, device = settings[0].d, DTYPES[settings[0].dtype], settings[0].device
    threads = torch.get_num_threads()
    synchronize = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    small = torch.zeros(512, dtype=dtype, device=device)
    for setting in settings:  # compiled and warm before memory is looked at
        _rebuild(setting, small, 0)()
        _plain(setting, small, 1)()
    without_model = resident_bytes()
    x = torch.zeros(d, dtype=dtype, device=device)
    x += 1.0
    model_bytes = x.numel() * x.element_size()
    plain_pairs = max(1, min(10, _PLAIN_WORK // d))
    plain = _plain(settings[0], x, plain_pairs)
    plain_ns: dict[int, float] = {}
    plain_peak = peak_of(plain, model_bytes, without_model) if device == "cpu" else None

    def time_plain() -> None:
        for count in {1, threads} if device == "cpu" else {threads}:
            torch.set_num_threads(count)
            ns = 1e9 * _best(plain, synchronize) / (d * plain_pairs)
            plain_ns[count] = min(ns, plain_ns.get(count, np.inf))
        torch.set_num_threads(threads)

    time_plain()
    rows = []
    for setting in settings:
        work = _rebuild(setting, x, 7)
        peak = peak_of(work, model_bytes, without_model) if device == "cpu" else None
        seconds = _best(work, synchronize)
        rows.append((setting, 1e9 * seconds / (d * setting.pairs), peak))
    time_plain()  # before and after: a machine that got slower meanwhile would show in the ratio
    for setting, ns, peak in rows:
        limit, binds = limits(setting)
        best = min(plain_ns.values())
        backend = "triton" if device == "cuda" else (setting.backend or cpu_backend())
        yield Row(
            **asdict(setting) | {"backend": backend},
            ns_per_element_pair=ns,
            plain_ns=best,
            plain_default_ns=plain_ns[threads],
            ratio=best / ns,
            limit_ns=limit,
            share_of_limit=limit / ns,
            limited_by=binds,
            peak_models=peak,
            plain_peak_models=plain_peak,
        )


def rebuild_rows(settings: Sequence[Setting]) -> Iterator[list[Row]]:
    """Measure in a fresh process for each (device, dtype, d), so that peaks of memory are those of one model."""
    groups: dict[tuple[str, str, int], list[Setting]] = {}
    for setting in settings:
        groups.setdefault((setting.device, setting.dtype, setting.d), []).append(setting)
    for group in groups.values():
        asked = json.dumps([asdict(setting) for setting in group])
        rows = apart(f"d={group[0].d}", "benchmarks.rebuild", given=asked)
        yield [Row(**row) for row in rows]


def _main() -> None:
    raw = json.load(sys.stdin)
    settings = [Setting(**{**entry, "distribution": Distribution(entry["distribution"])}) for entry in raw]
    json.dump([asdict(row) for row in measure(settings)], sys.stdout)


if __name__ == "__main__":
    _main()
