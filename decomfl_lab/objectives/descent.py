"""Plain first-order training of one model in one place: for models whose curvature is looked at afterwards."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from decomfl_lab.errors import DivergedError
from decomfl_lab.objectives.batch_loss import BatchLoss, LossFunction
from decomfl_lab.objectives.objective import EpochBatches
from decomfl_lab.objectives.trees import mapped, row_count
from decomfl_lab.options import option, require_options


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Steps of an optimizer on batches of epochs."""

    optimizer: str = option("adam", "sgd or adam, as torch has them.", choices=("sgd", "adam"))
    lr: float = option(1e-3, "The learning rate η.", symbol="η", gt=0)
    momentum: float = option(0.0, "The momentum β of sgd.", symbol="β", ge=0, lt=1)
    batch_size: int = option(64, "The number of examples a step; all if there are fewer.", symbol="B", ge=1)
    seed: int = option(0, "The seed of the order of the examples.")

    def __post_init__(self) -> None:
        require_options(self)

    def __call__(
        self, module: nn.Module, loss: LossFunction | BatchLoss | None, inputs: Any, targets: Any, steps: int
    ) -> Iterator[float]:
        """Take ``steps`` steps in the module, yielding after each the loss of its batch, before the step.

        The module is trained in place, in its present mode and on its device, to which batches are moved. Inputs and
        targets are those of all examples, trees of tensors (n, ...). DivergedError if a loss is not finite.
        """
        parameters = [p for p in module.parameters() if p.requires_grad]
        if self.optimizer == "adam":
            optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, lr=self.lr)
        else:
            optimizer = torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum)
        device = parameters[0].device
        measure, data = BatchLoss.of(loss), (inputs, targets)
        batches = EpochBatches(row_count(inputs) or 0, self.batch_size, (self.seed, 7))
        for step in range(steps):
            index = torch.from_numpy(batches(step))
            value = measure(module, *mapped(lambda tensor: tensor[index].to(device), data))  # noqa: B023
            if not torch.isfinite(value):
                raise DivergedError(f"loss of step {step}")
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
            yield float(value.detach())
        optimizer.zero_grad(set_to_none=True)
