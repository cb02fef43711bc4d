"""The SHA-256 of every recorded file, in a list that ``sha256sum -c`` reads: records write it, and who reads checks it.

``python -m paper_repro.workflow.manifest FOLDER`` lists all files of a folder anew, after a record was added by hand.
"""

import contextlib
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from decomfl_lab.errors import InputError, require
from decomfl_lab.storage.files import file_digest, held, write_atomically

FILE: Final = "SHA256SUMS"
_UNLISTED: Final = (FILE, "README.md")


def write(root: Path, files: Mapping[str, bytes]) -> None:
    """Write files below ``root``, and list them: whoever is killed on the way leaves all old ones or all new ones.

    What is new stands beside the files until it is listed, as the list changes at once; who reads takes it from there.
    A folder without a list gets one of these files.

    Raises:
        InputError: If a file cannot be written, or another process writes to the folder.
    """
    with held(root):
        listed = dict(_read(root)) if (root / FILE).exists() else {}
        for name in listed:
            _take(root, name, listed)
        for name, content in files.items():
            write_atomically(_beside(root / name), content)
            listed[name] = hashlib.sha256(content).hexdigest()
        _list(root, listed)
        for name in files:
            _take(root, name, listed)


def seal(root: Path) -> None:
    """List all files of a folder as they are."""
    with held(root):
        _list(root, _found(root))


def wrong(root: Path) -> list[str]:
    """The files that are not as listed: changed, gone, or not listed."""
    return sorted({name for name, _ in _found(root).items() ^ _read(root).items()})


def _found(root: Path) -> dict[str, str]:
    """The digest of every file by its name, but for hidden ones and what says what they are."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name not in _UNLISTED]
    return {path.relative_to(root).as_posix(): file_digest(path) for path in paths if not path.name.startswith(".")}


def is_there(path: Path) -> bool:
    """Whether there is such a file; one that was listed, and not put in its place, is put there now."""
    if (root := _root(path)) is not None:
        _take(root, path.relative_to(root).as_posix(), _read(root))
    return path.exists()


def check(path: Path) -> None:
    """Raise InputError if a file is not as a folder above it lists it."""
    if (root := _root(path)) is None:
        return
    is_there(path)
    name, found = path.relative_to(root).as_posix(), file_digest(path)
    require(_read(root).get(name) == found, name, f"be the file that {root / FILE} lists", found[:12])


def _root(path: Path) -> Path | None:
    """The folder above a file that has a list."""
    return next((folder for folder in [*path.parents][:3] if (folder / FILE).exists()), None)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.next")


def _take(root: Path, name: str, listed: Mapping[str, str]) -> None:
    """Have the file that is listed in its place, if it stands beside it."""
    new = _beside(root / name)
    if new.exists() and file_digest(new) == listed.get(name):
        with contextlib.suppress(FileNotFoundError):  # another reader was faster
            new.replace(root / name)


def _list(root: Path, listed: Mapping[str, str]) -> None:
    write_atomically(root / FILE, "".join(f"{digest}  {name}\n" for name, digest in sorted(listed.items())))


def _read(root: Path) -> Mapping[str, str]:
    lines = (root / FILE).read_text(encoding="utf-8").splitlines()
    if not all("  " in line for line in lines):
        raise InputError(f"{root / FILE} must have lines of a digest, two spaces and a name")
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


if __name__ == "__main__":
    seal(Path(sys.argv[1]))
