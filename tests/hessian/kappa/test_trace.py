"""tr(H) alone: its interval holds the dense trace as often as it says."""

import numpy as np

import hessian
from tests.hessian.spectra import rotated

VALUES = np.concatenate([[30.0, -11.0], np.linspace(0.0, 1.0, 198)])


def test_its_interval_holds_and_is_as_narrow_as_asked_for() -> None:
    operator, true = rotated(list(VALUES)), float(VALUES.sum())
    found = [hessian.trace(operator, rtol=0.02, seed=seed) for seed in range(60)]
    assert all(each.reached for each in found)
    assert all(each.interval[1] - each.interval[0] <= 0.04001 * abs(each.value) for each in found)
    assert sum(each.interval[0] <= true <= each.interval[1] for each in found) >= 52


def test_how_well_the_norm_is_known_costs_it_nothing() -> None:
    """Alike eigenvalues with a spike: the trace needs few probes, and ‖H‖₂ many steps."""
    operator = rotated([1.2, *np.linspace(0.9, 1.1, 299)])
    alone, with_norm = hessian.trace(operator, seed=1), hessian.effective_rank(operator, seed=1)
    assert alone.reached
    assert alone.products < with_norm.products / 2


def test_it_prints_its_interval_and_whether_that_is_reached() -> None:
    found = hessian.trace(rotated(list(VALUES)), products=8)
    assert str(found).startswith("tr(H) = 1")
    assert str(found).endswith("(8 products, not within ± 5 % of it)") == (not found.reached)
    assert found.to_json()["interval"] == list(found.interval)
