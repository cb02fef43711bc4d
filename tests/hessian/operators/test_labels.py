"""Losses that are means over labels of tokens: padded ones are left out, and each that counts weighs the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian
from torch.nn.functional import cross_entropy

from decomfl_lab.errors import InputError
from hessian import FisherOperator, GaussNewtonOperator, HessianOperator, MeanLoss
from tests.decomfl_lab.language.tiny import V, tiny
from tests.hessian import problems


class Tagger(nn.Module):
    """One block of attention over tokens, with logits of 3 classes for each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        seen = (h @ h.mT / 2).masked_fill((tokens == 0)[:, None, :], -1e9).softmax(-1)
        return self.head((h + seen @ h).tanh())


def tagged(*lengths: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Texts of these lengths, padded on the right, with a label a token."""
    generator = torch.Generator().manual_seed(seed + sum(lengths))
    tokens = torch.randint(1, 7, (len(lengths), max(lengths)), generator=generator)
    labels = torch.randint(3, tokens.shape, generator=generator)
    padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    return tokens.masked_fill(padding, 0), labels.masked_fill(padding, -100)


def of_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, -2), labels.flatten())


def shifted(logits: Tensor, labels: Tensor) -> Tensor:
    return of_tokens(logits[:, :-1], labels[:, 1:])


def of_texts(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([of_tokens(z, y) for z, y in zip(logits, labels, strict=True)]).mean()


BATCHES = [tagged(2, 5, 3), tagged(4, 1), tagged(6)]


@pytest.mark.parametrize(("loss", "first"), [(of_tokens, 0), (shifted, 1)])
@pytest.mark.parametrize("cut", [{}, {"chunk": 1}])
def test_every_label_that_counts_weighs_the_same_however_texts_are_padded_and_cut(loss, first, cut):
    module = problems.seeded(Tagger)
    f = MeanLoss(module, loss, BATCHES, **cut)
    assert f.weight == sum(int((labels[:, first:] != -100).sum()) for _, labels in BATCHES)

    def total(x: Tensor) -> Tensor:
        parts = zip(f.names, f.layout.shapes, x.split(f.layout.sizes), strict=True)
        parameters = {name: part.view(shape) for name, shape, part in parts}
        found = torch.zeros((), dtype=x.dtype)
        for tokens, labels in BATCHES:
            z = functional_call(module, parameters, tokens)
            own = slice(None, -1) if first else slice(None)
            nll = cross_entropy(z[:, own].flatten(0, 1), labels[:, first:].flatten(), reduction="sum")
            found = found + nll
        return found / f.weight

    assert f.value == pytest.approx(float(total(f.x)), rel=1e-13)
    torch.testing.assert_close(problems.columns(HessianOperator(f), f.d), hessian(total)(f.x), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", [HessianOperator, GaussNewtonOperator, FisherOperator])
def test_padding_of_one_batch_or_of_many_is_no_matter(kind):
    module = problems.seeded(Tagger)
    tokens, labels = tagged(2, 5, 3, 4)
    alone = [(tokens[i : i + 1, :n], labels[i : i + 1, :n]) for i, n in enumerate((2, 5, 3, 4))]
    one, many = (kind(MeanLoss(module, of_tokens, data)) for data in ((tokens, labels), alone))
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


def test_labels_of_examples_may_be_ignored_too():
    inputs, targets = problems.data()
    ignored = targets.clone()
    ignored[::5] = -100
    some = MeanLoss(problems.mlp(), cross_entropy, (inputs, ignored), chunk=2)
    counted = ignored != -100
    assert some.weight == counted.sum()
    assert some.value == pytest.approx(
        MeanLoss(problems.mlp(), cross_entropy, (inputs[counted], targets[counted])).value
    )


def test_a_mean_over_texts_stays_one():
    f = MeanLoss(problems.seeded(Tagger), of_texts, BATCHES)
    assert f.weight == 6
    assert f.value == pytest.approx(sum(of_texts(f.module(x), y).item() * len(x) for x, y in BATCHES) / 6)


def test_a_loss_that_is_neither_mean_is_refused():
    with pytest.raises(InputError, match="loss must be the mean over the batch's examples"):
        MeanLoss(problems.seeded(Tagger), lambda z, y: of_tokens(z, y).square(), BATCHES)


@pytest.mark.parametrize("weights", [[1, 1, 1], lambda labels: (labels != -100).double()])
def test_weights_that_are_given_are_taken(weights: Sequence[float] | Any):
    f = MeanLoss(problems.seeded(Tagger), of_tokens, BATCHES, weights=weights)
    assert f.weight == (3 if isinstance(weights, list) else 21)


@pytest.mark.parametrize("kind", [GaussNewtonOperator, FisherOperator])
def test_matrices_of_the_outputs_take_a_model_with_its_own_loss(kind):
    module, batches = tiny("gpt2"), [_texts(3, 7, 5), _texts(2, 9)]
    inputs = [({k: v for k, v in batch.items() if k != "labels"}, batch["labels"]) for batch in batches]
    own, given = kind(MeanLoss(module, None, batches)), kind(MeanLoss(module, shifted, inputs))
    v = torch.linspace(-1, 1, own.d)
    torch.testing.assert_close(own.matvec(v), given.matvec(v), rtol=1e-4, atol=1e-6)
