"""Checkpoints: one safetensors file, written whole or not at all, under one checksum of all its bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, to_builtins
from safetensors import SafetensorError

from decomfl_lab.errors import InputError, require, shown
from decomfl_lab.storage.files import read_file, write_atomically

if TYPE_CHECKING:  # what is said of a run needs no tensors
    from torch import Tensor

T = TypeVar("T")

CHECKPOINT_SECONDS = 20.0
"""The time between two checkpoints is this, times the seconds that one takes if more than 1: 5 % of a run at most."""
_KEY = "decomfl"
CHECKSUM = re.compile(rb'"sha256":"([0-9a-f]{64})"')
"""The checksum in the header. Quotes inside of JSON's strings are escaped, so no value can look like it."""
BLANK = "0" * 64


def write_checkpoint(path: Path, tensors: dict[str, Tensor], values: Struct | dict[str, Any]) -> None:
    """Write named tensors and values, as JSON has them, to ``path`` atomically, with the SHA-256 of the whole file.

    The checksum stands in the header and is that of the file with 64 zeros in its place.
    """
    from safetensors.torch import save

    contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    blank = save(contiguous, metadata={_KEY: json.dumps(to_builtins(values, enc_hook=float)), "sha256": BLANK})
    checksum = CHECKSUM.search(blank)
    assert checksum is not None
    start, end = checksum.span(1)
    write_atomically(path, b"".join((blank[:start], hashlib.sha256(blank).hexdigest().encode(), blank[end:])))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and values of ``path``, of which every bit is as it was written.

    InputError if the file cannot be read, is damaged anywhere, or carries no checksum; it names the file.
    """
    from safetensors.torch import load

    content = _checked(path)
    try:  # a checksum can be made for any bytes
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise _refusal(path, error) from None
    return _Saved(path, tensors), _values(path, content)[1]


def read_values(path: Path) -> tuple[dict[str, list[int]], dict[str, Any]]:
    """The shapes of the tensors of ``path``, and its values; errors are those of ``read_checkpoint``."""
    return _values(path, _checked(path))


def _checked(path: Path) -> bytes:
    remedy = "put a copy of it back, or remove it to begin anew"
    content = read_file("checkpoint", path)
    checksum = CHECKSUM.search(content)
    if checksum is None:
        raise InputError(
            f"checkpoint must be a whole file of this version, got {path} without a checksum, which is damaged or was "
            f"written by a version that had none: {remedy}"
        )
    start, end = checksum.span(1)
    digest = hashlib.sha256(content[:start])
    digest.update(BLANK.encode())
    digest.update(memoryview(content)[end:])
    if digest.hexdigest() != checksum[1].decode():
        raise InputError(
            f"checkpoint must be a whole file as it was written, got {path}, which is damaged (its checksum differs): "
            f"{remedy}"
        )
    return content


def _values(path: Path, content: bytes) -> tuple[dict[str, list[int]], dict[str, Any]]:
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        values = json.loads(header.pop("__metadata__")[_KEY], object_hook=partial(_Saved, path))
        shapes = {name: tensor["shape"] for name, tensor in header.items()}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refusal(path, error) from None
    require(isinstance(values, dict), "values of the checkpoint", "be a JSON object", values)
    return shapes, values


def _refusal(path: Path, error: Exception) -> InputError:
    return InputError(f"checkpoint must be a file of a run, got {path} ({shown(str(error))})")


class _Saved(dict[str, T]):
    """What a checkpoint has by name; InputError for what it lacks."""

    def __init__(self, path: Path, values: Mapping[str, T]) -> None:
        super().__init__(values)
        self._path = path

    def __missing__(self, name: str) -> T:
        raise InputError(f"checkpoint must have {name!r} in it, got {self._path} without, which is of something else")
