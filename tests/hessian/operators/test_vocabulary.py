"""Cross-entropy over a vocabulary with derivatives that are recomputed, beside torch's own."""

import pytest
import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import cross_entropy

from hessian import HessianOperator, MeanLoss
from hessian.operators import vocabulary
from hessian.operators.vocabulary import LeanCrossEntropy
from tests.decomfl_lab.language.tiny import prompts, tiny


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "LARGE", 1)
    monkeypatch.setattr(vocabulary, "_BLOCK", 20)  # so there are several blocks


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
