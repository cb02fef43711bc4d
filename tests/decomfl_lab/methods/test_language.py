"""Causal models along a direction, a layer at a time, as federations fine-tune them."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from decomfl_lab.layout import Layout
from decomfl_lab.noise import Distribution, direction
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective, mean_losses
from tests.decomfl_lab.language.tiny import ARCHITECTURES, answers, prompts


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_loss_along_a_direction_is_that_of_the_moved_model(kind: str) -> None:
    module = answers(kind)
    layout = Layout.of(module)
    x = layout.flatten(module)
    ids = prompts(6, 9)
    batches = EpochBatches(6, 4, (0, 0))
    objective = ModuleObjective(module, layout, cross_entropy, ids, ids[:, -1] % 2, batches)
    along = objective.along(x, 0, 5, 1, 1e-2, Distribution.GAUSSIAN)
    layout.bind(module, x + 1e-2 * torch.from_numpy(direction(5, 1, layout.d)))
    moved = mean_losses(module, [cross_entropy], *objective.batch(0))[0]
    assert along == pytest.approx(moved, rel=1e-6)
    assert abs(along - objective(x, 0)) > 1e-4
