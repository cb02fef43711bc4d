"""How many rounds HiSo saves on power laws, and what of it is curvature: the table of docs/methods-theory.md.

python -m theory.bounds.successors.hiso_speed         # three exponents, 1, 10 and 100 directions; a few minutes
python -m theory.bounds.successors.hiso_speed 1 10    # one exponent, one number of directions
"""

import sys
from typing import Any

import numpy as np

from theory.bounds.successors.hiso import hiso_step, whitened
from theory.checks.simulation import simulate
from theory.checks.stability import largest_step
from theory.notation.setting import Setting
from theory.problems.problem import Floats
from theory.problems.quadratic import Quadratic
from theory.problems.spectrum import Spectrum
from theory.statements.algorithms import Losses, Step, decomfl

D, NU, SHARE, RUNS = 100, 0.95, 0.1, 16


def one_number(losses: Losses, x: Floats, v: Floats, z: Floats, setting: Setting) -> tuple[Floats, Floats]:
    """HiSo with the mean of h over the coordinates instead of h: a step size and nothing more."""
    h = 1 + v[:, 0]
    moved, _ = decomfl(losses, x, np.zeros_like(x), z / np.sqrt(h)[:, None], setting)
    squares = ((x - moved).mean(axis=1) / setting.eta) ** 2
    h = NU * h + (1 - NU) * squares.mean(axis=-1, keepdims=True)
    return moved, np.broadcast_to((h - 1)[:, None], x.shape)


def rounds(problem: Any, x: Floats) -> Floats:
    """How many until f is at most a tenth of what it was, in each run; all where it never is."""
    reached = problem.value(x) <= SHARE * problem.value(x[0])
    return np.where(reached.any(axis=0), reached.argmax(axis=0), len(x))


def least(problem: Quadratic, step: Step, etas: Floats, P: int) -> int:
    """The mean rounds at the best η."""
    best = 4000
    for eta in etas:
        setting = problem.setting(eta=eta, P=P, R=best)
        best = min(best, int(simulate(problem, setting, runs=RUNS, seed=0, left=rounds, step=step).value + 0.5))
    return best


def compared(exponent: float, P: int) -> list[int]:
    """Rounds of DeComFL, of HiSo, of HiSo with one number for h, and with h = the curvature."""
    curvature = np.arange(1.0, D + 1) ** -exponent
    nothing = (0.0,) * D
    problem = Quadratic(Spectrum(tuple(curvature), (1,) * D), tuple(1 / curvature), nothing, nothing)
    shares = np.array([0.3, 0.5, 0.7, 0.9])
    edge = largest_step(problem.spectrum, P=P)
    ideal = whitened(problem, curvature**-0.5)
    end = (SHARE * problem.gradient2 / P) ** (1 / 3)  # what h comes to when f is a tenth
    moving = edge * end * np.array([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0])
    return [
        least(problem, decomfl, shares * edge, P),
        least(problem, hiso_step(NU), moving, P),
        least(problem, one_number, moving, P),
        least(problem, hiso_step(1.0, curvature**-0.5), shares * largest_step(ideal.spectrum, P=P), P),
    ]


if __name__ == "__main__":
    given = [float(each) for each in sys.argv[1:]]
    print(
        "| exponent | P | DeComFL | HiSo | HiSo, one number | h = curvature | HiSo saves | of it curvature | √(P + 2) |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for exponent in given[:1] or (0.5, 1.0, 1.5):
        for P in map(int, given[1:] or (1, 10, 100)):
            plain, hiso, one, ideal = compared(exponent, P)
            ratios = f"{plain / hiso:.2f} | {one / hiso:.2f} | {np.sqrt(P + 2):.1f}"
            print(f"| {exponent:g} | {P} | {plain} | {hiso} | {one} | {ideal} | {ratios} |", flush=True)
