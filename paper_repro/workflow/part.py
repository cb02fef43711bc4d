"""A part, which is a figure or table of the paper: the runs it needs, what is made of their rows, and how it is kept.

It is not drawn again while nothing that it is made of has changed.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

import decomfl_lab
import figures
import hessian
import paper_repro
import theory
from decomfl_lab.files import write_atomically
from decomfl_lab.runs.provenance import code_version
from figures.curves import Count
from figures.style import rc
from paper_repro.workflow.claims import ClaimOutcome
from paper_repro.workflow.reference import curves_file
from paper_repro.workflow.report import Section, page_section
from paper_repro.workflow.runs import Job, Work
from paper_repro.workflow.scales import Scale
from paper_repro.workflow.seals import file_digest, read_sealed, write_sealed

if TYPE_CHECKING:
    from paper_repro.workflow.recorded import Rows

__all__ = ["KINDS", "DrawnPart", "Made", "Options", "Part", "drawn", "ingredients", "label", "rendered"]

FOLDER: Final = "drawn"
KINDS: Final = ("png", "pdf")  # of the files of a figure
TABLES: Final = Path(__file__).parent  # where the tables of claims and scales are
_LAYERS: Final = (decomfl_lab, figures, hessian, paper_repro, theory)
_LIBRARIES: Final = ("matplotlib", "numpy", "pandas", "scipy")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for, as far as it concerns what a part is made of."""

    scale: Scale  # the sizes of every part, with what --set changed
    readings: tuple[str, ...]  # the readings of the paper's image settings: as-plotted, as-written
    count: Count  # how the x-axes of communication count
    # the folder with the authors' whole curves; None draws those that come with the project, and judges by none
    authors: Path | None = None
    # the device on which runs compute: cpu, cuda, cuda:N or auto. On a GPU, where finite differences cost little, they
    # are as long as the curves by projection, for every seed, and go first.
    device: str = "cpu"
    # the rows recorded for the part at full scale, where that is larger than ``scale``; they are drawn thin
    longer: Rows | None = None
    # the rows recorded for the part at the scale below, for what those of ``scale`` cannot decide so far
    shorter: Rows | None = None
    problems: tuple[str, ...] = ()  # the problems of the board; none for all
    lines: tuple[str, ...] = ()  # the lines of the board; none for all
    changes: Mapping[str, str] = field(default_factory=dict)  # {part: the settings that were changed, in words}
    set: tuple[str, ...] = ()  # the assignments of --set that changed them

    def command(self, part: str) -> str:
        """The command that makes a part again, from its runs."""
        board = bool(self.problems or self.lines)
        asked = {
            "--problem": ";".join(self.problems),
            "--methods": ";".join(self.lines),
            "--count": self.count * (self.count != "wire"),
            "--reading": self.readings[0] if len(self.readings) == 1 else "",
            "--reference": "DIR" if self.authors else "",
            "--device": self.device * (self.device != "cpu"),
        }
        # Options at their defaults are left out: an empty value stands for one.
        flags: list[str] = []
        for flag, value in asked.items():
            flags += [flag, value] if value else []
        for text in self.set if part in self.changes else ():
            flags += ["--set", text]
        verb = ["board"] if board else ["paper", "--only", part]
        return shlex.join(["decomfl", *verb, "--scale", self.scale.name, *flags])

    @property
    def thin(self) -> str:
        """The sentence of a caption about what is drawn thin."""
        return "" if self.longer is None else self.longer.thin


@dataclass(frozen=True, kw_only=True)
class Made:
    """A part of the report."""

    section: Section  # the section of the page
    claims: Sequence[ClaimOutcome]  # the outcomes of its claims
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)  # {stem of the file: what draws it}
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # {stem of the file: frame}

    def of(self, kept: Rows) -> Made:
        """The same, where it was made from recorded rows: section and claims say that nothing was computed."""
        if not kept.date:
            return self
        note = f"Not computed here: rows {kept.words}, from the data named above."
        section = replace(self.section, notes=[note, *self.section.notes])
        claims = [replace(claim, scale=f"{kept.words}; {claim.scale}") for claim in self.claims]
        return replace(self, section=section, claims=claims)


class Part(Protocol):
    """A module of this package that makes a figure or table."""

    def jobs(self, options: Options) -> Sequence[Work | Job]:
        """The work that it needs; what two parts share is done once."""
        ...

    def make(self, rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
        """The part, from the rows of its work (of runs: evaluations with the labels of their jobs)."""
        ...


def rendered(
    figure: Figure, kind: str = "png", dpi: float | None = None, metadata: Mapping[str, str] | None = None
) -> bytes:
    """The figure as a file of the given kind, in the one style; ``dpi`` is of pixels, None for the style's."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(rc()):
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    with matplotlib.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)  # the next kind has the places of this one, without being drawn to find them
    return buffer.getvalue()


# --- a part on disk ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnPart:
    """What the report needs of a part."""

    section: Mapping[str, Any]  # the section, as ``page_section`` makes it
    claims: Sequence[ClaimOutcome]  # the outcomes of its claims


def ingredients(name: str, rows: Rows, options: Options) -> str:
    """A fingerprint of everything that a part is made of: rows, where they are from, what was asked for, and code."""
    # What was asked for, as far as it changes what is drawn: the folder and the number of processes do not.
    asked: tuple[object, ...] = (
        options.scale.name,
        options.readings,
        options.count,
        options.changes.get(name, ""),
        rows.words,
    )
    for kept in filter(None, (options.longer, options.shorter)):
        asked += (kept.words, kept.rows.to_csv())
    # Any change of code draws anew: which function a figure goes through is not known.
    code = [code_version(Path(str(layer.__file__)).parent) for layer in _LAYERS]
    code += [path.read_text(encoding="utf-8") for path in sorted(TABLES.glob("*.toml"))]
    libraries = [version(library) for library in _LIBRARIES]
    told = json.dumps([name, list(rows.provenance), asked, code, libraries], sort_keys=True, default=str)
    h = hashlib.sha256(told.encode())
    h.update(rows.rows.to_csv().encode())
    h.update(curves_file(options.authors).read_bytes())
    return h.hexdigest()


def label(stem: str, source: str, kind: str = "png") -> dict[str, str]:
    """What the file of a picture says of itself: its stem, and the rows that it shows."""
    return {"Title": stem, ("Source" if kind == "png" else "Subject"): source}


def drawn(
    out: Path, name: str, key: str, make: Callable[[], Made], source: str = "", kinds: Sequence[str] = KINDS
) -> DrawnPart:
    """The part ``name`` with its figures and tables in ``out``: as it was drawn there, or else drawn now.

    It is drawn again where ``key`` (its ``ingredients``) differs, or any file of it is not as it was written. Pictures
    are files of these ``kinds``, and say in their metadata that they show rows from ``source``.
    """
    key = " ".join([key, *kinds])
    path = out / FOLDER / f"{name}.json"
    there = _load(path, out, key)
    if there is not None:
        return there
    made = make()
    written: dict[str, str] = {}

    def write(file: str, content: bytes) -> None:
        write_atomically(out / file, content)
        written[file] = hashlib.sha256(content).hexdigest()

    for stem, draw in made.figures.items():
        for kind in kinds:
            write(f"figures/{stem}.{kind}", rendered(draw(), kind, metadata=label(stem, source, kind)))
    for stem, table in made.tables.items():
        write(f"tables/{stem}.csv", table.to_csv(index=False).encode())
    # The figures of the page are kept as SVG text, so that a page needs no figure drawn.
    section = page_section(made.section)
    claims = [asdict(claim) for claim in made.claims]
    write_sealed(path, {"key": key, "section": section, "claims": claims, "files": written})
    return DrawnPart(section, made.claims)


def _load(path: Path, out: Path, key: str) -> DrawnPart | None:
    """What ``drawn`` left, if all of it is there as it was written."""
    kept = read_sealed(path)
    if kept is None or kept["key"] != key:
        return None
    # Somebody may have changed or removed a figure or table meanwhile.
    if any(file_digest(out / file) != expected for file, expected in kept["files"].items()):
        return None
    return DrawnPart(kept["section"], [ClaimOutcome(**outcome) for outcome in kept["claims"]])
