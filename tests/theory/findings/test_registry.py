"""The findings: read from data, borne out now, every part of the source spoken for."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.storage.tables import table_beside
from tests.cases import rows_of
from tests.theory.findings.coverage import AS_PRINTED, inconsistent, missing, stale, unquoted
from tests.theory.findings.entries import entry
from tests.theory.findings.mutation import Get, Plant, anew, given
from tests.theory.findings.source import PAPER_SHA256, TexSource, parse, passages
from theory.bounds import STATEMENTS
from theory.findings.data import PLACES
from theory.findings.decorators import placed
from theory.findings.finding import AS_MEANT, FALSE, TRUE, Cause, Entry, EntryResult, Evidence, EvidenceCheck, gather
from theory.findings.registry import CAUSES, ENTRIES

TEX = r"""\begin{document}
\begin{lemma}\label{l}
\begin{align} a \label{a} \\ b \label{b} \end{align}
\end{lemma}
$$ c $$
words
\end{document}"""

HOLDS = EvidenceCheck("holds", lambda: Evidence("algebra", True, "yes"))
BREAKS = EvidenceCheck("breaks", lambda: Evidence("counter-example", True, "2 > 1", against=True))
ERROR = Cause(name="a", title="It is wrong", nature="error", witness=BREAKS)


def _entry(label: str, line: int, kind: str = "equation", **more: Any) -> Entry:
    more = {"status": "true by proof", "evidence": {"supports": (HOLDS,)}, **more}
    return Entry(label=label, line=line, place="Section 1", kind=kind, **{"says": more.get("quote", ""), **more})  # type: ignore[arg-type]


COMPLETE = (_entry("l", 2, "lemma"), _entry("a", 3), _entry("b", 3), _entry("line-5", 5), _entry("line-6", 6, "claim"))


@pytest.fixture(scope="module")
def results() -> list[EntryResult]:
    return gather(ENTRIES)


def test_the_evidence_bears_every_finding_out(results: list[EntryResult]) -> None:
    assert [result.entry.label for result in results if not result.confirmed] == []


def test_entries_agree_and_what_is_not_as_printed_has_a_cause_says_why_and_what_is_so() -> None:
    assert inconsistent(ENTRIES) == []
    wrong = [each for each in ENTRIES if each.status not in AS_PRINTED]
    assert [
        each.label for each in wrong if not (each.instead and each.why and (each.causes or each.carries or each.runs))
    ] == []


def test_every_cause_is_shown_by_what_refutes() -> None:
    assert {each.cause for each in placed() if each.role == "refutes"} == set(CAUSES)
    assert {each.role for each in placed() if each.cause} == {"refutes"}


@pytest.mark.parametrize(("more", "says"), rows_of(__file__)["contradictions"])
def test_entries_that_contradict_each_other_are_told(more: dict[str, Any], says: str) -> None:
    assert inconsistent([_entry("a", 3), _entry(**{"label": "line-7", "line": 7, **more})]) == [says]


def test_bounds_are_written_as_they_are_tested() -> None:
    assert "every f_i(·; ξ) is L-smooth" in entry("the.1").instead
    assert "4D/(KRη)" in entry("the.1").says
    assert "⟦" not in "".join(each.says + each.instead for each in ENTRIES)


@pytest.mark.parametrize(("roles", "more", "statuses"), rows_of(__file__)["roles"])
def test_the_status_follows_from_the_roles(roles: list[str], more: dict[str, Any], statuses: list[str]) -> None:
    evidence = {role: (BREAKS if role == "refutes" else HOLDS,) for role in roles}
    own = {"evidence": evidence, "causes": (ERROR,), "why": "so", **more}
    assert all(_entry("a", 3, status=status, **own).implied == tuple(statuses) for status in statuses)
    with pytest.raises(InputError, match=f"status of a must be one of {', '.join(statuses)}, got '{AS_MEANT}'"):
        _entry("a", 3, status=AS_MEANT, **own)


def test_evidence_that_speaks_the_other_way_is_not_confirmed() -> None:
    swapped = _entry("a", 3, status="false by proof", evidence={"refutes": (HOLDS,)}, causes=(ERROR,), why="so")
    supported = _entry("b", 3, evidence={"supports": (BREAKS,)})
    by_data = _entry("c", 3, status=TRUE[1])
    found = gather([swapped, supported, by_data, COMPLETE[0]])
    assert [result.confirmed for result in found] == [False, False, False, True]


def _cause(get: Get) -> None:
    next(each for each in get("decorators").placed() if each.cause and not each.witness).cause = "haste"


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (given("line-171", status=TRUE[0]), "fields of line-171 must be left to line-136, which it restates"),
        (lambda get: setattr(get("decorators").placed()[0], "label", "line-0"), "must be one of the entries"),
        (lambda get: setattr(get("decorators").placed()[0], "label", "line-171"), "must be line-136, which that entry"),
        (_cause, "cause of .* must be known, got 'haste'"),
    ],
)
def test_entries_and_evidence_that_do_not_fit_are_refused(plant: Plant, says: str) -> None:
    with anew() as get:
        plant(get)
        with pytest.raises(InputError, match=says):
            get("registry")


def test_entries_speak_of_every_part_and_word_of_the_paper_and_of_nothing_else(paper: TexSource) -> None:
    assert paper.sha256 == PAPER_SHA256
    assert missing(paper, ENTRIES) == []
    assert stale(paper, ENTRIES) == []
    assert unquoted(paper, ENTRIES) == []
    assert len(unquoted(paper, [])) > 100


def test_the_places_of_entries_are_the_sections_and_algorithms_of_the_source(paper: TexSource) -> None:
    told = dict(sorted(((place, line) for line, place in PLACES), reverse=True))
    algorithms = [item.line for item in paper.items if item.kind == "algorithm"]
    found = {place: passage.lines[0] for place, passage in passages(paper).items()} | {"Abstract": 129}
    assert told == found | {f"Algorithm {n}": line for n, line in enumerate(algorithms, 1)}


def test_what_is_said_in_running_text_is_quoted_and_quotations_are_short() -> None:
    told = [each for each in ENTRIES if each.kind in ("claim", "remark", "caption")]
    assert [each.label for each in told if not each.quote] == []
    assert [each.label for each in ENTRIES if len(each.quote.split()) > 30] == []


def _true_within_what_is_false(paper: TexSource, entries: Sequence[Entry]) -> list[str]:
    """Entries of a theorem or corollary of the source that are true though the statement as a whole is false."""
    false, found = {each.line for each in entries if each.status in (*FALSE, AS_MEANT)}, []
    for item in (each for each in paper.items if each.kind in ("theorem", "corollary") and each.line in false):
        end = next(n for n, line in enumerate(paper.lines, 1) if n > item.line and rf"\end{{{item.kind}" in line)
        found += [each.label for each in entries if item.line <= each.line <= end and each.status in TRUE]
    return found


def test_nothing_that_a_false_theorem_concludes_is_true(paper: TexSource) -> None:
    assert _true_within_what_is_false(paper, ENTRIES) == []
    own = {"carries": "", "status": TRUE[0], "evidence": {"supports": (HOLDS,)}}
    turned = [replace(each, **own) if each.label in ("line-456", "line-1373") else each for each in ENTRIES]
    assert _true_within_what_is_false(paper, turned) == ["line-456", "line-1373"]


PROSE = r"""\begin{document}\begin{abstract}
It is fast. It costs \emph{only} 1\,MB
of data, $\mathcal{O}(1)$. We thank A.
\end{abstract}
\end{document}"""
FAST = _entry("line-2", 2, "claim", quote="It is fast")
CHEAP = _entry("line-3", 3, "claim", quote="It costs … 1MB of data")


def test_words_that_nobody_quotes_are_listed_with_their_line() -> None:
    thanks, data = "line 3: Abstract: We thank A", replace(CHEAP, quote="only 1MB of data, O(1)")
    assert unquoted(parse(PROSE), [FAST, CHEAP]) == ["line 2: Abstract: only", "line 3: Abstract: O(1). We thank A"]
    assert unquoted(parse(PROSE), [data]) == ["line 2: Abstract: It is fast. It costs", thanks]
    assert unquoted(parse(PROSE), [FAST, data, replace(CHEAP, quote="costs")]) == ["line 2: Abstract: It costs", thanks]


def test_words_that_are_not_the_papers_or_stand_elsewhere_are_stale() -> None:
    assert stale(parse(PROSE), [FAST, CHEAP], [{"quotes": ["We thank A"]}]) == []
    (other,) = stale(parse(PROSE), [replace(FAST, quote="It is very fast")], [])
    (elsewhere,) = stale(parse(PROSE), [replace(FAST, quote="of data, O(1)")], [])
    assert other.endswith("line 2 does not have the words 'It is very fast', lines [] do")
    assert elsewhere.endswith("lines [3] do")
    assert [*map(len, (stale(parse(PROSE), [], [{"quotes": [words]}]) for words in ("We thank B", "It")))] == [1, 1]


@pytest.mark.parametrize("words", ["It is fast", "It is $\\mathit{fast}$"])
def test_one_sentence_cannot_have_two_entries_unless_one_restates_the_other(words: str) -> None:
    again = _entry("line-9", 9, "claim", quote=words)
    assert inconsistent([FAST, again]) == [
        "line-9: its quotation shares words with that of line-2, which neither restates"
    ]
    assert inconsistent([FAST, replace(again, restates="line-2")]) == []


@pytest.mark.parametrize("gone", range(4))
def test_an_entry_taken_away_is_missed(gone: int) -> None:
    assert (missing(parse(TEX), COMPLETE), stale(parse(TEX), COMPLETE, ())) == ([], [])
    rest = [entry for n, entry in enumerate(COMPLETE) if n != gone]
    names = ["line 2: lemma l", "line 3: display a", "line 3: display b", "line 5: display"]
    assert missing(parse(TEX), rest) == [names[gone]]


@pytest.mark.parametrize(("label", "line", "kind", "labels", "says"), rows_of(__file__)["stale"])
def test_an_entry_of_nothing_is_stale(label: str, line: int, kind: str, labels: list[str], says: str) -> None:
    assert stale(parse(TEX), [_entry(label, line, kind, labels=tuple(labels))], ()) == [f"{label}: {says}"]


def test_what_a_blind_reader_found_false_or_loose_is_not_called_true() -> None:
    found = {row["entry"]: entry(row["entry"]).status for row in table_beside(__name__, "reader.toml")["sentence"]}
    missed = [label for label, status in found.items() if status in (*TRUE, "not decided", "not checkable")]
    assert (len(found), missed) == (20, ["line-916"])


def test_what_was_read_against_the_source_and_the_evidence_is_as_it_was() -> None:
    """What no test can weigh without the source, or at all: words. A change is read again, and its digest written."""
    root = Path(__file__).parents[3]
    data = ("theory/findings/*/*.toml", "theory/notation/printed.toml", "paper_repro/workflow/verdicts/answer.toml")
    paths = sorted(path for each in data for path in root.glob(each))
    said: dict[str, Any] = {path.relative_to(root).as_posix(): tomllib.loads(path.read_text("utf-8")) for path in paths}
    said["theory.bounds as printed"] = {
        of: str(each) for (of, variant), each in STATEMENTS.items() if variant == "stated"
    }
    found = {name: sha256(json.dumps(each, sort_keys=True).encode()).hexdigest()[:16] for name, each in said.items()}
    assert found == table_beside(__name__, "read.toml")
