"""Whether what a user gave is one function f of x: closed, additive, differentiable.

The lab takes (module, loss, data) for f(x) = Σ_i w_i ℓ_i(x) / Σ_i w_i, and torch's derivatives for those of f. Where
that is false every number would be wrong without a word. So it is tried before the first number, on all the data:

    closed          nothing that module and loss touch is a parameter that x does not replace
    additive        the loss of a batch is the weighted mean of its parts' losses, or no batch is ever cut
    differentiable  derivatives agree with differences of values, or of gradients
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from decomfl_lab.errors import InputError
from decomfl_lab.objectives.perturbed import memory_of, reads_no_element
from decomfl_lab.objectives.trees import Batch, joined, row_count, rows, shape_of, tensors

__all__ = [
    "AGREES",
    "FAR",
    "RARE",
    "SLOPES",
    "Watch",
    "generators",
    "is_additive",
    "is_mean",
    "is_slope",
    "length",
    "moved",
    "parts_agree",
    "relative",
    "unwritten",
]

# fmt: off
_KINKS = frozenset([
    "abs", "absolute", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "amax", "amin", "aminmax",
    "celu", "clamp", "clamp_max", "clamp_min", "clip", "cummax", "cummin", "elu", "fmax", "fmin",
    "fractional_max_pool2d", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "heaviside",
    "hinge_embedding_loss", "huber_loss", "kthvalue", "l1_loss", "leaky_relu", "margin_ranking_loss",
    "max", "max_pool1d", "max_pool2d", "max_pool3d", "maximum", "median", "min", "minimum",
    "multi_margin_loss", "norm", "prelu", "quantile", "relu", "relu6", "rnn_relu", "rrelu", "selu", "sign",
    "smooth_l1_loss", "softshrink", "sort", "threshold", "topk", "triplet_margin_loss", "vector_norm",
])
"""Names of functions of torch, without underscores around them and "_with_indices", that may be smooth almost
everywhere only."""

_COMPARISONS = frozenset(["eq", "ge", "gt", "le", "lt", "ne"])
"""Functions of which a user makes kinks, where they compare numbers that are no integers."""
# fmt: on


class Watch(TorchFunctionMode):
    """Inside, what module and loss touch is seen.

    Attributes:
        kinked: Whether some function was not smooth.
    """

    def __init__(self, replaced: Mapping[str, Tensor]) -> None:
        """A watch.

        Args:
            replaced: The user's own parameters that x replaces, so that nothing may read their elements.
        """
        super().__init__()
        self._names = {id(p): name for name, p in replaced.items() if p.numel()}
        self._own: dict[int | None, list[tuple[range, str]]] = {}
        for name, p in replaced.items():
            self._own.setdefault(memory_of(p), []).append((_span(p), name))
        self._read: str | None = None
        self._made: list[Tensor] = []  # kept, so that no other tensor can get their ids
        self.kinked = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        plain = name.strip("_").removesuffix("_with_indices")
        compared = plain in _COMPARISONS and any(tensor.is_floating_point() for tensor in tensors(args))
        self.kinked = self.kinked or compared or plain in _KINKS
        if self._read is None and not reads_no_element(func, args):
            self._read = next(filter(None, map(self._owner, tensors((args, kwargs)))), None)
        result = func(*args, **kwargs)
        asked = args[0] if func == Tensor.requires_grad.__set__ else result  # type: ignore[attr-defined]
        if isinstance(asked, Tensor) and asked.requires_grad and asked.is_leaf:  # an input to differentiate in
            self._made.append(asked)
        return result

    def _owner(self, tensor: Tensor) -> str | None:
        """The name of the replaced parameter that a tensor is, or is a view of."""
        if id(tensor) in self._names:
            return self._names[id(tensor)]
        memory = memory_of(tensor) if tensor.numel() else None
        found = self._own.get(memory, ()) if memory else ()
        there = _span(tensor) if found else range(0)
        return next((name for own, name in found if own.start < there.stop and there.start < own.stop), None)

    def require_closed(self, loss: Tensor) -> None:
        """InputError unless the loss, computed inside from parameters that need no gradient, is a function of x alone.

        Raises:
            InputError: If a parameter that x replaces was read, or there is a gradient into something else.
        """
        if self._read is not None:
            raise InputError(
                "loss must see the parameters that it is given, and so must the module, got one that reads the module "
                f"behind them ({self._read!r}), where its value would stay what it was: write it as "
                "loss(model, batch), or give weight_decay= for a penalty on all weights"
            )
        made = set(map(id, self._made))
        for leaf in _leaves(loss):
            if isinstance(leaf, nn.Parameter) or id(leaf) not in made:
                raise InputError(
                    "loss must depend on no parameters but the module's, nor on what was computed from them outside of "
                    "it, as that would be neither trained nor counted: register them in the module (nn.ModuleList for "
                    f"layers in a list), or use them under torch.no_grad(), got one of shape {tuple(leaf.shape)}"
                )


RARE = 16
"""Repetitions of a forward pass that draws random numbers, which may be noise that is seldom seen."""


def generators() -> tuple[Any, ...]:
    """The states of the generators that a forward pass may draw from, to be compared."""
    return bytes(torch.get_rng_state().numpy()), random.getstate(), str(np.random.get_state())


@contextmanager
def unwritten(batches: Iterable[Batch]) -> Iterator[None]:
    """InputError where a forward pass inside writes to the data that it is given."""
    known = [(tensor, tensor._version) for batch in batches for tensor in tensors(batch) if not tensor.is_inference()]
    yield
    for tensor, version in known:
        if tensor._version != version:
            raise InputError(
                "model and loss must write to no input, so that the loss is the same in every evaluation, got a "
                f"forward pass that changes one of shape {tuple(tensor.shape)} in place"
            )


def _span(tensor: Tensor) -> range:
    """The elements of its storage that a tensor lies within."""
    first = tensor.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(first, last + 1 if tensor.numel() else first)


def _leaves(loss: Tensor) -> Iterable[Tensor]:
    """The tensors that autograd would give a gradient to."""
    todo, seen = [loss.grad_fn], set()
    if loss.requires_grad and loss.is_leaf:
        yield loss
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        todo += [following for following, _ in node.next_functions]


# --- additive ---------------------------------------------------------------------------------------------------------


def is_additive(
    value: Callable[[Batch], float],
    batches: Iterable[Batch],
    wholes: Sequence[float],
    *,
    weight: Callable[[Batch], float],
    eps: float,
    wide: Callable[[Batch], float],
    chunk: int | None = None,
) -> bool:
    """Whether the loss of every batch is the weighted mean of the losses of its parts.

    Two cuts are tried, for two evaluations of f in all: every batch into parts, of ``chunk`` or in a ratio in which
    few things repeat; and the parts that meet where two batches do, which are put together. So batches that are alike
    inside (sorted by class, or of one example) do not pass for additive where they differ from each other. Batches of
    other shapes cannot be put together.

    Args:
        value: The loss of a batch; one that cannot be computed on a part makes it not additive.
        batches: All of them.
        wholes: Their losses.
        weight: The weight of a batch in a mean, by default the number of its examples.
        eps: The unit of rounding of the loss.
        wide: The loss of a batch in float64, where rounding has to be told from a difference.
        chunk: The examples of a part, where batches are larger.
    """
    before: tuple[Batch, float, float] | None = None
    for batch, whole in zip(batches, wholes, strict=True):
        n = row_count(batch)
        if n is None:
            return False
        size = chunk if chunk is not None and n > chunk else round(0.382 * n) | 1  # odd, so that pairs are cut
        ends = [0, *range(size, n, size if size == chunk else n), n]
        try:
            cut = [rows(batch, slice(a, b)) for a, b in pairwise(ends)]
            parts = [(part, weight(part), value(part) if n > 1 else whole) for part in cut]
            if not is_mean(batch, whole, parts, eps, wide):
                return False
            if before is not None and shape_of(before[0]) == shape_of(parts[0][0]):
                both = joined([before[0], parts[0][0]])
                if not is_mean(both, value(both), [before, parts[0]], eps, wide):
                    return False
        except Exception:  # a graph, say, has no halves
            return False
        before = parts[-1]
    return True


Parts = Sequence[tuple[Any, float, float]]
"""Parts of a batch, each with its weight and its loss."""


def is_mean(batch: Any, whole: float, parts: Parts, eps: float, wide: Callable[[Any], float]) -> bool:
    """Whether a loss is the weighted mean of its parts', to rounding."""
    if parts_agree(whole, parts, ROUNDING * eps):
        return True
    if not parts_agree(whole, parts, max(1e-2, ROUNDING * eps)):
        return False  # whatever rounding does
    # The mean of small losses, each a difference of large logits, is rounded more: the same again in float64.
    again = [(part, weight, wide(part)) for part, weight, _ in parts]
    return parts_agree(wide(batch), again, 1e-6)


ROUNDING = 64.0
"""Units of rounding by which a mean may differ from that of its parts."""


def parts_agree(whole: float, parts: Parts, tolerance: float) -> bool:
    """Whether a loss is the weighted mean of its parts', to a share ``tolerance`` of the largest of them."""
    counted = [(weight, value) for _, weight, value in parts if weight > 0]
    total = math.fsum(weight for weight, _ in counted)
    if not total:
        return True
    mean = math.fsum(weight / total * value for weight, value in counted)
    return abs(whole - mean) <= tolerance * max(abs(whole), *(abs(value) for _, value in counted))


# --- differentiable ---------------------------------------------------------------------------------------------------

AGREES = 1e-2
"""Derivatives that differ less from differences, relative to their size, are taken for f's. What is wrong is wrong by
tens of per cent; float32 leaves 1e-4."""

SLOPES = (1e-6, 1e-4, 1e-3)
"""Steps relative to |x| at which differences of values in float64 are tried: coarser ones where a module computes in
float32 whatever it is given. A kink changes them by as much as the step."""


def is_slope(slope: float, size: float, difference: Callable[[float], float]) -> bool:
    """Whether a derivative along a direction is the difference quotient of values, at one of the steps ``SLOPES``.

    Args:
        slope: ∇fᵀz by autograd.
        size: What it is typically for such a z, as ‖∇f‖ for a normal one.
        difference: (f(x + cz) − f(x − cz))/(2c), by the relative step.
    """
    for step in SLOPES:
        found = difference(step)
        if abs(found - slope) <= AGREES * max(size, abs(found)):
            return True
    return False


def is_gradient(x: Tensor, gradient: Tensor, z: Tensor, value: Callable[[Tensor], float]) -> tuple[bool, float, float]:
    """Whether ∇fᵀv is a difference of values along v = ∇f/‖∇f‖ + z/2.

    Args:
        x: The point, (d,); v and the points of the differences have its dtype.
        gradient: ∇f(x) by autograd, (d,).
        z: A random vector, of length 1.
        value: f.

    Returns:
        Whether it is, ∇fᵀv, and [f(x + cv) − f(x − cv)]/(2c) at the coarsest step that was tried.
    """
    size = float(gradient.norm())
    v = 0.5 * z + gradient / size if size else z
    slope, found = float(gradient @ v), [0.0]

    def difference(step: float) -> float:
        c = relative(x, v, step)
        found.append((value(x + c * v) - value(x - c * v)) / (2 * c))
        return found[-1]

    return is_slope(slope, size, difference), slope, found[-1]


FAR = (0.1, 0.01, 0.0)
"""Distances relative to ‖x‖ at which additivity is tried: at x itself a coupling of examples may be hidden by weights
that begin at zero. The first at which the loss is finite is taken."""


def moved(x: Tensor, step: float) -> Tensor:
    """The point at that distance from x relative to ‖x‖, in a direction that is the same each time."""
    if not step:
        return x
    # The direction is drawn in float64 for any dtype, but block by block: x may fill much of the memory.
    stream, z = torch.Generator().manual_seed(0), torch.empty_like(x)
    for block in z.split(BLOCK):
        block.copy_(torch.randn(block.numel(), generator=stream, dtype=torch.float64))
    return z.mul_(relative(x, z, step)).add_(x)


def relative(x: Tensor, z: Tensor, step: float) -> float:
    """The c at which ‖c z‖ is ``step`` times ‖x‖, or times √d where x is smaller."""
    across = max(length(x), math.sqrt(x.numel()) * 1e-3)
    return step * across / length(z)


BLOCK = 1 << 20
"""Elements that are widened to float64 at once."""


def length(x: Tensor) -> float:
    """The norm of a vector, summed in float64."""
    return math.hypot(*(float(block.double().norm()) for block in x.split(BLOCK)))
