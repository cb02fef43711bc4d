"""Files that are either whole or absent."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from decomfl_lab.errors import InputError

__all__ = ["write_atomically"]


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the new one, never a part.

    The bytes go to a temporary file in the same folder, are flushed to disk and then renamed over
    ``path``; when anything fails the temporary file is removed and ``path`` is as it was.

    Args:
        path: The file to write; its folder must exist.
        data: The content; text is written as UTF-8 with its line endings unchanged.

    Raises:
        InputError: If the file cannot be written; the message names ``path`` and the reason.
    """
    target = Path(path)
    content = data.encode("utf-8") if isinstance(data, str) else data
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
