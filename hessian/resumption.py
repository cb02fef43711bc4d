"""Runs that stop and go on to the same bits."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import asdict
from torch import Tensor

from decomfl_lab.errors import require
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from decomfl_lab.storage.files import as_path
from decomfl_lab.storage.outside import read_as

S = TypeVar("S", bound=Struct)

SHARE = 0.1  # share of the time that writing may take


class Checkpoint(Generic[S]):
    """The file of a run; nothing happens without a path."""

    def __init__(self, path: Path | None, run: Callable[[], dict[str, Any]], kind: type[S]) -> None:
        """Keep the state of the run that ``run()``, JSON-able, tells from all others, in ``path``.

        Its values are of a ``kind`` of ``decomfl_lab.storage.outside``.
        """
        self._kind = kind
        self._path = None if path is None else as_path("checkpoint", path)
        self._run = run() if path is not None else {}
        self._resting_until = 0.0

    def load(self) -> tuple[dict[str, Tensor], S] | None:
        """The state, or None if there is none yet; InputError that names what differs if it is another run's."""
        if self._path is None or not self._path.exists():
            return None
        tensors, values = read_checkpoint(self._path)
        saved = values.get("run")
        known = saved if isinstance(saved, dict) else {}
        differing = [name for name, value in self._run.items() if name not in known or known[name] != value]
        require(not differing, "checkpoint", f"be of this run ({', '.join(differing)} differ)", str(self._path))
        state = read_as(self._kind, values, f"checkpoint {self._path}")
        return {name: tensor.clone() for name, tensor in tensors.items()}, state

    def save(self, state: Callable[[], tuple[dict[str, Tensor], S]], *, last: bool) -> None:
        """Write the state, unless it is not the last and writing has just taken more than its share of the time."""
        now = time.perf_counter()
        if self._path is None or (now < self._resting_until and not last):
            return
        tensors, values = state()
        write_checkpoint(self._path, tensors, asdict(values) | {"run": self._run})
        done = time.perf_counter()
        self._resting_until = done + (done - now) / SHARE
