"""Runs that a verdict may rest on: planted illnesses are found, noise is none, and claims say what they rest on."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.signal import lfilter

from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.storage.provenance import provenance
from paper_repro.report_folder import finished
from paper_repro.workflow import recordings
from paper_repro.workflow.recordings import Rows
from paper_repro.workflow.verdicts import claim_table, health
from paper_repro.workflow.verdicts.claim_table import UNHEALTHY, ClaimOutcome
from paper_repro.workflow.verdicts.health import complaint, decided_by_health, ill_words
from tests.cases import sampled
from tests.paper_repro.parts import test_parts
from tests.paper_repro.recomputed.common import having, lines, rows

FRESH_ADAM = pd.read_csv(Path(__file__).parent / "data" / "fresh-adam.csv")
"""Every fifth evaluation of a recorded run on Fashion-MNIST whose clients began each round with a new Adam."""
FRESH_NORMS = pd.read_csv(Path(__file__).parent / "data" / "fresh-adam-norm.csv")
"""The first 400 rounds of such a run, seed 0, with norms; Figure 3's FedAvg but for batches of 32."""


def run(losses: np.ndarray, series: str = "FedAvg", seed: int = 0, **more: object) -> pd.DataFrame:
    rounds = np.arange(1, len(losses) + 1)
    frame = pd.DataFrame({"round": rounds, "train_loss": losses, "test_accuracy": 0.9, "series": series, "seed": seed})
    return frame.assign(**{"diverged": False, "finished": True, "planned": len(losses), **more})


def falling(n: int = 100, noise: float = 0.0, floor: float = 0.3, seed: int = 0) -> np.ndarray:
    return floor + np.exp(-np.arange(n) / 10) + noise * np.random.default_rng(seed).standard_normal(n)


def held(rows: pd.DataFrame, name: str = "fig3.not-by-d") -> ClaimOutcome:
    return decided_by_health(rows, [ClaimOutcome(name, "holds")])[0]


def two(fedavg: pd.DataFrame, **more: object) -> pd.DataFrame:
    return pd.concat([run(falling(), "DeComFL", **more), fedavg], ignore_index=True)


def test_the_recorded_clients_with_a_fresh_adam_are_found_ill() -> None:
    told = held(two(FRESH_ADAM))
    assert told.verdict == UNHEALTHY
    assert re.search(r"FedAvg, seed 0: its training loss fell to 0.3\d+ and rises to 0.4\d+ at round 1,000", told.scale)
    assert len([each for each in ill_words("fig3", two(FRESH_ADAM)) if each.startswith("Did not train")]) == 1


@pytest.mark.parametrize(
    ("n", "noise", "correlation"), sampled(product([30, 100, 500], [0.05, 0.1, 0.3], [0.0, 0.7]), 5)
)
def test_flat_losses_are_seldom_called_ill(n: int, noise: float, correlation: float) -> None:
    """Noise of neighbours that are correlated so, over 400 runs."""
    rng, told = np.random.default_rng(n), 0
    most = 0.05 if correlation else 0.01
    for _ in range(400):
        steps = lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], rng.standard_normal(n + 50))[50:]
        told += health.rise(0.3 * np.maximum(1 + noise * steps, 0.01)) is not None
    assert told <= most * 400


STEPS = np.arange(100)
WANDERING = 0.004 * np.random.default_rng(0).exponential(size=500)
AT_START = run(np.full(20, 0.65), test_accuracy=0.55, test_loss=0.69, majority=0.51)
BEFORE = AT_START[:1].assign(round=0, train_loss=np.nan, test_loss=0.69)
"""Where the parameters at the start were evaluated, a run has to improve on these."""
EARLY_NORM = np.concatenate([[1.0], np.full(49, 1e3), np.full(50, 1.7e3)])
RUNS = {
    "stopped where its loss is least": (FRESH_ADAM[FRESH_ADAM["round"] <= 252], None),
    "at guessing": (run(np.full(100, 2.3026), test_accuracy=0.1), "hardly learnt"),
    "near guessing": (run(np.full(100, 2.29), test_accuracy=0.15), "hardly learnt"),
    "far above guessing": (run(np.full(100, 40.0), test_accuracy=0.1), "hardly learnt"),
    "from worse to guessing": (run(np.geomspace(30, 2.3026, 100), test_accuracy=0.1), "hardly learnt"),
    "an accuracy off guessing": (run(np.full(100, 2.3026), test_accuracy=0.3), None),
    "a loss off guessing": (run(np.full(100, 0.3), test_accuracy=0.1), None),
    "as before training": (pd.concat([BEFORE, AT_START]), "hardly learnt"),
    "less loss than before": (pd.concat([BEFORE, AT_START.assign(test_loss=0.65)]), None),
    "more accuracy than before": (pd.concat([BEFORE, AT_START.assign(test_accuracy=0.7)]), None),
    "a loss near nothing with its own noise": (run(WANDERING), None),
    "a loss near nothing that rises": (run(np.concatenate([WANDERING, 0.05 + WANDERING])), "rises"),
    "a norm that grows all the time": (run(falling(), norm=1 + STEPS / 20), "norm of its parameters is 5.95 times"),
    "a norm that settles": (run(falling(), norm=np.sqrt(1 + STEPS)), None),
    "a norm that grows little": (run(falling(), norm=1 + STEPS / 200), None),
    "a norm that grew early": (run(falling(), norm=EARLY_NORM), "1.7e+03 times"),
    "a norm that grows at the end": (run(falling(), norm=np.where(STEPS < 99, 1.0, 1e6)), "1e+06 times"),
    "nine evaluations": (run(np.geomspace(0.3, 3, 9)), "9 evaluations, fewer than 10"),
    "a loss that is no number": (run(np.array([0.5, np.nan])), "diverged"),
    "a loss without bound": (run(np.array([0.5, np.inf])), "diverged"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_ill_or_not(name: str) -> None:
    own, told = RUNS[name]
    assert (complaint(own) is None) if told is None else (told in str(complaint(own)))


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("end", [[9.0] * 3, [3.0] * 10, list(np.geomspace(0.3, 3, 50))])
def test_an_end_above_the_least_is_found_whatever_its_length(noise: float, end: list[float]) -> None:
    losses = np.concatenate([np.geomspace(2, 0.3, 97), end])
    losses *= np.exp(noise * np.random.default_rng(0).standard_normal(len(losses)))
    assert "rises" in str(complaint(run(losses)))


def test_the_norm_shows_a_fresh_adam_long_before_its_loss_rises_and_none_that_is_kept() -> None:
    own = rows("fig3", "full")
    by_run = own[own.series.isin(["FedAvg", "FedCom 8 bit", "FedAvg+Top-k 10 %"])].groupby(["series", "seed"])
    kept = {run: own.sort_values("round") for run, own in by_run}
    assert len(kept) == 9
    for n in range(10, 39):  # up to round 371; from some 400 on the norm grows less, until it is ten times the first
        assert "the norm of its parameters" in str(complaint(FRESH_NORMS[:n])), n
        assert complaint(FRESH_NORMS[:n].drop(columns="norm")) is None, n
        assert {run: complaint(own[:n]) for run, own in kept.items()} == dict.fromkeys(kept), n
    for run, own in kept.items():
        assert complaint(own) is None, run
        assert own.norm.notna().all(), run


def test_rows_without_a_norm_are_said_to_have_none() -> None:
    rows = two(run(falling()))
    assert complaint(run(falling())) is None
    told = "The norm of the parameters was not recorded for {} of the 2 runs that claims rest on"
    assert ill_words("fig3", rows)[-1].startswith(told.format("any"))
    assert ill_words("fig3", rows.assign(norm=1.0)) == []
    one_row = rows.assign(norm=1.0)
    one_row.loc[one_row.index[-1], "norm"] = np.nan
    assert ill_words("fig3", one_row)[-1].startswith(told.format(1))


def test_a_seed_that_is_left_out_counts_unless_the_rule_says_what_becomes_of_it() -> None:
    lost = run(falling(20), seed=1, diverged=True)
    rows = pd.concat([two(run(falling())), lost], ignore_index=True)
    told = held(rows)
    assert told.verdict == UNHEALTHY
    assert "FedAvg, seed 1: left out, which the rule does not say" in told.scale
    assert "diverged" not in claim_table.claim("fig3.not-by-d").rule
    assert "diverged" in claim_table.claim("fig2.local-updates").rule
    by_k = pd.concat(
        [run(falling(), f"DeComFL K={K} P=20") for K in (1, 4, 10)] + [lost.assign(series="DeComFL K=4 P=20")]
    )
    assert held(by_k.assign(reading="as-plotted", panel="local-updates"), "fig2.local-updates").verdict == "holds"


@pytest.mark.parametrize(("common", "verdict"), [(9, UNHEALTHY), (10, "holds")])
def test_nine_common_evaluations_decide_nothing(common: int, verdict: str) -> None:
    rows = two(run(falling(common)))
    assert held(rows).verdict == verdict
    assert (complaint(rows[rows.series == "FedAvg"]) == "9 evaluations, fewer than 10") is (common == 9)
    assert any(each.startswith("Not judged: 1 of the runs") for each in ill_words("fig3", rows)) is (common == 9)


def test_evaluations_behind_the_end_of_the_other_series_are_not_common() -> None:
    sparse = run(falling(400)[19::20], "DeComFL").assign(round=lambda rows: 20 * rows["round"])
    rows = pd.concat([sparse, *(run(falling(100), name) for name in ("FedAvg", "FedCom 8 bit"))])
    assert held(rows, "fig3.slower").verdict == UNHEALTHY  # 5 of DeComFL up to round 100
    assert held(rows, "fig3.saving").verdict == "holds"


def test_what_is_ill_on_one_side_leaves_other_claims_alone() -> None:
    rows = pd.concat([two(FRESH_ADAM), run(falling(), "FedCom 8 bit")])
    assert held(rows, "fig3.band").verdict == "holds"
    assert held(rows.assign(train_loss=0.3)).verdict == "holds"
    assert decided_by_health(rows, [ClaimOutcome("fig3.saving")])[0].verdict == claim_table.UNTESTED


@pytest.mark.parametrize("scale", ["default", "full"])
def test_the_training_whose_spectra_are_recorded_lowers_its_loss(scale: str) -> None:
    losses = having(rows("hessian", scale), {"kind": "estimate", "name": "loss"}).set_index("step").value
    assert losses[losses.index.max()] < 0.8 * losses[losses.index.min()]


@pytest.mark.parametrize("name", [own.id for own in claim_table.CLAIMS.values() if own.rests])
def test_the_series_that_a_claim_rests_on_are_in_the_recorded_rows(name: str) -> None:
    kept = recordings.largest(name.partition(".")[0])
    assert kept is not None
    there = list(health.series_named(lines(kept.rows.dropna(subset="round"))))
    for pattern in claim_table.claim(name).rests:
        assert any(health.fnmatchcase(each, pattern) for each in there), pattern


def test_a_report_says_which_run_is_ill_and_decides_nothing_by_it() -> None:
    rows = test_parts.fashion(ours=0.75, theirs=0.9, top_k=0.5, cost=250.0).assign(data="mnist", estimator="projection")
    sick = rows.series == "FedAvg"
    rows.loc[sick, "train_loss"] = np.where(rows.loc[sick, "round"] < 20, 0.3, 0.5)
    facts = [{**provenance(load_dataset("digits")), "code": "7"}]
    asked = test_parts.options("full")
    made = finished("fig3", Rows("full", rows, facts), asked, None)
    told = {outcome.id: outcome.verdict for outcome in made.claims}
    assert {told[f"fig3.{name}"] for name in ("twenty-times", "saving", "slower", "not-by-d")} == {UNHEALTHY}
    assert made.section.notes[0].startswith("Did not train: FedAvg, seed 0: its training loss fell to 0.3 and rises to")
    healthy = finished("fig3", Rows("full", rows.assign(train_loss=0.3), facts), asked, None)
    assert {outcome.verdict for outcome in healthy.claims if outcome.id != "fig3.estimators"} == {"holds"}
    assert not any(note.startswith("Did not train") for note in healthy.section.notes)
