"""The registry of claims: faithful to the paper, complete, judged by one part each, and readable without a run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.cells import cell_len

from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError
from paper_repro import making
from paper_repro.language_models import llm, sizes
from paper_repro.parts import audit, fig2, fig3, first_order, hessian, memory, projection, table1, theory, topk
from paper_repro.studies import board, edge
from paper_repro.workflow import claims, recorded
from paper_repro.workflow.claims import CLAIMS, PARTS, ClaimOutcome, claim, judged
from paper_repro.workflow.scales import SCALES
from tests.paper_repro.language_models import test_llm, test_sizes
from tests.paper_repro.parts import test_fig2, test_hessian, test_parts, test_theory
from tests.paper_repro.studies import test_board, test_edge

FOLDER = Path(claims.__file__).parent


# --- the registry and the parts ---------------------------------------------------------------------------------------


def outcomes() -> dict[str, Sequence[ClaimOutcome]]:
    """What every part says of made-up rows, or of the recorded ones."""
    kept = recorded.load("memory", "default")
    assert kept is not None
    pairs = test_parts.projections((0.8, 0.8), (0.7, 0.2))
    rows = test_parts.table1_rows()
    table = table1.comparison_table(rows, M=100, m=10, level=0.9)
    spectra = test_hessian.numbers({"near zero": (0.2, 0.9, 0.99), **test_hessian.kappas(500, 20, 10)})
    fashion = test_parts.fashion(ours=0.75, theirs=0.9, top_k=0.5, cost=250.0)
    return {
        "fig2": fig2.claims(test_fig2._frame(k_helps=True, p_helps=True, saves=True), SCALES["full"]),
        "fig3": fig3.claims(fashion, "made up"),
        "projection": projection.claims(pairs, projection.final_by_rate(pairs), "made up"),
        "edge": edge.claims(edge.outcomes(edge.with_limits(test_edge.sweep())), "made up"),
        "topk": topk.claims(test_parts.top_ks((0.8, 0.7, 0.55), (1.4e5, 1.3e5, 1.2e5)), "made up"),
        "table1": table1.claims(table, rows, 0.9, "made up"),
        "llm": llm.claims(test_llm.table(), "made up"),
        "board": board.claims(test_board.line("DeComFL", [9, 9]), "made up"),
        "memory": memory.claims(kept.rows, "made up"),
        "hessian": hessian.claims(spectra, "made up"),
        "sizes": sizes.claims(test_sizes.family(test_sizes.FLAT), test_sizes.SIZE, "made up"),
        "theory": theory.claims(test_theory.frames(), "made up"),
        "audit": audit.claims(test_theory.audited(test_theory.entry("correct"))),
    }


def test_each_registered_claim_is_judged_by_exactly_one_part() -> None:
    found = outcomes()
    judged_ids = [claim(each.id).id for own in found.values() for each in own]
    logs = test_fig2._frame(k_helps=True, p_helps=True, saves=True)
    fashion = test_parts.fashion(ours=0.75, theirs=0.9, top_k=0.5, cost=250.0)
    with_reference = [fig2.saving_in_the_logs(logs), *fig3._claims_on_the_logs(fashion)]
    with_reference += [
        fig2.band(of, pd.DataFrame(), "made up", testable=True) for of in (*fig2.BANDS.values(), "fig3.band")
    ]
    with_reference += [first_order.outcome(fashion, fashion, {}), topk._degrades_in_the_logs(fashion)]
    judged_ids += [each.id for each in with_reference]
    assert sorted(judged_ids) == sorted(CLAIMS)
    assert all(CLAIMS[each.id].needs == "--reference" for each in with_reference)


def test_rows_of_a_smaller_scale_than_a_claim_takes_do_not_decide_it() -> None:
    found = [ClaimOutcome("llm.gain", "holds", {"gain": 0.1}), ClaimOutcome("llm.dimension-free", "holds")]
    assert [each.verdict for each in claims.decided(found, "default")] == [claims.UNTESTED, "holds"]
    assert [each.verdict for each in claims.decided(found, "full")] == ["holds", "holds"]
    assert claims.decided(found, "smoke")[0].measured == {"gain": 0.1}


def test_a_part_judges_all_its_claims_each_once_and_no_others() -> None:
    own = list(outcomes()["topk"])
    for wrong in (own[1:], [*own, own[0]], [*own, ClaimOutcome("fig2.saving")]):
        with pytest.raises(InputError, match="part topk must be"):
            judged("topk", "made up", wrong)


def test_every_threshold_is_named_in_a_rule_and_read_by_the_code() -> None:
    data = tomllib.loads((FOLDER / "claims.toml").read_text(encoding="utf-8"))
    modules = {path: path.read_text(encoding="utf-8") for path in FOLDER.parent.rglob("*.py") if path.stem != "claims"}
    for part, own in data.items():
        thresholds = own if part == "limits" else own.get("limits", {})
        rows = data.values() if part == "limits" else [own]
        told = [row for each in rows for row in each.get("claims", {}).values()] if rows else []
        texts = " ".join(row.get("rule", "") + row.get("measures", "") for row in told)
        asked = r"limits\(\)" if part == "limits" else rf"(LIMITS|limits\(\"{part}\"\))"
        own_files = [text for path, text in modules.items() if part == "limits" or path.stem.startswith(part)]
        files = own_files + [text for text in modules.values() if f'limits("{part}")' in text]
        for name in thresholds:
            assert f"{{{name}" in texts, (part, name)
            assert any(re.search(rf"{asked}\.{name}\b", text) for text in files), (part, name)


def test_a_threshold_of_the_registry_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = test_parts.fashion(ours=0.75, theirs=0.9, top_k=0.5, cost=250.0)
    (before,) = [each for each in fig3.claims(rows, "made up") if each.id == "fig3.twenty-times"]
    monkeypatch.setattr(fig3.LIMITS, "times", 1e6)
    (after,) = [each for each in fig3.claims(rows, "made up") if each.id == "fig3.twenty-times"]
    assert (before.verdict, after.verdict) == ("holds", "does not hold")
    assert "at least 20 times" in CLAIMS["fig3.twenty-times"].rule


def test_parts_of_the_registry_are_those_of_the_command_with_their_seeds() -> None:
    assert list(PARTS) == list(making.PARTS)
    for part, sized in (("fig3", "fig3"), ("topk", "fig3"), ("table1", "fig2")):
        assert {name: getattr(scale, sized).seeds for name, scale in SCALES.items()} == PARTS[part].seeds


@pytest.mark.parametrize(
    "fault", [{"where": "Section 1"}, {"question": "Is it so?"}, {"rule": ""}, {"scale": "huge"}, {"measures": ""}]
)
def test_a_claim_that_is_half_registered_is_refused(fault: dict[str, str]) -> None:
    with pytest.raises(InputError, match="fig2.saving must"):
        replace(CLAIMS["fig2.saving"], **fault)


# --- the list ---------------------------------------------------------------------------------------------------------


def listed(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["paper", "--list", *flags]) == 0
    return capsys.readouterr().out


def test_the_list_fits_a_hundred_columns_and_has_every_claim(capsys: pytest.CaptureFixture[str]) -> None:
    told = listed(capsys)
    assert max(map(cell_len, told.splitlines())) <= 100
    assert all(f"{part}: " in told for part in PARTS if part != "smollm2")  # which judges nothing
    names = {cell for line in told.splitlines() if (cell := line.strip("│ ").split(" ")[0])}
    assert {row["id"].partition(".")[2] for row in claims.rows()} <= names


def test_recorded_verdicts_are_of_scales_that_can_decide() -> None:
    decided = [row for row in claims.rows() if row["verdict"] in claims.VERDICTS[:3]]
    assert len(decided) > 40
    for row in decided:
        at = re.search(r"at (\w+) scale", row["recorded"])
        assert at, row["id"]
        assert claims.SCALE_NAMES.index(at[1]) >= claims.SCALE_NAMES.index(row["scale"]), row["id"]
