"""What ``decomfl paper`` does: every figure and table, the verdicts and the report."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

import joblib
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
from paper_repro.parts.hessian import SpectrumWork
from paper_repro.studies import board, edge
from paper_repro.workflow import recorded
from paper_repro.workflow.answer import answer
from paper_repro.workflow.asked import PaperOptions
from paper_repro.workflow.claims import (
    DEAR,
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
from paper_repro.workflow.part import DrawnPart, Made, Options, Part, drawn, ingredients
from paper_repro.workflow.reference import require_reference
from paper_repro.workflow.report import RECORDED, Section, closing, page_section, render_report, require_own_page
from paper_repro.workflow.runs import Job, Recordable, Result, Work, finished, is_whole, pool_of, run_all
from paper_repro.workflow.scales import READINGS, SCALES, changed

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
FEW: Final = 3  # parts that are drawn by this process alone: to start others takes as long
MOST_JOBS: Final = 4096
"""Processes at a time; joblib ends where a number does not fit 32 bits, and a machine long before."""


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
        names, options, live=asked.recorded_first and not (problems or lines), silent=asked.as_json or silent
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
    hours = asked.hours if asked.minutes is None else asked.minutes / 60
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
    largest = (asked.from_recorded and not asked.scale) or asked.recorded_first
    there = not asked.from_recorded or any(recorded.is_there(name, "" if largest else scale) for name in names)
    wanted = "name a part that is recorded" + ("" if largest else f" at scale {scale}")
    require(there, "--only", wanted, ",".join(names))
    options = Options(
        scale=sizes,
        readings=tuple(READINGS) if asked.reading == "both" else (asked.reading,),
        count=cast(Count, asked.count),
        cache=asked.out / "runs" if asked.runs is None else asked.runs,
        authors=asked.reference,
        from_recorded=asked.from_recorded,
        largest=largest,
        spared=() if asked.only else DEAR,
        out=asked.out,
        jobs=asked.jobs or (1 if on_gpu else -1),
        record=asked.record,
        hours=hours,
        resume=asked.resume or on_gpu,
        device=place.type if asked.device == "auto" else asked.device,
        changes=told,
        set=asked.changes,
    )
    return options, names


def _report(names: Sequence[str], options: Options, *, live: bool, silent: bool) -> list[ClaimOutcome]:
    """Make the parts and write the report, ``live`` over what is recorded; say what came of it, if not silent."""
    started, out = time.monotonic(), options.out
    require_own_page(out / "report.html")

    def interrupted() -> str:
        return f"interrupted; what was finished is kept in {out}; the same command goes on"

    with telling(interrupted), held(out), held(out / "figures"), held(out / "tables"):
        # The time that the check of the bits takes counts among the hours.
        if options.device != "cpu" and not options.from_recorded:
            require_bits(find_device(options.device))
            if options.hours is not None:
                options = replace(options, hours=options.hours - (time.monotonic() - started) / 3600)
        drawing = live or options.from_recorded
        made, provenance, words = (_recorded if drawing else _make)(names, options)
        outcomes = [outcome for part in made for outcome in part.claims]
        minutes = (time.monotonic() - started) / 60
        facts = {"scale": RECORDED if drawing else options.scale.name}
        changes = "; ".join(dict.fromkeys(own for part, own in options.changes.items() if part in names))
        facts |= {"changed": f"{changes}: not the paper's"} if changes else {}
        facts |= _facts(provenance, None if drawing else minutes)
        write_atomically(out / "claims.json", outcomes_json(outcomes))
        lines = answer()

        def show(overlays: Mapping[str, Overlay], status: str) -> None:
            sections = [{**part.section, "live": overlays.get(part.section["id"])} for part in made]
            page = render_report(sections, facts=facts, claims=outcomes, answer=lines, live=status)
            write_atomically(out / "report.html", page)

        show({}, "")
        if live:
            print(f"{out / 'report.html'} shows what is recorded; now it is checked by live runs", file=sys.stderr)
            _run_live([part.section["id"] for part in made], outcomes, options, show)
            minutes = (time.monotonic() - started) / 60
    if not silent:
        print(closing(out / "report.html", outcomes, facts, minutes, live=live))
    if words:
        print(words, file=sys.stderr)
    return outcomes


# --- parts that are computed ------------------------------------------------------------------------------------------

Whole = tuple[pd.DataFrame, Sequence[Mapping[str, Any]]]
"""The rows of a recorded run, and every provenance that may be theirs."""


@dataclass
class _Run:
    """A piece of a part's work, and what came of it."""

    work: Work  # the work
    whole: Whole | None  # what is recorded of it, if it was finished elsewhere: it is not run again
    result: Result | None = None  # its rows and provenance, perhaps so far; None where there are none

    def __post_init__(self) -> None:
        if self.whole is not None:
            rows, facts = self.whole
            self.result = rows, dict(facts[0])


def _make(names: Sequence[str], options: Options) -> tuple[list[DrawnPart], list[Mapping[str, Any]], str]:
    """The parts, the provenance of every run, and what is not finished: all runs of all parts go into one pool.

    A part that is spared, or whose runs cannot be made here (no jobs), is drawn from what is kept with the code, where
    there is something.
    """
    records = {name: _record(name, options) for name in names if name in options.spared}
    runs = _run({name: [] if records.get(name) else PARTS[name].jobs(options) for name in names}, options)
    made: list[DrawnPart] = []
    provenance: list[Mapping[str, Any]] = []
    missing: dict[str, str] = {}
    for name, own in runs.items():
        kept = None if own else records.get(name) or _record(name, options)
        if kept is not None:
            made.append(_kept(name, kept, options))
            continue
        there = [run.result for run in own if run.result is not None]
        rows = pd.concat([frame for frame, _ in there], ignore_index=True) if there else pd.DataFrame()
        facts = [facts for _, facts in there]
        done, total = _finished(own)
        if there and options.record is not None:
            _keep(name, own, options, options.record)
        if own and not (there and _drawable(name, rows, complete=done == total)):
            missing[name] = f"so far {done} of its {total} runs are finished"
        else:
            # Rows at changed settings stand alone: what is recorded is of the settings as they are.
            at = options if name in options.changes else _beside(name, options)
            made.append(_drawn(name, rows, facts, at))
        provenance += [each for each in facts if each]  # what only code makes has none
    done, total = _finished([run for own in runs.values() for run in own])
    words = "" if done == total else f"{done} of {total} runs are finished; the same command goes on"
    return [*made, *_absent(missing, "Not finished")], provenance, words


def _run(works: Mapping[str, Sequence[Work]], options: Options) -> dict[str, list[_Run]]:
    """Do the work of all parts together, but for what is recorded whole: {part: what came of its work}."""
    if options.device != "cpu":
        order = [*ON_GPU, *(name for name in works if name not in ON_GPU)]
        works = {name: _on_device(own, options.device, order.index(name)) for name, own in works.items()}
    records = _records(options)
    runs = {name: [_Run(work, _whole(work, records)) for work in own] for name, own in works.items()}
    left = [run for own in runs.values() for run in own if run.whole is None]
    results = run_all(
        [run.work for run in left],
        options.cache,
        n_jobs=options.jobs,
        hours=options.hours,
        resume=options.resume,
    )
    for run, result in zip(left, results, strict=True):
        run.result = result
    return runs


def _keep(name: str, runs: Sequence[_Run], options: Options, into: Path) -> None:
    """Record the rows of a part."""
    # The board may have been asked for some of its races: those that were not may be recorded.
    some = options.problems or options.lines
    everything = PARTS[name].jobs(replace(options, problems=(), lines=())) if some else [run.work for run in runs]
    results = {run.work.key(): run.result for run in runs}
    wholes = {run.work.key(): run.whole for run in runs if run.whole is not None}
    earlier = recorded.load(name, options.scale.name, into)
    # Of what an earlier command came further with than this one, what was recorded then.
    reached: dict[str, tuple[pd.DataFrame, Sequence[Mapping[str, Any]], bool]] = {}
    for work in everything:
        key = work.key()
        if key in wholes:  # finished, in the record itself
            reached[key] = *wholes[key], True
            continue
        result, there = results.get(key), -1
        if result is not None:
            reached[key] = result[0], [result[1]], finished(result)
            there = result[0].get("round", pd.Series([-1])).max()
        if earlier is None or finished(result) or not isinstance(work, Recordable):
            continue
        kept = work.among(earlier.rows)
        if len(kept) and kept["round"].max() > there:
            reached[key] = kept, earlier.provenance_of(kept), is_whole(kept)
    facts = [each for _, own, _ in reached.values() for each in own]
    counts = sum(whole for *_, whole in reached.values()), len({work.key() for work in everything})
    rows = pd.concat([own for own, *_ in reached.values()], ignore_index=True)
    recorded.save(name, options.scale.name, rows, facts, into, counts)


def _records(options: Options) -> list[recorded.Recorded]:
    """The records in which finished runs may be that are not to be run again: at the paper's own sizes alone.

    Rows do not say all settings, and those of smaller scales change.
    """
    if options.record is None or not options.resume or options.scale.name != LARGEST:
        return []
    return [*filter(None, (recorded.load(part, LARGEST, options.record) for part in PARTS))]


def _whole(work: Work, records: Sequence[recorded.Recorded]) -> Whole | None:
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


def _on_device(works: Sequence[Work], device: str, place: int) -> list[Work]:
    """The works that can compute there, to do so; those of a later place come after all of an earlier one."""
    return [
        replace(work, device=device, urgency=10 * place + work.urgency)
        if isinstance(work, Job | SpectrumWork)
        else work
        for work in works
    ]


def _finished(runs: Sequence[_Run]) -> tuple[int, int]:
    """How many runs are finished, and how many there are; what several parts share counts once."""
    done = {run.work.key(): finished(run.result) for run in runs}
    return sum(done.values()), len(done)


# --- parts that are recorded, and run live ----------------------------------------------------------------------------


def _run_live(
    names: Sequence[str],
    recorded_outcomes: Sequence[ClaimOutcome],
    options: Options,
    show: Callable[[Mapping[str, Overlay], str], None],
) -> None:
    """Run the beginnings of the parts' runs; ``show`` each part over what is recorded of it as soon as it is done."""
    works = {name: [beginning(work) for work in PARTS[name].jobs(options)] for name in PARTS if name in names}
    works = {name: own for name, own in works.items() if own and name not in options.spared}
    # A part of one long piece begins first: nothing else can be done of it meanwhile.
    works = dict(sorted(works.items(), key=lambda item: len(item[1]) > 1))
    left = {name: {work.key() for work in own} for name, own in works.items()}
    results: dict[str, Result] = {}
    overlays: dict[str, Overlay] = {}

    def ended(work: Work, result: Result) -> None:
        key = work.key()
        results[key] = result
        for name in [name for name, keys in left.items() if key in keys]:
            left[name].discard(key)
            if left[name]:
                continue
            overlays[name] = _overlay(name, works[name], results, recorded_outcomes, options)
            done = ", ".join(PART_FACTS[each].title.partition(":")[0] for each in PARTS if each in overlays)
            far = "" if len(overlays) == len(works) else " so far (load this page again to see more)"
            show(overlays, f"Checked live on this machine{far}: {len(overlays)} of {len(works)} parts: {done}.")

    # The dearest of a part first, so that its processes end together.
    ordered = (sorted(own, key=lambda work: -work.cost()) for own in works.values())
    run_all(
        [*chain.from_iterable(ordered)],
        options.cache,
        n_jobs=options.jobs,
        hours=options.hours,
        resume=options.resume,
        on_result=ended,
    )


def _overlay(
    name: str,
    works: Sequence[Work],
    results: Mapping[str, Result],
    recorded_outcomes: Sequence[ClaimOutcome],
    options: Options,
) -> Overlay:
    """A part of live runs, drawn over what is recorded of it, with what the comparison says."""
    own = {work.key(): results[work.key()] for work in works}
    rows = pd.concat([frame for frame, _ in own.values()], ignore_index=True)
    provenance = [facts for _, facts in own.values() if facts]
    # The recorded runs of the same settings are drawn thin, to their end.
    kept = _record(name, options)
    at = replace(options, longer=kept)

    def make() -> Made:
        part = PARTS[name].make(rows, provenance, at)
        claims = decided_by_health(rows, decided(part.claims, options.scale.name))
        return replace(part, section=replace(part.section, id=f"{name}-live"), claims=claims)

    found = agreement(works, own, rows, kept)
    made = drawn(options.out / LIVE, name, ingredients(name, rows, provenance, at), make, _source(rows, None, name))
    return overlay(works, found, made, recorded_outcomes, _facts(provenance, None).get("data", ""))


# --- parts that are drawn ---------------------------------------------------------------------------------------------


def _kept(name: str, kept: recorded.Recorded, options: Options) -> DrawnPart:
    """A part from what is kept of it with the code, with longer runs behind it as far as they have come."""
    at = _beside(name, replace(options, scale=SCALES[kept.scale]))
    return _drawn(name, kept.rows, kept.provenance, at, kept)


def _drawn(
    name: str,
    rows: pd.DataFrame,
    provenance: Sequence[Mapping[str, Any]],
    options: Options,
    kept: recorded.Recorded | None = None,
) -> DrawnPart:
    """A part in the report's folder: as it was drawn there of the same, or else drawn now."""
    key = ingredients(name, rows, provenance, options, *([] if kept is None else [kept.words]))
    make = partial(_part, name, rows, provenance, options, kept)
    return drawn(options.out, name, key, make, _source(rows, kept, name))


def _source(rows: pd.DataFrame, kept: recorded.Recorded | None, name: str) -> str:
    """Of which rows a picture is: the recorded file with its SHA-256, or that of the rows computed here."""
    if kept is None:
        return f"rows computed, sha256 {hashlib.sha256(rows.to_csv(index=False).encode()).hexdigest()}"
    return recorded.source(name, kept.scale)


def _record(name: str, options: Options) -> recorded.Recorded | None:
    """What is kept with the code of a part at its scale, whose settings are not changed."""
    return None if name in options.changes else recorded.load(name, options.scale.name)


def _beside(name: str, options: Options) -> Options:
    """The options with what is kept with the code of a part at other scales: the largest, or else the one below it."""

    def kept(scale: str) -> recorded.Recorded | None:
        found = recorded.load(name, scale)
        return found if found is not None and _drawable(name, found.rows, complete=found.complete) else None

    if options.scale.name == LARGEST:
        return replace(options, shorter=kept(SCALE_NAMES[-2]))
    return replace(options, longer=kept(LARGEST))


def _part(
    name: str,
    rows: pd.DataFrame,
    provenance: Sequence[Mapping[str, Any]],
    options: Options,
    kept: recorded.Recorded | None = None,
) -> Made:
    """A part, which says from what it was ``kept``, with the verdicts of other runs where its own decide nothing."""
    part, other = PARTS[name].make(rows, provenance, options), options.longer or options.shorter
    part = part if kept is None else part.of(kept)
    told_of = _facts([*filter(None, provenance)], None)
    section = replace(
        part.section,
        scale=options.scale.name,
        command=options.command(name),
        provenance=told_of,
        notes=[*ill_words(name, rows), *part.section.notes],
    )
    part = replace(part, section=section)
    if name in options.changes:
        return _told_changed(part, options.changes[name])
    claims = decided_by_health(rows, decided(part.claims, options.scale.name))
    # What these rows do not decide, rows at the other scale may: their outcome says where it is from.
    if other is not None and any(claim.verdict == UNTESTED for claim in claims):
        at = replace(options, scale=SCALES[other.scale], longer=None, shorter=None)
        earlier = decided(PARTS[name].make(other.rows, other.provenance, at).of(other).claims, other.scale)
        known = {claim.id: claim for claim in decided_by_health(other.rows, earlier) if claim.verdict != UNTESTED}
        claims = [known.get(claim.id, claim) if claim.verdict == UNTESTED else claim for claim in claims]
    return replace(part, claims=claims)


def _told_changed(part: Made, changes: str) -> Made:
    """A part of changed settings: no verdict counts, and each says what it would be."""
    note = f"Changed by --set: {changes}. So this is not the paper's experiment, and no verdict on it counts."
    claims = []
    for each in part.claims:
        words = f"reads “{each.verdict}” for settings changed by --set ({changes}); {each.scale}"
        claims.append(replace(each, verdict=UNTESTED, scale=words))
    return replace(part, section=replace(part.section, notes=[note, *part.section.notes]), claims=claims)


def _recorded(names: Sequence[str], options: Options) -> tuple[list[DrawnPart], list[Mapping[str, Any]], str]:
    """The parts from what is kept with the code, at one scale or each at its largest."""
    outcomes: dict[str, Sequence[ClaimOutcome]] = {}
    data: dict[str, str] = {}
    provenance: list[Mapping[str, Any]] = []
    missing: dict[str, str] = {}
    there: dict[str, recorded.Recorded] = {}
    for name in names:
        kept = recorded.largest(name) if options.largest else recorded.load(name, options.scale.name)
        if kept is None:
            missing[name] = f"decomfl paper --only {name} --record paper_repro/results records it"
        elif not _drawable(name, kept.rows, complete=kept.complete):
            missing[name] = kept.words
        else:
            there[name] = kept
    # A part takes seconds to draw: where all are drawn, the processes that may run them later share it.
    n_jobs = options.jobs if len(there) > FEW else 1
    made: list[DrawnPart] = []
    with pool_of(n_jobs) as pool, RunBars() as bars:
        for part in pool(joblib.delayed(_kept)(name, kept, options) for name, kept in there.items()):
            made.append(part)
            bars.show("recorded parts", len(made), len(there), "drawn")
    made.sort(key=lambda part: [*there].index(part.section["id"]))
    # What needs more than the rows, as the authors' curves, has its verdict from when it was recorded.
    verdicts = [] if options.record is not None else recorded_outcomes()
    for n, (name, kept) in enumerate(there.items()):
        known = {each.id for each in made[n].claims}
        others = [each for each in verdicts if claim(each.id).part == name and each.id not in known]
        part = made[n] = replace(made[n], claims=[*made[n].claims, *others])
        provenance += [each for each in kept.provenance if each]
        outcomes[name] = part.claims
        data[name] = "; ".join(dict.fromkeys(str(each["data"]) for each in kept.provenance if "data" in each))
    if options.record is not None:
        recorded.save_outcomes(outcomes, data, options.record)
    words = f"not recorded: {', '.join(missing)}" if missing else ""
    return [*made, *_absent(missing, "Not recorded")], provenance, words


def _drawable(name: str, rows: pd.DataFrame, *, complete: bool) -> bool:
    """Whether there is enough to draw: all runs, or, of parts that can do with some, one that is not a check alone."""
    lines = CHECKED not in rows or not rows[CHECKED].all()
    return complete or (name in PARTIAL and lines)


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
