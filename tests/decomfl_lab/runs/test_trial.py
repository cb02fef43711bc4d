"""What is tried of a user's model, loss and data before a run: faults that it names, controls that pass, its cost."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab import InputError, TrainConfig
from decomfl_lab.datasets.own import own_dataset
from decomfl_lab.objectives import trial as checks
from decomfl_lab.objectives.batch_loss import BatchLoss, Form
from decomfl_lab.plugins import OWN
from decomfl_lab.runs import trial
from decomfl_lab.runs.building import name_of_loss
from decomfl_lab.runs.prepared import Prepared
from decomfl_lab.runs.trial import tried
from tests.nets import Around, Counting, seeded
from tests.refusals import refuses

_generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(30, 4, generator=_generator), torch.randint(3, (30,), generator=_generator)
CLIENTS = [(X[:12], Y[:12]), (X[12:], Y[12:])]
HELD = (X[:7], Y[:7])
GRADIENTS = "fedavg"


def net(make: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 5), make(), nn.Linear(5, 3)))  # type: ignore[no-any-return]


def judged(
    module: nn.Module | None = None,
    loss: Any = cross_entropy,
    clients: Sequence[Any] = CLIENTS,
    *,
    test: Any = None,
    method: str = "decomfl",
    **options: Any,
) -> BatchLoss:
    """The trial of a run whose batches are of 5 examples."""
    whole = BatchLoss.of(loss).form is Form.MODEL
    M = {} if method == "mezo" else {"clients": len(clients), "sampled": len(clients)}
    config = TrainConfig(method).but(**{"model": OWN, "data": OWN, "loss": name_of_loss(loss), "batch_size": 5} | M)
    dataset = own_dataset(clients, test, whole=whole)
    return tried(Prepared.of(config.but(**options), dataset, module or net(), loss)).loss


# --- what is right ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["decomfl", GRADIENTS])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_a_mean_over_examples_may_be_cut_and_is_known_to_have_been_tried(
    method: str, activation: type[nn.Module]
) -> None:
    found = judged(net(activation), method=method, test=HELD)
    assert (found.additive, found.tried, found.loss) == (True, True, cross_entropy)


def test_what_is_the_labs_own_is_not_tried_nor_what_was_tried_nor_what_is_taken_on_trust() -> None:
    module = Counting(net())
    assert judged(module, trust=True).additive
    once = BatchLoss(cross_entropy, Form.OUTPUTS, additive=False)
    assert judged(module, once) is once
    assert not module.seen
    config = TrainConfig(data="digits", model="mlp", clients=2, sampled=2)
    assert not tried(Prepared.of(config, own_dataset(CLIENTS))).loss.tried


def test_the_module_and_the_generator_are_left_as_they_were() -> None:
    module = net()
    before, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    judged(module, method=GRADIENTS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in module.parameters())
    assert torch.equal(torch.get_rng_state(), state)


# --- its cost ---------------------------------------------------------------------------------------------------------


def test_values_are_tried_by_four_evaluations_of_all_batches() -> None:
    module = Counting(net())
    judged(module, test=HELD)
    # After one batch, which tells the outputs' classes; one batch once more, by the module that was called before.
    assert sum(module.seen[1:]) in range(4 * 37 - 10, 4 * 37 + 31)


def test_slopes_are_tried_by_a_gradient_and_two_evaluations_more() -> None:
    module = Counting(net())
    judged(module)
    values = sum(module.seen)
    module.seen.clear()
    judged(module, method=GRADIENTS)
    assert sum(module.seen) - values == 3 * 30


def test_of_the_clients_only_their_first_epoch_is_tried_in_the_sizes_of_the_run() -> None:
    module = Counting(net())
    judged(module, batch_size=30, rounds=100)
    assert module.seen[1:5] == [12, 18, 12, 18]


# --- a function of x and the data alone -------------------------------------------------------------------------------


class Counted(nn.Module):
    """It counts its forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        self.passes += 1
        return self.inner(h)


class Normalised(nn.Module):
    """A BatchNorm of one's own, whose statistics a kernel writes: torch counts no change."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, h: Tensor) -> Tensor:
        return nn.functional.batch_norm(self.inner(h), self.mean, self.var, training=self.training)


def test_a_batchnorm_of_ones_own_may_have_constants() -> None:
    judged(Normalised().eval())


def infinite_of_two(z: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(z, y) / (len(y) != 2)  # the last batch of client 0, and of the test


# --- additive, and the order of a batch -------------------------------------------------------------------------------


def by_place(z: Tensor, y: Tensor) -> Tensor:
    """Later examples count more, by where they are in the batch."""
    return (torch.arange(1.0, len(y) + 1, dtype=z.dtype) * cross_entropy(z, y, reduction="none")).mean()


def test_the_order_is_looked_at_in_batches_that_are_drawn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: where no difference is seen, what is refused above passes."""
    monkeypatch.setattr(trial, "parts_agree", lambda *args: True)
    assert not judged(loss=by_place).additive


# --- differentiable ---------------------------------------------------------------------------------------------------


class Short(torch.autograd.Function):
    """The identity, whose backward is a factor too short for some rows."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.saved_tensors[0], None


class Shortened(nn.Module):
    """``where`` says of inputs for which rows the backward is short."""

    def __init__(self, where: Callable[[Tensor], Tensor], factor: float = 0.9) -> None:
        super().__init__()
        self.inner, self.where, self.factor = net(), where, factor

    def forward(self, h: Tensor) -> Tensor:
        return Short.apply(self.inner(h), torch.where(self.where(h), self.factor, 1.0)[:, None].to(h.dtype))  # type: ignore[no-any-return]


def everywhere(h: Tensor) -> Tensor:
    return torch.ones(len(h), dtype=torch.bool)


def of_client_1(h: Tensor) -> Tensor:
    return torch.stack([(row == X[12:].to(h.dtype)).all(1).any() for row in h])


def in_one_batch(h: Tensor) -> Tensor:
    return everywhere(h) & (len(h) == 2)  # the last of client 0


BUFFER = r"buffer '{}' of the model must stay what it is .*call model.eval\(\)"
DERIVATIVE = f"loss must have the derivative that torch gives, for {GRADIENTS}, got .* values of {{}} change by"


@refuses(
    ({"module": Counted()}, BUFFER.format("passes")),
    ({"module": Normalised()}, BUFFER.format("mean")),
    ({"loss": infinite_of_two}, "loss of client 0 at x_0 must be finite, got inf"),
    ({"loss": infinite_of_two, "clients": [(X, Y)], "test": HELD}, "loss of test at x_0 must be finite, got inf"),
    ({"loss": by_place}, "loss must not depend on the order of a batch's examples, which are drawn"),
    ({"module": Shortened(everywhere), "method": GRADIENTS}, DERIVATIVE.format("client 0")),
    ({"module": Shortened(of_client_1), "method": GRADIENTS}, DERIVATIVE.format("client 1")),
    ({"module": Shortened(in_one_batch), "method": GRADIENTS}, DERIVATIVE.format("client 0")),
)
def test_what_is_no_differentiable_mean_of_x_and_the_data_alone_is_named_wherever_it_is(given: dict[str, Any]) -> None:
    judged(**given)


@pytest.mark.parametrize("method", [GRADIENTS, "fedzo-projection", "decomfl-projection"])
def test_a_loss_that_changes_without_a_slope_anywhere_is_refused_where_slopes_are_measured(method: str) -> None:
    def rounded(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy((8 * outputs).round(), targets)

    rule = f"loss must have slopes for {method}, got a gradient that is 0 in every parameter"
    with pytest.raises(InputError, match=rule):
        judged(loss=rounded, method=method)
    assert judged(loss=rounded).additive
    assert judged(loss=lambda outputs, targets: cross_entropy(8 * outputs, targets), method=method).additive


def test_a_model_that_begins_where_its_gradient_is_0_is_no_reason_to_refuse_it() -> None:
    module = net()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    balanced = [(torch.zeros(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))] * 2  # the last bias has a slope of 0 there
    assert judged(module, clients=balanced, method=GRADIENTS, batch_size=6).additive


def test_the_comparison_with_differences_is_what_catches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a tolerance of 20 % does not see what is 10 % short."""
    monkeypatch.setattr(checks, "AGREES", 0.2)
    assert judged(Shortened(everywhere), method=GRADIENTS).additive


@pytest.mark.parametrize("cast", [lambda h: h.float(), lambda h: h.bfloat16().float()])
def test_a_module_that_computes_in_fewer_bits_passes(cast: Callable[[Tensor], Tensor]) -> None:
    assert judged(nn.Sequential(net(), nn.Softmax(1)), method=GRADIENTS).additive
    if cast(X).equal(X):
        assert judged(Around(net(), after=lambda z: cast(z).to(z.dtype)), method=GRADIENTS).additive


def test_a_module_that_takes_no_float64_cannot_be_tried_for_slopes_and_passes() -> None:
    def single(h: Tensor) -> Tensor:
        if h.dtype != torch.float32:
            raise TypeError("float32 alone")
        return h

    assert judged(Around(net(), before=single), method=GRADIENTS).additive
