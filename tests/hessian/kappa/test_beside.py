"""κ by PyHessian: of the same function, from a copy; what it would take for another function is refused."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab.errors import InputError
from hessian import HessianOperator, MeanLoss
from hessian.kappa.beside import by_pyhessian
from tests.cases import sampled


def _loss(**options: Any) -> MeanLoss:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).eval()
    data = [(torch.randn(n, 4), torch.randint(3, (n,))) for n in (20, 12)]
    return MeanLoss(module, cross_entropy, data, **options)


@pytest.mark.parametrize(
    "options", sampled([{"chunk": 5}, {"dtype": torch.float64}, {"parameters": ["0.weight", "3.weight"]}], 1)
)
def test_it_is_of_the_same_hessian_and_leaves_everything_as_it_was(options: dict[str, Any]) -> None:
    f = _loss(**options)
    before, state = f.x.clone(), torch.get_rng_state()
    dense = HessianOperator(f) @ torch.eye(f.d, dtype=f.dtype)
    found = by_pyhessian(f, seed=3)
    assert found.norm == pytest.approx(float(torch.linalg.eigvalsh(dense).abs().max()), rel=0.02)
    # The standard deviation of one sample of its trace, of which it takes ten or more.
    deviation = float((2 * (dense - dense.diag().diag()).square().sum()).sqrt())
    assert abs(found.trace - float(dense.trace())) < 2 * deviation
    assert found.kappa == found.trace / found.norm
    assert "PyHessian" in found.reading.name
    assert torch.equal(f.x, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None and p.requires_grad for p in f.module.parameters())
    assert by_pyhessian(f, seed=3) == found != by_pyhessian(f, seed=4)


def test_another_function_is_refused() -> None:
    module, x, y = nn.Linear(2, 2), torch.randn(6, 2), torch.randint(2, (6,))
    normalised = nn.Sequential(nn.BatchNorm1d(2), module)
    of_batches = MeanLoss(normalised, cross_entropy, [(x, y)], normalisation="batch")

    def of_model(model: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    refused = {
        "weight_decay must be 0": _loss(weight_decay=0.1),
        "normalisation must be eval": of_batches,
        "data must be pairs": MeanLoss(module, of_model, [(x, y)]),
        "weights must be the same": MeanLoss(module, cross_entropy, [(x, y), (-x, y)], weights=[1.0, 3.0]),
    }
    for message, f in refused.items():
        with pytest.raises(InputError, match=message):
            by_pyhessian(f)
