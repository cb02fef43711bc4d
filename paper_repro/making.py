"""What ``decomfl paper`` does: every figure and table, the verdicts and the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

import pandas as pd

from decomfl_lab.devices import find_device
from decomfl_lab.errors import require, require_choice, require_finite_positive, require_int
from decomfl_lab.files import held, require_writable, write_atomically
from decomfl_lab.interrupts import telling
from decomfl_lab.laws.devices import require_bits
from decomfl_lab.runs.progress import RunBars
from decomfl_lab.runs.provenance import code_version
from figures.curves import Count
from paper_repro.language_models import llm, pretrained, sizes
from paper_repro.parts import audit, fig2, fig3, hessian, memory, projection, table1, theory, topk
from paper_repro.studies import board, edge
from paper_repro.workflow import recorded
from paper_repro.workflow.answer import answer
from paper_repro.workflow.asked import PaperOptions
from paper_repro.workflow.claims import (
    ON_GPU,
    SCALE_NAMES,
    UNTESTED,
    ClaimOutcome,
    claim,
    decided,
    named,
    outcomes_json,
    recorded_outcomes,
)
from paper_repro.workflow.claims import PARTS as PART_FACTS
from paper_repro.workflow.health import decided_by_health, ill_words
from paper_repro.workflow.live import Overlay, agreement, beginning, overlay
from paper_repro.workflow.measures import CHECKED, COUNTS
from paper_repro.workflow.part import KINDS, DrawnPart, Made, Options, Part, drawn, ingredients
from paper_repro.workflow.processes import Processes
from paper_repro.workflow.recorded import Rows
from paper_repro.workflow.reference import require_reference
from paper_repro.workflow.report import RECORDED, Section, closing, page_section, render_report, require_own_page
from paper_repro.workflow.runs import SO_FAR, Job, Result, Work, is_whole, run_all
from paper_repro.workflow.scales import SCALES, changed
from paper_repro.workflow.series import READINGS

__all__ = ["PARTS", "make_report"]

PARTS: dict[str, Part] = {
    "fig2": fig2,
    "fig3": fig3,
    "projection": projection,
    "edge": edge,
    "topk": topk,
    "table1": table1,
    "llm": llm,
    "smollm2": pretrained,
    "board": board,
    "memory": memory,
    "hessian": hessian,
    "sizes": sizes,
    "theory": theory,
    "audit": audit,
}
"""The parts by name, in the order of the report."""
PARTIAL: Final = ("fig2", "fig3", "projection", "edge", "topk", "table1", "smollm2")
"""Parts that can be drawn while some of their runs are not finished."""
LARGEST: Final = "full"
LIVE: Final = "live"  # the folder, in that of the report, of figures and tables of live runs
DEAREST: Final = ("fig2", "theory", "board", "fig3", "hessian", "llm", "edge")
"""The parts that take longest to draw."""
FEW: Final = 3  # parts that are drawn by this process alone: to start others takes as long
Compute = Callable[..., list[Result | None]]
"""``run_all`` of some works, with all else given."""
MOST_JOBS: Final = 4096
"""Processes at a time; a machine ends long before."""


def make_report(
    asked: PaperOptions, *, problems: tuple[str, ...] = (), lines: tuple[str, ...] = (), silent: bool = False
) -> list[ClaimOutcome]:
    """Make the parts that are asked for and their report, and return the verdicts.

    Args:
        asked: The options of ``decomfl paper``.
        problems: The problems of the board; none for all.
        lines: The lines of the board; none for all.
        silent: Whether to print nothing.
    """
    options, names = _resolved(asked)
    options = replace(options, problems=problems, lines=lines)
    outcomes = _report(
        names, options, asked, live=asked.recorded_first and not (problems or lines), silent=asked.as_json or silent
    )
    if asked.as_json and not silent:
        print(outcomes_json(outcomes))
    return outcomes


def _resolved(asked: PaperOptions) -> tuple[Options, list[str]]:
    """What is asked for as parts take it, and the names of the parts; InputError for what cannot be made."""
    scale = asked.scale or "default"
    require_choice("scale", scale, SCALES)
    require_choice("count", asked.count, COUNTS)
    require_choice("reading", asked.reading, (*READINGS, "both"))
    place = find_device(asked.device)
    on_gpu = place.type == "cuda"
    # Without --only: on a GPU the parts that gain by it, else all.
    chosen = named("only", asked.only, ",", PARTS) or (ON_GPU if on_gpu else tuple(PARTS))
    require_int("jobs", asked.jobs, 0, MOST_JOBS)
    # The limit of time is given in one of two units, or not.
    require(asked.hours is None or asked.minutes is None, "minutes", "be left out where hours are given", asked.minutes)
    for limit, value in (("hours", asked.hours), ("minutes", asked.minutes)):
        if value is not None:
            require_finite_positive(limit, value)
    sizes, told = changed(SCALES[scale], asked.changes)
    for name, other in (("--from-recorded", asked.from_recorded), ("--record", asked.record)):
        alone = f"be left out with {name}, as records are of settings as they are"
        require(not (asked.changes and other), "--set", alone, asked.changes)
    meant = not told or any(part in chosen for part in told)
    require(meant, "--set", "change a part that is made", asked.changes)
    if asked.reference is not None:
        require_reference(asked.reference)
    for name, folder in (("--runs", asked.runs), ("--record", asked.record)):
        if folder is not None:
            require_writable(name, folder / "any")
    names = [name for name in PARTS if name in chosen]
    there = not asked.from_recorded or any(recorded.is_there(name, "" if asked.largest else scale) for name in names)
    wanted = "name a part that is recorded" + ("" if asked.largest else f" at scale {scale}")
    require(there, "--only", wanted, ",".join(names))
    options = Options(
        scale=sizes,
        readings=READINGS if asked.reading == "both" else (asked.reading,),
        count=cast(Count, asked.count),
        authors=asked.reference,
        device=place.type if asked.device == "auto" else asked.device,
        changes=told,
        set=asked.changes,
    )
    return options, names


def _report(
    names: Sequence[str], options: Options, asked: PaperOptions, *, live: bool, silent: bool
) -> list[ClaimOutcome]:
    """Make the parts and write the report, ``live`` over what is recorded; say what came of it, if not silent."""
    started, out, hours = time.monotonic(), asked.out, asked.time_limit
    require_own_page(out / "report.html")

    def interrupted() -> str:
        return f"interrupted; what was finished is kept in {out}; the same command goes on"

    with (
        telling(interrupted),
        held(out),
        held(out / "figures"),
        held(out / "tables"),
        Processes(asked.jobs or (-1 if options.device == "cpu" else 1)) as processes,
    ):
        # The time that the check of the bits takes counts among the hours.
        if options.device != "cpu" and not asked.from_recorded:
            require_bits(find_device(options.device))
            hours = hours and hours - (time.monotonic() - started) / 3600
        resume = asked.resume or options.device != "cpu"
        compute = partial(run_all, root=asked.cache, processes=processes, hours=hours, resume=resume)
        from_records = live or asked.from_recorded
        found = _recorded(names, options, asked) if from_records else _computed(names, options, asked, compute)
        # A page that live runs follow is to be there soon: a PDF takes as long as all else of a figure.
        kinds = ("png",) if live else KINDS
        made = _all_drawn(found.parts, options, out, kinds, processes)
        if from_records:
            made = _with_recorded_verdicts(made, found.parts, asked.record)
        made += _absent(found.missing, "Not recorded" if from_records else "Not finished")
        outcomes = [outcome for part in made for outcome in part.claims]
        minutes = (time.monotonic() - started) / 60
        facts = {"scale": RECORDED if from_records else options.scale.name}
        changes = "; ".join(dict.fromkeys(own for part, own in options.changes.items() if part in names))
        facts |= {"changed": f"{changes}: not the paper's"} if changes else {}
        provenance = [each for rows in found.parts.values() for each in rows.provenance if each]
        facts |= _facts(provenance, None if from_records else minutes)
        write_atomically(out / "claims.json", outcomes_json(outcomes))
        lines = answer()

        def show(overlays: Mapping[str, Overlay], status: str) -> None:
            sections = [{**part.section, "live": overlays.get(part.section["id"])} for part in made]
            page = render_report(sections, facts=facts, claims=outcomes, answer=lines, live=status)
            write_atomically(out / "report.html", page)

        show({}, "")
        if live:
            print(f"{out / 'report.html'} shows what is recorded; now it is checked by live runs", file=sys.stderr)
            _run_live(
                [name for name in found.parts if name not in asked.spared], outcomes, options, asked, compute, show
            )
            minutes = (time.monotonic() - started) / 60
    if not silent:
        print(closing(out / "report.html", outcomes, facts, minutes, live=live))
    if found.words:
        print(found.words, file=sys.stderr)
    return outcomes


# --- where the rows come from -----------------------------------------------------------------------------------------


@dataclass
class _Found:
    """The rows of the parts from one source."""

    parts: dict[str, Rows] = field(default_factory=dict)  # the rows of each part that can be drawn
    missing: dict[str, str] = field(default_factory=dict)  # why the others cannot be
    words: str = ""  # what is not finished, or not there


def _recorded(names: Sequence[str], options: Options, asked: PaperOptions) -> _Found:
    """What is kept with the code, at one scale or of each part at its largest."""
    found = _Found()
    for name in names:
        kept = recorded.largest(name) if asked.largest else recorded.load(name, options.scale.name)
        if kept is None:
            found.missing[name] = f"decomfl paper --only {name} --record paper_repro/results records it"
        elif not _drawable(name, kept):
            found.missing[name] = kept.words
        else:
            found.parts[name] = kept
    found.words = f"not recorded: {', '.join(found.missing)}" if found.missing else ""
    return found


Piece = tuple[Work | Job, pd.DataFrame, Sequence[Mapping[str, Any]]]
"""A work, its rows (perhaps those so far) and every provenance that may be theirs."""


def _computed(names: Sequence[str], options: Options, asked: PaperOptions, compute: Compute) -> _Found:
    """What is computed here, or was before: all works of all parts go into one pool.

    A part that is spared, or whose works cannot be done here (there are none), is taken from what is kept with the
    code, where there is something. What is recorded whole, where a record is added to, is not computed again.
    """
    spared = {name: kept for name in names if name in asked.spared and (kept := _record(name, options))}
    works = {name: [] if name in spared else _works(name, options) for name in names}
    records = _records(options, asked)
    known = {name: [_whole(work, records) for work in own] for name, own in works.items()}
    left = [work for name, own in works.items() for work, whole in zip(own, known[name], strict=True) if whole is None]
    computed = iter(compute(left))
    pieces: dict[str, list[Piece]] = {name: [] for name in names}
    for name, own in works.items():
        for work, whole in zip(own, known[name], strict=True):
            if whole is not None:
                pieces[name].append((work, *whole))
            elif (result := next(computed)) is not None:
                pieces[name].append((work, result[0], [result[1]]))
    found = _Found()
    for name, own in works.items():
        kept = None if own else spared.get(name) or _record(name, options)
        if kept is not None:
            found.parts[name] = kept
            continue
        there, total = pieces[name], len({work.key() for work in own})
        rows = Rows(
            options.scale.name,
            pd.concat([frame for _, frame, _ in there], ignore_index=True) if there else pd.DataFrame(),
            [facts[0] for *_, facts in there],
            runs=(_finished(there), total),
        )
        if there and asked.record is not None:
            _keep(name, there, options, asked.record)
        if own and not (there and _drawable(name, rows)):
            found.missing[name] = f"so far {rows.runs[0]} of its {total} runs are finished"
        else:
            found.parts[name] = rows
    done = _finished([each for own in pieces.values() for each in own])
    total = len({work.key() for own in works.values() for work in own})
    found.words = "" if done == total else f"{done} of {total} runs are finished; the same command goes on"
    return found


def _works(name: str, options: Options) -> Sequence[Work | Job]:
    """The works of a part, on the device if they can compute there; those that it shortens most go first."""
    works = PARTS[name].jobs(options)
    if options.device == "cpu":
        return works
    place = ON_GPU.index(name) if name in ON_GPU else len(ON_GPU)
    return [
        work if work.device is None else replace(work, device=options.device, urgency=10 * place + work.urgency)
        for work in works
    ]


def _finished(pieces: Iterable[Piece]) -> int:
    """How many runs are finished; what several parts share counts once."""
    return len({work.key() for work, _, facts in pieces if SO_FAR not in facts[0]})


def _keep(name: str, pieces: Sequence[Piece], options: Options, into: Path) -> None:
    """Record the rows of a part: of each work what came furthest, here or in an earlier command."""
    # The board may have been asked for some of its races: those that were not may be recorded.
    everything = PARTS[name].jobs(replace(options, problems=(), lines=()))
    earlier = recorded.load(name, options.scale.name, into)
    here = {work.key(): (rows, facts) for work, rows, facts in pieces}
    reached: dict[str, tuple[pd.DataFrame, Sequence[Mapping[str, Any]]]] = {}
    for work in everything:
        candidates = [here[work.key()]] if work.key() in here else []
        if earlier is not None and len(kept := work.among(earlier.rows)):
            candidates.append((kept, earlier.provenance_of(kept)))
        if candidates:
            reached[work.key()] = max(candidates, key=lambda each: _far(each[0]))
    facts = [each for _, own in reached.values() for each in own]
    counts = sum(is_whole(rows) for rows, _ in reached.values()), len({work.key() for work in everything})
    rows = pd.concat([own for own, _ in reached.values()], ignore_index=True)
    recorded.save(name, options.scale.name, rows, facts, into, counts)


def _far(rows: pd.DataFrame) -> tuple[bool, float]:
    """Whether the rows of a work are those of its end, and their last round: the larger, the further."""
    return is_whole(rows), rows["round"].max() if "round" in rows else 0


def _records(options: Options, asked: PaperOptions) -> list[Rows]:
    """The records in which finished runs may be that are not to be run again: at the paper's own sizes alone.

    Rows do not say all settings, and those of smaller scales change.
    """
    resume = asked.resume or options.device != "cpu"
    if asked.record is None or not resume or options.scale.name != LARGEST:
        return []
    return [*filter(None, (recorded.load(part, LARGEST, asked.record) for part in PARTS))]


def _whole(work: Work | Job, records: Sequence[Rows]) -> tuple[pd.DataFrame, Sequence[Mapping[str, Any]]] | None:
    """What the records, of any part, as some share runs, have of a training run on the same data, if it is finished."""
    if not isinstance(work, Job):
        return None
    for record in records:
        rows = work.among(record.rows)
        if len(rows) and rows["round"].is_unique and is_whole(rows):  # of one run, to its end
            facts = record.provenance_of(rows)
            if facts and all(each.get("data_digest") == work.dataset().digest for each in facts):
                return rows, facts
    return None


def _record(name: str, options: Options) -> Rows | None:
    """What is kept with the code of a part at its scale, whose settings are not changed."""
    return None if name in options.changes else recorded.load(name, options.scale.name)


# --- parts that are drawn ---------------------------------------------------------------------------------------------


def _all_drawn(
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
    """A part in a report's folder, from whatever source its rows are: as it was drawn there of the same, or now."""
    # Rows at changed settings stand alone: what is recorded is of the settings as they are.
    at = replace(options, scale=SCALES[rows.scale]) if rows.date else options
    at = at if name in options.changes else _beside(name, at)
    make = partial(_part, name, rows, at)
    return drawn(out, name, ingredients(name, rows, at), make, rows.source(name), kinds)


def _beside(name: str, options: Options) -> Options:
    """The options with what is kept with the code of a part at other scales: the largest, or else the one below it."""

    def kept(scale: str) -> Rows | None:
        found = recorded.load(name, scale)
        return found if found is not None and _drawable(name, found) else None

    if options.scale.name == LARGEST:
        return replace(options, shorter=kept(SCALE_NAMES[-2]))
    return replace(options, longer=kept(LARGEST))


def _drawable(name: str, rows: Rows) -> bool:
    """Whether there is enough to draw: all runs, or, of parts that can do with some, one that is not a check alone."""
    lines = CHECKED not in rows.rows or not rows.rows[CHECKED].all()
    return rows.complete or (name in PARTIAL and lines)


def _part(name: str, rows: Rows, options: Options) -> Made:
    """A part, which says from what it was kept, with the verdicts of other runs where its own decide nothing."""
    part, other = _judged(name, rows, options), options.longer or options.shorter
    section = replace(
        part.section,
        scale=options.scale.name,
        command=options.command(name),
        provenance=_facts([*filter(None, rows.provenance)], None),
        notes=[*ill_words(name, rows.rows), *part.section.notes],
    )
    part = replace(part, section=section)
    if name in options.changes:
        return _told_changed(part, options.changes[name])
    claims = part.claims
    # What these rows do not decide, rows at the other scale may: their outcome says where it is from.
    if other is not None and any(claim.verdict == UNTESTED for claim in claims):
        at = replace(options, scale=SCALES[other.scale], longer=None, shorter=None)
        known = {claim.id: claim for claim in _judged(name, other, at).claims if claim.verdict != UNTESTED}
        claims = [known.get(claim.id, claim) if claim.verdict == UNTESTED else claim for claim in claims]
    return replace(part, claims=claims)


def _judged(name: str, rows: Rows, options: Options) -> Made:
    """A part from rows at the scale of the options; what that scale or ill runs leave undecided says so."""
    part = PARTS[name].make(rows.rows, rows.provenance, options).of(rows)
    if name in options.changes:
        return part
    return replace(part, claims=decided_by_health(rows.rows, decided(part.claims, options.scale.name)))


def _told_changed(part: Made, changes: str) -> Made:
    """A part of changed settings: no verdict counts, and each says what it would be."""
    note = f"Changed by --set: {changes}. So this is not the paper's experiment, and no verdict on it counts."
    claims = []
    for each in part.claims:
        words = f"reads “{each.verdict}” for settings changed by --set ({changes}); {each.scale}"
        claims.append(replace(each, verdict=UNTESTED, scale=words))
    return replace(part, section=replace(part.section, notes=[note, *part.section.notes]), claims=claims)


def _with_recorded_verdicts(made: Sequence[DrawnPart], parts: Mapping[str, Rows], into: Path | None) -> list[DrawnPart]:
    """The parts with verdicts that need more than their rows, as the authors' curves, from when they were recorded.

    Where verdicts are recorded, those that were found now are.
    """
    verdicts = [] if into is not None else recorded_outcomes()
    found, data = [], {}
    for part, (name, rows) in zip(made, parts.items(), strict=True):
        known = {each.id for each in part.claims}
        others = [each for each in verdicts if claim(each.id).part == name and each.id not in known]
        found.append(replace(part, claims=[*part.claims, *others]))
        data[name] = _once(str(each["data"]) for each in rows.provenance if "data" in each)
    if into is not None:
        outcomes = {name: part.claims for name, part in zip(parts, found, strict=True)}
        recorded.save_outcomes(outcomes, data, into)
    return found


# --- live runs over what is recorded ----------------------------------------------------------------------------------


def _run_live(
    names: Sequence[str],
    recorded_outcomes: Sequence[ClaimOutcome],
    options: Options,
    asked: PaperOptions,
    compute: Compute,
    show: Callable[[Mapping[str, Overlay], str], None],
) -> None:
    """Run the beginnings of the parts' runs; ``show`` each part over what is recorded of it as soon as it is done."""
    works = {name: [beginning(work) for work in PARTS[name].jobs(options)] for name in names}
    # A part of one long piece begins first: nothing else can be done of it meanwhile.
    works = dict(sorted(((name, own) for name, own in works.items() if own), key=lambda item: len(item[1]) > 1))
    left = {name: {work.key() for work in own} for name, own in works.items()}
    overlays: dict[str, Overlay] = {}

    def ended(work: Work | Job) -> None:
        key = work.key()
        for name in [name for name, keys in left.items() if key in keys]:
            left[name].discard(key)
            if left[name]:
                continue
            overlays[name] = _overlay(name, works[name], recorded_outcomes, options, asked)
            done = ", ".join(PART_FACTS[each].title.partition(":")[0] for each in PARTS if each in overlays)
            far = "" if len(overlays) == len(works) else " so far (load this page again to see more)"
            show(overlays, f"Checked live on this machine{far}: {len(overlays)} of {len(works)} parts: {done}.")

    # The dearest of a part first, so that its processes end together.
    ordered = (sorted(own, key=lambda work: -work.cost) for own in works.values())
    compute([*chain.from_iterable(ordered)], on_result=ended)


def _overlay(
    name: str,
    works: Sequence[Work | Job],
    recorded_outcomes: Sequence[ClaimOutcome],
    options: Options,
    asked: PaperOptions,
) -> Overlay:
    """A part of live runs, drawn over what is recorded of it, with what the comparison says."""
    results = {work.key(): result for work in works if (result := work.result(asked.cache / work.key()))}
    pieces = results.values()
    rows = Rows(
        options.scale.name,
        pd.concat([frame for frame, _ in pieces], ignore_index=True),
        [facts for _, facts in pieces if facts],
    )
    # The recorded runs of the same settings are drawn thin, to their end.
    kept = _record(name, options)
    at = replace(options, longer=kept)

    def make() -> Made:
        part = _judged(name, rows, at)
        return replace(part, section=replace(part.section, id=f"{name}-live"))

    made = drawn(asked.out / LIVE, name, ingredients(name, rows, at), make, rows.source(name), ("png",))
    found = agreement(works, results, rows.rows, kept)
    return overlay(works, found, made, recorded_outcomes, _facts(rows.provenance, None).get("data", ""))


def _absent(missing: Mapping[str, str], title: str) -> list[DrawnPart]:
    """A section that lists the parts that the page does not have."""
    notes = [f"{name}: {why}." for name, why in missing.items()]
    section = Section(id="absent", title=title, notes=notes)
    return [DrawnPart(page_section(section), [])] if missing else []


def _facts(provenance: Sequence[Mapping[str, Any]], minutes: float | None) -> dict[str, str]:
    """What the head of the page says of the runs; minutes are None where nothing was computed."""
    facts = {} if minutes is None else {"time": f"{minutes:.1f} minutes for what was not there yet"}
    # A run that several versions of the code took up lists all of them.
    runs = [code for each in provenance for code in each.get("codes", [each.get("code", "")]) if code]
    facts |= {"code": f"drawn by {code_version()}" + (f", run by {', '.join(dict.fromkeys(runs))}" if runs else "")}
    if provenance:
        facts |= {
            # Runs share data and models, so pieces repeat.
            "data": _once(piece for each in provenance for piece in str(each["data"]).split("; ")),
            "versions": _once(
                f"Python {each['python']}, torch {each['torch']}, numpy {each['numpy']}"
                + (f", transformers {each['transformers']}" if "transformers" in each else "")
                for each in provenance
            ),
            "device": _once(each["device"] for each in provenance),
            "noise": _once(
                f"stream version {each['stream_version']}, backend {each['noise_backend']}" for each in provenance
            ),
        }
    return facts


def _once(said: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(said))
