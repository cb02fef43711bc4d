"""A verdict that a text gives of a measurement is the recorded one; where our baseline did not train, none is given."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from paper_repro.commands import findings
from paper_repro.workflow.verdicts import answer, claim_table
from paper_repro.workflow.verdicts.claim_table import UNHEALTHY, VERDICTS
from tests.cases import rows_of
from tests.docs.blocks import ROOT
from tests.paper_repro.recomputed.common import outcomes
from theory.findings.data import RAW
from theory.findings.registry import ENTRIES

SAID = {
    verdict: re.compile(rf"\b{words}\b")
    for verdict, words in zip(
        VERDICTS[:3],
        (r"(?:all )?holds?(?! \d)", r"(?:does|do|did) not hold", r"depends? on (?:how|the count)"),
        strict=True,
    )
}
"""How a sentence gives a verdict."""
RECORDED = {outcome["id"]: outcome for outcome in outcomes()}
MADE = ("statements.md",)
"""What make docs makes of the entries, whose texts are looked at one by one."""
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "paper_repro" / "results" / "README.md"]
PAGES += sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name not in MADE)


def texts() -> dict[str, str]:
    """All that the project says of the paper in prose, by where: pages, entries of the registry, answer and report."""
    found = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
    found |= {raw["label"]: ". ".join(str(raw.get(name, "")) for name in ("says", "why", "tests")) for raw in RAW}
    return found | {f"answer, {line['topic']}": line["says"] for line in answer.LINES}


def wrong(text: str, recorded: Mapping[str, Any]) -> list[str]:
    """The sentences of a text that name a measurement and give it another verdict than the recorded one."""
    found = []
    for sentence in re.split(r"(?<=[.;:])\s+|\n\s*\n", text):
        # The verdict in its words, if there is one; "does not hold" has the words of "holds", too.
        told = [verdict for verdict in ("does not hold", *SAID) if SAID[verdict].search(sentence)]
        given = told[0] if told else None
        for name in re.findall(r"\b[a-z0-9]+\.[a-z0-9-]+\b", sentence):
            if name in recorded and given is not None and given != recorded[name]["verdict"]:
                found.append(" ".join(sentence.split()))
    return found


def used(text: str, ill: Iterable[str]) -> list[str]:
    """The measurements of ill runs of which a text asks for a number, or gives a ratio: "8.6 times"."""
    found = []
    for name in ill:
        ratios = [value for value in RECORDED[name]["measured"].values() if isinstance(value, float) and value > 1]
        told = {f"{value:{form}} times" for value in ratios if value < 1e4 for form in (".1f", ".2f")}
        # Only where the sentence is about what was compared.
        own = [
            each for each in re.split(r"(?<=[.;:])\s+|\n\s*\n", text) if re.search("FedAvg|FedCom|Top-k|Figure 3", each)
        ]
        asked = re.search(rf"⟦run {re.escape(name)} ", text)
        found += [name] if asked or any(words in each for words in told for each in own) else []
    return found


ILL = [name for name, outcome in RECORDED.items() if outcome["verdict"] == UNHEALTHY]


def test_no_text_gives_another_verdict_than_the_recorded_one() -> None:
    found = {where: [*wrong(text, RECORDED), *used(text, ILL)] for where, text in texts().items()}
    assert {where: told for where, told in found.items() if told} == {}


@pytest.mark.parametrize("text", rows_of(__file__)["rows"])
def test_a_verdict_beside_an_ill_baseline_is_noticed(text: str) -> None:
    assert wrong(text, {"fig3.slower": {"verdict": UNHEALTHY}})
    assert used("⟦run fig3.slower | accuracy FedAvg | .3f⟧", ["fig3.slower"]) == ["fig3.slower"]


def test_a_ratio_of_an_ill_baseline_in_prose_is_noticed() -> None:
    name = "fig3.twenty-times"
    ratio = next(v for key, v in RECORDED[name]["measured"].items() if key.startswith("FedAvg / DeComFL"))
    assert used(f"It is known. There FedAvg sends {ratio:.1f} times as much.", [name]) == [name]
    assert used(f"There a tree is {ratio:.1f} times as high.", [name]) == []


def test_sentences_that_rest_on_an_ill_run_alone_are_not_decided() -> None:
    for entry in ENTRIES:
        if entry.runs and set(entry.runs) <= set(ILL) and not any(entry.evidence.values()) and not entry.restates:
            assert entry.status == "not decided", entry.label


def test_the_page_of_findings_tells_no_number_of_an_ill_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [{**row, "verdict": UNHEALTHY} if row["id"] == "fig3.slower" else row for row in claim_table.rows()]
    monkeypatch.setattr(findings, "rows", lambda: told)
    row = next(row for row in told if row["id"] == "fig3.slower")
    page = findings.page()
    assert UNHEALTHY in page
    assert findings._told(findings.deciding(row)) not in page
