"""``lr = "auto"`` against a grid of learning rates: rounds to a stated loss or accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from decomfl_lab.errors import DivergedError
from decomfl_lab.runs.api import train
from decomfl_lab.runs.config import TrainConfig
from decomfl_lab.runs.prepared import Prepared
from decomfl_lab.runs.run import Run
from decomfl_lab.runs.tuning import AUTO, tuned, without_auto

__all__ = ["PROBLEMS", "Bowl", "Reached", "TuningProblem", "half_square", "tuning_rows"]

GRID: Final = 9
"""Steps of the grid, each twice the one before."""
LOST: Final = 1e3
"""A test loss from which no run comes back in time."""


class Bowl(nn.Module):
    """f(x) = ½ Σ_j λ_j x_j², with ``half_square`` and whatever examples, from a random x_0."""

    def __init__(self, eigenvalues: Tensor, seed: int) -> None:
        super().__init__()
        x = torch.randn(len(eigenvalues), generator=torch.Generator().manual_seed(seed))
        self.x, self.roots = nn.Parameter(x), eigenvalues.sqrt()

    def forward(self, inputs: Tensor) -> Tensor:
        """√λ_j x_j, once for each example."""
        return (self.roots * self.x).expand(len(inputs), -1)


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG001
    """Half the squared norm of the outputs, the mean over examples."""
    return 0.5 * outputs.square().sum(1).mean()


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
    eigenvalues: Tensor | None = None

    def begin(self, **options: Any) -> Run:
        """A run after its first round."""
        options = {**self.config, "rounds": 1, "eval_every": 1, "rebuild": "copy", **options}
        if self.eigenvalues is None:
            given, wanted = without_auto(options)
            run = Run.of(*tuned(Prepared.of(TrainConfig(**given)), wanted))
            run.train()
            return run
        examples = torch.zeros(4, 1), torch.zeros(4, 1)
        return train(Bowl(self.eigenvalues, options["seed"]), half_square, [examples] * 4, test=examples, **options)

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
    "flat": TuningProblem(0.5, 200, -3, {"sampled": 2}, torch.ones(100)),
    "power": TuningProblem(0.15, 300, 0, {"sampled": 2}, torch.arange(1, 401) ** -1.0),
    "logistic": TuningProblem(0.85, 150, -2, {**_DIGITS, "model": "logistic"}),
    "mlp": TuningProblem(0.85, 150, -3, {**_DIGITS, "model": "mlp"}),
    "cnn": TuningProblem(0.4, 100, -7, {**_MNIST, "test_examples": 500}),
}
"""Quadratics with λ_j = 1 (d = κ = 100) and λ_j = 1/j (d = 400, κ = 6.57), digits and MNIST."""


@dataclass(frozen=True)
class Reached:
    """What a learning rate took.

    Attributes:
        step: auto, or the step h = η/(1 − β) of the grid as a power of 2.
        lr: η, of seed 0.
        rounds: The mean over seeds of the rounds to the goal; None where a seed did not get there.
        there: The seeds that did.
        rehearsed: The mean over seeds of the rounds that were rehearsed.
    """

    problem: str
    momentum: float
    step: str
    lr: float | None
    rounds: float | None
    there: int
    rehearsed: float


def tuning_rows(names: Sequence[str], *, momentum: float, seeds: int) -> Iterator[Reached]:
    """A row for auto and for each step of the grid, on these of ``PROBLEMS``."""
    for name in names:
        problem = PROBLEMS[name]
        powers = range(problem.middle - GRID // 2, problem.middle + GRID // 2 + 1)
        steps = {AUTO: AUTO, **{f"2^{power}": (1.0 - momentum) * 2.0**power for power in powers}}
        for step, lr in steps.items():
            found = [problem.rounds(lr=lr, momentum=momentum, seed=seed) for seed in range(seeds)]
            rounds = [n for n, _ in found if n is not None]
            runs = [run for _, run in found if run is not None]
            yield Reached(
                name,
                momentum,
                step,
                runs[0].config.lr if runs else None,
                sum(rounds) / seeds if len(rounds) == seeds else None,
                len(rounds),
                sum(run.tuning.rounds for run in runs if run.tuning is not None) / seeds,
            )
