"""Files that are either whole or absent, or sealed, and folders that one process at a time writes to."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import secrets
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from decomfl_lab.errors import InputError, require, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOCK_FILE = ".lock"
_SIGNED = re.compile(r"process \d+( (on?( [^\n]*)?)?)?")
"""What a lock file says of its holder, or the most of it where that was killed while it wrote."""
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")
"""Names of the temporary files of ``write_atomically``, with that of the file."""


class HeldError(InputError):
    """Another process holds the folder or the file; the message names it."""


def as_path(argument: str, value: Any) -> Path:
    """The path, of a path or its text; InputError for what is none."""
    named = isinstance(value, str | os.PathLike) and "\0" not in str(value)
    require(named, argument, "be a path, as text or a pathlib.Path", value)
    return Path(value)


def require_plain(path: Path) -> Path:
    """The path; OSError if it is no plain file: a pipe that nobody writes to, or a device, which may have no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "no plain file", str(path))
    return path


def read_file(argument: str, path: Path, *, plain: bool = True) -> bytes:
    """The content of a file; InputError that names the argument if it cannot be read, or must be plain and is not."""
    try:
        return (require_plain(path) if plain else path).read_bytes()
    except OSError as error:
        raise InputError(f"{argument} must be a file that can be read, got {path} ({error.strerror})") from None


def require_writable(argument: str, path: Path | None) -> None:
    """InputError that names the argument unless ``write_atomically`` could write ``path`` now; nothing is left behind.

    To be called before the work whose result goes there; None is for no file.
    """
    if path is None:
        return
    try:
        above = next(folder for folder in path.absolute().parents if folder.exists())
        with contextlib.suppress(FileNotFoundError):
            (above / f".{path.name}.{secrets.token_hex(6)}.tmp").lstat()  # whether there can be such a name
        with tempfile.TemporaryFile(dir=above):  # one without a name, of which a kill leaves nothing
            pass
        reason = "a folder" if path.is_dir() else ""
    except (OSError, ValueError) as error:  # a ValueError for a character that no name has
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise InputError(f"{argument} must be a file that can be written, got {shown(str(path))} ({reason})")


def write_atomically(path: str | os.PathLike[str], data: bytes | str, mode: int = 0o666) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the new one, never a part.

    The bytes go to a temporary file in the same folder, are flushed to disk and then renamed over
    ``path``; when anything fails the temporary file is removed and ``path`` is as it was.

    Args:
        path: The file to write; folders above it are made.
        data: The content; text is written as UTF-8 with its line endings unchanged.
        mode: Who may read and write the file, from its beginning, less what the process masks.

    Raises:
        InputError: If the file cannot be written; the message names ``path`` and the reason.
    """
    target = Path(path)
    content = data.encode("utf-8") if isinstance(data, str) else data
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        _remove(temporary)


@contextlib.contextmanager
def held(out: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Make the folder ``out`` if it is missing, and keep other processes from holding it until the end.

    The operating system lets go of it when this process ends in whatever way, so no lock outlives its holder, even if
    the file ``LOCK_FILE``, which says who holds it, does. Temporary files of a writer that was killed are removed.
    Where the file system has no locks nobody is kept out.

    Args:
        out: The folder; who holds it already, in this thread, may hold it again.
        wait: Seconds to wait for another holder to leave.

    Raises:
        InputError: If the folder cannot be written to, or, a HeldError, another process holds it.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out must be a folder that can be written, got {out} ({error.strerror})") from None
    with _locked(out / LOCK_FILE, "out must be a folder", out, wait=wait):
        yield


def is_held(out: Path) -> bool:
    """Whether somebody holds the folder ``out`` at this moment; nothing is written to find out."""
    path = out.resolve() / LOCK_FILE
    if not path.exists() or not _is_lock(path):
        return False
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder of somebody else's
        return False


@contextlib.contextmanager
def held_file(argument: str, path: Path, *, threads: bool = False) -> Iterator[None]:
    """Keep other processes from holding the file ``path``, which need not be there yet, as ``held`` does for folders.

    Temporary files of a writer of this file that was killed are removed.

    Args:
        argument: What the file is called.
        path: The file; folders above it are made.
        threads: Whether every thread of this process may hold it, and let go of it for another.

    Raises:
        InputError: As ``held``.
    """
    require_writable(argument, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}{LOCK_FILE}")
    with _locked(beside, f"{argument} must be a file", path, of=path.name, threads=threads):
        yield


@contextlib.contextmanager
def _locked(
    path: Path, rule: str, got: Path, *, of: str = "", wait: float = 0.0, threads: bool = False
) -> Iterator[None]:
    """Hold the lock file ``path``; errors are the ``rule`` with the part of it that ``got`` breaks."""
    path = path.parent.resolve() / path.name
    if not _is_lock(path):
        raise InputError(f"{path} must be a lock, which a process writes its number to, got a link or somebody's file")
    with contextlib.ExitStack() as stack:
        try:
            lock = FileLock(path, is_singleton=True, thread_local=not threads, on_acquired=_sign)
            stack.enter_context(lock.acquire(timeout=wait))
            # The last to leave removes the file while it is held: filelock notices that, and begins anew.
            stack.callback(lambda: _remove(path) if lock.lock_counter == 1 else None)
        except Timeout:
            try:
                holder = path.read_text(encoding="utf-8")
            except OSError:  # it has just left
                holder = ""
            raise HeldError(f"{rule} that no other process writes to, got {got}, held by {holder or 'one'}") from None
        except OSError as error:
            if error.errno != errno.ENOSYS:  # a file system without locks keeps nobody out
                raise InputError(f"{rule} that can be written, got {got} ({error.strerror})") from None
        # Temporary files that killed writers have left, of the file that the lock is ``of``, or of all.
        for part in path.parent.iterdir():
            leftover = _TEMPORARY.fullmatch(part.name)
            if leftover is not None and of in ("", leftover[1]):
                _remove(part)
        yield


def _is_lock(path: Path) -> bool:
    """Whether the file is a lock, or is not there: no link to another file, and no file that somebody else wrote."""
    try:
        status = path.lstat()
        plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size < 1024
        text = path.read_text(encoding="utf-8") if plain else "\n"
        return "process ".startswith(text) or _SIGNED.fullmatch(text) is not None
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _sign(descriptor: int) -> None:
    """Write down who holds a lock, for those who ask."""
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())


# --- files that say by themselves whether they are as they were written: a digest, then what it is of, as JSON --------


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
    content: dict[str, Any] = json.loads(text)
    return content


# --- figures as files, refused early where they could not be written --------------------------------------------------


def require_picture(path: Path, argument: str = "plot") -> None:
    """InputError unless matplotlib writes files with the ending of ``path``, and there may be one."""
    from matplotlib.figure import Figure  # here, since matplotlib takes long to load and only a plot needs it

    kinds = sorted(Figure().canvas.get_supported_filetypes())
    require(path.suffix[1:] in kinds, argument, f"end in one of .{', .'.join(kinds)}", str(path))
    require_writable(argument, path)


def save_picture(figure: Figure, path: Path) -> Path:
    """Write the figure, and say where; InputError if its file cannot be written, or is of no known kind."""
    require_picture(path)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:])
    write_atomically(path, drawn.getvalue())
    return path
