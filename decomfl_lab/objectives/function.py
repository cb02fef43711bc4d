"""The loss of a module on a piece of data as a function of the flat vector x of its parameters, and its derivatives.

    f(x) = Σ_b share_b loss_b(x),      loss_b the loss of piece b by the module at x

Which pieces there are, and in which order they are summed, says whoever asks: the batch of a local step
(``objective.ModuleObjective``) and all of κ's data (``hessian.MeanLoss``) are two schedules of pieces over it.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from decomfl_lab.errors import require
from decomfl_lab.layout import Layout
from decomfl_lab.objectives.batch_loss import BatchLoss, Form, called, logits_of, own_loss_of, require_mean
from decomfl_lab.objectives.modules import copied, swapped
from decomfl_lab.objectives.trees import Batch, mapped, row_count, rows

Leaves = list[Tensor]
"""x parameter by parameter, as leaves of a graph."""

Slopes = dict[int, GradientEdge]
"""Where the graph of the gradient in a parameter begins, by its number; of those alone whose gradient depends on x."""

_SMALL = 1 << 14
"""Elements of a gradient that may wait until all others are there."""


@dataclass(frozen=True)
class Piece:
    """Examples that go through the module together."""

    inputs: Any  # what the module takes: a tensor, or a tuple (positional) or mapping (named) of tensors
    targets: Any  # what the loss takes beside the outputs: any tree of tensors, or None
    examples: int = 1  # the number of examples; 1 for a batch whose tensors have not one number of rows
    share: float = 1.0  # the piece's part of the mean; the shares of all pieces add up to 1
    name: str = "data"  # what it is called in an error

    @property
    def batch(self) -> Batch:
        """(inputs, targets)."""
        return self.inputs, self.targets

    def cut(self, chunk: int, weigh: Callable[[Batch], float] | None = None) -> "Iterator[Piece]":
        """The same in pieces of at most ``chunk`` examples, in their order, with shares by their weights.

        The weight of a batch is what ``weigh`` says, by default the number of its examples. What has none is left out.
        """
        if chunk >= self.examples:
            yield self
            return
        parts = [rows(self.batch, slice(a, min(a + chunk, self.examples))) for a in range(0, self.examples, chunk)]
        weights = [float(row_count(part) or 0) if weigh is None else weigh(part) for part in parts]
        total = math.fsum(weights)
        for (inputs, targets), weight in zip(parts, weights, strict=True):
            if weight > 0:
                share = self.share * weight / total
                yield Piece(inputs, targets, row_count((inputs, targets)) or 0, share, self.name)


class Function:
    """The loss of a module on a piece, at any x."""

    # the data that it is tried on, or is the mean over; they may be gathered when they are asked for
    pieces: Sequence[Piece] = ()
    kinked: bool | None = None  # whether a function that is not smooth was seen; None if nothing was tried
    may_be_cut = False  # whether batches are known to be means of their parts

    def __init__(self, module: nn.Module, measure: BatchLoss, layout: Layout, device: torch.device, *, bound: bool):
        """The loss ``measure`` of the module.

        It is computed on ``device``, to which data are moved, a piece at a time, and in the dtype of the layout, which
        names the parameters in x. A ``bound`` module is a workspace, whose parameters become views of the x that was
        asked for last. Else it is somebody's own and is never changed: x takes the place of its parameters while
        something is computed, ``fixed`` those of the others, copies of ``buffers`` those of the buffers.
        """
        self.module, self.measure, self.layout, self.device, self.bound = module, measure, layout, device, bound
        self.fixed: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        # How BatchNorm normalises: "eval" with running statistics, "batch" with those of the batch, or as the module
        # says.
        self.mode = "none"
        self.norms: dict[str, nn.Module] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of d = {self.d:,}, {self.dtype} on {self.device}>"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of x, and of everything that is computed."""
        return self.layout.dtype

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters in x."""
        return self.layout.names

    @property
    def d(self) -> int:
        """The number of elements of x."""
        return self.layout.d

    def wide(self) -> Self:
        """The same function in float64, of the same data: nothing of it is copied but the parameters."""
        other = copy.copy(self)
        other.layout, other.measure = replace(self.layout, dtype=torch.float64), self.measure.wide()
        other.fixed, other.buffers = mapped(other.place, self.fixed), mapped(other.place, self.buffers)
        if self.bound:
            other.module = copied(self.module).double()
        return other

    def place(self, tensor: Tensor) -> Tensor:
        """A tensor of the data as the module takes it."""
        placed = tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)
        return placed.clone() if placed.is_inference() else placed  # which could not be saved for a backward pass

    @contextmanager
    def at(self, x: Tensor | Leaves) -> Iterator[None]:
        """Inside, the module has the parameters x, and every BatchNorm is in the stated mode.

        A backward pass belongs inside too: blocks under ``torch.utils.checkpoint`` are computed again in it, by
        whatever parameters the module has then. What a BatchNorm writes goes to copies of its buffers.
        """
        if self.bound:
            if isinstance(x, Tensor):  # leaves are the parameters themselves
                self.layout.bind(self.module, x)
            yield
            return
        # Leaves go in as they are: behind a view, made before all else, gradients would wait until the backward's end.
        parts = self.parts(x) if isinstance(x, Tensor) else x
        named = dict(zip(self.names, parts, strict=True))
        named |= self.fixed | {name: buffer.clone() for name, buffer in self.buffers.items()}
        training = {name: part.training for name, part in self.norms.items()}
        try:
            for part in self.norms.values():
                part.train(self.mode == "batch")
            with swapped(self.module, named):
                yield
        finally:
            for name, part in self.norms.items():
                part.train(training[name])

    @contextmanager
    def constant(self) -> Iterator[None]:
        """Inside, no parameter of x needs a gradient: a tensor that does need one is none of x."""
        trained = [p for p in self.module.parameters() if p.requires_grad] if self.bound else []
        try:
            for p in trained:
                p.requires_grad_(False)
            yield
        finally:
            for p in trained:
                p.requires_grad_(True)

    def leaves(self, x: Tensor) -> Leaves:
        """The parameters of x as leaves that graphs may end at: views, which need no memory of their own."""
        if self.bound:
            self.layout.bind(self.module, x)
            return [self.module.get_parameter(name) for name in self.names]
        return [part.requires_grad_() for part in self.parts(x.detach())]

    def parts(self, x: Tensor) -> Leaves:
        """The parameters in x (d,), as views of it; as copies at places that module or loss do not take."""
        parts = [p.view(shape) for p, shape in zip(x.split(self.layout.sizes), self.layout.shapes, strict=True)]
        return [p.clone() if self.measure.needs.copies and p.storage_offset() % 2 else p for p in parts]

    def weight_of(self, batch: Batch) -> float:
        """The weight of a batch in a mean: the number of its examples."""
        return float(row_count(batch) or 1)

    # --- values ---------------------------------------------------------------------------------------------------

    def sparing(self) -> AbstractContextManager[Any]:
        """Inside, a loss is computed."""
        return nullcontext()

    def loss_at(self, x: Tensor | Leaves, piece: Piece) -> Tensor:
        """The piece's loss at x, a scalar tensor, differentiable in x; InputError if it is none."""
        with self.at(x), self.sparing():
            loss = self.measure(self.module, *mapped(self.place, piece.batch))
        require_mean(loss)
        return loss

    def piece_value(self, x: Tensor, piece: Piece) -> float:
        """The piece's own loss at x."""
        with torch.no_grad():
            return float(self.loss_at(x, piece))

    def outputs(self, x: Tensor | Leaves, piece: Piece) -> Any:
        """What the loss is given: the module's outputs for the piece with the parameters x, differentiable in x."""
        with self.at(x):
            return logits_of(self.measure.needs.met(partial(called, self.module, mapped(self.place, piece.inputs))))

    def loss_of(self, outputs: Any, piece: Piece) -> Tensor:
        """The piece's loss, a scalar tensor, given the module's outputs."""
        targets = mapped(self.place, piece.targets)
        with self.sparing():
            if self.measure.form is Form.OWN:
                loss = own_loss_of(self.module, outputs, targets)
            else:
                loss = self.measure.of_outputs(outputs, targets)
        require_mean(loss)
        return loss

    # --- derivatives ----------------------------------------------------------------------------------------------

    def add_gradient_(self, total: Tensor, x: Tensor, piece: Piece, share: float) -> Tensor:
        """Add to ``total`` (d,) that share of the gradient of one piece's own loss at ``x``; returns that loss."""
        leaves = self.leaves(x)
        with self.at(leaves):
            loss = self._sloped(leaves, piece)
            add_back_(total, [loss], leaves, None, share)
        return loss.detach()

    def piece_gradient(self, x: Tensor, piece: Piece) -> Tensor:
        """The gradient of one piece's own loss at ``x``, shape (d,)."""
        gradient = torch.zeros_like(x, requires_grad=False)
        self.add_gradient_(gradient, x, piece, 1.0)
        return gradient

    def piece_slope(self, x: Tensor, piece: Piece, v: Tensor) -> float:
        """The derivative along v (d,), of any dtype, of one piece's own loss at ``x``, summed in float64."""
        leaves, parts = self.leaves(x), self.parts(v)
        products: list[Tensor] = []

        def take(i: int, gradient: Tensor) -> None:
            products.append(gradient.double().flatten() @ parts[i].double().flatten())

        with self.at(leaves):
            back([self._sloped(leaves, piece)], leaves, None, take)
        return float(torch.stack(products).sum()) if products else 0.0

    def slopes(self, leaves: Leaves, piece: Piece) -> Slopes:
        """Where the graph of the gradient of one piece's own loss begins. Of its values, d numbers, none is kept."""
        with self.at(leaves):
            gradients = torch.autograd.grad(self._sloped(leaves, piece), leaves, create_graph=True, allow_unused=True)
        return {i: get_gradient_edge(g) for i, g in enumerate(gradients) if g is not None and g.requires_grad}

    def add_product_(
        self, total: Tensor, slopes: Slopes, leaves: Leaves, v: Tensor, share: float, *, retain_graph: bool = False
    ) -> None:
        """Add to ``total`` (d,) that share of the Hessian, of the loss whose slopes these are, times ``v`` (d,)."""
        parts = self.parts(v)
        along = [parts[i] for i in slopes]
        with self.at(leaves):
            add_back_(total, list(slopes.values()), leaves, along, share, retain_graph=retain_graph)

    def _sloped(self, leaves: Leaves, piece: Piece) -> Tensor:
        """The piece's loss; InputError if it has no gradient."""
        loss = self.loss_at(leaves, piece)
        rule = "depend on the parameters by operations of torch (is there detach, no_grad, item or numpy in between?)"
        require(loss.requires_grad, "loss", rule, "a loss without a gradient")
        return loss


@contextmanager
def enabled() -> Iterator[None]:
    """Inside, derivatives are recorded, whatever block of the user's (no_grad, inference_mode) this is called in."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def add_back_(
    total: Tensor,
    roots: Sequence[Tensor] | Sequence[GradientEdge],
    leaves: Leaves,
    vectors: Sequence[Tensor] | None,
    share: float,
    *,
    retain_graph: bool = False,
) -> None:
    """Add to ``total`` (d,) that share of Σ (∂root/∂leaves)ᵀ vector; nothing for leaves that no root depends on."""
    parts = total.split([leaf.numel() for leaf in leaves])

    def take(i: int, gradient: Tensor) -> None:
        parts[i].view_as(gradient).add_(gradient, alpha=share)

    if roots:
        back(roots, leaves, vectors, take, retain_graph=retain_graph)


def back(
    roots: Sequence[Tensor] | Sequence[GradientEdge],
    leaves: Leaves,
    vectors: Sequence[Tensor] | None,
    take: Callable[[int, Tensor], None],
    *,
    retain_graph: bool = False,
) -> None:
    """Call ``take`` with the number of a leaf and Σ (∂root/∂leaf)ᵀ vector, a large one as soon as it is there.

    torch itself would keep them all until the last is there: d numbers beside whatever they are added to.
    """

    def arrived(i: int, gradient: Tensor) -> Tensor:
        take(i, gradient)
        return gradient.new_zeros(()).expand_as(gradient)  # all that torch is to keep of it

    large = {i for i, leaf in enumerate(leaves) if leaf.numel() > _SMALL}
    hooks = [leaves[i].register_hook(partial(arrived, i)) for i in large]
    try:
        gradients = torch.autograd.grad(roots, leaves, vectors, retain_graph=retain_graph, allow_unused=True)
    finally:
        for hook in hooks:
            hook.remove()
    for i, gradient in enumerate(gradients):
        if gradient is not None and i not in large:
            take(i, gradient)
