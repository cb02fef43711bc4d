"""The kernels' part: errors lie between the bounds of the theory, rounds are counted, correlations are of ranks."""

import logging
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from paper_repro.parts.kernels import PREDICTORS, KernelTask, correlations, kernel_errors, make, measured, rounds_at
from paper_repro.workflow.scales import SCALES
from tests.paper_repro.parts.test_parts import options
from tests.theory.bounds.successors.test_kernel import of_kernel
from theory import KERNEL_NORM, KERNEL_NORM_BELOW

SIZE = SCALES["smoke"].kernels


def test_the_errors_of_the_labs_directions_lie_between_the_bounds() -> None:
    J = torch.randn(20, 300, generator=torch.Generator().manual_seed(0)) * torch.linspace(1, 0.1, 20)[:, None]
    problem, found = of_kernel((J @ J.T).double(), 300), pd.DataFrame(kernel_errors(J, SIZE.but(draws=60)))
    assert set(found["distribution"]) == {"gaussian", "sphere", "rademacher"}
    for row in found.itertuples():
        setting = problem.setting(P=row.P)
        above, below = (sum(own.bound(setting)) / problem.L for own in (KERNEL_NORM, KERNEL_NORM_BELOW))
        assert -below - 3 * row.stderr < row.value < above + 3 * row.stderr


def test_rounds_end_at_the_target_and_are_infinite_where_no_round_gets_there() -> None:
    numbers = torch.arange(32)
    task = KernelTask(
        torch.randn(32, 5, generator=torch.Generator().manual_seed(1)), numbers % 3, torch.nn.functional.cross_entropy
    )
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    few = rounds_at(module, task, 0.3, 10, 200, 0.95, 0)
    assert 1 < few < 200
    assert rounds_at(module, task, 0.3, 10, int(few), 0.95, 0) == math.inf
    assert rounds_at(module, task, 1e4, 10, 200, 0.95, 0) == math.inf  # a rate that is too large
    assert logging.getLogger("decomfl_lab").isEnabledFor(logging.WARNING)


def test_numbers_of_two_digits_stand_side_by_side_however_the_data_are_sorted() -> None:
    class Digits:
        """Images that are filled with their label, sorted by it, as some copies of MNIST are."""

        train_labels = torch.arange(60) // 6
        train_images = train_labels.float().repeat_interleave(784).reshape(60, 1, 28, 28)
        N = 60

    task = KernelTask.of(Digits(), 2, 7, 100, 20)  # type: ignore[arg-type]
    assert task.inputs.shape == (20, 98)
    assert torch.equal(task.targets, (task.inputs[:, 0] + 10 * task.inputs[:, -1]).long())
    assert len(task.targets.unique()) > 10


def test_the_figure_and_the_table_are_made_of_the_rows(tmp_path: Path) -> None:
    networks = {"small": (1, 7, 2, 0, 1), "deep": (1, 7, 10, 1, 4)}
    size = SIZE.but(P=(2, 10), draws=2, products=6, examples=8, rounds_at=(2,))
    works = {name: measured(tmp_path, lambda _: None, network, size) for name, network in networks.items()}
    rows = pd.concat([found.assign(network=name) for name, (found, _) in works.items()], ignore_index=True)
    made = make(rows, [facts for _, facts in works.values()], options("smoke"))
    table = made.tables["kernels"].set_index("network")
    assert table.d.tolist() == [100, 250]
    assert (table["error"] > 0).all()
    assert table["√(r/P) + r/P"].tolist() == pytest.approx(((table.r / 10) ** 0.5 + table.r / 10).tolist())
    assert table["√(V log V/P)"].tolist() == pytest.approx([(V * math.log(V) / 10) ** 0.5 for V in (2, 10)])
    assert {"rounds, P = 2", "√(n log n/P)"} <= set(table)
    against, ranks = made.figures["kernels"]().axes
    assert len(against.lines[0].get_xdata()) == 2 * 2 * 3
    assert [each.get_text() for each in ranks.get_xticklabels()] == list(PREDICTORS)


def test_correlations_are_of_ranks_and_what_never_arrives_comes_last() -> None:
    rows = pd.DataFrame({name: np.arange(8.0) for name in PREDICTORS}).assign(kind="rounds", P=10, d=7.0 - np.arange(8))
    found = correlations(rows.assign(value=[1, 2, 4, 8, 16, 32, 64, math.inf])).set_index("number")["correlation"]
    assert found["r of all"] == pytest.approx(1)
    assert found["d"] == pytest.approx(-1)
