"""Displays of the main text: what the checks are made of."""

import pytest
import sympy as sp

from theory.findings.evidence import displays


def test_a_wrong_order_of_taylor_is_caught() -> None:
    assert displays.expansion(2).holds
    assert not displays.expansion(3).holds


def test_means_of_polynomials_of_a_normal_variable() -> None:
    z, a = sp.symbols("z a")
    assert displays._normal_mean(a * z**6 + z**3 + 2 * z**2 + 5, z) == 15 * a + 7


def test_another_momentum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def torchs(steps: int) -> tuple[sp.Expr, sp.Expr]:
        beta, m, moved = sp.Symbol("beta", positive=True), sp.Integer(0), sp.Integer(0)
        for k in range(1, steps + 1):
            m = beta * m + sp.Symbol(f"g{k}", positive=True)
            moved += m
        return m, moved

    monkeypatch.setattr(displays, "_unrolled", torchs)
    assert not displays.momentum_mended().holds
    assert not displays.momentum_step().holds
    assert displays.linear_in_scalars().holds


def test_one_direction_does_not_tell_an_inner_product(monkeypatch: pytest.MonkeyPatch) -> None:
    assert displays.told_by_pairs().holds
    monkeypatch.setattr(displays, "product", lambda *values, repeat: [(1,) * repeat])
    assert not displays.told_by_pairs().holds
