"""``import hessian`` as a stranger uses it: κ of any module, loss and data, a result that prints."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hessian
from hessian import DenseOperator
from hessian.readings import Reported
from tests.cases import refuses, rows_of
from tests.hessian.spectra import rotated
from tests.nets import seeded

X = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(300) % 3
LOSS = nn.CrossEntropyLoss()


def net() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3)), 1)  # type: ignore[no-any-return]


@refuses(
    ((net(),), "data must be given with a module, got None"),
    ((net(), LOSS), "data must be given with a module, got None"),
    ((net(), None, (X, Y)), "data must be mappings with labels where loss is None"),
    ((net(), LOSS, 3), r"data must be \(inputs, targets\), mappings with labels, .*, got 'int'"),
    ((net(), "ce", (X, Y)), r"loss must be a function of \(outputs, targets\), or of \(model, batch\), got 'ce'"),
    ((net(), LOSS, (X, Y + 1)), r"the examples of data \(float32 \(300, 6\), .*Target 3 is out of bounds"),
    ((net(), LOSS, (X[:, :5], Y)), r"model and loss must take the examples of data \(float32 \(300, 5\)"),
    ((3,), r"model must be a torch module, an operator \(hessian.Operator\), a matrix or a function .*, got 'int'"),
    ((rotated([1.0]), LOSS), "loss and data must be None with an operator, which has them"),
)
def test_what_has_no_hessian_is_refused(given: tuple[Any, ...]) -> None:
    hessian.effective_rank(*given, seed=0)


@pytest.mark.parametrize(("kappa", "low", "high", "shown"), rows_of(__file__)["printed"])
def test_a_result_prints_its_interval_to_two_digits_of_the_half_width(
    kappa: float, low: float, high: float, shown: str
) -> None:
    found = replace(hessian.effective_rank(rotated([1.0, 2.0]), seed=0), kappa=kappa, interval=(low, high), products=48)
    assert str(found).startswith(f"{shown} (48 products)")


def results() -> Iterator[Reported]:
    """One of each."""
    data, H = (X, Y), rotated([3.0, -1.0, *np.linspace(-0.2, 1.0, 58)])
    x = torch.ones(60, dtype=torch.float64)
    yield hessian.effective_rank(H)
    yield hessian.effective_rank(H, part="positive", products=20)
    yield hessian.effective_rank(DenseOperator(torch.zeros(9, 9)))
    yield hessian.trace(H)
    yield hessian.top_eigenvalues(H, k=2)
    yield hessian.diagonal(H, products=10)
    yield hessian.spectral_density(H)
    yield hessian.by_layer(net(), LOSS, data, products=8)
    yield hessian.ball_probe(lambda _: H, x, 1.0, seed=0, points=1)
    yield hessian.forward_only(lambda x: float(x @ H.matrix @ x), x, seed=0, probes=8)
    yield hessian.split_sample((H, 2 * H), seed=0)
    yield hessian.solve(H + 2, x)


def test_every_result_is_short_in_a_repr_and_has_its_readings_in_all_forms() -> None:
    for found in results():
        assert len(repr(found)) < 240
        assert "\n" not in repr(found)
        told = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert [each["name"] for each in told["readings"]] == [each.name for each in found.readings]
        for form in (found.summary(), found._repr_markdown_().replace("\\|", "|")):
            for each in found.readings:
                lines = [line.removeprefix("| ") for line in form.splitlines()]
                parts = (*each.shown, each.words)
                assert any(line.startswith(each.name) and all(part in line for part in parts) for line in lines)
