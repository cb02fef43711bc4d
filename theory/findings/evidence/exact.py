"""Evidence from exact numbers, or arrays of them, by their equality: no rounding is forgiven."""

from __future__ import annotations

from typing import Any

import numpy as np

from theory.findings.finding import Evidence

__all__ = ["same", "unlike"]


def same(left: Any, right: Any, what: str) -> Evidence:
    """Exact numbers, or arrays of them, are equal."""
    unequal = np.argwhere(np.asarray(left) != np.asarray(right))
    at = tuple(unequal[0]) if len(unequal) else (0,) * np.ndim(left)
    return Evidence("algebra", not len(unequal), f"{what}: {_entry(left, right, at, '≠' if len(unequal) else '=')}")


def unlike(left: Any, right: Any, what: str) -> Evidence:
    """Exact numbers, or arrays of them, are not equal."""
    found = same(left, right, what)
    return Evidence("counter-example", not found.holds, found.says, against=True)


def _entry(left: Any, right: Any, at: tuple[int, ...], sign: str) -> str:
    """Both numbers, or one entry of both arrays."""
    where = f" in entry {tuple(int(index) + 1 for index in at)}" if at else ""
    return f"{np.asarray(left)[at]} {sign} {np.asarray(right)[at]}{where}"
