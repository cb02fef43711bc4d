"""Figure 2: its verdicts, each of which can come out either way."""

from __future__ import annotations

import math

import pandas as pd

from paper_repro.parts import fig2
from paper_repro.workflow.claims import CLAIMS
from paper_repro.workflow.expression import Reading, evaluated, ordered
from paper_repro.workflow.scales import SCALES


def _run(
    panel: str, method: str, K: int, P: int, accuracies: list[float], seed: int = 0, cost: float = 1.0
) -> pd.DataFrame:
    label = f"{method} K={K} P={P}" if method == "DeComFL" else f"{method} K={K}"
    rounds = range(1, len(accuracies) + 1)
    frame = pd.DataFrame({"round": rounds, "test_accuracy": accuracies})
    frame = frame.assign(
        reading="as-plotted",
        panel=panel,
        method=method,
        series=label,
        K=K,
        P=P,
        seed=seed,
        wire_scalars=frame["round"] * cost,
        check=False,
        estimator="projection",
        examples=10_000,
        seconds=frame["round"] * 1.0,
    )
    return fig2.add_countings(frame, SCALES["full"])


def _frame(*, k_helps: bool, p_helps: bool, saves: bool) -> pd.DataFrame:
    parts = []
    for seed in (0, 1):
        wobble = 0.001 * seed
        for K, top in zip((1, 4, 10), (0.9, 0.91, 0.92) if k_helps else (0.9, 0.7, 0.5), strict=True):
            parts.append(_run("local-updates", "DeComFL", K, 20, [0.1, top + wobble, top + wobble], seed))
        for K in (5, 10):
            ours = [0.1 + 0.02 * n + wobble for n in range(40)]
            parts.append(_run("local-updates", "FedAvg", K, 0, ours, seed, cost=100.0 if saves else 1e-6))
    for P, top in zip((10, 20, 40), (0.9, 0.93, 0.96) if p_helps else (0.9, 0.7, 0.5), strict=True):
        parts += [_run("perturbations", "DeComFL", 4, P, [0.1, top, top], seed) for seed in (0, 1)]
    return pd.concat(parts, ignore_index=True)


def _verdicts(rows: pd.DataFrame) -> dict[str, str]:
    return {claim.id.removeprefix("fig2."): claim.verdict for claim in fig2.claims(rows, SCALES["full"])}


def test_each_verdict_can_come_out_either_way() -> None:
    good = _verdicts(_frame(k_helps=True, p_helps=True, saves=True))
    expected = ("local-updates", "perturbations", "p-over-k", "saving", "fedavg-not-converged")
    assert {name: good[name] for name in expected} == dict.fromkeys(expected, "holds")
    bad = _verdicts(_frame(k_helps=False, p_helps=False, saves=False))
    assert bad["local-updates"] == bad["perturbations"] == "does not hold"
    assert bad["p-over-k"] == bad["saving"] == "not tested at this scale"  # 0.5 is not trained
    mixed = _verdicts(_frame(k_helps=True, p_helps=True, saves=False))
    assert mixed["saving"] == "depends on how it is counted"


def test_what_happens_eventually_is_judged_only_when_the_curves_are_flat() -> None:
    rows = _frame(k_helps=True, p_helps=True, saves=True)
    rising = rows["panel"].eq("perturbations") & rows["round"].eq(2)
    rows.loc[rising, "test_accuracy"] -= 0.3
    verdicts = _verdicts(rows)
    assert (verdicts["perturbations"], verdicts["local-updates"]) == ("not tested at this scale", "holds")


def test_differences_within_the_noise_decide_nothing() -> None:
    assert ordered([Reading(0.50, 0.02), Reading(0.52, 0.02)]) == "not tested at this scale"
    assert ordered([Reading(0.50, 0.001), Reading(0.52, 0.001)]) == "holds"
    assert ordered([Reading(0.52, 0.001), Reading(0.50, 0.001)]) == "does not hold"
    assert ordered([Reading(0.50, math.nan), Reading(0.52, math.nan)]) == "not tested at this scale"


def test_equal_gains_refute_that_one_is_larger_and_unclear_ones_do_not() -> None:
    def verdict(p: tuple[float, ...], apart: float = 0.001, seeds: tuple[int, ...] = (0, 1)) -> str:
        def run(panel: str, K: int, P: int, a: float, seed: int) -> pd.DataFrame:
            return _run(panel, "DeComFL", K, P, [0.1, a + seed * apart, a + seed * apart], seed)

        by_k, by_p = {1: 0.92, 4: 0.93, 10: 0.9532}, dict(zip((10, 20, 40), p, strict=True))
        left = [run("local-updates", K, 20, a, seed) for K, a in by_k.items() for seed in (0, 1)]
        right = [run("perturbations", 4, P, a, seed) for P, a in by_p.items() for seed in seeds]
        return evaluated(CLAIMS["fig2.p-over-k"], {"": pd.concat([*left, *right])}).verdict

    assert verdict((0.93, 0.94, 0.95)) == "does not hold"  # 0.01 a doubling of either
    assert verdict((0.93, 0.94, 0.98)) == "holds"
    assert verdict((0.93, 0.93, 0.92)) == "does not hold"
    assert verdict((0.93, 0.94, 0.95), apart=0.02) == "not tested at this scale"
    assert verdict((0.93, 0.94, 0.98), seeds=(0,)) == "not tested at this scale"
