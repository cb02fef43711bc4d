"""Where the rows of the parts come from: what is kept with the code, or what is computed here; for ``pipeline``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from decomfl_lab.storage.files import held
from paper_repro.contents import PARTIAL, PARTS
from paper_repro.request import Request
from paper_repro.workflow import recordings
from paper_repro.workflow.part import Options
from paper_repro.workflow.recordings import Rows
from paper_repro.workflow.runs import SO_FAR, Job, Result, Work, is_whole, so_far_words
from paper_repro.workflow.verdicts.claim_table import ON_GPU
from paper_repro.workflow.verdicts.measures import CHECKED

Compute = Callable[[Sequence[Work | Job]], list[Result | None]]
"""``run_all`` of some works, with all else given."""


class Piece(NamedTuple):
    """What there is of a work."""

    work: Work | Job
    rows: pd.DataFrame  # perhaps those so far
    provenance: Sequence[Mapping[str, Any]]  # of these rows; several where an earlier command had them


@dataclass
class Found:
    """The rows of the parts from one source."""

    parts: dict[str, Rows] = field(default_factory=dict)  # the rows of each part that can be drawn
    missing: dict[str, str] = field(default_factory=dict)  # why the others cannot be
    words: str = ""  # what is not finished, or not there

    def add(self, name: str, rows: Rows) -> None:
        """Take the rows of a part, if they are enough to draw it."""
        if drawable(name, rows):
            self.parts[name] = rows
        else:
            self.missing[name] = rows.words or f"so far {rows.runs[0]} of its {rows.runs[1]} runs are finished"


def drawable(name: str, rows: Rows) -> bool:
    """Whether there is enough to draw: all runs, or, of parts that can do with some, one that is not a check alone."""
    lines = CHECKED not in rows.rows or not rows.rows[CHECKED].all()
    return rows.complete or (name in PARTIAL and len(rows.rows) > 0 and lines)


def kept_beside(name: str, options: Options) -> Rows | None:
    """What is kept with the code of a part at its scale, whose settings are not changed."""
    return None if name in options.changes else recordings.load(name, options.scale.name)


def recorded_parts(request: Request) -> Found:
    """What is kept with the code, at one scale or of each part at its largest."""
    parts = Found()
    for name in request.names:
        scale = request.options.scale.name
        rows = recordings.largest(name) if request.asked.largest else recordings.load(name, scale)
        if rows is None:
            parts.missing[name] = f"decomfl paper --only {name} --record paper_repro/results records it"
        else:
            parts.add(name, rows)
    parts.words = f"not recorded: {', '.join(parts.missing)}" if parts.missing else ""
    return parts


def works_of(name: str, options: Options) -> Sequence[Work | Job]:
    """The works of a part, on the device if they can compute there; those that it shortens most go first."""
    works = PARTS[name].jobs(options)
    if options.device == "cpu":
        return works
    place = ON_GPU.index(name) if name in ON_GPU else len(ON_GPU)
    return [
        work if work.device is None else replace(work, device=options.device, urgency=10 * place + work.urgency)
        for work in works
    ]


def computed_parts(request: Request, compute: Compute) -> Found:
    """What is computed here, or was before: all works of all parts go into one pool.

    A part that is spared, or whose works cannot be done here (there are none), is taken from what is kept with the
    code, where there is something.
    """
    options = request.options
    into = request.asked.record
    dear = [name for name in request.names if name in request.asked.spared]
    spared = {name: kept for name in dear if (kept := kept_beside(name, options)) is not None}
    works = {name: [] if name in spared else works_of(name, options) for name in request.names}
    results = iter(compute([work for of_part in works.values() for work in of_part]))  # in the order of the works
    parts = Found()
    finished = set[str]()
    for name in request.names:
        pieces: list[Piece] = []
        for work, result in zip(works[name], results, strict=False):
            if result is not None:
                of_work, facts = result
                pieces.append(Piece(work, of_work, [facts]))
        keys = {piece.work.key() for piece in pieces if SO_FAR not in piece.provenance[0]}
        finished |= keys
        if not works[name] and (kept := spared.get(name) or kept_beside(name, options)) is not None:
            parts.parts[name] = kept
            continue
        if pieces and into is not None:
            with held(into):  # what is there is read, and written anew
                _keep(name, pieces, options, into)
        rows = pd.concat([piece.rows for piece in pieces], ignore_index=True) if pieces else pd.DataFrame()
        counts = len(keys), len({work.key() for work in works[name]})
        parts.add(name, Rows(options.scale.name, rows, [piece.provenance[0] for piece in pieces], runs=counts))
    total = {work.key() for of_part in works.values() for work in of_part}
    if len(finished) < len(total):
        parts.words = f"{len(finished)} of {len(total)} runs are finished; the same command goes on"
    return parts


def _keep(name: str, pieces: Sequence[Piece], options: Options, into: Path) -> None:
    """Record the rows of a part: of each work what came furthest, here or in an earlier command."""
    works = PARTS[name].jobs(options)
    earlier = recordings.load(name, options.scale.name, into)
    here = {piece.work.key(): piece for piece in pieces}
    furthest: dict[str, Piece] = {}  # by the key of its work

    def far(piece: Piece) -> tuple[bool, float]:
        return is_whole(piece.rows), piece.rows["round"].max() if "round" in piece.rows else 0

    for work in works:
        candidates = [here[work.key()]] if work.key() in here else []
        if earlier is not None and len(kept := work.among(earlier.rows)):
            # What they can come from: how far a run had come is all that tells provenances apart.
            so_far = None if is_whole(kept) else so_far_words(kept, kept["planned"].max())
            candidates.append(Piece(work, kept, [each for each in earlier.provenance if each.get(SO_FAR) == so_far]))
        if candidates:
            furthest[work.key()] = max(candidates, key=far)
    provenance = [each for piece in furthest.values() for each in piece.provenance]
    counts = sum(is_whole(piece.rows) for piece in furthest.values()), len({work.key() for work in works})
    rows = pd.concat([piece.rows for piece in furthest.values()], ignore_index=True)
    recordings.save(name, options.scale.name, rows, provenance, into, counts)
