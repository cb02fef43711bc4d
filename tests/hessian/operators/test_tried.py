"""The first product of each operator beside differences: wrong derivatives that are caught, right ones that pass."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

import hessian
from decomfl_lab.errors import InputError
from decomfl_lab.objectives import derivatives as tried
from decomfl_lab.objectives import trial as checks
from hessian import FisherOperator, GaussNewtonOperator, HessianOperator, MeanLoss
from tests.hessian import problems
from tests.nets import Around, Counting

INPUTS, TARGETS = problems.data(n=30)
WRONG = "module and loss must have the derivatives that torch gives, got"
KINDS = (HessianOperator, GaussNewtonOperator, FisherOperator)
Operator = HessianOperator | GaussNewtonOperator | FisherOperator
Mask = Callable[[Tensor], Tensor]


class Scaled(torch.autograd.Function):
    """The identity, whose backward and jvp are multiplied by factors, (n, 1)."""

    @staticmethod
    def forward(h: Tensor, backward: Tensor, along: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factors = inputs[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0] * ctx.factors[0], None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return tangents[0] * ctx.factors[1]


class Wrong(nn.Module):
    """A net whose features have derivatives that are wrong by factors for the inputs that ``where`` says."""

    def __init__(self, where: Mask, backward: float = 0.9, along: float = 0.9) -> None:
        super().__init__()
        self.first, self.second = problems.seeded(lambda: nn.Linear(4, 6)), problems.seeded(lambda: nn.Linear(6, 3))
        self.where, self.factors = where, (backward, along)

    def forward(self, h: Tensor) -> Tensor:
        picked = self.where(h)[:, None]
        factors = [torch.where(picked, factor, 1.0).to(h.dtype) for factor in self.factors]
        return self.second(Scaled.apply(torch.tanh(self.first(h)), *factors))  # type: ignore[no-any-return]


def everywhere(h: Tensor) -> Tensor:
    return torch.ones(len(h), dtype=torch.bool)


def in_one_piece(h: Tensor) -> Tensor:
    return torch.stack([(row == INPUTS[20:].to(row.dtype)).all(1).any() for row in h])


def for_some_inputs(h: Tensor) -> Tensor:
    return h[:, 0] > 0.5


def product(
    module: nn.Module, kind: type[Operator] = HessianOperator, loss: Any = cross_entropy, **options: Any
) -> Operator:
    """The operator after its first product; the data are three pieces."""
    options = {"data": [(INPUTS, TARGETS)], "chunk": 10} | options
    operator = kind(MeanLoss(module, loss, **options))
    operator.matvec(torch.linspace(-1, 1, operator.d, dtype=operator.dtype))
    return operator


# --- the module -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("kind", "where", "factor"),
    [
        (HessianOperator, everywhere, 0.9),
        (HessianOperator, in_one_piece, 0.9),
        (HessianOperator, for_some_inputs, 0.9),
        (GaussNewtonOperator, everywhere, 0.9),
        (GaussNewtonOperator, in_one_piece, 0.5),
        (GaussNewtonOperator, for_some_inputs, 0.5),
        (FisherOperator, everywhere, 0.9),
        (FisherOperator, in_one_piece, 0.5),
        (FisherOperator, for_some_inputs, 0.5),
    ],
)
def test_derivatives_that_are_short_are_caught_wherever_they_are(
    kind: type[Operator], where: Mask, factor: float, dtype: torch.dtype
) -> None:
    with pytest.raises(InputError, match=f"{WRONG} .* off from .*: is there a backward or jvp of your own") as error:
        product(Wrong(where, factor, factor), kind, dtype=dtype)
    assert "hessian.forward_only" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("backward", "along"), [(1.0, 0.9), (0.9, 1.0)])
@pytest.mark.parametrize("kind", [GaussNewtonOperator, FisherOperator])
def test_forward_and_reverse_derivatives_are_both_compared(kind: type[Operator], backward: float, along: float) -> None:
    with pytest.raises(InputError, match=rf"{WRONG} forward derivatives of the outputs are \d+% off from reverse ones"):
        product(Wrong(everywhere, backward, along), kind)


def test_the_hessian_asks_for_no_forward_derivative() -> None:
    assert product(Wrong(everywhere, 1.0, 0.5)).remark == ""


class Token(nn.Module):
    """A model of tokens, whose embedding has a short gradient for one token alone."""

    def __init__(self, token: int, factor: float) -> None:
        super().__init__()
        self.table, self.head = problems.seeded(lambda: nn.Embedding(8, 5)), problems.seeded(lambda: nn.Linear(5, 8))
        self.token, self.factor = token, factor

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.table(tokens)
        factor = torch.where(tokens == self.token, self.factor, 1.0)[..., None].to(h.dtype)
        return self.head(torch.tanh(Scaled.apply(h, factor, factor))).mean(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_a_derivative_that_is_wrong_for_one_token_alone_is_caught(factor: float) -> None:
    tokens = torch.arange(40).view(10, 4) % 7
    data = [(tokens, tokens[:, 0])]
    for token in (0, 3):
        if factor == 1.0:
            product(Token(token, factor), data=data, chunk=None)
            continue
        with pytest.raises(InputError, match=WRONG):
            product(Token(token, factor), data=data, chunk=None)
    product(Token(7, 0.5), data=data, chunk=None)  # which does not occur


def test_a_gradient_of_another_function_with_a_hessian_of_its_own_is_told_by_values() -> None:
    """Doubled gradients have doubled differences, so only the values can tell."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, loss: Tensor) -> Tensor:
            return loss.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return 2 * grads[0]

    def doubled(z: Tensor, y: Tensor) -> Tensor:
        return Doubled.apply(cross_entropy(z, y))  # type: ignore[no-any-return]

    with pytest.raises(InputError, match=rf"{WRONG} ∇fᵀv is .* for .* from differences of values"):
        product(problems.mlp(nn.GELU), loss=doubled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_that_are_smoothed_are_compared_with_values(dtype: torch.dtype) -> None:
    def smoothed(module: nn.Module, **options: Any) -> hessian.SmoothedOperator:
        f = MeanLoss(module, cross_entropy, [(INPUTS, TARGETS)], dtype=dtype, **options)
        return hessian.SmoothedOperator(f, f.x, 1e-2)

    v = torch.linspace(-1, 1, 51, dtype=dtype)
    wrong = smoothed(Wrong(everywhere))
    assert (wrong @ v).isfinite().all()
    assert re.search("∇fᵀv is .* at x, where values of f change by .*: f has a kink there, or", *wrong.remarks)
    trusting = smoothed(Wrong(everywhere), trust=True)
    assert (trusting @ v).isfinite().all()
    assert trusting.remarks == ("module, loss and data were taken on trust",)
    right = smoothed(Wrong(everywhere, 1.0, 1.0))
    assert (right @ v).isfinite().all()
    assert right.remarks == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_its_least_value_or_a_kink_a_loss_can_be_smoothed(dtype: torch.dtype) -> None:
    x = torch.randn(100, 6, generator=torch.Generator().manual_seed(0), dtype=dtype)
    w = torch.linspace(-1, 1, 6, dtype=dtype)[:, None]
    line = nn.Linear(6, 1, bias=False).to(dtype)
    for at, loss in ((w.T, nn.functional.mse_loss), (w.T, nn.functional.l1_loss), (0 * w.T, nn.functional.l1_loss)):
        with torch.no_grad():
            line.weight.copy_(at)
        f = MeanLoss(line, loss, [(x, x @ w)])
        assert (hessian.SmoothedOperator(f, f.x, 1e-2) @ f.x.new_ones(6)).isfinite().all()


def test_a_constant_that_hides_slopes_in_float32_is_said() -> None:
    def loss(z: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(z, y) + 1e4

    said = product(Table(True, 1.0), loss=loss, data=[(INPUTS.float(), TARGETS)]).remark
    assert "take no float64" in said


# --- the loss ---------------------------------------------------------------------------------------------------------


def short_loss(z: Tensor, y: Tensor) -> Tensor:
    return 0.9 * cross_entropy(z, y) + 0.1 * cross_entropy(z.detach(), y)


def second_only(z: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy to first order: its second derivative in the outputs is not there."""
    slope = (z.softmax(1) - one_hot(y, 3)).detach() / len(y)
    return cross_entropy(z.detach(), y) + (slope * (z - z.detach())).sum()


def test_what_is_off_of_a_loss_is_said_for_gauss_newton_and_fisher_needs_its_first_derivative_alone() -> None:
    with pytest.raises(InputError, match="got derivatives of the loss in the outputs are 10% off from differences of"):
        product(problems.mlp(nn.GELU), GaussNewtonOperator, short_loss)
    with pytest.raises(InputError, match="got second derivatives of the loss in the outputs are 100% off from"):
        product(problems.mlp(nn.GELU), GaussNewtonOperator, second_only)
    assert product(problems.mlp(nn.GELU), FisherOperator, second_only).remark == ""


# --- which vector, and when -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_first_product_is_tried_and_its_bits_are_those_of_the_others(
    kind: type[Operator], monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = kind(MeanLoss(problems.mlp(nn.GELU), cross_entropy, [(INPUTS, TARGETS)], chunk=10))
    v = torch.linspace(-1, 1, operator.d, dtype=torch.float64)
    first = operator.matvec(v)
    monkeypatch.setattr(operator, "_trial", None)
    assert torch.equal(first, operator.matvec(v))


@pytest.mark.parametrize("kind", KINDS)
def test_the_comparison_is_what_catches_them(kind: type[Operator], monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a tolerance of everything lets all of these pass."""
    monkeypatch.setattr(tried, "AGREES", math.inf)
    monkeypatch.setattr(tried, "is_slope", lambda *args: True)
    for where in (everywhere, in_one_piece, for_some_inputs):
        assert product(Wrong(where), kind).remark == ""


# --- what is right, and looks otherwise -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        lambda z, y: z.exp().log().mean(),
        lambda z, y: cross_entropy(z, y) + 1e9,
        lambda z, y: 1e-15 * cross_entropy(z, y),
        lambda z, y: 0 * z.sum(),
    ],
    ids=["no curvature but rounding", "a large constant", "tiny", "zero"],
)
def test_rounding_is_no_fault_where_a_loss_has_little_curvature_or_a_large_value(loss: Any) -> None:
    assert product(problems.seeded(lambda: nn.Linear(4, 3)), loss=loss).remark == ""


def convolutions() -> nn.Module:
    """Of 2 million units with a kink, for 100 images."""
    module = problems.seeded(
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(16, 3),
        )
    )  # fmt: skip
    return module.float()


IMAGES = [
    tuple(
        tensor.float() if tensor.is_floating_point() else tensor for tensor in problems.data(n=100, shape=(1, 28, 28))
    )
]


def test_kinks_need_their_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: with the coarser steps of smooth nets the same net is refused."""
    monkeypatch.setattr(checks, "_KINKS", frozenset())
    monkeypatch.setattr(tried, "SMOOTH", tried.SMOOTH[:-1])
    with pytest.raises(InputError, match=WRONG):
        product(convolutions(), data=IMAGES, chunk=None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_softmax_that_is_computed_in_float32_passes(kind: type[Operator], dtype: torch.dtype) -> None:
    narrow = Around(problems.mlp(nn.GELU), after=lambda z: (10 * z.float().softmax(1)).to(z.dtype))
    assert product(narrow, kind, dtype=dtype).remark == ""


class Rounded(nn.Module):
    """Its loss is computed in float32, whatever it is given, as that of transformers; its backward is too long."""

    def __init__(self, seed: int, factor: float) -> None:
        super().__init__()
        self.inner = problems.seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 3)), seed)
        self.factor = factor

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        z = self.inner(inputs).float()
        return {"loss": 50 + cross_entropy(z + (self.factor - 1) * (z - z.detach()), labels)}


@pytest.mark.parametrize("seed", range(8))
def test_a_loss_in_float32_passes_if_its_derivatives_are_right_to_rounding(seed: int) -> None:
    inputs, labels = problems.data()
    batch = [{"inputs": inputs, "labels": labels}]
    right, wrong = (hessian.curvature(Rounded(seed, factor), None, batch) for factor in (1.0, 2.0))
    v = torch.linspace(-1, 1, right.d, dtype=right.dtype)
    assert (right @ v).isfinite().all()
    with pytest.raises(InputError, match=WRONG):
        wrong @ v


def test_kinks_in_float32_whatever_is_given_are_said_where_the_comparison_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tried, "KINKED", tried.KINKED[:3])  # a small net has no kink on the way of the coarser steps

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = problems.mlp()

        def forward(self, h: Tensor) -> Tensor:
            return self.inner(h.to(self.inner[0].weight.dtype)).float().relu().to(h.dtype)  # type: ignore[no-any-return]

    said = product(Cast(), dtype=torch.float64).remark
    assert said == tried.UNCLEAR.format("the module computes in float32 whatever it is given, and has kinks")


class Table(nn.Module):
    """A net with a tensor in float32 that nobody casts, so that it takes no float64; wrong by a factor."""

    def __init__(self, kink: bool, factor: float) -> None:
        super().__init__()
        self.inner, self.last = problems.mlp(nn.ReLU if kink else nn.GELU).float(), nn.Identity()
        self.table, self.factor = torch.eye(3), factor

    def forward(self, h: Tensor) -> Tensor:
        z = self.inner(h) @ self.table
        return Scaled.apply(z, *(torch.tensor(self.factor) for _ in range(2)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kink", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_where_float64_cannot_be_had_differences_in_float32_stand_in(kind: type[Operator], kink: bool) -> None:
    data = [(INPUTS.float(), TARGETS)]
    assert product(Table(kink, 1.0), kind, data=data).remark == ""
    with pytest.raises(InputError, match=WRONG):
        product(Table(kink, 0.7), kind, data=data)


def test_where_there_is_no_room_for_float64_float32_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, data = Wrong(everywhere).float(), [(INPUTS.float(), TARGETS)]
    d = sum(p.numel() for p in wrong.parameters())
    monkeypatch.setattr(tried, "room", lambda device: 6 * 4 * d)
    with pytest.raises(InputError, match=WRONG):
        product(wrong, data=data)
    monkeypatch.setattr(tried, "room", lambda device: 6 * 4 * d - 1)
    assert product(wrong, data=data).remark == tried.UNCLEAR.format("there is no room for it")


# --- cost -------------------------------------------------------------------------------------------------------------


def passes(kind: type[Operator], *, trust: bool, chunk: int | None) -> list[float]:
    """The passes of all data through the module: to make the loss, the operator, the first and the second product."""
    module, found = Counting(problems.mlp(nn.GELU)), []
    v = torch.linspace(-1, 1, 83, dtype=torch.float64)
    f = MeanLoss(module, cross_entropy, (INPUTS, TARGETS), trust=trust, chunk=chunk)
    found.append(sum(module.seen))
    operator = kind(f)
    for work in (lambda: None, lambda: operator.matvec(v), lambda: operator.matvec(v)):
        work()
        found.append(sum(module.seen))
    return [b / len(INPUTS) - a / len(INPUTS) for a, b in zip([0, *found], found, strict=False)]


@pytest.mark.parametrize("chunk", [None, 10])
def test_the_first_product_with_the_hessian_costs_two_gradients_more(chunk: int | None) -> None:
    tested, trusted = (passes(HessianOperator, trust=trust, chunk=chunk) for trust in (False, True))
    assert tested[2] - trusted[2] == pytest.approx(2)
    assert tested[3] == trusted[3] == 0  # graphs are kept
    assert tested[1] == pytest.approx(trusted[1])


def test_to_try_one_batch_takes_four_evaluations_and_none_on_trust() -> None:
    assert passes(HessianOperator, trust=False, chunk=None)[0] == 4
    assert passes(HessianOperator, trust=True, chunk=None)[0] == 1
