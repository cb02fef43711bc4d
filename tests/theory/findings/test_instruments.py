"""The instruments of the audit find what they are for, and nothing else."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import sympy as sp

from tests.cases import rows_of
from theory.findings import instruments
from theory.findings.evidence import formulas
from theory.findings.instruments import Axis, beyond, breaks, keeps, search, within
from theory.notation.setting import Setting
from theory.notation.symbols import D, K, L, eta, mu


@pytest.mark.parametrize("case", rows_of(__file__)["case"], ids=str)
def test_sides_and_units_that_are_as_they_should_be_and_others(case: dict[str, Any]) -> None:
    given = {name: value for name, value in case.items() if name != "holds"}
    check = formulas.compared if "what" in case else formulas.units
    assert check(**given).holds is case["holds"]


def test_evidence_has_its_numbers_and_units_and_sees_what_is_not_evaluated_yet() -> None:
    assert instruments.exceeds(3.0, 2.0, "three").numbers == {"left": 3.0, "right": 2.0}
    assert "F^3/X^4" in instruments.wrong_unit("remainder", remainder=mu**2 * L**4 * eta, start=D / eta).says
    with sp.evaluate(False):
        square = K * K / K
    assert instruments.equal(square, K, "what is not evaluated yet").holds


@pytest.mark.parametrize(("constant", "holds"), [(1.0, True), (0.9, False)])
def test_search_finds_the_violating_region(constant: float, holds: bool) -> None:
    """x(2 − x) ≤ constant fails only near x = 1."""

    def ratio(at: Mapping[str, float]) -> float:
        return at["x"] * (2 - at["x"]) / constant

    worst = search(ratio, {"x": Axis(1e-3, 1e3)})
    assert within(worst).holds is holds
    assert beyond(worst).holds is not holds
    assert worst.at["x"] == pytest.approx(1.0, abs=0.05)
    assert str(worst.tried) in str(worst)


def test_a_ratio_over_ranges_is_a_check_that_is_given_what_comes_before_them() -> None:
    @instruments.everywhere("a share")
    @instruments.over(effort=5, n=instruments.whole(1, 7))
    def share(of: int, *, n: int) -> float:
        assert isinstance(n, int)
        return n / of

    assert share(7).holds
    assert share(7).numbers == {"ratio": 1.0, "n": 7.0}
    assert not share(6).holds


def test_a_bound_is_broken_or_kept_only_at_admissible_constants() -> None:
    here = Setting(d=1, L=1.0, P=1000, R=100, sigma=1.0, D=0.0, eta=0.1)
    outside = replace(here, eta=1.0)
    for judged, left, other in ((breaks, 1.0, 1e-6), (keeps, 1e-6, 100.0)):
        assert judged("theorem-1", left, here, "planted").holds
        assert not judged("theorem-1", other, here, "planted").holds
        assert not judged("theorem-1", left, outside, "planted").holds
