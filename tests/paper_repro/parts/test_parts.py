"""Figure 3, top-k, projection and Table 1: settings, countings, verdicts either way; eight parts by the command."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from decomfl_lab.cli.main import main
from paper_repro.parts import audit, fig2, fig3, hessian, table1
from paper_repro.report_folder import judged
from paper_repro.sources import kept_beside
from paper_repro.workflow.part import Options
from paper_repro.workflow.recordings import Rows
from paper_repro.workflow.scales import SCALES, changed
from paper_repro.workflow.series import from_toml
from paper_repro.workflow.verdicts.claim_table import ClaimOutcome
from paper_repro.workflow.verdicts.reference import fig2_reference, fig3_reference
from tests.cases import refuses, rows_of
from tests.paper_repro.parts import test_hessian, test_theory
from theory.bounds import sweeps

TABLES = rows_of(__file__)


def options(scale: str = "full", **changes: Any) -> Options:
    values: dict[str, Any] = {
        "scale": SCALES[scale],
        "readings": ("as-plotted",),
        "count": "wire",
    }
    return Options(**(values | changes))


def verdicts(claims: Sequence[ClaimOutcome]) -> dict[str, str]:
    return {claim.id: claim.verdict for claim in claims}


def curve(series: str, accuracy: Sequence[float], cost: float, *, up: float = 0.5, **labels: Any) -> pd.DataFrame:
    """A run with an evaluation a round and a constant number of wire scalars a client and round."""
    rounds = np.arange(1, len(accuracy) + 1)
    frame = pd.DataFrame({"series": series, "seed": 0, "round": rounds, "test_accuracy": accuracy})
    frame["train_loss"] = 2 - frame.test_accuracy
    frame["test_loss"] = frame.train_loss
    frame["wire_scalars"] = rounds * cost
    frame["wire_bytes"] = rounds * cost * 4 * 100
    more = {"seconds": 1.0, "diverged": False, "check": False, "examples": 10_000, "finished": True}
    return frame.assign(up_bytes=up * frame.wire_bytes, planned=len(frame), **more, **labels)


def fashion(*, ours: float, theirs: float, top_k: float, cost: float, rising: int = 40) -> pd.DataFrame:
    def to(final: float, rounds: int) -> list[float]:
        return [*np.linspace(0.1, final, rounds), *[final] * (42 - rounds)]

    rows = [
        curve("DeComFL", to(ours, rising), cost, method="decomfl", uplink=0.0, top_k=0.0),
        curve("FedAvg", to(theirs, 4), 2.4e5, method="fedavg", uplink=1.0, top_k=0.0),
        curve("FedCom 8 bit", to(theirs, 4), 1.5e5, method="fedcom", uplink=0.25, top_k=0.0),
        curve("FedAvg+Top-k 10 %", to(top_k, 4), 1.4e5, method="fedavg-topk", uplink=0.2, top_k=0.1),
    ]
    return fig3.add_countings(pd.concat(rows, ignore_index=True), SCALES["full"])


def table1_rows() -> pd.DataFrame:
    M, m, d = 100, 10, table1.D
    cost = {name: (1 + row.beta) * m * d / M for name, row in table1.ROWS.items()}
    rows = []
    for name, row in table1.ROWS.items():
        if np.isnan(row.beta):
            up, down = m * 200, 2 * M * 200
        else:
            up, down = row.beta * m * d, m * d
        frame = curve(name, [0.1, 0.5, 0.9], (up + down) / M, up=up / (up + down))
        assert np.isnan(row.beta) or frame.wire_scalars.iloc[0] == pytest.approx(cost[name])
        rows.append(frame)
    return pd.concat(rows, ignore_index=True)


def test_table_1_is_judged_by_the_rows_that_there_are() -> None:
    short = table1_rows()
    short.loc[short.series == table1.FEDZO, "test_accuracy"] *= 0.3  # the level is the others'
    assert verdicts(table1.make(short, [{"data": "made up"}], options("full")).claims)["table1.least"] == "holds"
    for absent, verdict in ((table1.FEDZO, "holds"), ("FedCom 8 bit K=10", "not tested at this scale")):
        begun = table1.make(short[short.series != absent], [{"data": "made up"}], options("full")).claims
        assert verdicts(begun) == {"table1.per-round": "not tested at this scale", "table1.least": verdict}


def test_runs_of_fedzo_by_finite_differences_check_those_by_projection_and_decide_nothing() -> None:
    rows = table1_rows()
    check = rows[rows.series == table1.FEDZO].assign(check=True, up_bytes=0.0)  # were it counted, the claim would fail
    check.test_accuracy += 0.02 * (check["round"] == 2)
    rows["check"] = rows.check.astype(object).where(rows.series != table1.FEDZO)  # as a file has it: missing, not False
    made = table1.make(pd.concat([rows, check]), [{"data": "made up"}], options("full"))
    assert verdicts(made.claims)["table1.per-round"] == "holds"
    (told,) = (note for note in made.section.notes if "finite differences" in note)
    assert "1 seed, accuracies are at most 2.00 points from those, at 3 evaluations, and 0.00 at the last" in told
    alone = table1.make(rows, [{"data": "made up"}], options("full"))
    assert not any("finite differences" in note for note in alone.section.notes)


REFERENCE = TABLES["reference"]


def test_the_authors_curves_are_read_with_their_own_counting(tmp_path: Path) -> None:
    (tmp_path / "authors_curves.csv").write_text(REFERENCE)
    rows = fig2_reference(tmp_path)
    assert len(rows) == 3  # beyond the plotted rounds, doubled, other metrics and figures are left out
    one = rows[rows.series == "DeComFL K=1 P=20"].iloc[0]
    assert (one["round"], one.plotted_scalars, one.table1_scalars) == (20, 380.0, pytest.approx(840.0))
    assert rows[rows.method == "FedAvg"].series.tolist() == ["FedAvg K=5"]
    rows = fig3_reference(tmp_path)
    last = {"DeComFL": 20, "FedAvg": 1, "FedAvg+Top-k 10 %": 1, "FedCom 8 bit": 1}
    assert dict(zip(rows.series, rows["round"], strict=True)) == last
    assert (rows.train_loss.count(), rows.test_accuracy.count()) == (2, 3)


@pytest.mark.thorough
@mock.patch.multiple(sweeps, LOUD=1.0, REACH=dict.fromkeys("mPK", 4))
def test_the_command_makes_every_part_and_reuses_its_runs(
    tmp_path: Path, smoke: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = {part: SCALES["smoke"].of(part).but(**own) for part, own in from_toml(TABLES["tiny"]).items()}
    tiny["hessian"] = test_hessian.TINY
    smoke(**tiny)
    out = tmp_path / "out"
    (tmp_path / "authors_curves.csv").write_text(REFERENCE)
    entries = (test_theory.entry("true by proof"), test_theory.entry("imprecise", label="b"))
    monkeypatch.setattr(audit, "ENTRIES", tuple(result.entry for result in entries))
    small = {"model": "logistic", "steps": 50, "examples": 100, "products": 20, "probes": 2}
    jobs = hessian.jobs
    monkeypatch.setattr(
        hessian, "jobs", lambda asked: [work if work.device else replace(work, arguments=small) for work in jobs(asked)]
    )
    parts = ["fig2", "fig3", "projection", "topk", "table1", "hessian", "theory", "audit"]
    argv = ["paper", "--scale", "smoke", "--only", ",".join(parts), "--out", str(out), "--jobs", "1"]
    argv += ["--reading", "as-plotted", "--reference", str(tmp_path)]
    assert main([*argv, "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)
    assert claims == json.loads((out / "claims.json").read_text())
    assert {"id", "claim", "source", "status", "measures", "rule", "verdict", "measured", "scale"} == set(claims[0])
    ids = [claim["id"] for claim in claims]
    assert [each.split(".")[0] for each in ids] == sorted((each.split(".")[0] for each in ids), key=parts.index)
    assert {"fig3.saving-in-the-logs", "theory.speed-up-P", "theory.trained-logistic", "audit.b"} < set(ids)
    drawn = ("fig2", "fig2-table1", "fig3", "fig3-table1", "fig3-plotted", "projection", "topk", "hessian")
    for name in (*drawn, "theory-training"):
        assert (out / "figures" / f"{name}.png").stat().st_size > 5000, name
    for name in ("fig2", "fig3", "projection", "topk", "table1"):
        assert len(pd.read_csv(out / "tables" / f"{name}.csv")) >= 4, name
    lost = pd.read_csv(out / "tables" / "projection.csv")
    assert lost[lost.eta > 1].diverged.any()
    page = (out / "report.html").read_text()
    assert "embedded: 5,000 MNIST training digits" in page
    assert 'src="http' not in page
    assert "Wasserstein-1 distance of the density from the dense spectrum is 0." in page
    assert page.count("<code>b</code>") == 1  # what is true is counted, not listed
    runs = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.csv")}
    assert main([*argv, "--count", "table1"]) == 0
    assert runs == {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.csv")} != {}
    assert not list(out.rglob("*.tmp"))


@pytest.mark.parametrize("left_out", ["DeComFL", "FedAvg", "FedCom 8 bit", "FedAvg+Top-k 10 %"])
def test_figure_3_is_drawn_of_the_runs_that_there_are_and_names_those_under_way(left_out: str) -> None:
    rows = fashion(ours=0.75, theirs=0.9, top_k=0.5, cost=250.0).assign(data="mnist", estimator="gradients")
    rows = rows[rows.series != left_out].assign(planned=99)
    rows["finished"] = rows.series != rows.series.iloc[0]
    made = fig3.make(rows, [{"data": "made up"}], options("smoke"))
    under_way = f"{rows.series.iloc[0]}, gradients, seed 0: 42 of 99 rounds"
    assert any(under_way in note for note in made.section.notes)
    assert any(f"Not begun: {left_out}, " in note or f"; {left_out}, " in note for note in made.section.notes)
    assert all(under_way in claim.scale for claim in made.claims)
    found = verdicts(made.claims)
    if left_out in ("DeComFL", "FedAvg"):
        assert found["fig3.twenty-times"] == found["fig3.not-by-d"] == "not tested at this scale"
    assert found["fig3.saving"] == "not tested at this scale"
    colours = {line.get_label(): line.get_color() for line in made.figures["fig3"]().axes[0].get_lines()}
    assert colours.get("DeComFL", "#0072B2") == "#0072B2"
    assert left_out not in colours


# --- settings that are changed ----------------------------------------------------------------------------------------


@refuses(*TABLES["changes"])
def test_a_change_of_what_there_is_not_or_cannot_be_is_refused(assignment: str) -> None:
    changed(SCALES["smoke"], [assignment])


def test_a_changed_setting_is_that_of_the_parts_that_use_it() -> None:
    scale, told = changed(SCALES["smoke"], ["fig2.local_rounds={2=5, 10=3}", "fig2.seeds=[3, 4]", "hessian.model=mlp"])
    assert (scale.fig2.local_rounds[2], scale.fig2.seeds, scale.hessian.model) == (5, (3, 4), "mlp")
    assert set(told) == {"fig2", "table1", "hessian"}
    assert told["hessian"] == "hessian.model = mlp instead of resnet8-half-bn"
    assert {job.config.local_steps for job in fig2.jobs(replace(options(), scale=scale))} == {2, 4, 5, 10}
    assert changed(SCALES["smoke"], [f"fig2.M={SCALES['smoke'].fig2.M}"]) == (SCALES["smoke"], {})


def test_verdicts_of_changed_settings_say_so_and_do_not_count() -> None:
    rows, changes = Rows("full", table1_rows(), [{"data": "made up"}]), {"table1": "fig2.M = 50 instead of 100"}
    made = table1.make(rows.rows, rows.provenance, options())
    other = judged("table1", rows, options(changes=changes))
    for old, new in zip(made.claims, other.claims, strict=True):
        words = f"reads “{old.verdict}” for settings changed by --set (fig2.M = 50 instead of 100); {old.scale}"
        assert (new.id, new.measured, new.scale) == (old.id, old.measured, words)
        assert new.verdict == "not tested at this scale"
    assert "no verdict on it counts" in other.section.notes[0]


def test_a_part_of_changed_settings_is_never_drawn_from_records() -> None:
    changes = {"llm": "llm.test_examples = 9 instead of 0"}
    assert kept_beside("llm", options("default")) is not None
    assert kept_beside("llm", options("default", changes=changes)) is None
