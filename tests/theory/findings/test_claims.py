"""Claims of the text and Table 1: what the checks are made of."""

from dataclasses import replace

import pytest

from tests.theory.findings.entries import entry, result
from theory import TABLE_1, Statement, statement
from theory.findings.evidence import claims
from theory.findings.evidence.claims import best_average
from theory.notation import symbols as s


def test_the_least_average_is_below_that_of_any_step_size() -> None:
    sigma, R = 1.0, 10_000
    for P in (1, 100):
        rho = 1 + 2 / P
        for eta in (1e-3, 1e-2, 0.1 / rho):
            # E x² after a step is (1 − 2η + η²ρ) E x² + η²ρσ², from x_0² = 2
            shrink, fixed = 1 - 2 * eta + eta**2 * rho, eta**2 * rho * sigma**2
            level = fixed / (1 - shrink)
            average = level + (2 - level) * (1 - shrink**R) / (1 - shrink) / R
            assert best_average(P=P, sigma=sigma) <= average * (1 + 1e-3)


@pytest.mark.parametrize("label", ["line-181", "line-183"])
def test_a_mended_rate_with_a_wrong_constant_is_caught(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def smaller(name: str) -> Statement:
        whole = statement(name)
        return replace(whole, terms={each: term / 100 for each, term in whole.terms.items()})

    mended = next(check for check in entry(label).checks("mends") if check.name.startswith("claims.mended"))
    assert mended.gather().holds
    monkeypatch.setattr(claims, "statement", smaller)
    assert not mended.gather().holds


def test_a_bound_that_grows_with_the_dimension_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert claims.flat_in_dimension().holds
    monkeypatch.setattr(claims, "statement", lambda name: statement("theorem-1-single"))
    assert not claims.flat_in_dimension().holds


def test_a_cell_of_table_1_with_a_wrong_power_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(TABLE_1["FedZO"], uplink_complexity=s.d / (s.P * s.K * s.epsilon**2))
    monkeypatch.setattr(claims, "TABLE_1", {**TABLE_1, "FedZO": row})
    found = result("tab-comm-comparison")
    assert not found.confirmed
    assert "FedZO up: d times" in found.evidence[0][1].says


def test_a_method_that_grows_with_the_model_is_not_called_dimension_free() -> None:
    assert claims.dimension_free("decomfl").holds
    assert not claims.dimension_free("baffle").holds


def test_another_number_of_the_text_is_caught() -> None:
    assert claims.within("x", 10, 10.4, 2).holds
    assert not claims.within("x", 11, 10.4, 2).holds
    assert not claims.parameters("cnn-mnist", 28_939).holds
