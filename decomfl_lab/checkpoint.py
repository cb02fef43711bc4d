"""Checkpoints: one safetensors file, written whole or not at all, that refuses to load when damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from decomfl_lab.errors import InputError
from decomfl_lab.files import write_atomically

__all__ = ["read_checkpoint", "write_checkpoint"]

_KEY = "decomfl"


def write_checkpoint(path: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Write named tensors and JSON-able values to ``path`` atomically."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(contiguous, metadata={_KEY: json.dumps(values)}))


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and values of ``path``; InputError naming the file if it is damaged or of another kind."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator there)
        return tensors, json.loads(metadata[_KEY])
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise InputError(f"checkpoint must be a whole file of this project, got {path} ({error})") from None
