"""The edge of stability: the rule with planted runs, every verdict made to come out either way, the part end to end."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from paper_repro.studies import edge
from paper_repro.studies.edge_runs import DIFFERENCES, PROJECTION, Point, at_point, points
from paper_repro.workflow.part import Options
from paper_repro.workflow.scales import SCALES

TINY = SCALES["smoke"].edge.but(
    M=4, m=2, batch_size=2, steps=4, seeds=(0,), factors=(1.0, 1e6), small_batch=2, small_factors=(), differences=(),
    Ks=(2,), measurements=2, examples=8, products=6, test_examples=20,
)  # fmt: skip
OPTIONS = Options(scale=SCALES["smoke"].but(edge=TINY), readings=("as-plotted",), count="wire")


def run(losses: list[float], *, diverged: bool = False) -> pd.DataFrame:
    return pd.DataFrame({"round": range(len(losses)), "test_loss": losses, "diverged": diverged})


# --- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "diverged", "apart"),
    [
        ([2.3, 1.0, 0.5, 0.4], False, False),  # learns
        ([2.3, 0.4, 1.5, 0.6], False, False),  # dips and recovers
        ([2.3, 0.4, 0.6, 0.9], False, True),  # is twice above its best at the end
        ([2.3, 0.4, 0.6, 0.79], False, False),  # is not
        ([2.3, 2.3, 2.3, 2.3], False, False),  # never learns, and loses nothing
        ([2.3, 0.4], True, True),  # its losses stopped being finite between two evaluations
        ([2.3, 0.4, float("nan")], False, True),
        ([2.3, 0.4, float("inf")], False, True),
    ],
)
def test_the_rule_of_coming_apart(losses: list[float], diverged: bool, apart: bool) -> None:
    frame = run(losses, diverged=diverged)
    assert edge.diverges(frame) is apart
    assert edge.diverges(frame.iloc[::-1]) is apart  # in whatever order rows come


# --- what is measured -------------------------------------------------------------------------------------------------


def rows(*, apart: bool, seed: int, **point: Any) -> pd.DataFrame:
    """A run that learns in three measurements and then loses it, or not."""
    own = Point(**{"estimator": PROJECTION, "batch": 256, **point})
    trace = [200.0, 2000.0, 3000.0, 40_000.0 if apart else 2500.0]
    frame = pd.DataFrame(
        {
            "round": [0, 10, 20, 30],
            "test_accuracy": [0.1, 0.8, 0.9, 0.1 if apart else 0.9],
            "test_loss": [2.3, 0.6, 0.4, 9.0 if apart else 0.4],
            "trace": trace,
            "ritz": [f"{each / 100:g} {each / 200:g}" for each in trace],
            "signal": 0.5,
            "variance": 50.0,
            "drawn": 100,
        }
    )
    return frame.assign(**vars(own), seed=seed, diverged=False)


def sweep(*, differences: int = 0, few: int = 8, pairs: int = 8) -> pd.DataFrame:
    """Eight seeds a point; by projection all diverge at 0.02 and, of ``few`` seeds, at P = 5, none elsewhere.

    ``differences`` is how many of ``pairs`` runs diverge by finite differences where all do by projection.
    """
    made = []
    for seed in range(8):
        made += [rows(apart=factor > 1.5, seed=seed, factor=factor) for factor in (0.5, 1.0, 2.0)]
        made += [rows(apart=P == 5 and seed < few, seed=seed, P=P) for P in (5, 40)]
        made += [rows(apart=False, seed=seed, **knob) for knob in ({"beta": 0.0}, {"K": 4})]
        if seed < pairs:
            made.append(rows(apart=True, seed=seed, factor=2.0, batch=32))
            made.append(rows(apart=seed < differences, seed=seed, factor=2.0, batch=32, estimator=DIFFERENCES))
    return pd.concat(made, ignore_index=True)


def test_shares_have_wilsons_intervals() -> None:
    table = edge.shares(edge.outcomes(edge.with_limits(sweep(few=2))))
    found = table[table["P"] == 5].iloc[0]
    assert (found["runs"], found["apart"], found["share"]) == (8, 2, 0.25)
    assert (found["low"], found["high"]) == pytest.approx((0.0715, 0.5907), abs=1e-4)


# --- verdicts ---------------------------------------------------------------------------------------------------------


UNTESTED, HOLDS, FAILS = "not tested at this scale", "holds", "does not hold"


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        # T is 3 at the turns of those at 0.02, and S above 1 in the runs that differences rescued.
        (sweep(), {"more-stable": HOLDS, "covered": FAILS, "directions": HOLDS, "turn": FAILS, "limit": FAILS}),
        (sweep(differences=8), {"more-stable": FAILS, "limit": HOLDS}),
        (sweep(differences=4), {"more-stable": UNTESTED}),  # p = 1/16
        (sweep(pairs=0), {"more-stable": UNTESTED}),
        (sweep(few=2), {"directions": UNTESTED}),
        (sweep(differences=8, few=0).assign(signal=math.inf), {"turn": HOLDS}),  # without noise T is about S, 1.5
        (sweep()[lambda frame: frame["seed"] == 0], {"more-stable": UNTESTED, "directions": UNTESTED}),
    ],
)
def test_pairs_and_points_decide(frame: pd.DataFrame, expected: dict[str, str]) -> None:
    found = {claim.id: claim.verdict for claim in edge.claims(edge.outcomes(edge.with_limits(frame)), "made up")}
    assert {name: found[f"edge.{name}"] for name in expected} == expected


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, list[dict[str, Any]], Path]:
    """The runs of a tiny sweep."""
    folder = tmp_path_factory.mktemp("edge")
    frames, facts = [], []
    for point in points(TINY):
        work = at_point(TINY, point, 0)
        frame, provenance = work.run(folder / work.key(), lambda _: None)
        assert frame.diverged.all() == frame.diverged.any() == (point.factor > 1)
        frames.append(frame.assign(**work.labels))
        facts.append(provenance)
    return pd.concat(frames, ignore_index=True), facts, folder


def test_the_part_is_made_of_runs(
    made: tuple[pd.DataFrame, list[dict[str, Any]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, facts, _ = made
    stayed = frame[frame["factor"] == 1.0]
    assert (stayed["trace"] > 0).all()
    assert stayed[stayed["K"] == 1]["round"].tolist() == [0, 2, 4]
    part = edge.make(frame, facts, OPTIONS)
    verdicts = {claim.id: claim.verdict for claim in part.claims}
    assert verdicts.pop("edge.covered") == "holds"  # one run is enough for it
    assert set(verdicts.values()) == {"not tested at this scale"}
    assert part.tables["edge"]["share"].tolist() == [0.0, 1.0, 0.0]
    assert part.section.figure is part.figures["edge"]
