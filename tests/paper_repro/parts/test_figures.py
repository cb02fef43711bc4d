"""Figures 2 and 3: verdicts that the recorded rows leave open, or that flat curves or whole logs alone decide."""

import numpy as np
import pandas as pd
import pytest

from paper_repro.parts import fig3
from paper_repro.parts.fig3 import DISTANCE, losses_beside, settings_told
from paper_repro.workflow.verdicts.claim_table import CLAIMS, rows
from paper_repro.workflow.verdicts.claim_verdicts import evaluated
from tests.cases import rows_of

# --- Figure 2 ---------------------------------------------------------------------------------------------------------


def _run(panel: str, K: int, P: int, accuracies: list[float], seed: int) -> pd.DataFrame:
    frame = pd.DataFrame({"round": range(1, len(accuracies) + 1), "test_accuracy": accuracies})
    named = {"panel": panel, "method": "DeComFL", "series": f"DeComFL K={K} P={P}", "K": K, "P": P, "seed": seed}
    return frame.assign(**named, reading="as-plotted", check=False, examples=10_000)


@pytest.mark.parametrize(("rise", "verdict"), [(0.0, "holds"), (0.3, "not tested at this scale")])
def test_what_happens_eventually_is_judged_only_when_the_curves_are_flat(rise: float, verdict: str) -> None:
    tops = {10: 0.9, 20: 0.93, 40: 0.96}
    runs = [_run("perturbations", 4, P, [0.1, a - rise, a], seed) for P, a in tops.items() for seed in (0, 1)]
    assert evaluated(CLAIMS["fig2.perturbations"], {"": pd.concat(runs)}).verdict == verdict


def test_equal_gains_refute_that_one_is_larger_and_unclear_ones_do_not() -> None:
    def verdict(p: tuple[float, ...], apart: float = 0.001, seeds: tuple[int, ...] = (0, 1)) -> str:
        def run(panel: str, K: int, P: int, a: float, seed: int) -> pd.DataFrame:
            return _run(panel, K, P, [0.1, a + seed * apart, a + seed * apart], seed)

        by_k, by_p = {1: 0.92, 4: 0.93, 10: 0.9532}, dict(zip((10, 20, 40), p, strict=True))
        left = [run("local-updates", K, 20, a, seed) for K, a in by_k.items() for seed in (0, 1)]
        right = [run("perturbations", 4, P, a, seed) for P, a in by_p.items() for seed in seeds]
        return evaluated(CLAIMS["fig2.p-over-k"], {"": pd.concat([*left, *right])}).verdict

    assert verdict((0.93, 0.94, 0.95)) == "does not hold"  # 0.01 a doubling of either
    assert verdict((0.93, 0.94, 0.98)) == "holds"
    assert verdict((0.93, 0.93, 0.92)) == "does not hold"
    assert verdict((0.93, 0.94, 0.95), apart=0.02) == "not tested at this scale"
    assert verdict((0.93, 0.94, 0.98), seeds=(0,)) == "not tested at this scale"


# --- Figure 3: which settings explain the authors' first-order logs ---------------------------------------------------

ROUNDS = np.arange(1, 1001)
LOG = 0.2 + 2 / np.sqrt(ROUNDS)


def ours(factor: float, series: str = "FedAvg") -> pd.DataFrame:
    """Rows of two seeds after rounds 1, 11, 21, ... with the mean loss since the one before, times a factor."""
    table, before = [], 0
    for r in [*range(1, 1001, 10), 1000]:
        table.append({"round": r, "train_loss": factor * LOG[before:r].mean(), "test_accuracy": 1 - 1 / (r + 1)})
        before = r
    return pd.concat([pd.DataFrame(table).assign(series=series, seed=seed) for seed in range(2)])


def logs(series: str = "FedAvg") -> pd.DataFrame:
    """As the authors': losses and accuracies in rows of their own."""
    losses = pd.DataFrame({"round": ROUNDS, "train_loss": LOG, "test_accuracy": np.nan})
    accuracies = pd.DataFrame({"round": [1, 1000], "train_loss": np.nan, "test_accuracy": [0.4, 0.9]})
    return pd.concat([losses, accuracies]).assign(series=series, seed=42)


def test_losses_are_compared_as_means_over_the_same_rounds() -> None:
    found = losses_beside(ours(1.0), logs())
    np.testing.assert_allclose(found.ours, found.theirs)
    assert found["round"].tolist()[:3] == [1, 11, 21]


@pytest.mark.parametrize(("factors", "verdict"), rows_of(__file__)["settings"])
def test_a_setting_explains_a_log_within_a_tenth(factors: dict[str, float], verdict: str) -> None:
    logs_of = {f"{name}{n}": name for name in factors for n in range(2)}
    own = pd.concat([ours(factors[name], series) for series, name in logs_of.items()])
    told = settings_told(own, pd.concat([logs(name) for name in factors]), logs_of)
    found = evaluated(CLAIMS["fig3.settings"], {"settings": told.assign(testable=True)})
    assert found.verdict == verdict
    assert found.measured[f"FedAvg0: {DISTANCE}"] == pytest.approx(abs(factors["FedAvg"] - 1))


def test_no_claim_on_the_logs_rests_on_one_whose_setting_is_unknown() -> None:
    found = next(row for row in rows(["fig3"]) if row["id"] == "fig3.settings")["measured"]
    near = {name.partition(":")[0] for name, value in found.items() if name.endswith(DISTANCE) and value <= 0.1}
    explained = CLAIMS["fig3.saving-in-the-logs"].line["rows"]["series"]
    assert set(explained) - {"DeComFL"} == near & set(fig3.LOGS_OF)
