"""Evidence at given numbers: two sides of a statement, compared there."""

from __future__ import annotations

from typing import Any

import numpy as np

from theory.audit.entry import Evidence

__all__ = ["agree", "differ", "exceeds", "keeps"]


def exceeds(what: str, left: float, right: float) -> Evidence:
    """A counter-example to left ≤ right: with these numbers the left side is the larger one."""
    return Evidence("counter-example", left > right, f"{what}: {left:.6g} > {right:.6g}", _sides(left, right))


def keeps(what: str, left: float, right: float) -> Evidence:
    """With these numbers left ≤ right, up to 10⁻⁹ of it: what a mended statement does where the printed one fails."""
    holds = left <= right + 1e-9 * abs(right)
    return Evidence("counter-example", holds, f"{what}: {left:.6g} ≤ {right:.6g}", _sides(left, right))


def agree(what: str, left: Any, right: Any) -> Evidence:
    """Exact numbers, or arrays of them, are equal."""
    return Evidence("algebra", bool(np.all(left == right)), f"{what}: equal, {_shown(left)} and {_shown(right)}")


def differ(what: str, left: Any, right: Any) -> Evidence:
    """Exact numbers, or arrays of them, are not equal."""
    return Evidence("counter-example", not np.all(left == right), f"{what}: {_shown(left)} against {_shown(right)}")


def _sides(left: float, right: float) -> dict[str, float]:
    return {"left": float(left), "right": float(right)}


def _shown(value: Any) -> str:
    """A number, or the trace of a matrix."""
    return f"trace {np.trace(value)}" if np.ndim(value) == 2 else str(value)
