"""How x_0 came to be, as a log says it, and x_0 made again from that: by the stream, or from the file itself.

    {"by": "stream", "key": 16 hex digits, "tensors": [{"shape": [...], "draw": ..., "scale": ...}, ...]}
    {"by": "file", "dtype": "float32", "bytes": n}       n bytes after the header are x_0's, compressed by zlib
    {"by": "libraries"}                                  torch's initialisers, and numpy: the configuration's ``draws``
    {"by": "given"}                                      the weights that the run's user brought

docs/run-log.md specifies it.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decomfl_lab.errors import InputError, require, require_int, require_possible
from decomfl_lab.layout import Layout
from decomfl_lab.models.initial import starts_of
from decomfl_lab.noise.draws import LIBRARIES
from decomfl_lab.noise.starts import MOST_TENSORS, Start
from decomfl_lab.plugins import OWN, is_own
from decomfl_lab.replicas.replica import Replica, same_bits
from decomfl_lab.runs.config import TrainConfig

__all__ = ["made_again", "said"]

_MOST_AXES = 16
_TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}


def said(config: TrainConfig, module: nn.Module, layout: Layout, replica: Replica) -> tuple[dict[str, Any], bytes]:
    """What a log says of x_0, and the bytes of it that go into the file.

    Args:
        config: The run.
        module: The run's module.
        layout: Where x lies in it.
        replica: One at x_0, perhaps in 16 bits or on a grid. It is compared with what comes of the stream before the
            log says that it does.
    """
    x = replica.x.cpu()
    if config.log_start:
        wide = x if x.dtype == torch.float64 else x.float()  # 16 bits are narrowed to the same ones again
        packed = zlib.compress(wide.numpy().tobytes())
        return {"by": "file", "dtype": str(wide.dtype).removeprefix("torch."), "bytes": len(packed)}, packed
    drawn = config.tune == "lora" if config.task else not (config.model == OWN or is_own(config.model))
    if drawn and config.draws == LIBRARIES:
        return {"by": "libraries"}, b""
    if drawn:
        starts = zip(layout.shapes, starts_of(module), strict=True)
        tensors = [{"shape": list(shape), **start.to_dict()} for shape, start in starts]
        start = {"by": "stream", "key": f"{config.seed:016x}", "tensors": tensors}
        if same_bits(replica.rule.begin(_by_stream(start, x.numel())), x):
            return start, b""
    return {"by": "given"}, b""


def made_again(header: Mapping[str, Any], packed: bytes) -> Tensor | None:
    """x_0, shape (d,), from what a log says of it; None where it does not say it.

    Args:
        header: The log's header.
        packed: The bytes of x_0 in the file.

    Raises:
        InputError: If what it says is not such, or gives another number of elements than d.
    """
    start = header.get("start", {})
    require(isinstance(start, Mapping), "start in the header", "be a table", start)
    d = require_int("d in the header", header.get("d"), 1)
    match start.get("by"):
        case "stream":
            return _by_stream(start, d)
        case "file":
            return _in_file(start, packed, d)
        case None | "libraries" | "given":
            return None
    raise InputError(f"start in the header must be by stream, file, libraries or given, got {start.get('by')!r}")


def _by_stream(start: Mapping[str, Any], d: int) -> Tensor:
    """x_0 of d elements, drawn tensor by tensor."""
    tensors, key = start.get("tensors"), start.get("key")
    sound = isinstance(key, str) and re.fullmatch("[0-9a-f]{16}", key) is not None
    require(sound, "key of x_0", "be 16 hexadecimal digits", key)
    fits = isinstance(tensors, list) and len(tensors) <= MOST_TENSORS and all(isinstance(t, Mapping) for t in tensors)
    require(fits, "tensors of x_0", f"be a list of at most {MOST_TENSORS} tables", tensors)
    sizes = [_elements(tensor.get("shape"), d) for tensor in tensors or ()]
    require(sum(sizes) == d, "elements of the tensors of x_0", f"be d = {d} in all", sum(sizes))
    require_possible("d in the header", d, memory=16.0 * d)
    seed = int(str(key), 16)
    parts = [
        Start.from_dict(tensor).elements(seed, t, n)
        for t, (tensor, n) in enumerate(zip(tensors or (), sizes, strict=True))
    ]
    return torch.from_numpy(np.concatenate(parts))


def _elements(shape: Any, d: int) -> int:
    """How many elements a tensor has, 0..d; InputError where its shape is none."""
    whole = isinstance(shape, list) and len(shape) <= _MOST_AXES and all(type(n) is int and 0 <= n <= d for n in shape)
    require(whole, "shape of a tensor of x_0", f"be a list of at most {_MOST_AXES} numbers in 0..{d}", shape)
    size: int = math.prod(shape)
    require(size <= d, "elements of a tensor of x_0", f"be at most d = {d}", size)
    return size


def _in_file(start: Mapping[str, Any], packed: bytes, d: int) -> Tensor:
    """x_0 of d elements, unpacked."""
    name = start.get("dtype")
    require(isinstance(name, str) and name in _TYPES, "dtype of x_0", f"be {' or '.join(_TYPES)}", name)
    size = d * _TYPES[str(name)].itemsize
    require_possible("d in the header", d, memory=float(size))
    unpack = zlib.decompressobj()
    try:
        content = unpack.decompress(packed, size)
        whole = unpack.eof and not unpack.unused_data
    except zlib.error:
        content, whole = b"", False
    require(whole and len(content) == size, "x_0 in the log", f"unpack to {size} bytes", len(content))
    return torch.from_numpy(np.frombuffer(content, _TYPES[str(name)]).copy())
