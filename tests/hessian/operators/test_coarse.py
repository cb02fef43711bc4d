"""Products in bfloat16: what they are off by is measured, and intervals have room for it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hessian
from decomfl_lab.errors import InputError
from hessian.operators.mean_loss import MeanLoss
from hessian.operators.operator import BlockOperator, Noise
from hessian.operators.transforms.coarse import CoarseOperator
from tests.cases import refuses
from tests.hessian import problems

NETS = {
    "mlp": (problems.mlp(nn.Tanh), problems.data(n=40)),
    "cnn": (problems.cnn(nn.GELU), problems.data(n=40, shape=(1, 6, 6))),
}


def coarse(net: str, **options: str) -> CoarseOperator:
    module, data = NETS[net]
    found = hessian.curvature(module, cross_entropy, data, **{"dtype": "float32", "compute": "bfloat16"} | options)
    assert isinstance(found, CoarseOperator)
    return found


def dense(net: str, kind: str = "hessian") -> Tensor:
    module, data = NETS[net]
    return problems.DENSE[kind](MeanLoss(module, cross_entropy, data), module, *data)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("kind", ["hessian", "gauss-newton"])
def test_intervals_have_room_for_the_noise_and_miss_without_it(kind: str, net: str) -> None:
    H, operator = dense(net, kind), coarse(net, operator=kind)
    λ, norm = torch.linalg.eigvalsh(H), float(torch.linalg.matrix_norm(H, 2))
    kappas = {"signed": float(λ.sum()) / norm, "positive": float(λ.clamp(min=0).sum() / λ[-1])}
    assert any("products in bfloat16 are off by" in remark for remark in operator.remarks)
    for part, truth in kappas.items():
        found = hessian.effective_rank(operator, products=20, seed=0, part=part)
        assert found.interval[0] <= truth <= found.interval[1]
        assert found.norm_interval[0] <= norm <= found.norm_interval[1]
        # λ_min of a matrix that has no negative eigenvalue is not told from one that has by products in so few bits.
        assert kind == "hessian" or "this matrix has no negative eigenvalue" in found.reason
    operator.noise = Noise()
    found = hessian.effective_rank(operator, products=300, seed=0)  # as many as make κ of a matrix exact
    assert not found.interval[0] <= kappas["signed"] <= found.interval[1]


def test_what_is_made_of_such_a_matrix_has_its_noise_too() -> None:
    H, operator = dense("mlp"), coarse("mlp")
    s, places = torch.linspace(0.5, 2, operator.d), [slice(3, 20), slice(30, 50)]
    at = torch.cat([torch.arange(place.start, place.stop) for place in places])
    for made, of in {
        operator: H,
        -2.0 * operator + 0.5: 0.5 * torch.eye(len(H)) - 2 * H,
        operator + operator: 2 * H,
        hessian.curvature(operator, whiten=s): s[:, None] * H * s,
        BlockOperator(operator, places): H[at][:, at],
    }.items():
        E = problems.columns(made).double() - of
        assert 0.5 * float(E.norm()) <= made.noise.size
        assert abs(float(E.trace())) <= made.noise.trace


def test_where_the_noise_is_too_much_for_the_half_width_no_more_products_are_spent() -> None:
    found = hessian.effective_rank(coarse("mlp"), rtol=0.001, seed=0, max_products=80)
    assert (found.reached, found.products < 60) == (False, True)
    assert "what its products are off by alone makes ±" in found.reason


@refuses(
    ({"compute": "tf32"}, "compute must be .* tf32 takes a GPU, got 'tf32'"),
    ({"dtype": "float64"}, "compute must be float32 with a model in float64"),
    ({"operator": "smoothed"}, "compute must be float32 .* with the smoothed operator"),
)
def test_what_cannot_be_computed_so_is_refused(options: dict[str, str]) -> None:
    coarse("mlp", **options)


@pytest.mark.parametrize("asks", [hessian.spectral_density, hessian.diagonal])
def test_what_has_no_room_for_the_noise_refuses_it(asks: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="compute must be float32 where intervals have no room for the noise"):
        asks(coarse("mlp"), seed=0, products=20)
