"""Second derivatives of language models: answers of a task as outputs, padded labels, the models' own losses."""

from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import cross_entropy

from decomfl_lab.layout import Layout
from hessian import FisherOperator, GaussNewtonOperator, HessianOperator, MeanLoss
from hessian.operators import vocabulary
from hessian.operators.vocabulary import LeanCrossEntropy
from tests.decomfl_lab.language.tiny import V, answers, prompts, tiny
from tests.hessian import problems
from tests.situations import zoo


# Llama normalises in float32 whatever its weights are, so differences of its gradients are no better than that.
@pytest.mark.parametrize(("kind", "step", "close"), [("opt", 1e-7, 1e-6), ("gpt2", 1e-5, 1e-4), ("llama", 1e-4, 1e-2)])
def test_products_are_the_differences_of_gradients(kind: str, step: float, close: float) -> None:
    module = answers(kind)
    loss = MeanLoss(module, cross_entropy, [(prompts(4, 7), torch.arange(4) % 2)], dtype=torch.float64)
    assert loss.d == Layout.of(module).d  # tied embeddings once, here too
    v = torch.randn(loss.d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    product = HessianOperator(loss).matvec(v)
    difference = (loss.gradient(loss.x + step * v) - loss.gradient(loss.x - step * v)) / (2 * step)
    assert float(product.norm()) > 0.1
    assert float((product - difference).norm() / difference.norm()) < close


# Padding, and the models' own losses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HessianOperator, GaussNewtonOperator, FisherOperator])
def test_padding_of_one_batch_or_of_many_is_no_matter(kind):
    module = problems.seeded(zoo.padded_tagger)
    tokens, labels = zoo.texts(2, 5, 3, 4)
    alone = [(tokens[i : i + 1, :n], labels[i : i + 1, :n]) for i, n in enumerate((2, 5, 3, 4))]
    one, many = (kind(MeanLoss(module, zoo.of_tokens, data)) for data in ((tokens, labels), alone))
    v = torch.linspace(-1, 1, one.d, dtype=torch.float64)
    torch.testing.assert_close(one.matvec(v), many.matvec(v), rtol=1e-11, atol=1e-13)


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


@pytest.fixture
def every_size() -> Iterator[None]:
    with mock.patch.multiple(vocabulary, LARGE=1, _BLOCK=20):  # so there are several blocks
        yield


def _logits(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(*shape, generator=generator, dtype=torch.float64)
    targets = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    targets.view(-1)[1] = -100
    return 5 * z, targets


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("shape", [(9, 5), (2, 5, 4), (4, 30)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_value_slope_and_second_derivatives_are_torchs(shape: tuple[int, ...], reduction: str) -> None:
    z, targets = _logits(*shape)

    def plain(z: Tensor) -> Tensor:
        return cross_entropy(z, targets, reduction=reduction).square().sum()

    def lean(z: Tensor) -> Tensor:
        with LeanCrossEntropy() as mode:
            found = plain(z)
        assert mode.seen
        return found

    for derivative in (lambda f, z: f(z), torch.autograd.functional.jacobian, torch.autograd.functional.hessian):
        torch.testing.assert_close(derivative(lean, z), derivative(plain, z), rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("options", [{"weight": torch.ones(5).double()}, {"label_smoothing": 0.1}])
def test_what_it_has_not_is_left_to_torch(options: dict[str, object]) -> None:
    z, targets = _logits(9, 5)
    with LeanCrossEntropy() as mode:
        assert cross_entropy(z, targets, **options) == cross_entropy(z, targets, **options)  # type: ignore[arg-type]
        assert torch.isfinite(cross_entropy(z, z.softmax(1)))
        assert torch.isfinite(grad(lambda z: cross_entropy(z, targets))(z)).all()
    assert not mode.seen


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_product_with_the_hessian_of_a_causal_model_is_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompts(4, 9, padded=False)
    v = torch.randn(MeanLoss(tiny(kind), None, {"input_ids": ids, "labels": ids}).d)
    products = []
    for least in (1, 1 << 40):
        monkeypatch.setattr(vocabulary, "LARGE", least)
        f = MeanLoss(tiny(kind), None, {"input_ids": ids, "labels": ids}, chunk=2)
        assert (f._lean is not None) == (least == 1)
        products.append(HessianOperator(f).matvec(v))
    torch.testing.assert_close(*products, rtol=1e-4, atol=1e-5)
