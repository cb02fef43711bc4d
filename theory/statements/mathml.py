"""Bounds as MathML, which browsers draw."""

from __future__ import annotations

from html import escape

import sympy as sp

from theory.statements.statement import Statement

__all__ = ["formula", "inequality"]


def formula(expression: sp.Expr) -> str:
    """A formula in the symbols of ``theory.notation.symbols`` as presentation MathML, without the element around it."""
    written: str = sp.mathml(expression.doit(), printer="presentation", mul_symbol="")
    return written.replace("<mo></mo>", "")


def inequality(each: Statement) -> str:
    """A statement as one MathML element: its left side, the sum of its terms, its conditions on η and μ."""
    right = "<mo>+</mo>".join(f"<mrow>{formula(term)}</mrow>" for term in each.terms.values())
    limits = [("η", each.eta), ("μ", each.mu)]
    conditions = "".join(
        f"<mo>,</mo><mspace width='1em'/><mi>{name}</mi><mo>≤</mo>{formula(limit)}"
        for name, found in limits
        for limit in found.values()
    )
    return f"<math display='block'><mtext>{escape(each.left.text)}</mtext><mo>≤</mo>{right}{conditions}</math>"
