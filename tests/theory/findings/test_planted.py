"""The audit against itself: faults planted by hand in its words, and by rule in everything, and who notices them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from paper_repro.workflow import claims
from paper_repro.workflow.claims import CLAIMS
from paper_repro.workflow.sentences import disagreements, unfounded
from tests.thorough import sampled
from theory.findings import mutation
from theory.findings.data import RAW
from theory.findings.finding import Entry
from theory.findings.mutation import MUTATIONS, Mutation
from theory.findings.source import TexSource

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
    return dict(claims.verdicts())


@cache
def measured() -> dict[str, dict[str, float | None]]:
    return claims.measured()


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

        def plant(get: Any, label: str = label, name: str = name, text: str = text.replace(old, new, 1)) -> None:
            next(each for each in get("data").RAW if each["label"] == label)[name] = text

        found.append(Mutation(line, "wording", plant, label))
    return found


@pytest.mark.parametrize("planted", sampled(by_hand(BY_HAND), 6), ids=lambda each: each.name)
def test_faults_planted_by_hand_are_noticed(planted: Mutation, paper: TexSource) -> None:
    assert mutation.noticed(planted, paper, objections)


@pytest.mark.parametrize("planted", sampled(by_hand(MISSED), 1), ids=lambda each: each.name)
def test_what_is_known_to_pass_is_named(planted: Mutation, paper: TexSource) -> None:
    assert not mutation.noticed(planted, paper, objections)


def test_without_a_fault_nobody_objects(paper: TexSource) -> None:
    for kind in ("quotation", "text"):
        assert mutation.noticed(Mutation("nothing", kind, lambda get: None, "line-134"), paper, objections) == ""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "share"),
    [("quotation", 0.95), ("dropped", 0.95), ("run", 0.95), ("wording", 0.75), ("printed", 0.5), ("text", 0.05)],
)
def test_faults_in_words_are_noticed(kind: str, share: float, paper: TexSource) -> None:
    found = Counter(bool(mutation.noticed(each, paper, objections)) for each in MUTATIONS if each.kind == kind)
    assert found[True] >= share * found.total()
