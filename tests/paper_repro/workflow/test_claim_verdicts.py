"""Lines of claims.toml: rules by hand, and verdicts that come out either way on the recorded rows.

That each line says what is recorded, and so every measure what it said, ``test_recomputed`` sees.
"""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from paper_repro.workflow.verdicts.claim_table import CLAIMS
from paper_repro.workflow.verdicts.claim_verdicts import evaluated
from tests.cases import rows_of, sampled
from tests.paper_repro.recomputed import images, others  # noqa: F401 (they register)
from tests.paper_repro.recomputed.common import outcomes, part_of

TABLES = rows_of(__file__)
OUTCOMES = {outcome["id"]: outcome for outcome in outcomes()}
LINES = [name for name, own in CLAIMS.items() if own.line and "*" not in name]


@pytest.mark.parametrize(("condition", "numbers", "verdict"), TABLES["rules"])
def test_rules_of_numbers_with_errors(condition: dict[str, Any], numbers: list[Any], verdict: str) -> None:
    frame = pd.DataFrame(numbers, columns=["value", "error"]).rename_axis("n").reset_index()
    each = {"hidden": "x {n}", "measure": "column", "column": "value", "error": "error", "take": "first"}
    line = {"numbers": [{"each": ["n"], "numbers": [each]}], "decides": [{"of": "x *", **condition}]}
    assert evaluated(replace(CLAIMS["fig2.saving"], line=line), {"": frame}).verdict == verdict


@pytest.mark.parametrize(("number", "told"), TABLES["measures"])
def test_measures_of_what_is_not_recorded(number: dict[str, Any], told: Any) -> None:
    rounds = {"short": [10, 20], "long": [10, 20, 40]}
    curves = [pd.DataFrame({"round": own, "series": name}) for name, own in rounds.items()]
    frame = pd.concat(curves).assign(finished=True, wire_scalars=lambda t: 10 * t["round"])
    ends = [{"hidden": name, "measure": "value", "value": value} for name, value in (("from", 2.0), ("to", 3.0))]
    line = {"numbers": [*ends, {"tell": "x", **number}], "decides": [{"of": "x", "rule": "above", "bound": 0.5}]}
    found = evaluated(replace(CLAIMS["fig2.saving"], line=line), {"": frame})
    assert found.verdict == "holds"
    assert found.measured["x"] == (None if told == "never" else told)


def with_bounds(name: str, kept: bool) -> str:
    """The verdict on the recorded rows were the bounds so that all numbers keep their rules, or break them."""
    own = CLAIMS[name]
    decides = []
    for condition in own.line["decides"]:
        up = (condition["rule"] in ("below", "at most", "no more")) == kept
        moved = {**condition, "bound": 1e12 if up else -1e12}
        if condition["rule"] in ("rises", "falls"):
            moved["rule"] = "above"
        decides.append(moved)
    return evaluated(replace(own, line={**own.line, "decides": decides}), part_of(OUTCOMES[name]).frames).verdict


@pytest.mark.parametrize("name", sampled(LINES, 24))
def test_every_verdict_can_come_out_either_way(name: str) -> None:
    """But where a condition on the way is not kept by what is recorded."""
    if CLAIMS[name].line.get("of", "") not in part_of(OUTCOMES[name]).frames:
        pytest.skip("needs the authors' curves (DECOMFL_REFERENCE)")
    found = {with_bounds(name, kept) for kept in (True, False)}
    assert found in (
        {"holds", "does not hold"},
        {"holds", "depends on how it is counted"},
        {"not tested at this scale"},
    )
    if found == {"not tested at this scale"}:
        assert name in STOPPED


STOPPED = ("fig2.p-over-k", "sizes.same-round", "sizes.larger-later", "sizes.not-by-d")
"""Lines that recorded rows do not decide, whatever their bounds: ``test_figures`` and ``test_sizes`` have others."""
