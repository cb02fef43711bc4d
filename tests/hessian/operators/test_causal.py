"""Second derivatives of causal language models of the transformers library, answers of a task as outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from decomfl_lab.layout import Layout
from hessian import HessianOperator, MeanLoss, effective_rank
from tests.decomfl_lab.language.tiny import answers, prompts


def _loss(kind: str, **options: Any) -> MeanLoss:
    ids = prompts(4, 7)
    module = answers(kind)
    loss = MeanLoss(module, cross_entropy, [(ids, torch.arange(4) % 2)], dtype=torch.float64, **options)
    assert options or loss.d == Layout.of(module).d  # tied embeddings once, here too
    return loss


# Llama normalises in float32 whatever its weights are, so differences of its gradients are no better than that.
@pytest.mark.parametrize(("kind", "step", "close"), [("opt", 1e-7, 1e-6), ("gpt2", 1e-5, 1e-4), ("llama", 1e-4, 1e-2)])
def test_products_are_the_differences_of_gradients(kind: str, step: float, close: float) -> None:
    loss = _loss(kind)
    v = torch.randn(loss.d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    product = HessianOperator(loss).matvec(v)
    difference = (loss.gradient(loss.x + step * v) - loss.gradient(loss.x - step * v)) / (2 * step)
    assert float(product.norm()) > 0.1
    assert float((product - difference).norm() / difference.norm()) < close


def test_kappa_of_some_weights_is_in_its_interval() -> None:
    operator = HessianOperator(_loss("opt", parameters=["*layers.0.self_attn.[qv]_proj*"]))
    assert operator.d == 2 * (16 * 16 + 16)
    H = torch.stack([operator.matvec(e) for e in torch.eye(operator.d, dtype=torch.float64)])
    eigenvalues = torch.linalg.eigvalsh(H)
    found = effective_rank(operator, rtol=0.3, seed=0)
    assert found.interval[0] <= float(eigenvalues.sum() / eigenvalues.abs().max()) <= found.interval[1]
    assert found.norm == pytest.approx(float(eigenvalues.abs().max()), rel=1e-3)
