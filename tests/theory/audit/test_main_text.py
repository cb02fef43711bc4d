"""Displays and claims of the main text: what the checks are made of."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, product

import pytest

from theory.audit import main_text
from theory.audit.entry import Entry, gather
from theory.audit.main_text import ENTRIES, best_average, words_moved
from theory.bounds import statement


def _entry(label: str) -> Entry:
    return next(each for each in ENTRIES if each.label == label)


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


def test_words_are_those_of_all_histories() -> None:
    """Every sampling history of a small federation, counted by hand as Algorithms 3 and 4 send."""
    R, M, m, K, P = 3, 3, 2, 2, 5
    sets = list(combinations(range(M), m))
    records = plans = replies = 0
    for history in product(sets, repeat=R):
        last = dict.fromkeys(range(M), 0)
        for r, sampled in enumerate(history):
            for i in sampled:
                records += 2 * K * P * (r - last[i])
                plans += K * P
                replies += K * P
                last[i] = r
    n = len(sets) ** R
    assert words_moved(R=R, M=M, m=m, K=K, P=P) == pytest.approx((records / n, plans / n, replies / n))


@pytest.mark.parametrize("label", ["line-135", "line-181", "line-182", "line-477.4"])
def test_a_speed_up_that_there_is_would_not_be_called_false(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ideal = {name: lambda n: 1 / math.sqrt(n) for name in main_text._MORE}
    monkeypatch.setattr(main_text, "_MORE", ideal)
    assert not gather(_entry(label)).confirmed


def test_a_corrected_corollary_with_a_wrong_constant_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    corollary = statement("corollary-1")
    halved = replace(corollary, terms={"rate": corollary.terms["rate"]})
    small = replace(halved, terms={"rate": type(halved.terms["rate"])(f"1/100*({halved.terms['rate'].text})")})
    assert main_text._mended_rate().holds
    monkeypatch.setattr(main_text, "statement", lambda name: small)
    assert not main_text._mended_rate().holds


def test_a_cell_of_table_1_with_a_wrong_power_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = main_text._TABLE_1["FedZO"]
    monkeypatch.setattr(main_text, "_TABLE_1", {**main_text._TABLE_1, "FedZO": (*cells[:3], "d/(P*K*e**2)", cells[4])})
    found = gather(_entry("tab-comm-comparison"))
    assert not found.confirmed
    assert "FedZO up: d" in found.evidence[0].says


def test_a_method_that_grows_with_the_model_is_not_called_dimension_free() -> None:
    assert main_text._dimension_free("decomfl").holds
    assert not main_text._dimension_free("baffle").holds


def test_seeds_that_are_not_sent_again_would_make_the_downlink_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_text, "words_moved", lambda **case: (words_moved(**case)[0], 0.0, 0.0))
    assert not gather(_entry("line-477.2")).confirmed


def test_another_number_of_the_text_is_caught() -> None:
    assert main_text._within("x", 10, 10.4, 2).holds
    assert not main_text._within("x", 11, 10.4, 2).holds
    assert not main_text._parameters("cnn-mnist", 28_939).holds


def test_a_wrong_order_of_taylor_is_caught() -> None:
    assert main_text._expansion(2).holds
    assert not main_text._expansion(3).holds
