"""A disk that counts what is done to the files of a folder, and fails where it is told to.

Counted is whatever changes a file or a folder: opening to write, writing, truncating, syncing, renaming, removing,
making a folder. Python's own functions are replaced, below everything of the lab, so nothing of it knows. A death is a
SIGKILL of this process, so a disk is for a process that was forked to die.
"""

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

_MAKES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_REMOVERS: Final = ("unlink", "remove", "rmdir", "rename", "replace", "mkdir")
"""Functions of ``os`` that change a folder."""


class Fate(Enum):
    """What happens at the n-th event; of a write half is done."""

    ERROR = "an error"  # it fails, and all that comes after it succeeds
    FULL = "a full disk"  # nothing finds a place from then on; removing and renaming go well
    KILL = "a kill"  # the process is killed; what it has written is in the files, if it was not in a buffer of its own
    POWER = "a loss of power"  # the machine is off; of what was written there is what was synced


class Disk:
    """The files below a folder, as this process sees them from ``install`` on."""

    def __init__(self, root: Path, n: int = 0, fate: Fate = Fate.ERROR) -> None:
        """With a ``fate`` for event number ``n``, from 1; 0 for none."""
        self.root = os.path.realpath(root)
        self.n, self.fate = n, fate
        self.events: list[str] = []  # what was done, with the names of files
        self.made: set[str] = set()  # paths of files that came to be on the way
        self._real = {name: getattr(os, name) for name in (*_REMOVERS, "open", "write", "ftruncate", "fsync")}
        self._open = builtins.open
        self._durable: dict[tuple[int, int], bytes] = {}  # what a loss of power leaves of each file that was opened

    def install(self) -> None:
        """Stand below this process, for as long as it lives."""
        for name in _REMOVERS:
            setattr(os, name, partial(self._change_folder, name))
        os.open, os.write, os.ftruncate, os.fsync = self._os_open, self._write, self._ftruncate, self._fsync
        builtins.open = io.open = self._open_file  # type: ignore[assignment]

    def event(self, what: str, path: str, half: Callable[[], Any] = lambda: None) -> None:
        """Count; and fail or die here, after ``half`` of it, if it is the time."""
        self.events.append(f"{what} {os.path.relpath(path, self.root)}")
        now = len(self.events)
        takes_place = what in ("open", "write", "mkdir")
        if now != self.n and not (self.fate is Fate.FULL and 0 < self.n < now and takes_place):
            return
        if self.fate is not Fate.FULL or takes_place:
            half()
        if self.fate is Fate.ERROR:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if self.fate is not Fate.FULL:
            self._die()
        if takes_place:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _die(self) -> NoReturn:
        if self.fate is Fate.POWER:
            for path in (each for each in Path(self.root).rglob("*") if each.is_file()):
                durable = self._durable.get(_identity(path.stat()))
                if durable is not None:
                    with self._open(path, "wb") as file:
                        file.write(durable)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def _here(self, path: Any) -> str | None:
        """The path, where it is of this disk and no number of an open file."""
        if isinstance(path, int):
            return None
        whole = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
        whole = os.path.join(whole, os.path.basename(os.fsdecode(path)))
        return whole if whole.startswith(self.root + os.sep) else None

    def _of(self, descriptor: int) -> str | None:
        """The path of an open file, where it is of this disk."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        return path if path.startswith(self.root + os.sep) else None

    def _change_folder(self, name: str, path: Any, *more: Any, **options: Any) -> Any:
        where = options.get("dir_fd")
        own = self._here(path if where is None else os.path.join(os.readlink(f"/proc/self/fd/{where}"), path))
        # What changes nothing, as the name is not there, or is there, is no event.
        if own is not None and os.path.lexists(own) != (name == "mkdir"):
            self.event(name, own)
        found = self._real[name](path, *more, **options)
        if own is not None and name in ("rename", "replace"):
            self.made.add(str(self._here(more[0])))
        return found

    def _os_open(self, path: Any, flags: int, *more: Any, **options: Any) -> int:
        own = self._here(path) if flags & _MAKES and not flags & os.O_TMPFILE == os.O_TMPFILE else None
        if own is None:
            return int(self._real["open"](path, flags, *more, **options))
        there = os.path.lexists(own)
        if there and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.event("open", own)
        before = Path(own).read_bytes() if there else b""
        descriptor = int(self._real["open"](path, flags, *more, **options))
        self.made.add(own)
        self._durable.setdefault(_identity(os.fstat(descriptor)), before)
        return descriptor

    def _write(self, descriptor: int, content: Any) -> int:
        if (path := self._of(descriptor)) is not None:
            self.event("write", path, lambda: self._real["write"](descriptor, content[: len(content) // 2]))
        return int(self._real["write"](descriptor, content))

    def _ftruncate(self, descriptor: int, size: int) -> None:
        if (path := self._of(descriptor)) is not None:
            self.event("truncate", path)
        self._real["ftruncate"](descriptor, size)

    def _fsync(self, descriptor: int) -> None:
        if (path := self._of(descriptor)) is not None:
            self.event("sync", path)
            with self._open(path, "rb") as file:
                self._durable[_identity(os.fstat(descriptor))] = file.read()  # which no real disk has to confirm
            return
        self._real["fsync"](descriptor)

    def _open_file(
        self, path: Any, mode: str = "r", buffering: int = -1, *text: Any, opener: Any = None, **options: Any
    ) -> Any:
        if not {*mode} & {*"wax+"} or self._here(path) is None:
            return self._open(path, mode, buffering, *text, opener=opener, **options)
        raw = _File(self, path, mode.replace("b", "").replace("t", ""), opener or partial(os.open, mode=0o666))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *text, **options)


class _File(io.FileIO):
    """A file that is written to."""

    def __init__(self, disk: Disk, path: Any, mode: str, opener: Any) -> None:
        self._disk = disk
        super().__init__(path, mode, opener=opener)

    def write(self, content: Any) -> int:
        """See ``io.FileIO``."""
        if (path := self._disk._of(self.fileno())) is not None:
            own = bytes(content)
            self._disk.event("write", path, lambda: super(_File, self).write(own[: len(own) // 2]))
        return super().write(content) or 0

    def truncate(self, size: int | None = None) -> int:
        """See ``io.FileIO``."""
        if (path := self._disk._of(self.fileno())) is not None:
            self._disk.event("truncate", path)
        return super().truncate(size)


def _identity(of: os.stat_result) -> tuple[int, int]:
    return of.st_dev, of.st_ino
