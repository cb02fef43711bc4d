"""Devices: where the vectors of the model's size are kept and computed with."""

import math
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError, plural, require, require_choice, require_int
from decomfl_lab.options import MOST_THREADS

DEVICES = ("cpu", "cuda", "cuda:N", "auto")


def find_device(name: str) -> torch.device:
    """The device of this name: "cuda" is the current GPU, "cuda:1" the second; "auto" is a GPU where torch sees one.

    Raises:
        InputError: If the name is unknown, or torch sees no such GPU.
    """
    numbered = re.fullmatch(r"cuda:(\d{1,4})", name)
    if not numbered:
        require(name != "cuda:N", "device", "have a number for N, as cuda:1", name)
        require_choice("device", name, DEVICES)
    seen = torch.cuda.is_available()
    if (name == "cuda" or numbered) and not seen:
        built = "sees no GPU here" if torch.version.cuda else "is built without CUDA"
        raise InputError(f"device must be cpu or auto here (torch {torch.__version__} {built}), got {name!r}")
    if numbered:
        count = torch.cuda.device_count()
        rule = f"be one of the {plural(count, 'GPU')} that torch sees, from cuda:0 to cuda:{count - 1}"
        require(int(numbered[1]) < count, "device", rule, name)
        return torch.device("cuda", int(numbered[1]))
    return torch.device("cuda", torch.cuda.current_device()) if seen and name != "cpu" else torch.device("cpu")


def _parts(*owners: Any) -> list[Any]:
    """The parts of torch that have a switch of their own, from torch 2.9 on; none before."""
    names = ("matmul", "conv", "rnn")
    parts = [getattr(owner, name, None) for owner in owners for name in names]
    return [part for part in parts if part is not None] if hasattr(torch.backends, "fp32_precision") else []


def use_tf32_(on: bool) -> None:
    """Let a GPU keep 10 of a float32's 23 bits in products, or not; torch's default does so in convolutions."""
    # torch has two sets of switches, and where the older ones contradict the others, reading them raises. So the older
    # ones come first, for code that reads them, and then each part's own, which what is set for all cannot change.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on
    for part in _parts(torch.backends.cuda, torch.backends.cudnn):
        part.fp32_precision = "tf32" if on else "ieee"
    for part in _parts(torch.backends.mkldnn):  # some CPUs can do it too
        part.fp32_precision = "ieee"


@contextmanager
def computing(device: torch.device, compute: str) -> Iterator[None]:
    """Inside, what torch multiplies in float32 it multiplies as ``compute`` says: float32, tf32 or bfloat16."""
    parts = _parts(torch.backends.cuda, torch.backends.cudnn) if device.type == "cuda" else []
    before = [part.fp32_precision for part in parts]
    narrow = (
        torch.autocast(device.type, torch.bfloat16, cache_enabled=False) if compute == "bfloat16" else nullcontext()
    )
    with narrow:
        try:
            for part in parts:
                part.fp32_precision = "tf32" if compute == "tf32" else "ieee"
            yield
        finally:
            for part, precision in zip(parts, before, strict=True):
                part.fp32_precision = precision


def use_threads_(threads: int) -> None:
    """Let torch compute with so many threads of the CPU; InputError unless a system can have so many."""
    torch.set_num_threads(require_int("threads", threads, 1, MOST_THREADS))


def free_memory(device: torch.device) -> int | None:
    """Bytes of a GPU that tensors can still take, those that torch keeps in reserve included; None on the CPU.

    What a recorded CUDA graph holds for its replays is reserved too, but for nothing else.
    """
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    # No tensor has the rest of pools that are a graph's own; the pool that all share is (0, 0).
    segments = [segment for segment in torch.cuda.memory_snapshot() if segment["device"] == index]
    private_ones = [segment for segment in segments if segment.get("segment_pool_id", (0, 0)) != (0, 0)]
    private: int = sum(segment["total_size"] - segment["allocated_size"] for segment in private_ones)
    return free + idle - private


def available_memory(device: torch.device) -> int | None:
    """Bytes that may still be taken: of a GPU what is free, else what Linux has, and the process's control group.

    What files fill (page cache) is free. None where the system tells neither.
    """
    if device.type != "cpu":
        return free_memory(device)
    limits = []
    with suppress(OSError, ValueError, KeyError):
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        limits.append(1024 * int(facts["MemAvailable"].split()[0]))
    # version 2 of control groups, and version 1
    for folder, names in (("", ("max", "current")), ("memory", ("limit_in_bytes", "usage_in_bytes"))):
        group = Path("/sys/fs/cgroup", folder)
        with suppress(OSError, ValueError, KeyError):  # without a limit it is "max"
            limit, used = (int((group / f"memory.{name}").read_text()) for name in names)
            facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            limits.append(limit - used + int(facts["inactive_file"]))
    return min(limits, default=None)


def room(device: torch.device) -> float:
    """Bytes that something may take beside what is there: of a GPU what is free, else half of the machine's memory."""
    free = free_memory(device)
    if free is not None:
        return float(free)
    known = hasattr(os, "sysconf")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2 if known else math.inf


def on_host(values: NDArray[Any] | Tensor) -> NDArray[Any]:
    """The numbers as an array: those of a GPU are waited for."""
    return values.cpu().numpy() if isinstance(values, Tensor) else values


def describe(device: torch.device) -> str:
    """The device for provenance: what a result was computed on."""
    if device.type == "cuda":
        # The older switches cannot be read where those of the parts differ among each other.
        if parts := _parts(torch.backends.cuda, torch.backends.cudnn):
            tf32 = any(part.fp32_precision == "tf32" for part in parts)
        else:
            tf32 = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
        narrow = ", products in TF32" if tf32 else ""
        return f"cuda ({torch.cuda.get_device_name(device)}{narrow})"
    return f"cpu ({platform.machine()}), {plural(torch.get_num_threads(), 'thread')}"
