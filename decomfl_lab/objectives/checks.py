"""Whether what a user gave is one function f of x: closed, additive, differentiable.

The lab takes (module, loss, data) for f(x) = Σ_i w_i ℓ_i(x) / Σ_i w_i, and torch's derivatives for those of f. Where
that is false every number would be wrong without a word. So it is tried before the first number, on all the data:

    closed          nothing that module and loss touch is a parameter that x does not replace
    additive        the loss of a batch is the weighted mean of its parts' losses, or no batch is ever cut
    differentiable  derivatives agree with differences of values, or of gradients
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from decomfl_lab.errors import InputError
from decomfl_lab.objectives.perturbed import memory_of, reads_no_element
from decomfl_lab.objectives.trees import Batch, joined, row_count, rows, shape_of, tensors

__all__ = ["AGREES", "SLOPES", "Watch", "is_additive", "is_slope", "parts_agree", "relative"]

# fmt: off
_KINKS = frozenset([
    "abs",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "amax",
    "amin",
    "aminmax",
    "celu",
    "clamp",
    "clamp_",
    "clamp_max",
    "clamp_min",
    "clip",
    "cummax",
    "elu",
    "fractional_max_pool2d",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "l1_loss",
    "leaky_relu",
    "leaky_relu_",
    "margin_ranking_loss",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "maximum",
    "median",
    "min",
    "minimum",
    "multi_margin_loss",
    "prelu",
    "relu",
    "relu6",
    "relu_",
    "rrelu",
    "selu",
    "sign",
    "smooth_l1_loss",
    "softshrink",
    "sort",
    "threshold",
    "topk",
    "triplet_margin_loss",
    "where",
])
"""Names of functions of torch that are smooth almost everywhere only."""
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
        self.kinked = self.kinked or name in _KINKS
        if self._read is None and not reads_no_element(func, args):
            self._read = next(filter(None, map(self._owner, tensors((args, kwargs)))), None)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.requires_grad and result.is_leaf:  # an input to differentiate in
            self._made.append(result)
        return result

    def _owner(self, tensor: Tensor) -> str | None:
        """The name of the replaced parameter that a tensor is, or is a view of."""
        found = self._own.get(memory_of(tensor), ()) if tensor.numel() else ()
        there = _span(tensor) if found else range(0)
        return next((name for own, name in found if own.start < there.stop and there.start < own.stop), None)

    def require_closed(self, loss: Tensor) -> None:
        """InputError unless the loss, computed inside from parameters that need no gradient, is a function of x alone.

        Raises:
            InputError: If a parameter that x replaces was read, or there is a gradient into something else.
        """
        if self._read is not None:
            raise InputError(
                "loss must see the parameters that it is given, got one that reads the module behind them "
                f"({self._read!r}), where its value would stay what it was: write it as loss(model, batch), or give "
                "weight_decay= for a penalty on all weights"
            )
        made = set(map(id, self._made))
        for leaf in _leaves(loss):
            if isinstance(leaf, nn.Parameter) or id(leaf) not in made:
                raise InputError(
                    "loss must depend on no parameters but the module's, as others would not be trained nor counted: "
                    "register them in the module (nn.ModuleList for layers in a list), or use them under "
                    f"torch.no_grad(), got one of shape {tuple(leaf.shape)}"
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
    batches: Sequence[Batch],
    wholes: Sequence[float],
    *,
    weight: Callable[[Batch], float],
    eps: float,
) -> bool:
    """Whether the loss of every batch is the weighted mean of the losses of its parts.

    Two cuts are tried, for two evaluations of f in all: every batch into halves; and the halves that meet where two
    batches do, which are put together. So batches that are alike inside (sorted by class, or of one example) do not
    pass for additive where they differ from each other. Batches of other shapes cannot be put together.

    Args:
        value: The loss of a batch; one that cannot be computed on a part makes it not additive.
        batches: All of them.
        wholes: Their losses.
        weight: The weight of a batch in a mean, by default the number of its examples.
        eps: The unit of rounding of the loss.
    """
    before: tuple[Batch, float, float] | None = None
    for batch, whole in zip(batches, wholes, strict=True):
        n = row_count(batch)
        if n is None:
            return False
        try:
            half = (n + 1) // 2
            cut = [rows(batch, slice(0, half)), rows(batch, slice(half, n))] if n > 1 else [batch]
            parts = [(part, weight(part), value(part) if n > 1 else whole) for part in cut]
            if not parts_agree(whole, parts, eps):
                return False
            if before is not None and shape_of(before[0]) == shape_of(parts[0][0]):
                both = joined([before[0], parts[0][0]])
                if not parts_agree(value(both), [before, parts[0]], eps):
                    return False
        except Exception:  # a graph, say, has no halves
            return False
        before = parts[-1]
    return True


def parts_agree(whole: float, parts: Sequence[tuple[Any, float, float]], eps: float) -> bool:
    """Whether a loss is the weighted mean of its parts' (part, weight, loss), to √eps of the largest of them."""
    counted = [(w, value) for _, w, value in parts if w > 0]
    total = math.fsum(w for w, _ in counted)
    if not total:
        return True
    mean = math.fsum(w / total * value for w, value in counted)
    scale = max(abs(whole), *(abs(value) for _, value in counted))
    return abs(whole - mean) <= math.sqrt(eps) * scale


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


def relative(x: Tensor, z: Tensor, step: float) -> float:
    """The c at which ‖c z‖ is ``step`` times ‖x‖, or times √d where x is smaller."""
    across = max(float(x.double().norm()), math.sqrt(x.numel()) * 1e-3)
    return step * across / float(z.double().norm())
