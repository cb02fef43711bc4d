"""The edge of stability: the rule with planted runs, every verdict made to come out either way, the part end to end."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from paper_repro.parts.stability import edge
from paper_repro.parts.stability.edge_runs import USUAL, at_point, points
from paper_repro.workflow.scales import SCALES
from paper_repro.workflow.series import from_toml
from tests.cases import rows_of
from tests.paper_repro.parts.test_parts import options

TABLES = rows_of(__file__)

TINY = SCALES["smoke"].edge.but(**from_toml(TABLES["tiny"]))


# --- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("losses", "diverged", "apart"), TABLES["losses"])
def test_the_rule_of_coming_apart(losses: list[float], diverged: bool, apart: bool) -> None:
    frame = pd.DataFrame({"round": range(len(losses)), "test_loss": losses, "diverged": diverged})
    assert edge.diverges(frame) is apart
    assert edge.diverges(frame.iloc[::-1]) is apart  # in whatever order rows come


# --- what is measured -------------------------------------------------------------------------------------------------


def test_shares_have_wilsons_intervals() -> None:
    numbers = dict.fromkeys(("best_accuracy", "at_turn", "push_at_turn", "limit", "admitted"), 1.0)
    point = {**USUAL, "batch": 256, "fallen": False, **numbers}
    found = edge.shares(pd.DataFrame([{**point, "apart": seed < 2} for seed in range(8)])).iloc[0]
    assert (found["runs"], found["apart"], found["share"]) == (8, 2, 0.25)
    assert (found["low"], found["high"]) == pytest.approx((0.0715, 0.5907), abs=1e-4)


# --- runs -------------------------------------------------------------------------------------------------------------


def test_the_part_is_made_of_runs(tmp_path: Path) -> None:
    """Of a tiny sweep."""
    frames, facts = [], []
    for point in points(TINY):
        work = at_point(TINY, point, 0)
        own, provenance = work.run(tmp_path / work.key(), lambda _: None)
        assert own.diverged.all() == own.diverged.any() == (point["factor"] > 1)
        frames.append(own.assign(**work.labels))
        facts.append(provenance)
    frame = pd.concat(frames, ignore_index=True)
    stayed = frame[frame["factor"] == 1.0]
    assert (stayed["trace"] > 0).all()
    assert stayed[stayed["K"] == 1]["round"].tolist() == [0, 2, 4]
    part = edge.make(frame, facts, replace(options("smoke"), scale=SCALES["smoke"].but(edge=TINY)))
    verdicts = {claim.id: claim.verdict for claim in part.claims}
    assert verdicts.pop("edge.covered") == "holds"  # one run is enough for it
    assert set(verdicts.values()) == {"not tested at this scale"}
    assert part.tables["edge"]["share"].tolist() == [0.0, 1.0, 0.0]
    assert part.section.figure is part.figures["edge"]
