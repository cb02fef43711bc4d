"""Products and values that results tell are those that were asked for."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hessian import EffectiveRankProgress, effective_rank, forward_only, lanczos
from hessian.kappa.function_values import mu_ladder
from tests.hessian.spectra import Watched, rotated

VALUES = torch.cat([torch.tensor([40.0, 25.0, 11.0, 6.0, -4.0]), torch.linspace(-0.2, 1.0, 55)]).double()


def asked(settings: dict[str, Any]) -> tuple[list[Watched], dict[str, Any]]:
    """The operators that are counted, and the arguments of ``effective_rank`` with them."""
    operator, twin = Watched(rotated(VALUES)), Watched(rotated(VALUES, seed=1))
    both = settings.get("trace_operator")
    return [operator, twin], {"model": operator, **settings, **({"trace_operator": twin} if both else {})}


WAYS = [
    pytest.param({"rtol": 0.05}, id="steps and products of probes"),
    pytest.param({"rtol": 0.02}, id="forms of probes, too"),
    pytest.param({"products": 17}, id="a budget"),
    pytest.param({"products": 80}, id="the whole space"),
    pytest.param({"max_products": 30, "max_basis": 6}, id="a small basis"),
    pytest.param({"trace": float(VALUES.sum()), "rtol": 1e-12}, id="a known trace"),
    pytest.param({"trace": float(VALUES.sum()), "products": 20, "max_basis": 4}, id="restarts"),
    pytest.param({"whiten": torch.linspace(0.5, 2, 60)}, id="whitened"),
    pytest.param({"trace_operator": True, "rtol": 0.3}, id="forms of another operator"),
    pytest.param({"trace_operator": True, "rtol": 1e-3, "max_products": 33}, id="both, and a most"),
    pytest.param({"trace_operator": True, "rtol": 0.3, "whiten": torch.linspace(0.5, 2, 60)}, id="both whitened"),
]
STEPS: list[dict[str, Any]] = [{"steps": 17}, {"steps": 17, "max_basis": 5}, {"steps": 90}, {"steps": 50, "tol": 1e-6}]


@pytest.mark.parametrize("settings", WAYS)
def test_an_effective_rank_tells_its_products(settings: dict[str, Any]) -> None:
    operators, arguments = asked(settings)
    seen: list[EffectiveRankProgress] = []
    found = effective_rank(**arguments, seed=3, on_progress=seen.append)
    assert found.products == sum(each.calls for each in operators)
    assert found.products <= settings.get("max_products", found.products)
    assert found.quadratic_forms == sum(each.forms for each in operators)
    assert (seen[-1].products, found.history[-1][0]) == (found.products, found.products)


@pytest.mark.parametrize(("another", "products"), [(False, 1 + 1 + 3), (True, 1 + 1 + 1 + 3)])
def test_of_a_multiple_of_the_identity_the_products_are_foretold_to_the_last(another: bool, products: int) -> None:
    """A scout, a step (and the form of its vector by another operator), and three probes without any variance."""
    operator, twin = Watched(rotated([2.0] * 50)), Watched(rotated([2.0] * 50))
    seen: list[EffectiveRankProgress] = []
    effective_rank(operator, trace_operator=twin if another else None, on_progress=seen.append)
    assert operator.calls + twin.calls == products
    assert {each.needed for each in seen[1:]} == {products}


@pytest.mark.parametrize("settings", STEPS)
def test_lanczos_tells_its_products(settings: dict[str, Any]) -> None:
    operator = Watched(rotated(VALUES))
    assert lanczos(operator, seed=0, **settings).products == operator.calls


@pytest.mark.parametrize("count", [2, 7])
def test_values_of_the_loss_are_those_that_are_told(count: int) -> None:
    values = 0

    def f(x: Tensor) -> float:
        nonlocal values
        values += 1
        return float((x**4).sum())

    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    assert mu_ladder(f, x, seed=0, probes=count).evaluations == values
    values = 0
    assert forward_only(f, x, seed=0, probes=10 * count).evaluations == values
