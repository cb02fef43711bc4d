"""The forms of a user's loss: what each is given."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from decomfl_lab.objectives.batch_loss import BatchLoss, Form
from decomfl_lab.objectives.evaluation import evaluate

X, Y = torch.arange(12.0).view(4, 3) / 12, torch.tensor([0, 1, 1, 0])


def test_losses_are_equal_where_function_form_and_cutting_are() -> None:
    first, same = BatchLoss.of(cross_entropy), BatchLoss(cross_entropy, Form.OUTPUTS, tried=True)
    assert first == same
    assert hash(first) == hash(same)
    others = [
        BatchLoss.of(mse_loss),
        BatchLoss(cross_entropy, Form.MODEL),
        BatchLoss(cross_entropy, Form.OUTPUTS, False),
    ]
    assert first not in [*others, cross_entropy]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_outputs_in_16_bits_are_widened_in_any_tree_and_integers_are_not(dtype: torch.dtype) -> None:
    seen: list[Any] = []

    def loss(outputs: Any, targets: Tensor) -> Tensor:
        seen.append(outputs)
        return outputs["z"].sum()

    BatchLoss.of(loss).of_outputs({"z": X.to(dtype), "n": Y, "wide": X.double()}, Y)
    assert [tensor.dtype for tensor in seen[0].values()] == [torch.float32, torch.int64, torch.float64]


def test_a_batch_whose_labels_a_loss_takes_out_entirely_does_not_count_in_the_accuracy() -> None:
    def of_zeros(outputs: Tensor, targets: Tensor) -> Tensor:
        kept = targets != 1
        return cross_entropy(outputs[kept], targets[kept], reduction="sum") / len(targets)

    logits, targets = torch.eye(2).repeat(4, 1), torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])
    loss = BatchLoss(of_zeros, Form.OUTPUTS, additive=False)  # so that each four examples are a batch
    assert evaluate(nn.Identity(), loss, logits, targets, batch_size=4)["test_accuracy"] == 0.5
