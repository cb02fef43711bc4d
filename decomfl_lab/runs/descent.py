"""Plain first-order training of one model in one place: for models whose curvature is looked at afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from decomfl_lab.errors import DivergedError, require, require_choice, require_finite_positive, require_int
from decomfl_lab.objectives.objective import EpochBatches, LossFunction

__all__ = ["OPTIMIZERS", "Descent"]

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Steps of an optimizer on batches of epochs.

    Attributes:
        optimizer: sgd or adam, as torch has them.
        lr: The learning rate η.
        momentum: The momentum β of sgd.
        batch_size: The number of examples a step; all if there are fewer.
        seed: The seed of the order of the examples.
    """

    optimizer: str = "adam"
    lr: float = 1e-3
    momentum: float = 0.0
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        require_finite_positive("lr η", self.lr)
        require(0.0 <= self.momentum < 1.0, "momentum β", "be in [0, 1)", self.momentum)
        require_int("batch_size B", self.batch_size, 1)

    def __call__(
        self, module: nn.Module, loss: LossFunction, inputs: Tensor, targets: Tensor, steps: int
    ) -> Iterator[float]:
        """Take ``steps`` steps in the module, yielding after each the loss of its batch, before the step.

        Args:
            module: The model, trained in place, in its present mode and on its device, to which batches are moved.
            loss: The loss(outputs, targets), a mean over a batch.
            inputs: The inputs of all examples, (n, ...).
            targets: The targets of all examples, (n, ...).
            steps: The number of steps.

        Raises:
            DivergedError: If a loss is not finite.
        """
        parameters = [p for p in module.parameters() if p.requires_grad]
        if self.optimizer == "adam":
            optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=self.lr)
        else:
            optimizer = torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum)
        device = parameters[0].device
        batches = EpochBatches(len(inputs), self.batch_size, (self.seed, 7))
        for step in range(steps):
            index = torch.from_numpy(batches(step))
            value = loss(module(inputs[index].to(device)), targets[index].to(device))
            if not torch.isfinite(value):
                raise DivergedError(f"loss of step {step}")
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
            yield float(value.detach())
        optimizer.zero_grad(set_to_none=True)
