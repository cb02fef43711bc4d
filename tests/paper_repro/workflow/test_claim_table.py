"""The registry of claims: faithful to the paper, complete, judged by one part each, and readable without a run."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from decomfl_lab.cli.main import main
from paper_repro import contents
from paper_repro.workflow.scales import SCALES
from paper_repro.workflow.verdicts import claim_table
from paper_repro.workflow.verdicts.claim_table import (
    CLAIMS,
    PARTS,
    SCALE_NAMES,
    WITHOUT_RUNS,
    Claim,
    ClaimOutcome,
    claim,
    sentences,
)
from tests.paper_repro.recomputed.common import outcomes

FOLDER = Path(claim_table.__file__).parent


# --- the registry and the parts ---------------------------------------------------------------------------------------


def test_each_registered_claim_is_recorded_once_by_the_part_that_judges_it() -> None:
    """``judged`` refuses a part that leaves a claim out, and one that has another's."""
    told = [outcome["id"] for outcome in outcomes()]
    assert len(told) == len(set(told))
    assert {claim(name).id for name in told} == CLAIMS.keys()


def test_rows_of_a_smaller_scale_than_a_claim_takes_do_not_decide_it() -> None:
    found = [ClaimOutcome("llm.gain", "holds", {"gain": 0.1}), ClaimOutcome("llm.dimension-free", "holds")]
    assert [each.verdict for each in claim_table.decided(found, "default")] == [claim_table.UNTESTED, "holds"]
    assert [each.verdict for each in claim_table.decided(found, "full")] == ["holds", "holds"]
    assert claim_table.decided(found, "smoke")[0].measured == {"gain": 0.1}


def test_every_threshold_is_named_in_a_rule_and_read_by_a_line_or_the_code() -> None:
    data = tomllib.loads((FOLDER / "claims.toml").read_text(encoding="utf-8"))
    modules = {
        path: path.read_text(encoding="utf-8") for path in FOLDER.parents[1].rglob("*.py") if path.stem != "claim_table"
    }
    for part, own in data.items():
        thresholds = own if part == "limits" else own.get("limits", {})
        rows = data.values() if part == "limits" else [own]
        told = [row for each in rows for row in each.get("claims", {}).values()]
        texts = " ".join(row.get("rule", "") + row.get("measures", "") for row in told)
        lines = {text for row in told for text in strings([row.get("numbers", []), row.get("decides", [])])}
        asked = r"limits\(\)" if part == "limits" else rf"(LIMITS|limits\(\"{part}\"\))"
        own_files = [text for path, text in modules.items() if part == "limits" or path.stem.startswith(part)]
        files = own_files + [text for text in modules.values() if f'limits("{part}")' in text]
        for name in thresholds:
            assert f"{{{name}" in texts, (part, name)
            by_code = any(re.search(rf"{asked}\.{name}\b", text) for text in files)
            # The axis is in a line in another unit.
            assert by_code or {name, f"{part}.{name}"} & lines or name == "axis", (part, name)


def test_the_rounds_that_the_axis_of_figure_2_has_room_for_are_those_of_the_line() -> None:
    first = CLAIMS["fig2.fedavg-not-converged"].line["numbers"][0]
    assert first["value"] == 1 + claim_table.limits("fig2").axis // 28_938


def strings(value: Any) -> Iterator[str]:
    """Every text in lists and tables of these."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


def test_every_claim_says_of_what_its_verdict_is_and_the_list_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    told = {row["id"]: row["scope"] for row in json.loads(listed(capsys, "--json"))}
    assert set(told.values()) < {"by proof", "in the paper's own data", "in our setting", "not decided"}
    assert (told["theory.dimension-free"], told["fig2.saving"]) == ("by proof", "in our setting")
    assert all(told[name] == "in the paper's own data" for name in told if name.endswith("-in-the-logs"))


def test_parts_of_the_registry_are_those_of_the_command_with_their_seeds() -> None:
    assert list(PARTS) == list(contents.PARTS)
    for part, sized in (("fig3", "fig3"), ("topk", "fig3"), ("table1", "fig2")):
        assert {name: getattr(scale, sized).seeds for name, scale in SCALES.items()} == PARTS[part].seeds


@pytest.mark.parametrize("own", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_is_asked_once_and_says_how_it_is_judged_and_on_what_it_rests(own: Claim) -> None:
    assert own.question or sentences(own.id)
    assert bool(own.question) == bool(own.where)
    assert own.measures
    assert own.rule
    assert own.scale in SCALE_NAMES
    assert bool(own.rests) + bool(own.exempt) == 1 or (own.part in WITHOUT_RUNS and not own.rests)


# --- the list ---------------------------------------------------------------------------------------------------------


def listed(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["paper", "--list", *flags]) == 0
    return capsys.readouterr().out


def test_the_list_fits_a_hundred_columns_and_has_every_claim(capsys: pytest.CaptureFixture[str]) -> None:
    told = listed(capsys)
    assert max(map(cell_len, told.splitlines())) <= 100
    silent = ("smollm2", "census", "kernels")  # which judge nothing
    assert all(f"{part}: " in told for part in PARTS if part not in silent)
    names = {cell for line in told.splitlines() if (cell := line.strip("│ ").split(" ")[0])}
    assert {row["id"].partition(".")[2] for row in claim_table.rows()} <= names
