"""The statements of the paper and the causes of what is wrong with them, as data: read here, once."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, Final

__all__ = ["ALGORITHMS", "CAUSES", "LINES", "PROGRAMS", "RAW", "UNJUDGED"]


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))


_NAMES: Final = ("main", "prose", "algorithms", "variants", "theorem-1", "theorem-2", "gaussian", "causes")
_FILES: Final = {name: _read(name) for name in _NAMES}
RAW: Final[list[dict[str, Any]]] = sorted(
    (entry for each in _FILES.values() for entry in each.get("entry", ())), key=lambda entry: entry["line"]
)
"""Every entry as it is written, in the order of the paper."""

UNJUDGED: Final[list[dict[str, Any]]] = [each for file in _FILES.values() for each in file.get("unjudged", ())]
"""Sentences of running text that assert nothing about the paper's own subject: quotes, and why nothing is said."""

CAUSES: Final[dict[str, dict[str, Any]]] = _FILES["causes"]["cause"]
"""Every cause as it is written, by name."""

PROGRAMS: Final[dict[str, Any]] = _FILES["algorithms"]
"""Listings of lines by label, and the programs made of them."""

LINES: Final[dict[str, dict[str, Any]]] = {entry["label"]: entry for entry in RAW if "code" in entry}
"""The entries that are lines of an algorithm, by label."""

ALGORITHMS: Final[dict[str, str]] = {
    label: name
    for name in reversed(PROGRAMS["programs"])
    for label in PROGRAMS["listings"][name]
    if isinstance(label, str)
}
"""The name of the program whose own listing has the line first, by label."""
