"""κ by layer: every row is that of the dense block, the shares add up, and the table says so."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hessian
from hessian import ByLayer, MeanLoss, by_layer
from hessian.kappa.picture import picture_of_layers
from tests.cases import sampled
from tests.hessian import problems
from tests.situations import zoo

DATA = problems.data()


nested = zoo.parts(
    lambda own, h: own.head(own.body(h * own.scale)),
    scale=lambda: nn.Parameter(torch.tensor([1.3, 0.7, 1.1, 0.9])),
    body=zoo.layers(zoo.linear(4, 5), nn.Tanh, zoo.linear(5, 5), nn.Tanh),
    head=zoo.linear(5, 3),
)
"""Layers at several depths, and a parameter of the model's own."""
NET = problems.seeded(nested)
SIZES = {None: {"": 4, "body.0": 25, "body.2": 30, "head": 18}, 1: {"": 4, "body": 55, "head": 18}}
"""The parameters of the layers, by depth."""


def dense() -> Tensor:
    return problems.dense_hessian(MeanLoss(NET, cross_entropy, DATA), NET, *DATA)


def exact(**options: object) -> ByLayer:
    return by_layer(NET, cross_entropy, DATA, products=200, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", sampled(SIZES, 1))
def test_every_row_is_the_dense_block(depth: int | None) -> None:
    found, H = exact(depth=depth), dense()
    assert {row.layer: row.rank.d for row in found.rows} == SIZES[depth]
    begin = 0
    for row in found.rows:
        block = H[begin : begin + row.rank.d, begin : begin + row.rank.d]
        begin += row.rank.d
        assert row.rank.trace.value == pytest.approx(float(block.trace()))
        assert row.rank.kappa == pytest.approx(problems.kappa_of(block))
        assert row.share.value == pytest.approx(float(block.trace() / H.trace()))
        assert (row.share.stderr, row.rank.reached) == (0.0, True)
    assert sum(row.share.value for row in found.rows) == pytest.approx(1.0)
    assert found.trace.value == pytest.approx(float(H.trace()))
    assert found.products == sum(SIZES[depth].values())


def test_shares_have_the_error_that_they_show() -> None:
    truth = dense()[29:59, 29:59].trace() / dense().trace()
    H = hessian.curvature(NET, cross_entropy, DATA, trust=True)
    found = [by_layer(H, products=8, seed=seed).rows[2].share for seed in range(12)]
    off = torch.tensor([(each.value - float(truth)) / each.stderr for each in found])
    assert float((off.abs() < 3).double().mean()) >= 0.9
    assert 0.5 < float(off.square().mean().sqrt()) < 2


@pytest.mark.parametrize("operator", sampled(["gauss-newton", "fisher", "smoothed"], 1))
def test_every_matrix_has_layers(operator: str) -> None:
    found = exact(operator=operator)
    whole = hessian.curvature(NET, cross_entropy, DATA, operator=operator)
    assert found.operator == operator
    assert found.trace.value == pytest.approx(float(problems.columns(whole).trace()), rel=1e-3)


def test_sums_and_whitened_matrices_have_layers_too() -> None:
    s = torch.linspace(0.5, 2, 77, dtype=torch.float64)
    H = hessian.curvature(NET, cross_entropy, DATA)
    found = by_layer(2 * H + H, whiten=s, products=200)
    assert found.trace.value == pytest.approx(float((3 * s * dense() * s[:, None]).trace()))


def test_model_loss_and_data_are_tried_once() -> None:
    """Without trust the model is called as many times more as for one product of the whole matrix."""
    calls = 0

    def counted(*at: object) -> None:
        nonlocal calls
        calls += 1

    def tried(use: Callable[[bool], object]) -> int:
        counts = []
        for trust in (False, True):
            before = calls
            use(trust)
            counts.append(calls - before)
        return counts[0] - counts[1]

    net = problems.seeded(nested)
    net.register_forward_hook(counted)
    once = tried(lambda trust: hessian.effective_rank(net, cross_entropy, DATA, products=8, trust=trust))
    assert tried(lambda trust: by_layer(net, cross_entropy, DATA, products=8, trust=trust)) == once > 0


def test_the_table_and_the_picture_say_what_was_measured(tmp_path: Path) -> None:
    found = by_layer(NET, cross_entropy, DATA, products=8, trust=True)
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["(model)", "body.0", "body.2", "head"]
    assert "d = 25, " in lines[3]
    short = sum("wider than asked for" in line for line in lines[2:6])
    assert lines[-1].startswith(f"wider than asked for: {short} layer") == (short > 0)
    assert lines[-1].endswith("module, loss and data were taken on trust")
    assert found.plot(tmp_path / "layers.png").stat().st_size > 10_000
    left, right = picture_of_layers(found).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["(model)", "body.0", "body.2", "head"]
    assert [bar.get_width() for bar in right.patches] == pytest.approx([100 * row.share.value for row in found.rows])


def test_layers_without_curvature_are_shown_as_such() -> None:
    def flat(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - targets).mean()

    net = problems.seeded(lambda: nn.Sequential(nn.Linear(4, 3, bias=False)))
    found = by_layer(net, flat, DATA)
    assert found.readings[0].shown == ("–", "–")
    assert "wider than asked for" in found.readings[0].words
