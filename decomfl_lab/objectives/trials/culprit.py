"""Which part of a user's module, or its loss, has a derivative that is not its own: what a refusal names.

A part is called again by itself, in float64, with the inputs that it got, and its derivative in these and in its own
parameters is compared with differences along a random direction. From the module down the search goes on in a part that
is wrong, until one is whose own parts are all right: then it is this part's forward pass, hook or backward. Where the
whole module is right, it is the loss.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from decomfl_lab.devices import room
from decomfl_lab.objectives.batch_loss import BatchLoss, Form, logits_of
from decomfl_lab.objectives.modules import copied, swapped
from decomfl_lab.objectives.trees import Batch, mapped, row_count, rows, tensors
from decomfl_lab.objectives.trials.needs import Calls
from decomfl_lab.storage.tables import table_beside


class Order(Enum):
    """Which derivative is compared with differences."""

    FIRST = "derivative"
    SECOND = "second derivative"
    FORWARD = "forward derivative"


OF_TORCH = {
    name: (Order(order), instead)
    for order, named in table_beside(__name__, "functions.toml")["wrong"].items()
    for name, instead in named.items()
}
"""Functions of torch 2.13, and what they are given, with a derivative that is wrong and what to do instead."""
OF_TORCH |= {
    f"special_{name}": (Order.FIRST, "write a backward of your own")
    for name in dir(torch.special)
    if re.match("[a-z].*(bessel|polynomial)|airy", name)
}

COPIES = 10
"""Vectors of d numbers in float64 that the search may take."""
FEW = 8
"""Examples that are tried first."""
STEPS = (1e-6, 1e-4, 1e-3)
"""Steps relative to each tensor's size; the coarser ones are for parts that compute in float32 whatever they get."""
WRONG = 1e-2
"""What a derivative is off by, relative to its size, where it is called wrong."""
LEAST = 1e-5
"""Derivatives of less, relative to what they are derivatives of, are rounding."""

Point = list[Tensor]


class _Call(NamedTuple):
    """A part, or the loss, as a function of the tensors that its derivatives are taken in."""

    name: str  # what it is called
    point: Point  # these tensors in the user's own call
    outputs: Callable[[Point], Any]  # what it gives at a point


def culprit(module: nn.Module, loss: BatchLoss, batches: Iterable[Batch], orders: Sequence[Order]) -> str:
    """The smallest part whose derivative is wrong, in words that go on a sentence; empty where none can be told.

    The module is at x, and is copied. Of the orders the first that is wrong is told.
    """
    with suppress(Exception), torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng():
        d = sum(p.numel() for p in module.parameters())
        device = next(module.parameters()).device
        if COPIES * 8 * d > room(device):
            return ""
        wide, wide_loss = copied(module).double(), loss.wide()
        for batch in batches:
            doubled = mapped(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, batch)
            few = rows(doubled, slice(0, FEW)) if row_count(doubled) else doubled
            for part in (few, doubled):
                with suppress(Exception):  # of a loss that takes no fewer examples, say
                    if blamed := _blamed(wide, wide_loss, part, orders):
                        return blamed
    return ""


def _blamed(module: nn.Module, loss: BatchLoss, batch: Batch, orders: Sequence[Order]) -> str:
    """See ``culprit``: of a module, a loss and a batch in float64."""
    calls: dict[nn.Module, _Call] = {}
    outputs: list[Any] = []

    def before(name: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        """Note a part that gets these arguments, positional ones and named ones, for the first time."""
        inputs, weights = mapped(_kept, (args, kwargs)), _trained(part)
        moving = _moving(inputs)

        def outputs_at(point: Point) -> Any:
            args, kwargs = _exchanged(inputs, moving, point)
            with swapped(part, dict(zip(weights, point[len(moving) :], strict=True))):
                return part(*args, **kwargs)

        what = f"the part {name!r}" if name else "the module itself"
        calls.setdefault(part, _Call(f"{what} ({type(part).__name__})", [*moving, *weights.values()], outputs_at))

    def after(_part: nn.Module, _args: Any, of_module: Any) -> None:
        outputs.append(mapped(_kept, logits_of(of_module)))

    # What each part gets in an evaluation, before hooks of its own, which are called again with it.
    handles = [
        part.register_forward_pre_hook(partial(before, name), prepend=True, with_kwargs=True)
        for name, part in module.named_modules()
    ]
    handles.append(module.register_forward_hook(after))
    try:
        loss(module, *batch)
    finally:
        for handle in handles:
            handle.remove()
    what = f"the loss ({getattr(loss.loss, '__name__', type(loss.loss).__name__)})"
    if loss.form is Form.OUTPUTS:
        z, moving = outputs[0], _moving(outputs[0])
        last = _Call(what, moving, lambda point: loss.of_outputs(_exchanged(z, moving, point), batch[1]))
    else:  # it is a function of the parameters
        named = _trained(module)
        last = _Call(what, [*named.values()], lambda x: loss.at(module, dict(zip(named, x, strict=True)), *batch))
    for order in orders:
        unknown: list[nn.Module] = []
        call = _smallest(module, calls, order, unknown)
        if call is None and (loss.form is Form.OUTPUTS or not unknown):
            call = last
        if call is not None and (off := _off(call, order)) > WRONG:
            with _Names() as names:
                call.outputs(call.point)
            wrong = [name for name in names.seen if name in OF_TORCH and OF_TORCH[name][0] is order]
            known = "".join(
                f"; torch's own {name} is wrong: {OF_TORCH[name][1]} (docs/derivatives.md)" for name in wrong
            )
            return f"; it is {call.name} whose {order.value} differs from differences by {off:.0%}{known}"
    return ""


def _smallest(
    part: nn.Module, calls: Mapping[nn.Module, _Call], order: Order, unknown: list[nn.Module]
) -> _Call | None:
    """The smallest wrong part of this one; None where it is right, or is added to those of which nothing is known."""
    call = calls.get(part)  # of a list of layers, which is never called itself, there is none
    try:
        if call is not None and _off(call, order) <= WRONG:
            return None
    except Exception:  # it has no such derivative; its own parts may have it
        unknown.append(part)
        call = None
    for child in part.children():
        if (inner := _smallest(child, calls, order, unknown)) is not None:
            return inner
    return call


def _off(call: _Call, order: Order) -> float:
    """How far a derivative is from differences: the most along three directions, as one may be blind to a fault."""
    return max(_off_along(call, order, seed) for seed in range(3))


def _off_along(call: _Call, order: Order, seed: int) -> float:
    """How far it is along a random direction from the nearest difference, relative to the larger."""
    stream = torch.Generator().manual_seed(seed)
    scales = [max(float(t.detach().square().mean()) ** 0.5, 1e-3) for t in call.point]
    z = [_drawn(t, stream) for t in call.point]

    def moved(c: float) -> Point:
        lines = zip(call.point, scales, z, strict=True)
        return [(t.detach() + c * scale * way).requires_grad_() for t, scale, way in lines]

    def values(point: Point) -> Tensor:
        torch.manual_seed(0)  # of what is drawn inside
        outputs = [torch.view_as_real(t) if t.is_complex() else t for t in tensors(call.outputs(point))]
        return torch.cat([t.double().flatten() for t in outputs if t.is_floating_point()])

    def value(point: Point) -> Tensor:
        outputs = values(point)
        return outputs @ _drawn(outputs, torch.Generator().manual_seed(seed + 9))

    def slopes(value: Tensor, point: Point, *, graph: bool = False) -> Tensor:
        """The gradient in units of each tensor's size, so that no tensor counts more than another."""
        if not value.requires_grad:
            return torch.zeros_like(ways)
        parts = torch.autograd.grad(value, point, create_graph=graph, allow_unused=True, materialize_grads=True)
        return torch.cat([scale * p.double().flatten() for scale, p in zip(scales, parts, strict=True)])

    def gradient(point: Point) -> Tensor:
        return slopes(value(point), point, graph=order is Order.SECOND)

    ways, here = torch.cat([way.flatten() for way in z]), moved(0.0)
    # The derivative that torch gives along z of a function, whose differences it must be.
    if order is Order.FIRST:
        function, derivative = value, gradient(here) @ ways
    elif order is Order.SECOND:
        function, derivative = gradient, slopes(gradient(here) @ ways, here)
    else:
        with forward_ad.dual_level():
            lines = zip(here, scales, z, strict=True)
            dual = values([forward_ad.make_dual(t, scale * way) for t, scale, way in lines])
            tangent = forward_ad.unpack_dual(dual).tangent
        function = values
        derivative = torch.zeros_like(dual) if tangent is None else tangent.detach()
    size, least = float(derivative.norm()), LEAST * float(function(here).detach().norm())
    offs = []
    for c in STEPS:
        difference = (function(moved(c)) - function(moved(-c))).detach() / (2 * c)
        offs.append(float((difference - derivative).norm()) / max(size, float(difference.norm()), least, 1e-300))
    return min(offs)


def _kept(tensor: Tensor) -> Tensor:
    """A copy of its own, which is marked where it depends on x."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _moving(tree: Any) -> Point:
    return [tensor for tensor in tensors(tree) if tensor.requires_grad and tensor.is_floating_point()]


def _trained(part: nn.Module) -> Mapping[str, Tensor]:
    return {name: p for name, p in part.named_parameters() if p.requires_grad}


def _exchanged(tree: Any, moving: Point, point: Point) -> Any:
    """The tree with the tensors of a point; with copies, as a part may write to what it gets."""
    others = {id(tensor): other for tensor, other in zip(moving, point, strict=False)}
    return mapped(lambda tensor: others.get(id(tensor), tensor).clone(), tree)


def _drawn(like: Tensor, stream: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=stream, dtype=torch.float64).to(like.device)


class _Names(Calls):
    """Inside, the names of torch's functions are kept, alone and with what they are given: ``view(dtype)``."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, None] = {}

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        arguments = [key for key, value in kwargs.items() if value is not None and value is not False]
        for value in (*args, *kwargs.values()):
            if isinstance(value, str):
                arguments.append(value)
            elif isinstance(value, torch.dtype):
                arguments.append("dtype")
        self.seen |= dict.fromkeys([name, *(f"{name}({argument})" for argument in arguments)])
        return func(*args, **kwargs)
