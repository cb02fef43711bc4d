"""Parts theory and audit: sweeps, training, and every verdict made to come out either way."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest

from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.progress import Progress
from paper_repro.parts import audit
from paper_repro.parts.theory import beside_bounds
from paper_repro.workflow.scales import SCALES
from paper_repro.workflow.series import PATTERNS, configuration
from paper_repro.workflow.verdicts.claim_table import CLAIMS
from paper_repro.workflow.verdicts.claim_verdicts import evaluated
from theory import Setting, statement
from theory.bounds.sweeps import KAPPA, SWEEPS
from theory.checks.landscape import Landscape
from theory.findings import finding
from theory.findings.finding import TRUE, Cause, Entry, EntryResult, Evidence, EvidenceCheck, gather

TINY = SCALES["smoke"].theory.but(
    per_decade=1, runs=3, factor=256, cells=2, models=("logistic",), rounds=2, seeds=(0, 1)
)


def verdicts(claims: list[Any]) -> dict[str, str]:
    return {claim.id.partition(".")[2]: claim.verdict for claim in claims}


def sweep(name: str) -> pd.DataFrame:
    return pd.DataFrame(list(SWEEPS[name](TINY)))


# --- sweeps -----------------------------------------------------------------------------------------------------------


def test_the_sweep_reaches_a_thousand_million_and_is_flat() -> None:
    rows = sweep("by-d")
    assert rows["d"].max() == 10**9
    assert set(rows["kappa"]) == {KAPPA}
    far = rows[(rows["d"] >= 1000) & rows["series"].str.startswith("measured")]
    spread = far.groupby("series")["value"].agg(lambda values: values.max() / values.min() - 1)
    assert set(spread.index) == {"measured, κ equal eigenvalues", "measured, one large eigenvalue"}
    assert 0 < spread.max() < 0.05


def test_simulated_runs_agree_with_the_exact_expectation() -> None:
    exact = sweep("by-d").query("series == 'measured, κ equal eigenvalues'").set_index("d")["value"]
    runs = pd.DataFrame(list(SWEEPS["simulated"](SCALES["smoke"].theory))).set_index("d")
    error = (runs["high"] - runs["low"]) / 2
    assert ((runs["value"] - exact.reindex(runs.index)).abs() < 2 * error).all()


def test_maps_cover_every_corner() -> None:
    rows = sweep("step-sizes")
    assert len(rows) == 3 * 2 * 2
    row = rows[(rows["K"] == 4) & (rows["m"] == 1000) & (rows["P"] == 1)].iloc[0]
    setting = Setting(d=10_000, L=1.0, K=4, m=1000, P=1)
    assert row["stated"] == statement("theorem-1", "stated").step_sizes(setting).largest
    assert row["binding"] == "drift"
    assert row["limit"] == pytest.approx(2 / 10_002)


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "admitted", "verdict"),
    [(0.1, True, "holds"), (1.1, True, "does not hold"), (0.1, False, "not tested at this scale")],
)
def test_training_keeps_the_stated_bound_or_not_where_it_admits_the_rate(
    ratio: float, admitted: bool, verdict: str
) -> None:
    row = {"round": 1, "stated": ratio, "corrected": ratio, "admitted": admitted}
    frame = pd.DataFrame([row | dict.fromkeys(("L", "kappa", "sigma", "sigma_G", "eta"), 1.0)])
    own = replace(CLAIMS["theory.trained-*"], id="theory.trained-mlp")
    assert evaluated(own, {"trained": frame}).verdict == verdict


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_constants_of_a_beside_bounds_model_are_those_of_its_losses() -> None:
    """On one client, with one batch of all data, there is no noise and no dissimilarity; logistic H ⪰ 0 has a bound."""
    config = configuration(PATTERNS["theory"], {}, model="logistic", rounds=4)
    one = Landscape(replace(config, clients=1, sampled=1, batch_size=2000), load_dataset("digits"))
    setting = one.constants([one.federation.x])
    assert (setting.sigma, setting.sigma_G, setting.M) == (pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-6), 1)
    largest = max(float(own.inputs.flatten(1).square().sum(1).max()) + 1 for own in one.objectives)
    assert 0 < setting.L <= largest / 2  # ‖∇²‖ ≤ ‖(a, 1)‖²/2 for cross-entropy of a linear model
    many = Landscape(config, load_dataset("digits"))
    several = many.constants([many.federation.x])
    assert several.sigma > 0.1
    assert several.sigma_G > 0.1
    assert several.L >= setting.L * 0.99
    assert 0.8 * math.log(10) < several.D < 1.2 * math.log(10)


def test_training_is_measured_as_the_mean_of_squared_gradients_so_far(tmp_path: Path) -> None:
    seen: list[Progress] = []
    rows, facts = beside_bounds(tmp_path, seen.append, TINY, "logistic")
    assert facts["data"].startswith("scikit-learn's 8×8 digits")
    assert [at.round for at in seen] == list(range(1, 7))  # a pilot run and two seeds
    runs = rows[rows["kind"] == "run"].pivot(index="round", columns="seed", values="value")
    assert runs.shape == (2, 2)
    config = configuration(PATTERNS["theory"], {}, model="logistic", rounds=2)
    start = Landscape(replace(config, seed=1), load_dataset("digits"))
    assert runs.loc[1, 1] == pytest.approx(float((start.whole.gradient(start.federation.x) ** 2).sum()))
    constants = rows[rows["kind"] == "constant"].set_index("series")["value"]
    bounds = rows[rows["series"] == "Theorem 2, corrected"].set_index("round")
    own = Setting(
        **{name: float(constants[name]) for name in ("L", "kappa", "sigma", "sigma_G", "D", "eta", "mu")},
        d=int(constants["d"]), m=5, M=10, P=20, R=2, distribution="sphere",
    )  # fmt: skip
    assert bounds["value"][2] == pytest.approx(sum(statement("theorem-2").bound(own)))
    assert bounds["admitted"].all()
    assert (runs.max(axis=1) < bounds["value"].reindex(runs.index)).all()


# --- audit ------------------------------------------------------------------------------------------------------------


def entry(status: finding.Status, *, holds: bool = True, kind: finding.Kind = "lemma", label: str = "a") -> EntryResult:
    """A result whose evidence refutes where the status is not *true by proof*, and holds or not."""
    against, instrument = status not in TRUE, "table" if status in finding.BY_DATA else "units"
    check = EvidenceCheck(
        label, lambda: Evidence(instrument, holds, "F and X", {"ratio": 2.0, "worst": math.inf}, against)
    )
    nature: Any = {finding.AS_MEANT: "misprint", "imprecise": "imprecision"}.get(status, "error")
    runs: Any = {"not decided": "context", "true in our runs": "supports", "not reproduced in our setting": "refutes"}
    roles: Any = {
        **{name: {"supports": (check,)} for name in TRUE[:2]},
        **{name: {} for name in (*runs, "not checkable", "proof gap")},
    }.get(status, {"refutes": (check,)})
    own = Entry(
        label=label, line=7, place="Lemma 1", kind=kind, says="1 = 1", status=status, evidence=roles, why="so",
        instead="2 = 2", carries="b" * (status == "proof gap"),
        runs={"fig2.saving": runs[status]} if status in runs else {},
        causes=(Cause(name="c", title="", nature=nature, witness=check),),
    )  # fmt: skip
    return gather([own])[0]


def audited(*results: EntryResult) -> pd.DataFrame:
    return pd.DataFrame(json.loads(json.dumps([result.row() for result in results])))


def test_each_finding_of_the_audit_is_a_claim_of_lemmas_and_theorems() -> None:
    rows = audited(
        *(entry(status, label=f"l{n}") for n, status in enumerate(get_args(finding.Status))),
        entry("false by proof", kind="table", label="t"),
    )
    found = verdicts(audit.claims(rows))
    assert found == {
        "all": "does not hold",
        **dict.fromkeys((f"l{n}" for n in range(6)), "does not hold"),
        **dict.fromkeys(("l6", "l7"), "not tested at this scale"),
        **dict.fromkeys(("l8", "l9", "l10"), "holds"),
    }
    everything, first, *_ = audit.claims(rows)
    assert everything.measured["false by proof"] == 2
    assert first.measured == {"ratio": 2.0}
    assert verdicts(audit.claims(audited(entry("true by proof"))))["all"] == "holds"
    assert verdicts(audit.claims(audited(entry("true by proof", holds=False))))["a"] == "not tested at this scale"
