"""A disk that counts what is done to the files below a folder, and fails at the n-th event.

An event is whatever changes a file or a folder: to open it for writing, write, cut, sync, rename, remove or make it.
Python's own functions are replaced, below everything of the lab. A death is a SIGKILL of this process, so a disk is
for one that was forked to die.
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
from typing import Any, Final

_MAKES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FOLDER: Final = ("unlink", "remove", "rmdir", "rename", "replace", "mkdir")
"""Functions of ``os`` that change a folder."""


class Fate(Enum):
    """What happens at the n-th event; of a write half is done."""

    ERROR = "an error"  # it fails, and all that comes after it succeeds
    KILL = "a kill"  # the process is killed: what it handed to the system stays
    POWER = "a loss of power"  # of what was written there is what was synced


class Disk:
    """The files below a folder, as this process sees them from ``install`` on."""

    def __init__(self, root: Path, n: int = 0, fate: Fate = Fate.ERROR) -> None:
        """With a ``fate`` for event number ``n``, from 1; 0 for none."""
        self.root, self.n, self.fate = os.path.realpath(root), n, fate
        self.events: list[str] = []  # what was done, to which files
        self.made: set[str] = set()  # the paths of files that came to be
        self._real = {name: getattr(os, name) for name in (*_FOLDER, "open", "write", "ftruncate", "fsync")}
        self._open = builtins.open
        self._durable: dict[int, bytes] = {}  # what a loss of power leaves of the files that were opened, by inode

    def install(self) -> None:
        """Stand below this process, for as long as it lives."""
        for name in _FOLDER:
            setattr(os, name, partial(self._change_folder, name))
        os.open, os.write, os.ftruncate, os.fsync = self._os_open, self._write, self._ftruncate, self._fsync
        builtins.open = io.open = self._open_file  # type: ignore[assignment]

    def event(self, what: str, path: str, half: Callable[[], Any] = lambda: None) -> None:
        """Count; and fail or die here, after ``half`` of it, if it is the time."""
        self.events.append(f"{what} {os.path.relpath(path, self.root)}")
        if len(self.events) != self.n:
            return
        half()
        if self.fate is Fate.ERROR:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        for lost in Path(self.root).rglob("*") if self.fate is Fate.POWER else ():
            if lost.is_file() and (durable := self._durable.get(lost.stat().st_ino)) is not None:
                with self._open(lost, "wb") as file:
                    file.write(durable)
        os.kill(os.getpid(), signal.SIGKILL)

    def _of(self, descriptor: int) -> str | None:
        """The path of an open file, where it is of this disk."""
        return self._here(os.readlink(f"/proc/self/fd/{descriptor}"))

    def _here(self, path: Any) -> str | None:
        """The path, where it is of this disk."""
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        whole = os.path.join(os.path.realpath(folder), name)
        return whole if whole.startswith(self.root + os.sep) else None

    def _change_folder(self, name: str, path: Any, *more: Any, **options: Any) -> Any:
        where = options.get("dir_fd")
        own = self._here(path if where is None else os.path.join(os.readlink(f"/proc/self/fd/{where}"), path))
        # What changes nothing, as the name is not there, or is there already, is no event.
        if own is not None and os.path.lexists(own) != (name == "mkdir"):
            self.event(name, own)
        self._real[name](path, *more, **options)
        if own is not None and name in ("rename", "replace"):
            self.made.add(str(self._here(more[0])))

    def _os_open(self, path: Any, flags: int, *more: Any, **options: Any) -> int:
        nameless = flags & os.O_TMPFILE == os.O_TMPFILE
        own = self._here(path) if flags & _MAKES and not nameless else None
        if own is None or (os.path.lexists(own) and flags & os.O_EXCL):
            return int(self._real["open"](path, flags, *more, **options))
        self.event("open", own)
        before = Path(own).read_bytes() if os.path.lexists(own) else b""
        descriptor = int(self._real["open"](path, flags, *more, **options))
        self.made.add(own)
        self._durable.setdefault(os.fstat(descriptor).st_ino, before)
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
            self._durable[os.fstat(descriptor).st_ino] = Path(path).read_bytes()  # which no real disk has to confirm

    def _open_file(
        self, path: Any, mode: str = "r", buffering: int = -1, *text: Any, opener: Any = None, **options: Any
    ) -> Any:
        if isinstance(path, int) or not {*mode} & {*"wax+"} or self._here(path) is None:
            return self._open(path, mode, buffering, *text, opener=opener, **options)
        raw = _File(path, mode.replace("b", "").replace("t", ""), opener=opener or partial(os.open, mode=0o666))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *text, **options)


class _File(io.FileIO):
    """A file that is written to, by the functions of ``os`` above."""

    def write(self, content: Any) -> int:
        """See ``io.FileIO``."""
        return os.write(self.fileno(), bytes(content))

    def truncate(self, size: int | None = None) -> int:
        """See ``io.FileIO``."""
        size = self.tell() if size is None else size
        os.ftruncate(self.fileno(), size)
        return size
