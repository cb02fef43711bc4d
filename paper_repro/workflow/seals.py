"""Files that say by themselves whether they are as they were written: a digest, then what it is of, as JSON."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from decomfl_lab.files import write_atomically


def file_digest(path: Path) -> str:
    """The SHA-256 of a file; "" where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write the content, whole or not at all."""
    text = json.dumps(content, ensure_ascii=False, default=lambda number: number.item())  # of numpy
    write_atomically(path, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The content; None where the file is not there, or not as it was written."""
    try:
        digest, _, text = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        return None
    found: dict[str, Any] = json.loads(text)
    return found
