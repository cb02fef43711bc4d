"""Figure 2: verdicts that the recorded rows leave open, or that flat curves alone decide."""

import pandas as pd
import pytest

from paper_repro.workflow.claims import CLAIMS
from paper_repro.workflow.expression import evaluated


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
