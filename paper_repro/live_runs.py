"""What this machine runs beside what is recorded: the beginnings of the same runs, and how far the numbers agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import pandas as pd

from decomfl_lab.errors import plural
from paper_repro.contents import PARTS
from paper_repro.report_folder import DrawnPart, judged, written
from paper_repro.request import Request
from paper_repro.workflow.recordings import Rows, facts_of
from paper_repro.workflow.recordings import load as recorded_rows
from paper_repro.workflow.runs import Job, Result, Work
from paper_repro.workflow.verdicts.claim_table import PARTS as FACTS
from paper_repro.workflow.verdicts.claim_table import VERDICTS, ClaimOutcome

FOLDER: Final = "live"  # the folder, in that of the report, of tables of live runs

SHARE: Final = 0.15  # the share of a training run's rounds that is run live
_POINTS: Final = 0.02
"""Accuracies that differ by less are alike: processors round losses differently, and training magnifies it."""
_RELATIVE: Final = 0.05  # the same of other numbers, as a share of the larger one
_PEAK: Final = 0.5  # the same of measured memory: small models lie within the granularity of what a process takes
_MEMORY: Final = ("peak_bytes", "models", "phi_share")
_ACCURACIES: Final = ("test_accuracy", "calibrated_accuracy")
_NOT_COMPARED: Final = ("seconds", "finished", "planned", "diverged")
"""Columns of times, and of what is known of a run when it ends."""


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """What live runs say of a section of the page."""

    tone: str  # the colour of the badge, one of those of verdicts
    sign: str  # its sign
    verdict: str  # its words
    words: Sequence[str]  # paragraphs: what was run, how its numbers compare, which verdicts it decides
    # the section of the live runs, as ``page_section`` makes it; its figures show the recorded ones thin
    section: Mapping[str, Any]


@dataclass(frozen=True)
class Agreement:
    """How rows that were made here compare with the recorded rows of the same work, at the same scale."""

    rows: int  # the number of rows made here
    compared: int = 0  # how many of them are recorded too
    equal: int = 0  # how many of these are equal, in every number and every text
    # column -> the largest difference: of accuracies themselves, of other numbers as a share
    largest: Mapping[str, float] | None = None
    texts: Sequence[str] = ()  # the columns of text that differ in a row
    other_data: bool = False  # whether the recorded rows are of other data, so that nothing was compared

    @property
    def alike(self) -> bool | None:
        """Whether all differences are those of rounding, and no text differs; None where nothing was compared."""
        if not self.compared:
            return None
        limits = {**dict.fromkeys(_ACCURACIES, _POINTS), **dict.fromkeys(_MEMORY, _PEAK)}
        return not self.texts and all(gap <= limits.get(name, _RELATIVE) for name, gap in (self.largest or {}).items())

    def __str__(self) -> str:
        if self.other_data:
            return "The recorded rows are of other data, so the numbers are not compared; the figure shows both."
        if not self.compared:
            return "None of these rows is recorded at this scale, so the numbers are not compared."
        sentences = [f"{self.equal} of {plural(self.compared, 'row')} equal the recorded ones in every digit and word."]
        if self.largest:
            name, value = max(self.largest.items(), key=lambda item: item[1])
            amount = f"{100 * value:.2g} points" if name in _ACCURACIES else f"{value:.2g} of its value"
            sentences.append(f"The largest difference of numbers is in {name}: {amount}.")
        if self.texts:
            sentences.append(f"Texts differ in {', '.join(self.texts)}.")
        return " ".join(sentences)


def agreement(
    works: Sequence[Work | Job], results: Mapping[str, Result], rows: pd.DataFrame, recorded: Rows | None
) -> Agreement:
    """How the rows of a part's ``works`` compare with the recorded ones at the same scale, None where none are.

    ``results`` are by ``Work.key``, and ``rows`` are those of all works.
    """
    if recorded is None:
        return Agreement(len(rows))
    here = {facts.get("data_digest") for _, facts in results.values() if facts}
    there = {facts.get("data_digest") for facts in recorded.provenance}
    if not here <= there | {None}:
        return Agreement(len(rows), other_data=True)
    pairs = []  # (rows made here, the recorded rows that they are compared with), row by row
    for work in works:
        if work.labels:
            # The rows of a run that are recorded too, and the recorded ones, round by round.
            known = work.among(recorded.rows).drop_duplicates("round").set_index("round", drop=False)
            made = results[work.key()][0]
            shared = made[made["round"].isin(known.index)].reset_index(drop=True)
            pairs.append((shared, known.loc[shared["round"]].reset_index(drop=True)))
    if not all(work.labels for work in works):
        # Rows that do not say whose they are stand in one order, and are as many as are recorded, or are others.
        pairs = []
        if len(rows) == len(recorded.rows):
            pairs = [(rows.reset_index(drop=True), recorded.rows.reset_index(drop=True))]
    equal: list[pd.Series[bool]] = []  # of each pair, which of its rows are equal
    gaps: list[pd.DataFrame] = []  # of each pair, a column a number
    texts: dict[str, None] = {}
    for one, other in pairs:
        if one.empty:
            continue
        names = [str(name) for name in one if name in other and name not in _NOT_COMPARED]
        numeric = [name for name in names if all(pd.api.types.is_numeric_dtype(f[name]) for f in (one, other))]
        # A file has no text and no list where a frame has an empty one.
        a, b = (frame[[n for n in names if n not in numeric]].fillna("").astype(str) for frame in (one, other))
        alike = a == b
        a, b = (frame[numeric].astype(float) for frame in (one, other))
        gap = (a - b).abs().where(~(a.isna() & b.isna()), 0.0).fillna(np.inf)  # a number beside none is no rounding
        size = pd.DataFrame(np.maximum(a.abs(), b.abs()), columns=numeric).replace(0.0, 1.0).fillna(1.0)
        gaps.append(gap / size.assign(**{name: 1.0 for name in _ACCURACIES if name in numeric}))
        equal.append((gap == 0).all(axis=1) & alike.all(axis=1))
        texts |= dict.fromkeys(map(str, alike.columns[~alike.all()]))
    if not equal:
        return Agreement(len(rows))
    same = pd.concat(equal)
    largest = {str(name): float(most) for name, most in pd.concat(gaps).max().items() if most > 0}
    return Agreement(len(rows), len(same), int(same.sum()), largest, tuple(texts))


def overlay(
    works: Sequence[Work | Job], found: Agreement, made: DrawnPart, recorded: Sequence[ClaimOutcome], data: str
) -> Overlay:
    """What the page says of a part that was run live (on ``data``, in words), and its drawing over what is recorded."""
    known = {outcome.id: outcome.verdict for outcome in recorded}
    decides = [outcome for outcome in made.claims if outcome.verdict in VERDICTS[:3]]
    others = [outcome for outcome in decides if known.get(outcome.id) != outcome.verdict]
    begun = sum(isinstance(work, Job) and bool(work.whole) for work in works)
    whole = len(works) - begun
    done = [f"the first {SHARE:.0%} of {plural(begun, 'training run')}"] if begun else []
    done += [plural(whole, "whole run")] if whole else []
    words = [f"Done here at default scale: {' and '.join(done)}. {found}"]
    if decides:
        same = f"Verdicts that these rows decide: {len(decides)}, as recorded: {len(decides) - len(others)}"
        differ = [f"{each.id} reads “{each.verdict}” here, “{known.get(each.id, 'nothing')}” there" for each in others]
        words += ["; ".join([same, *differ]) + "."]
    if data:
        words += [f"Data here: {data}."]
    if found.alike is None:
        tone, sign, verdict = ("untested", "–", "run live, not compared")
    elif not found.alike:
        tone, sign, verdict = ("no", "✗", "differs here")
    elif others:
        tone, sign, verdict = ("depends", "±", "numbers as recorded, a verdict is not")
    else:
        tone, sign, verdict = ("yes", "✓", "checked live")
    return Overlay(tone=tone, sign=sign, verdict=verdict, words=words, section=made.section)


def run_live(
    names: Sequence[str],
    recorded: Sequence[ClaimOutcome],
    request: Request,
    compute: Callable[..., Any],
    show: Callable[[Mapping[str, Overlay], str], None],
) -> None:
    """Run the beginnings of the parts' runs; ``show`` each part over what is recorded of it as soon as it is done.

    ``names`` are the parts, and ``recorded`` what is recorded of their claims. ``compute`` is ``run_all`` with all but
    works and ``on_result`` given; ``show`` is called with the overlays so far, and a sentence about them.
    """
    works: dict[str, list[Work | Job]] = {}
    for name in names:
        # Of a training run the first rounds, of other work all.
        jobs = PARTS[name].jobs(request.options)
        works[name] = [work.beginning(SHARE) if isinstance(work, Job) else work for work in jobs]
    # A part of one long piece begins first: nothing else can be done of it meanwhile.
    works = dict(sorted(((name, own) for name, own in works.items() if own), key=lambda item: len(item[1]) > 1))
    left = {name: {work.key() for work in of_part} for name, of_part in works.items()}  # the keys under way
    overlays: dict[str, Overlay] = {}

    def ended(work: Work | Job) -> None:
        """Show each part of which this was the last work."""
        key = work.key()
        for name in [name for name, keys in left.items() if key in keys]:
            left[name].discard(key)
            if left[name]:
                continue
            of_part, scale = works[name], request.options.scale.name
            results = {each.key(): made for each in of_part if (made := each.result(request.asked.cache / each.key()))}
            frames, facts = zip(*results.values(), strict=True)
            rows = Rows(scale, pd.concat(frames, ignore_index=True), [*filter(None, facts)])
            # The recorded runs of the same settings are drawn thin, to their end.
            thin = recorded_rows(name, scale)
            compared = agreement(of_part, results, rows.rows, thin)
            part = judged(name, rows, replace(request.options, longer=thin))
            # Where every row is as it is recorded, a figure would show the same points once more.
            figure = None if compared.equal == compared.rows else part.section.figure
            part = replace(part, section=replace(part.section, id=f"{name}-live", figure=figure, more_figures={}))
            # The page alone shows it: no picture is a file of its own.
            drawn = written(request.asked.out / FOLDER, part, kinds=())
            data = facts_of(rows.provenance).get("data", "")
            overlays[name] = overlay(of_part, compared, drawn, recorded, data)
            done = ", ".join(FACTS[each].title.partition(":")[0] for each in PARTS if each in overlays)
            far = "" if len(overlays) == len(works) else " so far (load this page again to see more)"
            show(overlays, f"Checked live on this machine{far}: {len(overlays)} of {len(works)} parts: {done}.")

    # The dearest of a part first, so that its processes end together.
    ordered = (sorted(of_part, key=lambda work: -work.cost) for of_part in works.values())
    compute([*chain.from_iterable(ordered)], on_result=ended)
