"""``decomfl bench tuning``: the learning rate that --lr auto chooses, against a grid."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from benchmarks.commands.shared import Rows, measured, names, print_tables
from decomfl_lab.errors import require, require_int, require_possible

__all__ = ["tuning"]


def tuning(
    *,
    problem: Annotated[str, typer.Option(help="Problems: flat, power, logistic, mlp, cnn.")] = "flat,logistic",
    momentum: Annotated[float, typer.Option(help="The momentum β in [0, 1).")] = 0.9,
    seeds: Annotated[int, typer.Option(help="The number of seeds.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record of it as JSON.")] = False,
) -> None:
    """Count the rounds to an accuracy or loss, with --lr auto.

    Beside it are nine learning rates by factors of 2.

    flat and power are quadratics, logistic and mlp are trained on the digits, cnn on MNIST (from $DECOMFL_DATA; about
    an hour). Too large learning rates warn that their losses rise.
    """
    from benchmarks.tuning import GRID, PROBLEMS, tuning_rows

    chosen = names("problem", problem, PROBLEMS)
    require(0.0 <= momentum < 1.0, "momentum β", "be in [0, 1)", momentum)
    require_possible("seeds", require_int("seeds", seeds, 1), operations=1e8 * seeds)
    rows = tuning_rows(chosen, momentum=momentum, seeds=seeds)
    found = [asdict(row) for row in measured(rows, len(chosen) * (GRID + 1))]
    columns = {
        "problem": "{problem}",
        "h": "{step}",
        "lr": "{lr:.3g}",
        "rounds": "{rounds:.1f}",
        "seeds there": "{there}",
        "rehearsed": "{rehearsed:.0f}",
    }
    table = Rows(f"Rounds to the goal, momentum {momentum:g}", found, columns, words=2)
    print_tables(table, width=100, as_json=as_json)
