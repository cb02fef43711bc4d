"""The registry: every entry confirmed now, every part of the source spoken for."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab.errors import InputError
from theory.audit.entry import FINDINGS, INSTRUMENTS, Entry, Evidence, Result, gather
from theory.audit.registry import ENTRIES, collect, missing, run, stale
from theory.audit.source import Source, parse, read

TEX = r"""\begin{document}
\begin{lemma}\label{l}
\begin{align} a \label{a} \\ b \label{b} \end{align}
\end{lemma}
$$ c $$
words
\end{document}"""


def _holds() -> Evidence:
    return Evidence("algebra", True, "yes")


def _entry(label: str, line: int, kind: str = "equation", **more: object) -> Entry:
    return Entry(label=label, line=line, kind=kind, says="", finding="correct", checks=(_holds,), **more)  # type: ignore[arg-type]


COMPLETE = (_entry("l", 2, "lemma"), _entry("a", 3), _entry("b", 3), _entry("line-5", 5), _entry("line-6", 6, "claim"))


@pytest.fixture(scope="module")
def paper() -> Source:
    path = os.environ.get("DECOMFL_PAPER")
    if not path:
        pytest.skip("needs the paper's source (DECOMFL_PAPER)")
    return read(Path(path))


@pytest.fixture(scope="module")
def results(known: dict[Any, Any]) -> list[Result]:
    return [gather(entry, known) for entry in ENTRIES]


@pytest.mark.slow
def test_the_evidence_bears_every_finding_out(results: list[Result]) -> None:
    assert [result.entry.label for result in results if not result.confirmed] == []


@pytest.mark.slow
def test_rows_are_json_and_evidence_is_one_line(results: list[Result]) -> None:
    rows = json.loads(json.dumps([result.row() for result in results], allow_nan=False))
    assert [row["label"] for row in rows if "\n" in row["witness"]] == []


@pytest.mark.slow
def test_a_finding_is_reached_by_every_instrument(results: list[Result]) -> None:
    assert {found.instrument for result in results for found in result.evidence} == set(INSTRUMENTS)


def test_every_finding_is_given_to_something() -> None:
    assert {entry.finding for entry in ENTRIES} == set(FINDINGS)


def test_what_is_not_correct_says_why_and_what_is_mended_says_how() -> None:
    mended = [entry for entry in ENTRIES if entry.finding in ("typo", "false")]
    assert [entry.label for entry in mended if not entry.fix] == []


def test_every_part_of_the_paper_has_an_entry(paper: Source) -> None:
    assert paper.audited
    assert missing(paper) == []


def test_every_entry_speaks_of_a_part_of_the_paper(paper: Source) -> None:
    assert stale(paper) == []


def test_a_complete_registry_misses_nothing_and_has_nothing_stale() -> None:
    assert missing(parse(TEX), COMPLETE) == []
    assert stale(parse(TEX), COMPLETE) == []


@pytest.mark.parametrize("gone", range(4))
def test_an_entry_taken_away_is_missed(gone: int) -> None:
    rest = [entry for n, entry in enumerate(COMPLETE) if n != gone]
    names = ["line 2: lemma l", "line 3: display a", "line 3: display b", "line 5: display"]
    assert missing(parse(TEX), rest) == [names[gone]]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (_entry("line-4", 4), "line 4 has no equation"),
        (_entry("a", 5), "line 5 has no label a"),
        (_entry("a", 3, labels=("c",)), "line 3 has no label c"),
        (_entry("line-3", 3, "theorem"), "line 3 has no theorem"),
        (_entry("line-99", 99, "claim"), "line 99 has no claim"),
    ],
)
def test_an_entry_of_nothing_is_stale(entry: Entry, says: str) -> None:
    assert stale(parse(TEX), [entry]) == [f"{entry.label}: {says}"]


def test_entries_are_sorted_and_their_labels_distinct() -> None:
    assert [entry.line for entry in collect(reversed(COMPLETE))] == [2, 3, 3, 5, 6]
    with pytest.raises(InputError, match="label of an entry must be distinct, got 'a'"):
        collect(COMPLETE, [_entry("z", 3, labels=("a",))])
    with pytest.raises(InputError, match="must name line 5"):
        collect([_entry("line-4.2", 5)])


def test_results_are_told_as_they_come_and_evidence_against_is_not_confirmed() -> None:
    told: list[tuple[int, str]] = []
    against = replace(COMPLETE[1], checks=(_holds, lambda: Evidence("search", False, "no")))
    results = run([COMPLETE[0], against], lambda done, result: told.append((done, result.entry.label)))
    assert told == [(1, "l"), (2, "a")]
    assert [result.confirmed for result in results] == [True, False]


def test_checks_that_entries_share_are_run_once() -> None:
    ran: list[str] = []

    def check() -> Evidence:
        ran.append("once")
        return Evidence("algebra", True, "1 = 1")

    shared = replace(ENTRIES[0], checks=(check, check))
    found = run([shared, replace(shared, label="line-2", line=2)])
    assert [len(each.evidence) for each in found] == [2, 2]
    assert ran == ["once"]
