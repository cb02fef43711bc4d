"""x_0 as a log says it: how it came to be, and x_0 made again from that, by the stream or from the file itself.

    {"by": "stream", "key": 16 hex digits, "tensors": [{"shape": [...], "draw": ..., "scale": ...}, ...]}
    {"by": "file", "dtype": "float32", "bytes": n}       n bytes after the header are x_0's, compressed by zlib
    {"by": "libraries"}                                  torch's initialisers, and numpy: the configuration's ``draws``
    {"by": "given"}                                      the weights that the run's user brought

docs/run-log.md specifies it.
"""

import math
import zlib
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor, nn

from decomfl_lab.errors import require, require_possible
from decomfl_lab.layout import Layout
from decomfl_lab.models.initialisers import starts_of
from decomfl_lab.noise.draws import STREAM
from decomfl_lab.replicas.replica import Replica, same_bits
from decomfl_lab.storage.outside import StartInFile, StreamStart, read_as


def said(
    module: nn.Module, layout: Layout, replica: Replica, *, seed: int, draws: str, in_file: bool
) -> tuple[dict[str, Any], bytes]:
    """What a log says of x_0, and the bytes of it that go into the file.

    Args:
        module: The run's module.
        layout: Where x lies in it.
        replica: One at x_0, perhaps in 16 bits or on a grid. It is compared with what comes of the stream before the
            log says that it does.
        seed: The seed of the run.
        draws: What drew x_0, "stream" or "libraries"; empty for the weights that the run's user brought.
        in_file: Whether x_0 is to be in the file, whatever it came from.
    """
    x = replica.x.cpu()
    if in_file:
        wide = x if x.dtype == torch.float64 else x.float()  # 16 bits are narrowed to the same ones again
        packed = zlib.compress(wide.numpy().tobytes())
        return {"by": "file", "dtype": str(wide.dtype).removeprefix("torch."), "bytes": len(packed)}, packed
    if draws == STREAM:
        starts = zip(layout.shapes, starts_of(module), strict=True)
        tensors = [{"shape": list(shape), **start.to_dict()} for shape, start in starts]
        start = {"by": "stream", "key": f"{seed:016x}", "tensors": tensors}
        again = _by_stream(read_as(StreamStart, start, "start of the run"), x.numel())
        if same_bits(replica.rule.begin(again), x):
            return start, b""
        draws = ""
    return {"by": draws or "given"}, b""


def made_again(start: Struct, packed: bytes, d: int) -> Tensor | None:
    """x_0, shape (d,), from the ``start`` of a log's header and its bytes in the file; None where it is not said.

    InputError if there is not the memory for it, or the bytes are not those of d numbers.
    """
    match start:
        case StreamStart():
            return _by_stream(start, d)
        case StartInFile(dtype=dtype):
            kind = np.dtype(dtype).newbyteorder("<")
            size = d * kind.itemsize
            require_possible("d in the header", d, memory=float(size))
            unpack = zlib.decompressobj()
            try:
                content = unpack.decompress(packed, size)
                whole = unpack.eof and not unpack.unused_data
            except zlib.error:
                content, whole = b"", False
            require(whole and len(content) == size, "x_0 in the log", f"unpack to {size} bytes", len(content))
            return torch.from_numpy(np.frombuffer(content, kind).copy())
    return None


def _by_stream(start: StreamStart, d: int) -> Tensor:
    """x_0 of d elements, drawn tensor by tensor."""
    require_possible("d in the header", d, memory=16.0 * d)
    seed = int(start.key, 16)
    parts = [tensor.elements(seed, t, math.prod(tensor.shape)) for t, tensor in enumerate(start.tensors)]
    return torch.from_numpy(np.concatenate(parts))
