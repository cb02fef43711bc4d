"""``decomfl bench tuning``: ``lr = "auto"`` against a grid of learning rates, in rounds to a loss or accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.mould import BenchmarkRow, benchmark, column, names
from decomfl_lab.errors import DivergedError, require, require_int, require_possible
from decomfl_lab.options import option

if TYPE_CHECKING:
    from decomfl_lab.runs.run import Run

__all__ = ["PROBLEMS", "TuningOptions", "TuningProblem", "TuningRow", "tuning"]

GRID: Final = 9
"""Steps of the grid, each twice the one before."""
LOST: Final = 1e3
"""A test loss from which no run comes back in time."""


@dataclass(frozen=True)
class TuningProblem:
    """What is trained, and what it has to reach.

    Attributes:
        goal: The test loss of a quadratic, or the test accuracy, that ends a run.
        most: The most rounds.
        middle: log₂ of the step h = η/(1 − β) in the middle of the grid.
        config: The options of a run.
        eigenvalues: The eigenvalues of a quadratic, which is the same for four clients.
    """

    goal: float
    most: int
    middle: int
    config: Mapping[str, Any]
    eigenvalues: NDArray[Any] | None = None

    def begin(self, **options: Any) -> Run:
        """A run after its first round."""
        import torch

        from benchmarks.ways.bowl import QuadraticBowl, half_square
        from decomfl_lab.runs.api import train
        from decomfl_lab.runs.config import TrainConfig
        from decomfl_lab.runs.prepared import Prepared
        from decomfl_lab.runs.run import Run
        from decomfl_lab.runs.tuning import tuned, without_auto

        options = {**self.config, "rounds": 1, "eval_every": 1, "rebuild": "copy", **options}
        if self.eigenvalues is None:
            given, wanted = without_auto(options)
            run = Run.of(*tuned(Prepared.of(TrainConfig(**given)), wanted))
            run.train()
            return run
        examples = torch.zeros(4, 1), torch.zeros(4, 1)
        module = QuadraticBowl(torch.from_numpy(self.eigenvalues), options["seed"])
        return train(module, half_square, [examples] * 4, test=examples, **options)

    def rounds(self, **options: Any) -> tuple[int | None, Run | None]:
        """The first round after which the goal is reached, None if none is; and the run, if it has a round."""
        run = None
        try:
            run = self.begin(**options)
            while True:
                row = run.metrics.iloc[-1]
                there = row.test_loss <= self.goal if self.eigenvalues is not None else row.test_accuracy >= self.goal
                if there or run.round >= self.most or not row.test_loss < LOST:
                    return (run.round if there else None), run
                run.more(1)
        except DivergedError:
            return None, run


_DIGITS: Final = {"data": "digits", "clients": 10, "sampled": 5, "batch_size": 32}
_MNIST: Final = {"model": "cnn-mnist", "clients": 10, "sampled": 2, "batch_size": 16, "perturbations": 10}
PROBLEMS: Final = {
    "flat": TuningProblem(0.5, 200, -3, {"sampled": 2}, np.ones(100, np.float32)),
    "power": TuningProblem(0.15, 300, 0, {"sampled": 2}, np.arange(1, 401, dtype=np.float32) ** -1.0),
    "logistic": TuningProblem(0.85, 150, -2, {**_DIGITS, "model": "logistic"}),
    "mlp": TuningProblem(0.85, 150, -3, {**_DIGITS, "model": "mlp"}),
    "cnn": TuningProblem(0.4, 100, -7, {**_MNIST, "test_examples": 500}),
}
"""Quadratics with λ_j = 1 (d = κ = 100) and λ_j = 1/j (d = 400, κ = 6.57), digits and MNIST."""


@dataclass(frozen=True, kw_only=True)
class TuningOptions:
    """The options of ``decomfl bench tuning``."""

    problem: str = option("flat,logistic", f"Problems: {', '.join(PROBLEMS)}.")
    momentum: float = option(0.9, "The momentum β in [0, 1).")
    seeds: int = option(3, "The number of seeds.")


@dataclass(frozen=True, kw_only=True)
class TuningRow(BenchmarkRow):
    """What a learning rate took."""

    title = "Rounds to the goal, momentum {momentum:g}"
    problem: str = column("problem")
    momentum: float
    step: str = column("h", "", "auto, or the step h = η/(1 − β) of the grid as a power of 2.")
    lr: float | None = column("lr", ".3g", "The learning rate η, of seed 0.")
    rounds: float | None = column("rounds", ".1f", "Rounds to the goal, if every seed gets there (mean).")
    there: int = column("seeds there")
    rehearsed: float = column("rehearsed", ".0f", "Rounds that auto took to find η (mean).")


@benchmark()
def tuning(options: TuningOptions) -> Iterator[TuningRow]:
    """Count the rounds to an accuracy or loss, with --lr auto.

    Beside it are nine learning rates by factors of 2. flat and power are quadratics, logistic and mlp are trained on
    the digits, cnn on MNIST (from $DECOMFL_DATA; about an hour). Too large learning rates warn that their losses rise.
    """
    chosen = names("problem", options.problem, PROBLEMS)
    require(0.0 <= options.momentum < 1.0, "momentum β", "be in [0, 1)", options.momentum)
    require_possible("seeds", require_int("seeds", options.seeds, 1), operations=1e8 * options.seeds)
    for name in chosen:
        problem = PROBLEMS[name]
        powers = range(problem.middle - GRID // 2, problem.middle + GRID // 2 + 1)
        steps: dict[str, Any] = {"auto": "auto"}
        steps |= {f"2^{power}": (1.0 - options.momentum) * 2.0**power for power in powers}
        for step, lr in steps.items():
            yield _row(name, step, lr, options)


def _row(name: str, step: str, lr: Any, options: TuningOptions) -> TuningRow:
    """The runs of a learning rate, one a seed."""
    seeds = range(options.seeds)
    found = [PROBLEMS[name].rounds(lr=lr, momentum=options.momentum, seed=seed) for seed in seeds]
    rounds = [n for n, _ in found if n is not None]
    runs = [run for _, run in found if run is not None]
    rehearsed = [run.tuning.rounds for run in runs if run.tuning is not None]
    return TuningRow(
        problem=name,
        momentum=options.momentum,
        step=step,
        lr=runs[0].config.lr if runs else None,
        rounds=sum(rounds) / options.seeds if len(rounds) == options.seeds else None,
        there=len(rounds),
        rehearsed=sum(rehearsed) / options.seeds,
    )
