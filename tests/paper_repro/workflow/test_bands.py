"""Our curves against the authors', and those of the two estimators: by hand; and verdicts that come out either way."""

import pandas as pd
import pytest

from paper_repro.workflow import estimators
from paper_repro.workflow.verdicts.claim_table import CLAIMS
from paper_repro.workflow.verdicts.claim_verdicts import evaluated
from paper_repro.workflow.verdicts.measures import bands_table, compared, judged_bands

BY = ("panel", "series")


def curve(accuracies: list[float], *, seed: int, series: str = "DeComFL K=1", every: int = 20) -> pd.DataFrame:
    rounds = range(every, every * len(accuracies) + 1, every)
    frame = pd.DataFrame({"round": rounds, "test_accuracy": accuracies})
    return frame.assign(panel="left", series=series, seed=seed, examples=10_000)


AUTHORS = pd.concat([curve([0.5, 0.80, 0.90], seed=233), curve([0.6, 0.84, 0.90], seed=42)])


def test_the_band_is_the_authors_range_widened_by_test_error_and_seed_spread() -> None:
    found = compared(curve([0.4, 0.87, 0.93], seed=0), AUTHORS, BY)
    error = [(p * (1 - p) / 10_000) ** 0.5 for p in (0.55, 0.82, 0.9)]
    spread = [0.1 / 2**0.5, 0.04 / 2**0.5, 0.0]
    assert found.margin.tolist() == pytest.approx([2 * e + s for e, s in zip(error, spread, strict=True)])
    assert found.inside.tolist() == [False, True, False]  # 0.1 > 0.081; 0.03 < 0.036; 0.03 > 0.006
    assert found.narrowly.tolist() == [False, False, False]  # 0.03 > 0.008
    row = bands_table(found, BY).iloc[0]
    assert (row["share inside"], row["first round outside"], row["last round"]) == (pytest.approx(1 / 3), 20, 60)


def test_only_rounds_that_both_have_are_compared_and_one_seed_borrows_the_spread_of_ours() -> None:
    ours = pd.concat(
        [
            *(curve([0.7 + 0.1 * s, 0.8], seed=s, every=10) for s in (0, 1)),
            curve([0.9], seed=0, series="DeComFL K=4"),
        ]
    )
    authors = pd.concat([curve([0.5], seed=1), curve([0.8], seed=1, series="DeComFL K=4"), curve([0.5], seed=1)[:0]])
    found = compared(ours, authors, BY).set_index("series")
    assert found["round"].tolist() == [20, 20]
    assert found.loc["DeComFL K=4", "margin"] == pytest.approx(2 * (0.8 * 0.2 / 10_000) ** 0.5)  # both ours agree there
    early = compared(ours.assign(round=lambda f: 2 * f["round"]), authors, BY).set_index("series")
    assert early.loc["DeComFL K=1", "margin"] == pytest.approx(2 * 0.5 / 100 + 0.1 / 2**0.5)


def test_gaps_of_two_estimators_are_of_equal_seeds_and_rounds() -> None:
    line = [0.3, 0.5, 0.6, 0.7]
    ours = [curve(line, seed=0).assign(check=False), curve(line[::-1], seed=1).assign(check=False)]
    rows = pd.concat([*ours, curve([0.31, 0.5, 0.62], seed=0).assign(check=True)]).assign(seconds=1.0)
    found = estimators.gaps(rows, BY)
    assert found.gap.tolist() == pytest.approx([0.01, 0.0, 0.02])
    table = estimators.gaps_table(found, BY).iloc[0]
    assert (table.series, table["rounds compared"], table["at round"]) == ("left, DeComFL K=1", 60, 60)
    assert table["largest difference in accuracy"] == pytest.approx(0.02)
    error = (2 * 0.61 * 0.39 / 10_000) ** 0.5  # two of them are 0.0138
    assert 2 * error < 0.02 < 3 * error
    assert found.within.tolist() == [True, True, False]


def test_each_verdict_can_come_out_either_way() -> None:
    authors = pd.concat([curve([0.5, 0.80, *[0.90] * 8], seed=233), curve([0.6, 0.84, *[0.90] * 8], seed=42)])

    def found(first: list[float], **more: object) -> pd.DataFrame:
        return bands_table(compared(curve([*first, *first[-1:] * 7], seed=0, **more), authors, BY), BY)

    def verdict(bands: pd.DataFrame, wanted: int = 1, *, testable: bool = True) -> str:
        return evaluated(CLAIMS["fig3.band"], {"bands": judged_bands(bands, wanted, testable=testable)}).verdict

    one, other = found([0.55, 0.82, 0.90]), found([0.55, 0.82, 0.80])
    assert verdict(one) == "holds"
    assert verdict(other) == "does not hold"
    assert verdict(one.assign(**{"seeds that diverged": 1})) == "does not hold"
    nothing = found([0.5, 0.5, 0.5], series="other")
    for undecided in (one[:0], other.assign(finished=False), nothing, one.assign(evaluations=9)):
        assert verdict(undecided) == "not tested at this scale"
    assert verdict(one, testable=False) == verdict(one, 2) == "not tested at this scale"
