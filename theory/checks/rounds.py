"""How many rounds until the average of E‖∇f‖² is below ε, at the best step size: by a bound, and in truth."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import require, require_finite_positive
from theory.notation.formula import names_in
from theory.notation.setting import Setting
from theory.problems.quadratic import Quadratic, expected
from theory.statements.statement import Statement


@dataclass(frozen=True)
class Rounds:
    """Rounds to ε."""

    rounds: float  # R; infinite where ε is never reached
    eta: float  # the η that needs the fewest. [X²/F]


def rounds_by_bound(statement: Statement, setting: Setting, epsilon: float) -> Rounds:
    """The least R, over all admissible η, at which the bound is ε.

        R(η) = start₁(η)/(ε − the other terms at η),   start₁ the term start at R = 1

    Args:
        statement: A statement whose term named start is in proportion to 1/R, and no other has R in it.
        setting: The constants; η and R are not read.
        epsilon: ε > 0. [F²/X²]

    Raises:
        InputError: If ε is not above 0, or the statement is not of this form.
    """
    require_finite_positive("epsilon", epsilon)
    with_R = [name for name, term in statement.terms.items() if "R" in names_in(term)]
    require(with_R == ["start"], "statement", "have R in its term start alone", statement.name)
    once = replace(setting, R=1)
    largest = statement.step_sizes(once).largest

    def rounds(log_eta: float) -> float:
        terms = dict(zip(statement.terms, statement.bound(once.at(math.exp(log_eta))), strict=True))
        left = epsilon - (sum(terms.values()) - terms["start"])
        return terms["start"] / left if left > 0 else math.inf

    top = math.log(largest)
    return _least(rounds, top - 30.0, top, 120)


def rounds_of(quadratic: Quadratic, setting: Setting, epsilon: float, *, bound: Rounds) -> Rounds:
    """The least R, over η, with (1/R) Σ_{r<R} E‖∇f(x_r)‖² ≤ ε on a quadratic, by its exact recursion.

    Of the setting η and R are not read. ``bound`` is what a valid bound says: its R is enough, and η is sought from a
    decade below its to three above. InputError if ε, in F²/X², is not above 0.
    """
    require_finite_positive("epsilon", epsilon)
    middle, enough = math.log(bound.eta), math.ceil(bound.rounds)
    fewest = Rounds(math.inf, bound.eta)
    for share in (64, 16, 4, 1):  # the truth is often a small part of the bound
        counts = np.arange(1, enough // share + 2)

        def rounds(log_eta: float, counts: NDArray[np.int64] = counts) -> float:
            trajectory = expected(quadratic, replace(setting, R=len(counts), eta=math.exp(log_eta)))
            with np.errstate(over="ignore", invalid="ignore"):
                reached = np.flatnonzero(np.cumsum(trajectory.gradient2[:-1]) <= epsilon * counts)
            return float(reached[0] + 1) if reached.size else math.inf

        fewest = _least(rounds, middle - math.log(10.0), middle + math.log(1e3), 14)
        if math.isfinite(fewest.rounds):
            break
    return fewest


def _least(rounds: Callable[[float], float], low: float, high: float, points: int) -> Rounds:
    """The fewest rounds and their η, of a function rounds(log η) with one valley, infinite beside it.

    By two grids of so many ``points``: from low to high, which are log η, and a finer one about the best of it.
    """
    center, width = 0.5 * (low + high), 0.5 * (high - low)
    fewest = Rounds(math.inf, math.exp(center))
    for _ in range(2):
        grid = np.linspace(max(low, center - width), min(high, center + width), points).tolist()
        values = [rounds(log_eta) for log_eta in grid]
        least = int(np.argmin(values))
        fewest = min(fewest, Rounds(values[least], math.exp(grid[least])), key=lambda found: found.rounds)
        center, width = grid[least], grid[1] - grid[0]
    return fewest


def stability_limit(setting: Setting) -> float:
    """2/(Lρ): from this η on E‖x_r‖² grows under f = ½L‖x‖², where a local step multiplies it by 1 − 2ηL + η²L²ρ.

    Clients that share H and the directions move as one, so neither m nor K changes it.
    """
    return 2.0 / (setting.L * setting.values["rho"])
