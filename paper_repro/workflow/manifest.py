"""The SHA-256 of every recorded file, in a list that ``sha256sum -c`` reads: records write it, and who reads checks it.

``python -m paper_repro.workflow.manifest FOLDER`` lists all files of a folder anew, after a record was added by hand.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from decomfl_lab.errors import InputError, require
from decomfl_lab.files import file_digest, write_atomically

FILE: Final = "SHA256SUMS"
_UNLISTED: Final = (FILE, "README.md")


def note(root: Path, *changed: Path) -> None:
    """List the files of ``root`` that were written or removed; whole folders where they are given.

    A folder without a list gets one of these files.
    """
    listed = _read(root) if (root / FILE).exists() else {}
    for path in changed:
        name = path.relative_to(root).as_posix()
        listed = {each: digest for each, digest in listed.items() if each != name and not each.startswith(f"{name}/")}
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
        listed |= {each.relative_to(root).as_posix(): file_digest(each) for each in files if each.exists()}
    lines = [f"{digest}  {name}\n" for name, digest in sorted(listed.items())]
    write_atomically(root / FILE, "".join(lines))


def seal(root: Path) -> None:
    """List all files of a folder."""
    (root / FILE).unlink(missing_ok=True)
    note(root, *_files(root))


def check(path: Path) -> None:
    """Raise InputError if a file is not as a folder above it lists it."""
    root = next((folder for folder in [*path.parents][:3] if (folder / FILE).exists()), None)
    if root is None:
        return
    name = path.relative_to(root).as_posix()
    found = file_digest(path)
    require(_read(root).get(name) == found, name, f"be the file that {root / FILE} lists", found[:12])


def wrong(root: Path) -> list[str]:
    """The files that are not as listed: changed, gone, or not listed."""
    found = {path.relative_to(root).as_posix(): file_digest(path) for path in _files(root)}
    return sorted({name for name, _ in found.items() ^ _read(root).items()})


def _files(root: Path) -> list[Path]:
    paths = (path for path in sorted(root.rglob("*")) if path.is_file())
    return [path for path in paths if path.name not in _UNLISTED and not path.name.startswith(".")]


def _read(root: Path) -> Mapping[str, str]:
    lines = (root / FILE).read_text(encoding="utf-8").splitlines()
    if not all("  " in line for line in lines):
        raise InputError(f"{root / FILE} must have lines of a digest, two spaces and a name")
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


if __name__ == "__main__":
    seal(Path(sys.argv[1]))
