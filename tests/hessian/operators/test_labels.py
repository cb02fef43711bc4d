"""Losses that are means over labels of tokens: padded ones are left out, and each that counts weighs the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hessian import FisherOperator, GaussNewtonOperator, HessianOperator, MeanLoss
from tests.decomfl_lab.language.tiny import V, tiny
from tests.hessian import problems
from tests.situations import zoo


@pytest.mark.parametrize("kind", [HessianOperator, GaussNewtonOperator, FisherOperator])
def test_padding_of_one_batch_or_of_many_is_no_matter(kind):
    module = problems.seeded(zoo.padded_tagger)
    tokens, labels = zoo.texts(2, 5, 3, 4)
    alone = [(tokens[i : i + 1, :n], labels[i : i + 1, :n]) for i, n in enumerate((2, 5, 3, 4))]
    one, many = (kind(MeanLoss(module, zoo.of_tokens, data)) for data in ((tokens, labels), alone))
    v = torch.linspace(-1, 1, one.d, dtype=torch.float64)
    torch.testing.assert_close(one.matvec(v), many.matvec(v), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", ["opt", "llama", "gpt2"])
def test_the_own_loss_of_a_causal_model_is_seen_to_leave_the_first_label_out(kind):
    batches = [_texts(3, 7, 5), _texts(2, 9)]
    f = MeanLoss(tiny(kind), None, batches, chunk=1)
    assert f.weight == 2 + 6 + 4 + 1 + 8
    first, second = (MeanLoss(tiny(kind), None, batch).value for batch in batches)
    assert f.value == pytest.approx((12 * first + 9 * second) / 21, rel=1e-5)


def _texts(*lengths: int) -> dict[str, Tensor]:
    ids = torch.randint(3, V, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@pytest.mark.parametrize("kind", [GaussNewtonOperator, FisherOperator])
def test_matrices_of_the_outputs_take_a_model_with_its_own_loss(kind):
    module, batches = tiny("gpt2"), [_texts(3, 7, 5), _texts(2, 9)]
    inputs = [({k: v for k, v in batch.items() if k != "labels"}, batch["labels"]) for batch in batches]
    own, given = kind(MeanLoss(module, None, batches)), kind(MeanLoss(module, zoo.shifted, inputs))
    v = torch.linspace(-1, 1, own.d)
    torch.testing.assert_close(own.matvec(v), given.matvec(v), rtol=1e-4, atol=1e-6)
