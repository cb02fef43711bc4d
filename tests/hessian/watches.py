"""What tells on a machine without a GPU how code would fare on one: another device, host reads, live vectors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hessian.operators import probes

META = torch.device("meta")
"""A device that computes nothing; torch refuses to mix its tensors with those of the CPU, as it does on a GPU."""

_READS: dict[Callable[..., Any], Callable[[Tensor], Any]] = {
    Tensor.item: lambda t: 1.0,
    Tensor.__float__: lambda t: 1.0,
    Tensor.__int__: lambda t: 0,
    torch.equal: lambda t: False,
    Tensor.__bool__: lambda t: True,
    Tensor.tolist: lambda t: [1.0] * t.numel(),
}


class Reads(TorchFunctionMode):
    """Counts how often the host waits for what META holds. Numbers that it gets are 1, counts 0, equal nothing is."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS and args[0].device == META:
            self.count += 1
            return _READS[func](args[0])
        return func(*args, **(kwargs or {}))


class Elsewhere(TorchDispatchMode):
    """AssertionError at an operation with a tensor of d elements or more that is not on META."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d = d

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, found)):
            if isinstance(tensor, Tensor) and tensor.numel() >= self.d:
                assert tensor.device == META, f"{func} has a tensor of {tuple(tensor.shape)} on {tensor.device}"
        return found


class Live(TorchDispatchMode):
    """Counts the bytes of storages of at least ``least`` bytes that operations made and that are alive; the most."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.most = least, 0
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage.nbytes() >= self.least:
                held = self.held.get(storage._cdata)
                if held is None or held[0].expired():
                    self.held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                    self.most = max(self.most, self.now())
        return found

    def now(self) -> int:
        """Bytes that are alive."""
        self.held = {key: each for key, each in self.held.items() if not each[0].expired()}
        return sum(size for _, size in self.held.values())


def _filled(d: int, dtype: torch.dtype, device: torch.device, *at: Any) -> Tensor:
    """Stands for what the stream's kernel on a GPU writes; all else goes the way it goes on the CPU."""
    return torch.full((d,), -0.0, dtype=dtype, device=device)


@contextmanager
def another_device(d: int, made: Callable[..., Tensor] = _filled) -> Iterator[Reads]:
    """Inside, META takes the place of a GPU for vectors of d elements, and ``made`` that of the stream's kernel."""
    with mock.patch.object(probes, "_made", made), Reads() as reads, Elsewhere(d):
        yield reads
