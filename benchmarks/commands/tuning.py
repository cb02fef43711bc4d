"""``decomfl bench tuning``: the learning rate that --lr auto chooses, against a grid."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from benchmarks.commands.shared import Rows, measured, names, print_tables
from decomfl_lab.cli.command import command
from decomfl_lab.errors import require, require_int, require_possible
from decomfl_lab.options import option

__all__ = ["tuning"]


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """The options of ``decomfl tuning``."""

    problem: str = option("flat,logistic", "Problems: flat, power, logistic, mlp, cnn.")
    momentum: float = option(0.9, "The momentum β in [0, 1).")
    seeds: int = option(3, "The number of seeds.")
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


@command
def tuning(options: TuningOptions) -> None:
    """Count the rounds to an accuracy or loss, with --lr auto.

    Beside it are nine learning rates by factors of 2.

    flat and power are quadratics, logistic and mlp are trained on the digits, cnn on MNIST (from $DECOMFL_DATA; about
    an hour). Too large learning rates warn that their losses rise.
    """
    from benchmarks.tuning import GRID, PROBLEMS, tuning_rows

    chosen = names("problem", options.problem, PROBLEMS)
    require(0.0 <= options.momentum < 1.0, "momentum β", "be in [0, 1)", options.momentum)
    require_possible("seeds", require_int("seeds", options.seeds, 1), operations=1e8 * options.seeds)
    rows = tuning_rows(chosen, momentum=options.momentum, seeds=options.seeds)
    found = [asdict(row) for row in measured(rows, len(chosen) * (GRID + 1))]
    columns = {
        "problem": "{problem}",
        "h": "{step}",
        "lr": "{lr:.3g}",
        "rounds": "{rounds:.1f}",
        "seeds there": "{there}",
        "rehearsed": "{rehearsed:.0f}",
    }
    table = Rows(f"Rounds to the goal, momentum {options.momentum:g}", found, columns, words=2)
    print_tables(table, width=100, as_json=options.as_json)
