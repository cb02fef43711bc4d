"""A part as it stands in the report and on disk; it is not drawn again while nothing that it is made of has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pandas as pd

import decomfl_lab
import figures
import hessian
import paper_repro
import theory
from decomfl_lab.files import write_atomically
from decomfl_lab.runs.provenance import code_version
from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.part import Made, Options, rendered
from paper_repro.workflow.reference import FILE_NAME
from paper_repro.workflow.report import page_section

__all__ = ["DrawnPart", "drawn", "ingredients", "label"]

FOLDER: Final = "drawn"
TABLES: Final = Path(__file__).parent  # where the tables of claims and scales are
_LAYERS: Final = (decomfl_lab, figures, hessian, paper_repro, theory)
_LIBRARIES: Final = ("matplotlib", "numpy", "pandas", "scipy")


@dataclass(frozen=True)
class DrawnPart:
    """What the report needs of a part."""

    section: Mapping[str, Any]  # the section, as ``page_section`` makes it
    claims: Sequence[ClaimOutcome]  # the outcomes of its claims


def ingredients(
    name: str, rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options, *more: object
) -> str:
    """A fingerprint of everything that a part is made of: rows, where they are from, what was asked for, and code."""
    # What was asked for, as far as it changes what is drawn: the folder and the number of processes do not.
    asked = (options.scale.name, options.readings, options.count, options.changes.get(name, ""), *more)
    for kept in filter(None, (options.longer, options.shorter)):
        asked += (kept.words, kept.rows.to_csv())
    # Any change of code draws anew: which function a figure goes through is not known.
    code = [code_version(Path(str(layer.__file__)).parent) for layer in _LAYERS]
    code += [path.read_text(encoding="utf-8") for path in sorted(TABLES.glob("*.toml"))]
    libraries = [version(library) for library in _LIBRARIES]
    told = json.dumps([name, list(provenance), asked, code, libraries], sort_keys=True, default=str)
    h = hashlib.sha256(told.encode())
    h.update(rows.to_csv().encode())
    if options.authors is not None:
        h.update((options.authors / FILE_NAME).read_bytes())
    return h.hexdigest()


def label(stem: str, source: str, kind: str = "png") -> dict[str, str]:
    """What the file of a picture says of itself: its stem, and the rows that it shows."""
    return {"Title": stem, ("Source" if kind == "png" else "Subject"): source}


def drawn(out: Path, name: str, key: str, make: Callable[[], Made], source: str = "") -> DrawnPart:
    """The part ``name`` with its figures and tables in ``out``: as it was drawn there, or else drawn now.

    It is drawn again where ``key`` (its ``ingredients``) differs, or any file of it is not as it was written. Pictures
    say in their metadata that they show rows from ``source``.
    """
    path = out / FOLDER / f"{name}.json"
    there = _load(path, out, key)
    if there is not None:
        return there
    made = make()
    written: dict[str, str] = {}

    def write(file: str, content: bytes) -> None:
        write_atomically(out / file, content)
        written[file] = hashlib.sha256(content).hexdigest()

    for stem, figure in made.figures.items():
        for kind in ("png", "pdf"):
            write(f"figures/{stem}.{kind}", rendered(figure, kind, metadata=label(stem, source, kind)))
    for stem, table in made.tables.items():
        write(f"tables/{stem}.csv", table.to_csv(index=False).encode())
    # The figures of the page are kept as SVG text, so that a page needs no figure drawn.
    section = page_section(made.section)
    content = json.dumps({"section": section, "claims": [asdict(claim) for claim in made.claims], "files": written})
    path.parent.mkdir(exist_ok=True)
    # Key, digest of the rest, the rest: a file that is torn, or of other ingredients, is told without being read.
    write_atomically(path, f"{key}\n{hashlib.sha256(content.encode()).hexdigest()}\n{content}")
    return DrawnPart(section, made.claims)


def _load(path: Path, out: Path, key: str) -> DrawnPart | None:
    """What ``drawn`` left, if all of it is there as it was written."""
    try:
        found, digest, content = path.read_text(encoding="utf-8").split("\n", 2)
        if found != key or digest != hashlib.sha256(content.encode()).hexdigest():
            return None
        kept = json.loads(content)
        # Somebody may have changed or removed a figure or table meanwhile.
        for file, expected in kept["files"].items():
            if hashlib.sha256((out / file).read_bytes()).hexdigest() != expected:
                return None
    except (OSError, ValueError):
        return None
    return DrawnPart(kept["section"], [ClaimOutcome(**outcome) for outcome in kept["claims"]])
