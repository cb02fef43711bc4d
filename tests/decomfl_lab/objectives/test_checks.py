"""Each check of a user's function, with faults that it has to catch and controls that it has to pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from decomfl_lab.errors import InputError
from decomfl_lab.objectives import checks
from decomfl_lab.objectives.checks import SLOPES, Watch, is_additive, is_slope, parts_agree, relative
from decomfl_lab.objectives.modules import swapped
from decomfl_lab.objectives.trees import Batch, row_count
from tests.nets import seeded

READS = r"reads the module behind them \('{}'\)"
ELSEWHERE = "loss must depend on no parameters but the module's"


# --- closed -----------------------------------------------------------------------------------------------------------


def net() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))  # type: ignore[no-any-return]


X, Y = torch.linspace(-1, 1, 15).view(5, 3), torch.tensor([0, 1, 1, 0, 1])
OwnLoss = Callable[[nn.Sequential], Callable[[Tensor], Tensor]]
"""It makes of the user's module a loss of outputs."""


def closed(make: OwnLoss, module: nn.Sequential | None = None) -> None:
    """The check, with other tensors in place of all the module's parameters."""
    module = net() if module is None else module
    replaced = dict(module.named_parameters())
    loss = make(module)
    with swapped(module, {name: p.detach().clone() for name, p in replaced.items()}), Watch(replaced) as watch:
        found = loss(module(X))
    watch.require_closed(found)


def _through(read: Callable[[nn.Sequential], Any]) -> OwnLoss:
    """A loss that reads, each time, what was taken from the module before."""

    def make(module: nn.Sequential) -> Callable[[Tensor], Tensor]:
        taken = read(module)
        return lambda outputs: cross_entropy(outputs, Y) + (taken() if callable(taken) else taken).square().sum()

    return make


READERS = {
    "the parameter": lambda m: m[2].weight,
    "an alias by data": lambda m: m[2].weight.data,
    "an alias by detach": lambda m: m[2].weight.detach(),
    "a view": lambda m: m[2].weight.detach()[1:],
    "a column": lambda m: m[2].weight.detach()[:, 3],
    "the transpose": lambda m: m[2].weight.data.T,
    "a view in inference mode": lambda m: torch.inference_mode()(lambda: m[2].weight.view(-1))(),
    "in a list": lambda m: lambda own=[m[2].weight]: torch.cat(own),
    "without a gradient": lambda m: lambda w=m[2].weight: torch.no_grad()(lambda: w.norm())(),
    "by item": lambda m: lambda w=m[2].weight: torch.tensor(w[0, 0].item()),
    "by an argument's name": lambda m: lambda w=m[2].weight: functional.linear(input=torch.ones(4), weight=w),
}


@pytest.mark.parametrize("name", READERS)
def test_a_loss_that_reads_a_parameter_is_caught_by_any_alias_of_it(name: str) -> None:
    with pytest.raises(InputError, match=READS.format("2.weight")):
        closed(_through(READERS[name]))


@pytest.mark.parametrize(
    "read",
    [
        lambda m: m[2].weight.detach().clone(),
        lambda m: torch.ones(3),
        lambda m: lambda w=m[2].weight: torch.tensor(float(w.numel() + w.shape[0] + len(w))),
        lambda m: lambda w=m[2].weight: torch.zeros_like(w) + w.new_ones(()),
        lambda m: lambda m=m: torch.cat([p.reshape(-1) for p in m.parameters()]),  # x, as the module has it now
    ],
    ids=["a clone", "a constant", "its shape", "zeros like it", "the parameters it has by now"],
)
def test_a_loss_that_reads_no_element_of_a_users_parameter_passes(read: Callable[[nn.Sequential], Any]) -> None:
    closed(_through(read))


def test_neighbours_in_one_storage_are_told_apart() -> None:
    flat = torch.arange(10.0)
    taken, beside = nn.Parameter(flat[:4]), flat[4:]
    with Watch({"taken": taken}) as watch:
        loss = beside.sum()
    watch.require_closed(loss)
    with Watch({"taken": taken}) as watch:
        loss = flat[3:].sum()
    with pytest.raises(InputError, match=READS.format("taken")):
        watch.require_closed(loss)


FOREIGN = nn.Parameter(torch.tensor(2.0))
FOREIGN_LEAVES = {
    "a parameter": lambda outputs: cross_entropy(outputs * FOREIGN, Y),
    "a bare tensor": lambda outputs, t=torch.ones((), requires_grad=True): cross_entropy(outputs * t, Y),  # noqa: B008
    "what was computed of one outside": lambda outputs, t=3 * FOREIGN: cross_entropy(outputs * t, Y),
    "a term beside": lambda outputs: cross_entropy(outputs, Y) + FOREIGN.square(),
    "itself": lambda outputs: FOREIGN,
    "one deep in the graph": lambda outputs: (outputs.sum() * FOREIGN).exp().log().tanh(),
    "a parameter that is touched inside": lambda outputs: cross_entropy(outputs * FOREIGN.requires_grad_(), Y),
    "a parameter made inside": lambda outputs: cross_entropy(outputs * nn.Parameter(torch.ones(())), Y),
}


@pytest.mark.parametrize("name", FOREIGN_LEAVES)
def test_a_gradient_into_anything_but_x_is_caught(name: str) -> None:
    with pytest.raises(InputError, match=ELSEWHERE) as caught:
        closed(lambda module: FOREIGN_LEAVES[name])
    assert "got one of shape ()" in str(caught.value)


@pytest.mark.parametrize(
    "leaf",
    [
        lambda h: h.detach().requires_grad_(),
        lambda h: torch.ones_like(h).requires_grad_(),
        lambda h: torch.ones(h.shape, requires_grad=True),
        lambda h: torch.zeros_like(h, requires_grad=True),
    ],
)
def test_leaves_that_are_made_inside_to_differentiate_in_the_inputs_pass(leaf: Callable[[Tensor], Tensor]) -> None:
    def equation(outputs: Tensor) -> Tensor:
        at = leaf(outputs)
        (slope,) = torch.autograd.grad(at.sin().sum(), at, create_graph=True)
        return slope.square().mean() + outputs.sum()

    with torch.enable_grad():
        closed(lambda module: equation)


@pytest.mark.parametrize(
    ("module", "kinked"),
    [
        (nn.ReLU(), True),
        (nn.ReLU(inplace=True), True),
        (nn.LeakyReLU(), True),
        (nn.PReLU(), True),
        (nn.Hardtanh(), True),
        (nn.ReLU6(), True),
        (nn.MaxPool1d(2), True),
        (nn.AdaptiveMaxPool1d(2), True),
        (nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), True),
        (nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, activation="gelu"), False),
        (nn.GELU(), False),
        (nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.LayerNorm(6), nn.Softmax(1), nn.AvgPool1d(2)), False),
        (nn.LSTM(6, 3), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_kinks_are_seen_in_modules(module: nn.Module, kinked: bool) -> None:
    with Watch({}) as watch:
        module(torch.linspace(-1, 1, 24).view(1, 4, 6))
    assert watch.kinked is kinked


@pytest.mark.parametrize(
    "function", [abs, torch.abs, lambda t: t.clamp(min=0), lambda t: t.max(), lambda t: torch.where(t > 0, t, 0 * t)]
)
def test_kinks_are_seen_in_functions_of_a_loss(function: Callable[[Tensor], Tensor]) -> None:
    with Watch({}) as watch:
        function(X)
    assert watch.kinked


# --- additive ---------------------------------------------------------------------------------------------------------

Loss = Callable[[Tensor, Tensor], Tensor]
N, CLASSES = 40, 3
_generator = torch.Generator().manual_seed(0)
Z, LABELS = torch.randn(N, CLASSES, generator=_generator), torch.randint(CLASSES, (N,), generator=_generator)
WEIGHTS = torch.tensor([1.0, 5.0, 0.2])


def additive(
    loss: Loss, batches: Sequence[Batch], weight: Callable[[Batch], float] | None = None, chunk: int | None = None
) -> bool:
    """The check of a loss of outputs, which are the inputs here."""
    return is_additive(
        lambda batch: float(loss(*batch)),
        batches,
        [float(loss(*batch)) for batch in batches],
        weight=weight or (lambda batch: float(row_count(batch) or 1)),
        eps=torch.finfo(torch.float32).eps,
        wide=lambda batch: float(loss(batch[0].double(), batch[1])),
        chunk=chunk,
    )


def batches_of(order: Tensor, *sizes: int) -> list[Batch]:
    return list(zip(Z[order].split(list(sizes)), LABELS[order].split(list(sizes)), strict=True))


def by_class(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, WEIGHTS.to(outputs.dtype))


PLAIN, SORTED = torch.arange(N), LABELS.argsort()
COUNTS = [int((c == LABELS).sum()) for c in range(CLASSES)]
CUTS = {
    "one batch": batches_of(PLAIN, N),
    "ragged batches": batches_of(PLAIN, 11, 1, 17, 11),
    "batches of one example": batches_of(PLAIN, *[1] * N),
    "sorted by class": batches_of(SORTED, 10, 10, 10, 10),
    "a batch for each class": batches_of(SORTED, *COUNTS),
}
NO_MEANS: dict[str, Loss] = {
    "a sum": lambda z, y: cross_entropy(z, y, reduction="sum"),
    "class weights": by_class,
    "a product over the batch": lambda z, y: cross_entropy(z, y) * z.mean(),
    "statistics of the batch": lambda z, y: cross_entropy((z - z.mean(0)) / (1 + z.var(0, correction=0)), y),
    "a root of a mean": lambda z, y: cross_entropy(z, y).sqrt(),
    "a maximum": lambda z, y: cross_entropy(z, y, reduction="none").max(),
    "half a per cent from a mean": lambda z, y: cross_entropy(z, y) * (1 + 5e-3 / len(y)),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", NO_MEANS)
def test_losses_that_are_no_means_are_caught_however_their_batches_are_cut(name: str, cut: str) -> None:
    assert not additive(NO_MEANS[name], CUTS[cut])


@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda z, y: cross_entropy(z, y) + 1e4,
        lambda z, y: cross_entropy(z, y) - 1e4,
        lambda z, y: 1e-20 * cross_entropy(z, y),
        lambda z, y: 0 * z.sum(),
        lambda z, y: (WEIGHTS.to(z.dtype)[y] * cross_entropy(z, y, reduction="none")).mean(),
    ],
    ids=["cross-entropy", "smoothing", "plus", "minus", "tiny", "zero", "weighted by example, a mean"],
)
def test_means_over_examples_pass_however_they_are_cut(loss: Loss, cut: str, chunk: int | None) -> None:
    assert additive(loss, CUTS[cut], chunk=chunk)


def _one_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "shape_of", lambda tree: object())  # as if no two batches fitted together


@pytest.mark.parametrize("cut", ["batches of one example", "a batch for each class"])
def test_batches_that_are_alike_inside_need_the_parts_that_meet(cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: without the second cut these pass for a mean, which they are not."""
    assert not additive(by_class, CUTS[cut])
    _one_batch_alone(monkeypatch)
    assert additive(by_class, CUTS[cut])


def trained(scale: float) -> Tensor:
    """Logits of a net that is nearly always right, by much."""
    return (scale * functional.one_hot(LABELS, CLASSES) + Z).float()


@pytest.mark.parametrize("scale", [10.0, 14.0, 17.0])
def test_a_well_trained_net_in_float32_has_rounded_losses_and_passes(scale: float) -> None:
    batches = list(zip(trained(scale).split(10), LABELS.split(10), strict=True))
    assert float(cross_entropy(*batches[0])) < 1e-3
    assert additive(cross_entropy, batches)
    assert not additive(by_class, batches)


def blocked(z: Tensor, y: Tensor) -> Tensor:
    """A product whose rounding of large logits in float32 depends on the number of rows, as kernels' does."""
    return cross_entropy(z * (1 + 2.0**-16 * (len(y) % 3)) if z.dtype == torch.float32 else z, y)


def always_narrow(z: Tensor, y: Tensor) -> Tensor:
    return blocked(z.float(), y)


@pytest.mark.parametrize(("loss", "told"), [(blocked, True), (always_narrow, False)])
def test_rounding_is_told_from_a_difference_by_float64_alone(loss: Loss, told: bool) -> None:
    """The planted fault: float32 instead of float64 refuses a net that is right."""
    assert additive(loss, list(zip(trained(6.0).split(10), LABELS.split(10), strict=True))) is told


@pytest.mark.parametrize(("off", "tried"), [(2e-2, False), (1e-3, True), (0.0, False)])
def test_only_differences_that_rounding_may_explain_are_tried_in_float64(off: float, tried: bool) -> None:
    asked: list[int] = []

    def wide(batch: Batch) -> float:
        asked.append(len(batch[1]))
        return float(cross_entropy(batch[0].double(), batch[1]))

    def value(batch: Batch) -> float:
        return float(cross_entropy(*batch)) * (1 + off * (len(batch[1]) < N))

    whole = CUTS["one batch"]
    count = lambda batch: float(len(batch[1]))  # noqa: E731
    same = is_additive(value, whole, [value(whole[0])], weight=count, eps=1e-7, wide=wide)
    assert same == (off < 1e-2)
    assert bool(asked) == tried


def test_it_costs_two_evaluations_of_all_examples_at_most() -> None:
    for cut, batches in CUTS.items():
        seen: list[int] = []

        def counted(z: Tensor, y: Tensor, seen: list[int] = seen) -> Tensor:
            seen.append(len(y))
            return cross_entropy(z, y)

        assert additive(counted, batches)
        assert sum(seen) - N <= 2 * N, cut  # the wholes are known


def test_parts_are_compared_relative_to_the_largest_of_them() -> None:
    parts = [(None, 1.0, 1.0), (None, 3.0, -1.0)]
    assert parts_agree(-0.5, parts, 1e-12)
    assert parts_agree(-0.5 + 9e-4, parts, 1e-3)
    assert not parts_agree(-0.5 + 1.1e-3, parts, 1e-3)
    assert not parts_agree(math.nan, parts, 1e-3)
    assert parts_agree(7.0, [(None, 0.0, math.nan)], 1e-12)  # nothing has weight


# --- differentiable ---------------------------------------------------------------------------------------------------


def _difference(f: Callable[[float], float]) -> Callable[[float], float]:
    return lambda step: (f(step) - f(-step)) / (2 * step)


@pytest.mark.parametrize("f", [lambda t: 3 * t, lambda t: math.sin(3 * t), lambda t: 3 * t + 1e3 * t**3 + 7])
def test_the_slope_of_a_smooth_function_is_one(f: Callable[[float], float]) -> None:
    assert is_slope(3.0, 3.0, _difference(f))
    assert not any(is_slope(wrong, 3.0, _difference(f)) for wrong in (2.7, 3.3, -3.0, 0.0))


def test_coarser_steps_are_tried_where_float32_hides_the_finer_ones() -> None:
    tried: list[float] = []

    def rounded(step: float) -> float:
        tried.append(step)
        return 0.0 if step < 1e-4 else 2.0

    assert is_slope(2.0, 2.0, rounded)
    assert tried == [1e-6, 1e-4]
    assert not is_slope(1.7, 2.0, rounded)
    assert tried[2:] == list(SLOPES)


def test_steps_are_relative_to_x_or_to_its_dimension_where_x_is_small() -> None:
    x, z = torch.full((100,), 2.0), torch.full((100,), 0.5)
    assert relative(x, z, 1e-3) == pytest.approx(1e-3 * 20 / 5)
    assert relative(0 * x, z, 1e-3) == pytest.approx(1e-3 * 10 * 1e-3 / 5)
    assert relative(x.bfloat16(), z.bfloat16(), 1.0) == pytest.approx(4.0)
