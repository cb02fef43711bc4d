"""The audit against itself: faults planted by hand in its words, and by rule in everything, and who notices them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest

from paper_repro.workflow import claims as recorded
from paper_repro.workflow.claims import CLAIMS
from tests.theory.findings import mutation
from tests.theory.findings.borne_out import disagreements, measured, unfounded
from tests.theory.findings.entries import confirmed
from tests.theory.findings.mutation import MUTATIONS, Mutation, given, noticed
from tests.theory.findings.source import TexSource
from tests.thorough import cases, sampled
from theory.communication import Numbers, expected_numbers
from theory.findings.data import RAW
from theory.findings.evidence import claims, tables
from theory.findings.evidence.one_round import OneRound
from theory.findings.finding import Entry
from theory.notation.printed import LORA, RESULTS, ROUNDS, Cell

BY_HAND = """
line-132 | quote | linearly | quadratically
line-134 | quote | O(1) | O(log d)
line-135 | quote | clients and local steps | clients and directions
line-138 | quote | 1MB | 10MB
line-159 | quote | unique | useful
line-170 | quote | low | high
line-186.2 | quote | several | two
line-197.2 | quote | largest | smallest
line-207 | quote | FedAvg | FedCom
line-208 | quote | uplink | downlink
line-243 | quote | forward | central
line-288 | quote | server | client
line-355 | quote | because | although
line-382 | quote | all proofs | most proofs
line-425 | quote | A larger number of perturbations | A smaller number of perturbations
line-442 | quote | only | mostly
line-465 | quote | thousand | hundred
line-505 | quote | even quadratic | even cubic
line-542 | quote | 0.5 | 0.9
line-544 | quote | 28,938 | 29,838
line-557.2 | quote | higher | lower
line-564 | quote | slower | faster
line-575 | quote | excel | exceed
line-575.3 | quote | dramatically | slightly
line-578 | quote | nearly identical | identical
line-715.2 | quote | d+φ | 2d+φ
line-742 | quote | cannot | can
line-850.2 | quote | consistently | sometimes
line-948 | quote | 1250-th | 2150-th
line-949 | quote | later | earlier
line-134 | says | from O(d) to O(1) | from O(1) to O(d)
line-134 | says | only a constant number | a constant number
line-183 | says | √(κ/(mPR)) | √(κ/(mKR))
line-415 | says | and depend on d | and depend on κ
line-500 | quote | 2RKP | RKP
line-582.2 | instead | 0.18 MB | 0.81 MB
line-920.2 | instead | 1769 | 1796
line-1234 | why | 7.2 | 7.5
line-582.6 | why | 480 | 840
line-574 | why | up to six times | up to sixty times
line-574 | instead | 0.8 to 6 times | 0.8 to 60 times
line-170 | why | at most 25 | at most 2.5
line-846 | why | 6 to 25 % | 6 to 35 %
line-137 | status | imprecise | correct
line-159 | status | refuted | correct
line-464 | status | correct | refuted
line-186 | status | not decided | correct
line-149 | restates | line-132 | line-246
line-1056 | says | 3L²E | 6L²E
line-1018 | says | (d + 3)³ | (d + 6)³
line-1050 | says | (2P) | (2m)
line-1101.2 | says | K²/2 | P²/2
line-1112 | says | 3K³(d + P + 4)η²/P | 3K³(d + P + 4)η²/R
line-1152 | says | ½Kη | ¼Kη
line-1191 | says | 18KL² | 81KL²
line-1204 | says | 18KL³ | 18KL⁴
line-1235 | says | (18K²L/m | (18K²L/M
line-1474.3 | says | −n/16 | −n/61
line-1166.2 | says | Lη²/(mM) | Lη²/(mP)
eq.lemma.avg_rv | says | 1/P² | 1/P³
line-447.2 | says | L⁴ | L³
line-1478 | instead | d(d + 2/P) | d(d + 8/P)
"""
# What nobody notices: a quotation cut short, words of reasons, a sentence that restates another one than it should, and
# formulas with other symbols of the same display.
MISSED = """
line-180 | quote | uplink and downlink | uplink
line-280 | says | ∈ C_r | ∈ C_j
line-574 | why | up to six times | slightly more than
line-365 | restates | line-286 | line-249
line-1449.2 | says | (P(d+2)) | (m(d+2))
line-1050 | instead | 2ρ − 1 | 2ρ − 7
"""


@cache
def verdicts() -> dict[str, str]:
    return dict(recorded.verdicts())


def objections(entries: Sequence[Entry]) -> list[str]:
    """What the recorded runs say against the entries, and measurements that no sentence asks for any more."""
    named = {run for entry in entries for run in entry.runs}
    lost = [own.id for own in CLAIMS.values() if not own.question and own.id not in named]
    return [*disagreements(entries, verdicts()), *unfounded(entries, measured()), *lost]


def by_hand(lines: str) -> list[Mutation]:
    """``label | field | words | other words`` -> the fault."""
    raws, found = {raw["label"]: raw for raw in RAW}, []
    for line in lines.strip().splitlines():
        label, name, old, new = (part.strip() for part in line.split("|"))
        text = raws[label].get(name, "")
        assert old in text, line
        found.append(Mutation(line, "wording", given(label, **{name: text.replace(old, new, 1)}), label))
    return found


@pytest.mark.parametrize("planted", sampled(by_hand(BY_HAND), 6), ids=lambda each: each.name)
def test_faults_planted_by_hand_are_noticed(planted: Mutation, paper: TexSource) -> None:
    assert noticed(planted, paper, objections)


@pytest.mark.parametrize("planted", sampled(by_hand(MISSED), 1), ids=lambda each: each.name)
def test_what_is_known_to_pass_is_named(planted: Mutation, paper: TexSource) -> None:
    assert not noticed(planted, paper, objections)


@pytest.mark.parametrize("kind", ["quotation", "wording", "formula"])
def test_without_a_fault_nobody_objects(kind: str, paper: TexSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation, "ROLES", ("context",))  # what is quick
    assert noticed(Mutation("nothing", kind, lambda get: None, "line-134"), paper, objections) == ""


def share_noticed(kind: str, most: int, *judges: Any) -> float:
    """Of so many faults of a kind, drawn; of all where there are no more."""
    own = [each for each in MUTATIONS if each.kind == kind]
    drawn = Random(kind).sample(own, min(most, len(own)))
    missed = [each.name for each in drawn if not noticed(each, *judges)]
    print("not noticed:", *missed, sep="\n")
    return 1 - len(missed) / len(drawn)


@cases(5, len(MUTATIONS))
@pytest.mark.parametrize("kind", ["table", "status", "role", "cause", "evidence"])
def test_faults_in_tables_statuses_and_evidence_are_noticed(kind: str, cases: int) -> None:
    assert share_noticed(kind, cases) >= 0.95


# The share that is noticed. Of formulas the others are conditions on η, and lemmas, whose constants tests of the
# statements themselves hold.
SHARES = dict.fromkeys(("quotation", "dropped", "run"), 0.95)
SHARES |= {"wording": 0.75, "formula": 0.65, "printed": 0.5}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", SHARES)
def test_faults_in_formulas_and_words_are_noticed(kind: str, paper: TexSource) -> None:
    assert share_noticed(kind, len(MUTATIONS), paper, objections) >= SHARES[kind]


def without_plans(R: int, **case: int) -> Numbers:
    """As if seeds were not sent again."""
    sent = expected_numbers(R, **case)
    return replace(sent, seeds=sent.seeds - sent.up)


def all_clients(R: int, *, M: int, m: int, K: int, P: int) -> Numbers:
    """As if all clients took part."""
    return expected_numbers(R, M=M, m=M, K=K, P=P)


MORE = {name: lambda n: 1 / math.sqrt(n) for name in claims._MORE}
SHORT = {**ROUNDS, "OPT-125M": {**ROUNDS["OPT-125M"], "WIC": 2900}}
MENDED = {**RESULTS["OPT-1.3B"], "RTE": (*RESULTS["OPT-1.3B"]["RTE"][:3], Cell(60.89, 0.18))}
CHEAP = {name: (cells[0], Cell(50.0, 0.0018), *cells[2:]) for name, cells in LORA.items()}


@pytest.mark.parametrize(
    ("owner", "name", "fault", "labels"),
    [
        (claims, "_MORE", MORE, "line-135, line-181, line-182, line-477.4, line-477.5"),
        (claims, "expected_numbers", without_plans, "line-477.2"),
        (tables, "expected_numbers", all_clients, "line-582.5"),
        (tables, "ROUNDS", SHORT, "table.llm-125m-1.3b, line-582.4, table.Experiment setting"),
        (tables, "RESULTS", {**RESULTS, "OPT-1.3B": MENDED}, "table.llm-125m-1.3b, line-582.2"),
        (tables, "LORA", {**LORA, "CB": (*LORA["CB"][:3], Cell(71.43, 0.13))}, "table.llm-125m-lora"),
        (tables, "LORA", CHEAP, "line-920.2"),
        (OneRound, "smooth", property(lambda r: r.plain), "line-1029, line-1080, line-1147, eq.ybc, line-1152"),
        (OneRound, "subsets", ((0, 1),), "eq.ybc, line-1177, line-1191.2"),
        (OneRound, "drift", 0.0, "line-1101, line-1056, line-1191"),
    ],
)
def test_a_fault_in_what_evidence_is_made_of_is_noticed(
    owner: Any, name: str, fault: Any, labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = labels.split(", ")
    assert all(map(confirmed, spoken))
    monkeypatch.setattr(owner, name, fault)
    assert not any(map(confirmed, spoken))
