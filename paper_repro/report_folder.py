"""Parts drawn into the folder of a report, with their verdicts."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.figure import Figure

from decomfl_lab.processes import Processes
from decomfl_lab.progress import RunBars
from decomfl_lab.storage.files import write_atomically
from figures.style import rc
from paper_repro.contents import DEAREST, PARTS
from paper_repro.sources import drawable
from paper_repro.workflow import recordings
from paper_repro.workflow.part import Made, Options
from paper_repro.workflow.recordings import Rows, facts_of
from paper_repro.workflow.report import page_section
from paper_repro.workflow.scales import SCALES
from paper_repro.workflow.verdicts.claim_table import SCALE_NAMES, UNTESTED, ClaimOutcome, decided
from paper_repro.workflow.verdicts.health import decided_by_health, ill_words

KINDS: Final = ("png", "pdf")  # of the files of a figure
FEW: Final = 3  # parts that are drawn by this process alone: to start others takes as long


@dataclass(frozen=True)
class DrawnPart:
    """What the report needs of a part."""

    section: Mapping[str, Any]  # the section, as ``page_section`` makes it
    claims: Sequence[ClaimOutcome]  # the outcomes of its claims


def all_drawn(
    parts: Mapping[str, Rows], options: Options, out: Path, kinds: Sequence[str], processes: Processes
) -> list[DrawnPart]:
    """The parts in their order. Each takes seconds: the processes share them, where they are more than ``FEW``."""
    if len(parts) <= FEW:
        return [_draw(name, rows, options, out, kinds) for name, rows in parts.items()]
    # The dearest first, so that the processes end together.
    ordered = sorted(parts, key=lambda name: DEAREST.index(name) if name in DEAREST else len(DEAREST))
    calls = iter([(name, _draw, (name, parts[name], options, out, kinds)) for name in ordered])
    made: dict[str, DrawnPart] = {}
    with RunBars() as bars:
        for name, part in processes.results(lambda: next(calls, None)):
            made[name] = part
            bars.show("parts", len(made), len(parts), "drawn")
    return [made[name] for name in parts]


def _draw(name: str, rows: Rows, options: Options, out: Path, kinds: Sequence[str]) -> DrawnPart:
    """A part in a report's folder, from whatever source its rows are."""
    at_scale = replace(options, scale=SCALES[rows.scale]) if rows.date else options
    other = None
    # Rows at changed settings stand alone: what is recorded is of the settings as they are.
    if name not in options.changes:
        is_full = at_scale.scale.name == SCALE_NAMES[-1]
        recorded = recordings.load(name, SCALE_NAMES[-2] if is_full else SCALE_NAMES[-1])
        other = recorded if recorded is not None and drawable(name, recorded) else None
        at_scale = at_scale if is_full else replace(at_scale, longer=other)
    return written(out, finished(name, rows, at_scale, other), rows.source(name), kinds)


def finished(name: str, rows: Rows, options: Options, other: Rows | None) -> Made:
    """A part, which says from what it was kept, with the verdicts of ``other`` rows where its own decide nothing."""
    part = judged(name, rows, options)
    section = replace(
        part.section,
        scale=options.scale.name,
        command=options.command(name),
        provenance=facts_of([*filter(None, rows.provenance)]),
        notes=[*ill_words(name, rows.rows), *part.section.notes],
    )
    part = replace(part, section=section)
    if name in options.changes:
        return part
    # What these rows do not decide, rows at the other scale may: their outcome says where it is from.
    if other is not None and any(claim.verdict == UNTESTED for claim in part.claims):
        options_there = replace(options, scale=SCALES[other.scale], longer=None)
        known = {claim.id: claim for claim in judged(name, other, options_there).claims if claim.verdict != UNTESTED}
        claims = [known.get(claim.id, claim) if claim.verdict == UNTESTED else claim for claim in part.claims]
        part = replace(part, claims=claims)
    return part


def judged(name: str, rows: Rows, options: Options) -> Made:
    """A part from rows at the scale of the options; what that scale or ill runs leave undecided says so.

    Of changed settings no verdict counts, and each says what it would be.
    """
    part = PARTS[name].make(rows.rows, rows.provenance, options).of(rows)
    if name not in options.changes:
        return replace(part, claims=decided_by_health(rows.rows, decided(part.claims, options.scale.name)))
    changes = options.changes[name]
    note = f"Changed by --set: {changes}. So this is not the paper's experiment, and no verdict on it counts."
    words = f"for settings changed by --set ({changes})"
    claims = [replace(c, verdict=UNTESTED, scale=f"reads “{c.verdict}” {words}; {c.scale}") for c in part.claims]
    return replace(part, section=replace(part.section, notes=[note, *part.section.notes]), claims=claims)


# --- a part on disk ---------------------------------------------------------------------------------------------------


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


def label(stem: str, source: str, kind: str = "png") -> dict[str, str]:
    """What the file of a picture says of itself: its stem, and the rows that it shows."""
    return {"Title": stem, ("Source" if kind == "png" else "Subject"): source}


def written(out: Path, made: Made, source: str = "", kinds: Sequence[str] = KINDS) -> DrawnPart:
    """The part, once its figures (as files of these ``kinds``) and tables are in ``out``.

    Pictures say in their metadata that they show rows from ``source``.
    """
    for stem, draw in made.figures.items():
        for kind in kinds:
            content = rendered(draw(), kind, metadata=label(stem, source, kind))
            write_atomically(out / "figures" / f"{stem}.{kind}", content)
    for stem, table in made.tables.items():
        write_atomically(out / "tables" / f"{stem}.csv", table.to_csv(index=False))
    return DrawnPart(page_section(made.section), made.claims)
