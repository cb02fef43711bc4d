"""What ``decomfl paper`` does: every figure and table, the verdicts and the report."""

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from decomfl_lab.interrupts import telling
from decomfl_lab.processes import Processes
from decomfl_lab.storage.files import held, write_atomically
from paper_repro.live_runs import Overlay, run_live
from paper_repro.report_folder import KINDS, DrawnPart, all_drawn
from paper_repro.request import Request
from paper_repro.sources import computed_parts, recorded_parts
from paper_repro.workflow import recordings
from paper_repro.workflow.recordings import Rows, facts_of
from paper_repro.workflow.report import RECORDED, Section, closing, page_section, render_report
from paper_repro.workflow.runs import run_all
from paper_repro.workflow.verdicts.answer import answer
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome, claim, outcomes_json, recorded_outcomes


def make_report(request: Request, *, silent: bool = False) -> list[ClaimOutcome]:
    """Make the parts that are asked for and their report, and return the verdicts; say what came of it, if not silent.

    Rows come from one source, recorded or computed, and go one way to figures, verdicts and page. Live runs are laid
    over what is recorded.
    """
    started = time.monotonic()
    asked = request.asked
    options = request.options
    page = asked.out / "report.html"

    def interrupted() -> str:
        return f"interrupted; what was finished is kept in {asked.out}; the same command goes on"

    with (
        telling(interrupted),
        held(asked.out),
        held(asked.out / "figures"),
        held(asked.out / "tables"),
        # One process a CPU; on a GPU one run goes at a time.
        Processes(asked.jobs or (-1 if options.device == "cpu" else 1)) as processes,
    ):
        # On a GPU, which one has for a while, runs that another version of the code began are taken up.
        resume = asked.resume or options.device != "cpu"
        compute = partial(run_all, root=asked.cache, processes=processes, until=request.until, resume=resume)
        from_records = request.live or asked.from_recorded
        found = recorded_parts(request) if from_records else computed_parts(request, compute)
        # A page that live runs follow is to be there soon: a PDF takes as long as all else of a figure.
        made = all_drawn(found.parts, options, asked.out, ("png",) if request.live else KINDS, processes)
        if from_records:
            made = with_recorded_verdicts(made, found.parts, asked.record)
        if found.missing:  # a section that lists the parts that the page does not have
            title = "Not recorded" if from_records else "Not finished"
            absent = Section(id="absent", title=title, notes=[f"{name}: {why}." for name, why in found.missing.items()])
            made.append(DrawnPart(page_section(absent), []))
        outcomes = [outcome for part in made for outcome in part.claims]
        write_atomically(asked.out / "claims.json", outcomes_json(outcomes))
        minutes = (time.monotonic() - started) / 60
        facts = {"scale": RECORDED if from_records else options.scale.name}
        changes = "; ".join(dict.fromkeys(own for part, own in options.changes.items() if part in request.names))
        facts |= {"changed": f"{changes}: not the paper's"} if changes else {}
        facts |= {} if from_records else {"time": f"{minutes:.1f} minutes for what was not there yet"}
        provenance = chain.from_iterable(rows.provenance for rows in found.parts.values())
        facts |= facts_of([each for each in provenance if each])
        lines = answer()

        def show(overlays: Mapping[str, Overlay], status: str) -> None:
            sections = [{**part.section, "live": overlays.get(part.section["id"])} for part in made]
            write_atomically(page, render_report(sections, facts=facts, claims=outcomes, answer=lines, live=status))

        show({}, "")
        if request.live:
            print(f"{page} shows what is recorded; now it is checked by live runs", file=sys.stderr)
            run_live([name for name in found.parts if name not in asked.spared], outcomes, request, compute, show)
            minutes = (time.monotonic() - started) / 60
    if not silent:
        print(closing(page, outcomes, facts, minutes, live=request.live))
    if found.words:
        print(found.words, file=sys.stderr)
    return outcomes


def with_recorded_verdicts(made: Sequence[DrawnPart], parts: Mapping[str, Rows], into: Path | None) -> list[DrawnPart]:
    """The parts with verdicts that need more than their rows, as the authors' curves, from when they were recorded.

    Where verdicts are recorded, those that were found now are.
    """
    verdicts = [] if into is not None else recorded_outcomes()
    drawn = []
    data = {}  # what a part's rows are of, in words
    for part, (name, rows) in zip(made, parts.items(), strict=True):
        known = {each.id for each in part.claims}
        others = [each for each in verdicts if claim(each.id).part == name and each.id not in known]
        drawn.append(DrawnPart(part.section, [*part.claims, *others]))
        data[name] = "; ".join(dict.fromkeys(str(each["data"]) for each in rows.provenance if "data" in each))
    if into is not None:
        outcomes = {name: part.claims for name, part in zip(parts, drawn, strict=True)}
        recordings.save_outcomes(outcomes, data, into)
    return drawn
