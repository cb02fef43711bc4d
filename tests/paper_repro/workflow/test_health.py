"""Runs that a verdict may rest on: planted illnesses are found, noise is none, and claims say what they rest on."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.runs.provenance import provenance
from paper_repro import making
from paper_repro.workflow import claims, health, recorded
from paper_repro.workflow.bands import bands_table, compared, outcome
from paper_repro.workflow.claims import UNHEALTHY, ClaimOutcome
from paper_repro.workflow.health import EXEMPT, RESTS, complaint, decided_by_health, ill_words
from tests.paper_repro.parts import test_parts

FRESH_ADAM = pd.read_csv(Path(__file__).parent / "data" / "fresh-adam.csv")
"""Every fifth evaluation of a recorded run on Fashion-MNIST whose clients began each round with a new Adam."""


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
    assert len(ill_words("fig3", two(FRESH_ADAM))) == 1


def test_the_same_run_stopped_where_its_loss_is_least_is_not() -> None:
    assert complaint(FRESH_ADAM[FRESH_ADAM["round"] <= 252]) is None


@pytest.mark.parametrize("seed", range(20))
def test_noise_around_a_level_is_no_rise(seed: int) -> None:
    assert complaint(run(falling(noise=0.1, floor=0.5, seed=seed))) is None


def test_a_loss_near_nothing_may_wander_by_its_own_noise() -> None:
    losses = 0.004 * np.random.default_rng(0).exponential(size=500)
    assert complaint(run(losses)) is None
    assert complaint(run(np.concatenate([losses, 0.05 + losses]))) is not None


def test_a_norm_that_grows_without_slowing_down_is_an_illness_and_one_that_settles_is_none() -> None:
    steps = np.arange(100)
    assert "norm of its parameters is 5.95 times" in str(complaint(run(falling(), norm=1 + steps / 20)))
    assert complaint(run(falling(), norm=np.sqrt(1 + steps))) is None
    assert complaint(run(falling(), norm=1 + steps / 200)) is None
    assert complaint(run(falling())) is None  # rows without the column say nothing of it


@pytest.mark.parametrize("losses", [[0.5, float("nan")], [0.5, float("inf")]])
def test_a_loss_that_is_no_number_is_an_illness(losses: list[float]) -> None:
    assert "diverged" in str(complaint(run(np.array(losses))))


def test_a_seed_that_is_left_out_counts_unless_the_rule_says_what_becomes_of_it() -> None:
    lost = run(falling(20), seed=1, diverged=True)
    rows = pd.concat([two(run(falling())), lost], ignore_index=True)
    told = held(rows)
    assert told.verdict == UNHEALTHY
    assert "FedAvg, seed 1: left out, which the rule does not say" in told.scale
    assert "diverged" not in claims.claim("fig3.not-by-d").rule
    assert "diverged" in claims.claim("fig2.local-updates").rule
    by_k = pd.concat(
        [run(falling(), f"DeComFL K={K} P=20") for K in (1, 4, 10)] + [lost.assign(series="DeComFL K=4 P=20")]
    )
    assert held(by_k.assign(reading="as-plotted", panel="local-updates"), "fig2.local-updates").verdict == "holds"


def test_a_band_of_which_a_seed_diverged_does_not_hold() -> None:
    def verdict(*lost: pd.DataFrame) -> str:
        ours = run(falling(), "DeComFL").assign(examples=10_000)
        authors = ours.assign(test_accuracy=0.9)
        table = bands_table(compared(ours, authors, ["series"]), ["series"], pd.concat([ours, *lost]))
        return outcome("fig3.band", table, "made up", testable=True).verdict

    assert verdict() == "holds"
    assert verdict(run(falling(5), "DeComFL", seed=1, diverged=True)) == "does not hold"


@pytest.mark.parametrize(("common", "verdict"), [(9, UNHEALTHY), (10, "holds")])
def test_nine_common_evaluations_decide_nothing(common: int, verdict: str) -> None:
    assert held(two(run(falling(common)))).verdict == verdict
    ours, theirs = (run(falling(), "DeComFL").assign(examples=10_000)[:n] for n in (100, common))
    table = bands_table(compared(ours, theirs, ["series"]), ["series"], ours)
    assert outcome("fig3.band", table, "made up", testable=True).verdict == verdict


def test_evaluations_behind_the_end_of_the_other_series_are_not_common() -> None:
    sparse = run(falling(400)[19::20], "DeComFL").assign(round=lambda rows: 20 * rows["round"])
    rows = pd.concat([sparse, *(run(falling(100), name) for name in ("FedAvg", "FedCom 8 bit"))])
    assert held(rows, "fig3.slower").verdict == UNHEALTHY  # 5 of DeComFL up to round 100
    assert held(rows, "fig3.saving").verdict == "holds"


def test_what_is_ill_on_one_side_leaves_other_claims_alone() -> None:
    rows = pd.concat([two(FRESH_ADAM), run(falling(), "FedCom 8 bit")])
    assert held(rows, "fig3.band").verdict == "holds"
    assert held(rows.assign(train_loss=0.3)).verdict == "holds"
    assert decided_by_health(rows, [ClaimOutcome("fig3.saving")])[0].verdict == claims.UNTESTED


def test_every_claim_of_a_part_with_first_order_baselines_says_what_it_rests_on_or_why_on_nothing() -> None:
    parts = {name.partition(".")[0] for name in RESTS} | {"projection"}
    wanted = {own.id for own in claims.CLAIMS.values() if own.part in parts}
    assert set(RESTS) | set(EXEMPT) == wanted
    assert not set(RESTS) & set(EXEMPT)


@pytest.mark.parametrize("name", RESTS)
def test_the_series_that_a_claim_rests_on_are_in_the_recorded_rows(name: str) -> None:
    kept = recorded.load(name.partition(".")[0], "full")
    assert kept is not None
    there = list(health._series(health._lines(kept.rows)))
    for pattern in RESTS[name].series:
        assert any(health.fnmatchcase(each, pattern) for each in there), pattern


def test_no_recorded_verdict_rests_on_an_ill_run() -> None:
    for part in sorted({name.partition(".")[0] for name in RESTS}):
        kept = recorded.largest(part)
        assert kept is not None
        outcomes = [
            ClaimOutcome(row["id"], row["verdict"], row["measured"])
            for row in claims._recorded()
            if row["id"] in RESTS
            and claims.claim(row["id"]).part == part
            and f"at {kept.scale} scale" in row["recorded"]
        ]
        for before, after in zip(outcomes, decided_by_health(kept.rows, outcomes), strict=True):
            assert after.verdict == before.verdict, after.scale


def test_a_report_says_which_run_is_ill_and_decides_nothing_by_it() -> None:
    rows = test_parts.fashion(ours=0.75, theirs=0.9, top_k=0.5, cost=250.0).assign(data="mnist", estimator="projection")
    sick = rows.series == "FedAvg"
    rows.loc[sick, "train_loss"] = np.where(rows.loc[sick, "round"] < 20, 0.3, 0.5)
    facts = [{**provenance(load_dataset("digits")), "code": "7"}]
    asked = test_parts.options("full")
    made = making._part("fig3", rows, facts, asked)
    told = {outcome.id: outcome.verdict for outcome in made.claims}
    assert {told[f"fig3.{name}"] for name in ("twenty-times", "saving", "slower", "not-by-d")} == {UNHEALTHY}
    assert made.section.notes[0].startswith("Did not train: FedAvg, seed 0: its training loss fell to 0.3 and rises to")
    healthy = making._part("fig3", rows.assign(train_loss=0.3), facts, asked)
    assert {outcome.verdict for outcome in healthy.claims if outcome.id != "fig3.estimators"} == {"holds"}
    assert not any(note.startswith("Did not train") for note in healthy.section.notes)
