"""Triton's kernels on a GPU that is not there: compiled for it, and the PTX executed by ``ptx``, on host memory.

As a plugin of pytest (``-p``) this makes the lab take the CPU's tensors to such a GPU of the capability that
EMULATED names, as 90:

    EMULATED=90 python -m pytest -p tests.decomfl_lab.noise.emulated tests/decomfl_lab/noise/triton_checks.py

With "90 fused" contraction is allowed, which must be seen.
Triton binds, specialises, compiles and launches as ever; its driver and what stands behind PTX are replaced.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
from triton.backends import Backend, backends
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend

from tests.decomfl_lab.noise.ptx import Kernel

_NUMBERS = count(1000)
"""A driver's only device has a number of its own, as Triton keeps compiled kernels by it."""


class Emulated:
    """A driver of Triton.

    Args:
        capability: That of the GPU, as 90.
        edit: What is done to the PTX before it runs: the place for a fault.
    """

    def __init__(self, capability: int, edit: Callable[[str], str] = str) -> None:
        self.capability, self.edit, self.device = capability, edit, next(_NUMBERS)
        self.launched: list[str] = []
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 48 << 10},
            load_binary=self._load,
            unload_module=lambda module: None,
        )

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def _load(self, name: str, code: bytes, shared: int, device: int) -> tuple[Any, ...]:
        kernel = Kernel(self.edit(code.decode()))
        return kernel, kernel, 0, 0, 1024

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        signature = tuple(source.signature.values())

        def launch(x: int, y: int, z: int, stream: int, kernel: Kernel, *rest: Any) -> None:
            assert (y, z) == (1, 1)
            arguments = list(_flat(signature, rest[4:]))
            self.launched.append(kernel.name)
            kernel.launch(x, arguments, metadata.shared)

        return launch


def _flat(types: Sequence[Any], values: Sequence[Any]) -> Iterator[Any]:
    for kind, value in zip(types, values, strict=True):
        if isinstance(kind, tuple):
            yield from _flat(kind, value)
        elif kind != "constexpr":
            yield _bytes(value) if isinstance(value, torch.Tensor) else value


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The memory of a tensor's elements, which a kernel may reach for."""
    assert tensor.is_contiguous()
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer((ctypes.c_uint8 * size).from_address(tensor.data_ptr()), dtype=np.uint8)


class _UpToPtx(CUDABackend):  # type: ignore[misc]
    """Compiles as NVIDIA's backend does, but for the last stage, ptxas."""

    def __init__(self, target: GPUTarget) -> None:
        super().__init__(target)
        self.binary_ext = "ptx"

    def add_stages(self, stages: dict[str, Any], *arguments: Any) -> None:
        super().add_stages(stages, *arguments)
        del stages["cubin"]

    def hash(self) -> str:
        return f"{super().hash()}-ptx"


@contextmanager
def emulated(driver: Emulated) -> Iterator[Emulated]:
    """Launches go to this driver."""
    nvidia = backends["nvidia"]
    with (
        mock.patch.dict(backends, nvidia=Backend(_UpToPtx, nvidia.driver)),
        mock.patch.object(triton.runtime.driver, "_active", driver),
    ):
        yield driver


if "EMULATED" in os.environ:  # for all of this process; the lab finds a GPU that has the CPU's memory
    _capability, *_faults = os.environ["EMULATED"].split()
    _here = ExitStack()
    _here.enter_context(emulated(Emulated(int(_capability))))
    with mock.patch.object(torch.cuda, "is_available", return_value=True):
        from decomfl_lab.noise import triton_gpu, triton_kernels
    triton_gpu.INTERPRETED = True
    for _options in (triton_kernels.OPTIONS, triton_kernels.WARP):
        _options["enable_fp_fusion"] = "fused" in _faults
