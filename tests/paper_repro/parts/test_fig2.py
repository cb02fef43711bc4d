"""Figure 2: its runs, its countings, and its verdicts, each of which can come out either way."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from paper_repro.parts import fig2
from paper_repro.workflow import scales
from paper_repro.workflow.claims import CLAIMS
from paper_repro.workflow.expression import evaluated
from paper_repro.workflow.part import Options
from paper_repro.workflow.reference import fig2_reference
from paper_repro.workflow.scales import SCALES, Fig2Scale

TINY = Fig2Scale(
    M=4,
    m=2,
    batch_size=2,
    local_rounds={1: 3, 4: 2, 10: 1},
    perturbation_rounds=2,
    local_differences={1: 2},
    perturbation_differences={10: 1, 20: 0, 40: 0},
    written_rounds={1: 1, 4: 1, 10: 1},
    written_perturbation_rounds=1,
    fedavg_rounds=2,
    fedzo_rounds=1,
    seeds=(0, 1),
    eval_every={1: 1, 4: 1, 10: 1},
)


def options(scale: str, readings: tuple[str, ...] = tuple(scales.READINGS)) -> Options:
    return Options(scale=SCALES[scale], readings=readings, count="wire", cache=Path("unused"))


def test_readings_differ_where_text_and_logs_differ() -> None:
    jobs = {reading: fig2.jobs(options("full", (reading,))) for reading in tuple(scales.READINGS)}
    plotted, written = (
        next(j.config for j in jobs[r] if j.labels["series"] == "DeComFL K=4 P=20" and j.labels["panel"][0] == "l")
        for r in tuple(scales.READINGS)
    )
    assert plotted.method.name == written.method.name == "decomfl-projection"
    assert (plotted.split, written.split) == ("iid", "dirichlet")
    assert (plotted.momentum, plotted.momentum_form) == (0.9, "torch")
    assert (written.momentum, written.momentum_form) == (0.5, "paper")
    assert (plotted.lr, plotted.weight_decay, plotted.batch_size) == (0.001, 1e-5, 256)
    assert (plotted.clients, plotted.sampled, plotted.rounds) == (100, 10, 2000)
    assert {j.config.local_steps for j in jobs["as-plotted"] if j.labels["panel"] == "local-updates"} >= {1, 4, 10}
    right = [j.config for j in jobs["as-plotted"] if j.labels["panel"] == "perturbations" and not j.labels["check"]]
    assert [c.perturbations for c in right] == [10, 20, 40]
    assert {c.lr for c in right} == {0.0005}


def test_finite_differences_check_every_curve_with_its_first_seed_and_come_last() -> None:
    jobs = fig2.jobs(options("full", ("as-plotted",)))
    checks = {(j.labels["panel"], j.labels["series"]): j for j in jobs if j.labels["check"]}
    lines = {
        (j.labels["panel"], j.labels["series"]): j for j in reversed(jobs) if j.labels["estimator"] == "projection"
    }
    assert set(checks) == set(lines)
    for curve, check in checks.items():
        assert check.config == lines[curve].config.but("decomfl", rounds=check.config.rounds)
        assert check.urgency > max(job.urgency for job in lines.values())
    assert {job.config.rounds for job in checks.values()} == {2000, 300}
    assert {job.config.eval_every for job in (*checks.values(), *lines.values())} == {20}
    assert [j.config.seed for j in jobs if j.urgency == 0] == [0] * 8


@pytest.mark.parametrize("scale", SCALES)
def test_a_tenth_of_the_clients_is_sampled_at_every_scale(scale: str) -> None:
    size = SCALES[scale].fig2
    assert size.m * 10 == size.M
    assert ("not the paper's" in fig2.scale_words(SCALES[scale])) == (scale != "full")


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


def test_what_happens_eventually_is_judged_only_when_the_curves_are_flat() -> None:
    rows = _frame(k_helps=True, p_helps=True, saves=True)
    rising = rows["panel"].eq("perturbations") & rows["round"].eq(2)
    rows.loc[rising, "test_accuracy"] -= 0.3
    verdicts = _verdicts(rows)
    assert (verdicts["perturbations"], verdicts["local-updates"]) == ("not tested at this scale", "holds")


REFERENCE = """figure,series,seed,step,metric,value
fig2_left,DeComFL K=1 P=20 lr=0.001,233,19,test_accuracy,0.3
fig2_left,DeComFL K=1 P=20 lr=0.001,233,2019,test_accuracy,0.9
fig2_left,FedAvg K=4 (file was named K=5 until 1dda74d) lr=0.1,99,0,test_accuracy,0.2
fig2_left,FedAvg K=4 (file was named K=5 until 1dda74d) lr=0.1,99,0,test_accuracy,0.2
fig2_right,DeComFL K=4 P=10 lr=0.0005,99,19,test_accuracy,0.4
fig2_right,DeComFL K=4 P=10 lr=0.0005,99,19,train_loss,2.4
fig3_left,DeComFL K=5 P=25..200 lr=0.0005,4242,3,train_loss,2.0
"""


def test_the_authors_curves_are_read_with_their_own_counting(tmp_path: Path) -> None:
    (tmp_path / "authors_curves.csv").write_text(REFERENCE)
    rows = fig2_reference(tmp_path)
    assert len(rows) == 3  # beyond the plotted rounds, doubled, other metrics and figures are left out
    one = rows[rows.series == "DeComFL K=1 P=20"].iloc[0]
    assert (one["round"], one.plotted_scalars, one.table1_scalars) == (20, 380.0, pytest.approx(840.0))
    assert rows[rows.method == "FedAvg"].series.tolist() == ["FedAvg K=5"]


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
