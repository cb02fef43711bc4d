"""Devices: where the vectors of the model's size are kept and computed with."""

from __future__ import annotations

import math
import os
import platform
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError, plural, require_choice, require_int

__all__ = ["DEVICES", "describe", "find_device", "free_memory", "on_host", "room", "use_tf32_", "use_threads_"]

DEVICES = ("cpu", "cuda", "auto")


def find_device(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU where torch sees one, else the CPU.

    Raises:
        InputError: If the name is unknown, or torch sees no GPU.
    """
    require_choice("device", name, DEVICES)
    seen = torch.cuda.is_available()
    if name == "cuda" and not seen:
        built = "sees no GPU here" if torch.version.cuda else "is built without CUDA"
        raise InputError(f"device must be cpu or auto here (torch {torch.__version__} {built}), got 'cuda'")
    return torch.device("cuda", torch.cuda.current_device()) if seen and name != "cpu" else torch.device("cpu")


def use_tf32_(on: bool) -> None:
    """Let a GPU keep 10 of a float32's 23 bits in products, or not; torch's default does so in convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on


def use_threads_(threads: int) -> None:
    """Let torch compute with so many threads of the CPU; InputError unless a system can have so many."""
    torch.set_num_threads(require_int("threads", threads, 1, 1024))


def free_memory(device: torch.device) -> int | None:
    """Bytes of a GPU that tensors can still take, those that torch keeps in reserve included; None on the CPU."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


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
        narrow = ", products in TF32" if torch.backends.cudnn.allow_tf32 else ""
        return f"cuda ({torch.cuda.get_device_name(device)}{narrow})"
    return f"cpu ({platform.machine()}), {plural(torch.get_num_threads(), 'thread')}"
