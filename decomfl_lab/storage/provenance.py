"""What a result was computed with."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from decomfl_lab import __version__
from decomfl_lab.errors import InputError
from decomfl_lab.language.extra import installed
from decomfl_lab.noise import STREAM_VERSION, cpu_backend
from decomfl_lab.storage.files import require_plain
from decomfl_lab.storage.outside import Provenance, read_as

if TYPE_CHECKING:
    from decomfl_lab.datasets.images import Dataset

PROVENANCE_FILE = "provenance.json"


@lru_cache
def code_version(root: Path = Path(__file__).parents[1]) -> str:
    """Digest of the source of a package, by default this one: results of another source are not reused."""
    h = hashlib.blake2b(digest_size=6)
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in ("cli", "laws"):
            h.update(path.relative_to(root).as_posix().encode())
            h.update(path.read_bytes())
    return f"{__version__}+{h.hexdigest()}"


def provenance(
    dataset: Dataset, codes: Sequence[str] = (), devices: Sequence[str] = (), tunings: Sequence[str] = ()
) -> dict[str, Any]:
    """What a result was computed with: versions (of a task's run that of transformers too), data, machine.

    ``codes`` and ``devices`` are those of all versions of the code, and of all devices, that worked on it; ``tunings``
    say how its learning rate was chosen, where it was.
    """
    import numpy as np  # here, as what only reads a folder needs neither
    import torch

    from decomfl_lab.devices import describe

    found = Provenance(
        code=code_version(),
        codes=[*codes] * (len(codes) > 1),
        devices=[*devices] * (len(devices) > 1),
        tunings=[*tunings],
        data=dataset.source,
        data_digest=dataset.digest,
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=np.__version__,
        transformers=None if dataset.pad is None else installed("transformers"),
        noise_backend=cpu_backend(),
        stream_version=STREAM_VERSION,
        device=describe(dataset.device),
    )
    return dict(msgspec.to_builtins(found))


def read_provenance(folder: Path) -> dict[str, Any]:
    """What a run wrote to the folder's ``PROVENANCE_FILE``; InputError if it is something else, OSError without it."""
    path = folder / PROVENANCE_FILE
    try:
        found: dict[str, Any] = json.loads(require_plain(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} must be a JSON object, as a run writes it ({error})") from None
    read_as(Provenance, found, str(path))
    return found
