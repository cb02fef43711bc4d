"""Bounds as programs: terms, conditions, which binds, the best step size, and refusals by name."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import exp

from tests.cases import refuses, rows_of
from tests.theory.checks.test_verdict import alone
from theory import STATEMENTS, Setting, check, statement, value_of
from theory.notation import symbols as s
from theory.notation.setting import DISTRIBUTIONS, second_moment_factor

BASE = Setting(
    d=50, L=2.0, m=3, M=9, P=4, R=100, eta=1e-4, mu=1e-3, sigma=0.5, sigma_G=0.3, D=2.0, kappa=5.0, G=4.0,
    H3=0.4, alpha=0.1, Q=3.0, central=True,
)  # fmt: skip
ROWS = rows_of(__file__)
POINT = {"a": 0.7, "delta": 0.1}


@refuses(*ROWS["refused"])
def test_bad_constants_are_refused_by_name(changes: dict[str, Any]) -> None:
    replace(BASE, **changes)


@pytest.mark.parametrize("key", list(STATEMENTS), ids="/".join)
def test_terms_are_a_named_tuple_that_sums_to_the_bound(key: tuple[str, Any]) -> None:
    each = STATEMENTS[key]
    setting = replace(BASE, distribution=each.distributions[0], K=1)
    bound: Any = each.bound(setting, **POINT)
    assert bound._fields == tuple(each.terms)
    assert all(math.isfinite(term) and term >= 0 for term in bound)
    values = {**setting.values, **POINT}
    assert math.isclose(sum(bound), sum(value_of(formula, values) for formula in each.terms.values()))


@given(
    d=st.integers(1, 10**9),
    P=st.integers(1, 1000),
    K=st.integers(1, 100),
    m=st.integers(1, 100),
    M=st.integers(100, 200),
    share=st.floats(0, 1),
    distribution=st.sampled_from(DISTRIBUTIONS),
)
def test_the_corrected_step_size_owes_nothing_to_m(
    d: int, P: int, K: int, m: int, M: int, share: float, distribution: str
) -> None:
    each = statement("theorem-1")
    if distribution not in each.distributions:
        return
    here = Setting(d=d, P=P, K=K, m=m, M=M, L=3.0, distribution=distribution, kappa=1 + share * (d - 1))
    assert each.step_sizes(here).largest == each.step_sizes(replace(here, m=1)).largest


@given(
    d=st.integers(1, 10**6),
    P=st.integers(1, 1000),
    m=st.integers(1, 100),
    share=st.floats(0, 1),
    mu=st.floats(0, 10),
    eta_share=st.floats(1e-6, 1),
)
def test_the_printed_theorem_2_is_larger_than_what_is_proved(
    d: int, P: int, m: int, share: float, mu: float, eta_share: float
) -> None:
    """So it is true, under the corrected assumptions, for every admissible choice; without its term of wrong unit."""
    constants: Any = {"M": 100, "L": 0.3, "sigma": 1.0, "sigma_G": 2.0, "D": 1.0, "distribution": "sphere"}
    here = Setting(d=d, P=P, m=m, mu=mu, kappa=1 + share * (d - 1), **constants)
    printed, proved = statement("theorem-2", "stated"), statement("theorem-2")
    here = replace(here, eta=eta_share * printed.step_sizes(here).largest)
    assert proved.admits(here)
    terms: Any = printed.bound(here)
    assert sum(proved.bound(here)) <= (sum(terms) - terms.remainder) * (1 + 1e-12)


def test_the_best_step_size_has_the_smallest_bound() -> None:
    each = statement("theorem-1-single")
    here = replace(BASE, R=10**6, eta=None, mu=0.0)
    best = each.best_eta(here)
    smallest = sum(each.bound(replace(here, eta=best)))
    noise = second_moment_factor("gaussian", d=50, P=4) * (0.5**2 + here.phi * 0.3**2) / 3
    assert best == pytest.approx(math.sqrt(2.0 / (2.0 * noise * 10**6)), rel=1e-4)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert sum(each.bound(replace(here, eta=best * factor))) > smallest


def test_corollary_1_is_theorem_1_at_its_step_size() -> None:
    """Never below it, and within a factor 1.5 where its parts are not added twice."""
    theorem, corollary = statement("theorem-1"), statement("corollary-1")
    for K in (1, 5, 50):
        for R in (10, 10**4, 10**7):
            here = replace(BASE, K=K, R=R, eta=None)
            eta = corollary.step_sizes(here).largest
            assert theorem.admits(replace(here, eta=eta))
            ratio = sum(corollary.bound(here)) / sum(theorem.bound(replace(here, eta=eta)))
            assert 1.0 <= ratio < 1.5


@pytest.mark.parametrize(("heading", "name", "variant", "sign"), ROWS["rows"])
def test_the_page_assumes_of_the_sign_of_h_what_the_bound_does(
    heading: str, name: str, variant: Any, sign: bool
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "theory.md").read_text(encoding="utf-8")
    (section,) = (each for each in page.split("\n## ") if heading in each.split("\n")[0])
    hypotheses = section.split("*Proof.*")[0]
    assert bool(re.search(r"0 ⪯ H|H\(x_r\) ⪰ 0\*?\*?,", hypotheses)) is sign
    assert ("0 ⪯ H" in statement(name, variant).assumptions) is sign


# PL, convex and strongly convex forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "distance"), [("pl", s.D), ("pl-dimension-free", s.D), ("strongly-convex", s.Q)])
def test_a_rate_above_seven_quarters_of_the_proved_one_is_caught(name: str, distance: object) -> None:
    # On the sphere with H = L I a step multiplies by 1 − ηL(2 − ηLρ), and ηLρ = 1/4.
    quadratic, setting = alone("D", 1000, R=100_000, distribution="sphere")
    setting = setting.at(statement("pl").step_sizes(setting).largest)
    for share, holds in ((1.7, True), (1.8, False)):
        faster = replace(statement(name), terms={"start": exp(-share * s.alpha * s.eta * s.R) * distance})  # type: ignore[operator]
        assert check(faster, quadratic, setting).holds is holds
