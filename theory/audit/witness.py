"""Evidence from exact numbers, or arrays of them: two sides of an identity that are one, or not."""

from __future__ import annotations

from typing import Any

import numpy as np

from theory.audit.entry import Evidence

__all__ = ["at_most", "exceeds", "same", "unlike"]


def exceeds(left: float, right: float, what: str) -> Evidence:
    """A counter-example to left ≤ right: with these numbers the left side is the larger one."""
    return Evidence("counter-example", left > right, f"{what}: {left:.6g} > {right:.6g}", _sides(left, right))


def at_most(left: float, right: float, what: str) -> Evidence:
    """With these numbers left ≤ right, up to 10⁻⁹ of it: what a mended statement does where the printed one fails."""
    holds = left <= right + 1e-9 * abs(right)
    return Evidence("counter-example", holds, f"{what}: {left:.6g} ≤ {right:.6g}", _sides(left, right))


def _sides(left: float, right: float) -> dict[str, float]:
    return {"left": float(left), "right": float(right)}


def same(left: Any, right: Any, what: str) -> Evidence:
    """Exact numbers, or arrays of them, are equal."""
    unequal = np.argwhere(np.asarray(left) != np.asarray(right))
    at = tuple(unequal[0]) if len(unequal) else (0,) * np.ndim(left)
    return Evidence("algebra", not len(unequal), f"{what}: {_entry(left, right, at, '≠' if len(unequal) else '=')}")


def unlike(left: Any, right: Any, what: str) -> Evidence:
    """Exact numbers, or arrays of them, are not equal."""
    found = same(left, right, what)
    return Evidence("counter-example", not found.holds, found.says)


def _entry(left: Any, right: Any, at: tuple[int, ...], sign: str) -> str:
    """Both numbers, or one entry of both arrays."""
    where = f" in entry {tuple(int(index) + 1 for index in at)}" if at else ""
    return f"{np.asarray(left)[at]} {sign} {np.asarray(right)[at]}{where}"
