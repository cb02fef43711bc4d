"""Whether what a user gave is one function f of x; ``derivatives`` has the question whether it is differentiable.

The lab takes (module, loss, data) for f(x) = Σ_i w_i ℓ_i(x) / Σ_i w_i, and torch's derivatives for those of f. Where
that is false every number would be wrong without a word. So it is tried before the first number, on all the data:

    closed          nothing that module and loss touch is a parameter that x does not replace
    still           the same x and data give the same loss in every evaluation
    additive        the loss of a batch is the weighted mean of its parts' losses, or no batch is ever cut
    differentiable  derivatives agree with differences of values, or of gradients
    continuous      differences of values at μ are those of a function that does not jump, and has torch's slopes

A question is a generator of findings, each the line of a refusal; whoever asks decides what to do about them.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.devices import room
from decomfl_lab.errors import InputError
from decomfl_lab.objectives.function import Function, Piece, enabled
from decomfl_lab.objectives.trees import Batch, joined, row_count, rows, shape_of, tensors
from decomfl_lab.objectives.trials.lines import LINES, continuous
from decomfl_lab.objectives.trials.watch import Watch
from decomfl_lab.objectives.vectors import inner, moved, relative
from decomfl_lab.plugins import taking

RARE = 16
"""Repetitions of a forward pass that draws random numbers, which may be noise that is seldom seen."""

FAR = (0.1, 0.01, 0.0)
"""Distances relative to ‖x‖ at which it is tried: at x itself a coupling of examples may be hidden by weights that
begin at zero. The first at which the loss is finite is taken."""

ROUNDING = 64.0
"""Units of rounding by which a mean may differ from that of its parts, and a loss from the same again: some sums have
no order on a GPU, and a watched pass takes no fused attention."""

STILL = (
    "call model.eval(), give F.dropout training=self.training, draw other noise from a torch.Generator that forward "
    "seeds itself, keep no state, write to no input"
)
"""What mends a loss that is not the same again."""

NARROWED = 1e-2
"""The share of how far numbers vary by which they may be rounded."""

SPARE = 12.0
"""Vectors of the size of x for which there must be room before a gradient is taken that no method needs."""


def refuse(findings: Iterable[str]) -> None:
    """InputError of the first finding, if there is one."""
    for finding in findings:
        raise InputError(finding)


class Trial:
    """The questions, asked of a function on pieces of data."""

    values: list[float]  # the loss of each piece at x
    near: Tensor  # a point near x, the first of ``FAR`` at which all losses are finite
    near_values: list[float]  # the loss of each piece there

    def __init__(self, f: Function, x: Tensor, *, drawn: torch.dtype = torch.float32) -> None:
        """A trial of ``f`` at x (d,); ``drawn`` is the dtype in which the direction to ``near`` is drawn."""
        self.f, self.x, self._drawn = f, x, drawn
        self.kinked = False  # whether some function was seen that is not smooth
        self._draws = False
        self._buffers = {name: (buffer, buffer._version) for name, buffer in f.module.named_buffers()}
        self._uncalled: dict[str, Tensor] = {}

    # --- closed ---------------------------------------------------------------------------------------------------

    def closed(self, fresh: Function, replaced: Mapping[str, Tensor]) -> Iterator[str]:
        """Where module and loss touch parameters that x does not replace; the losses at x and near it are noted.

        Those near x are computed by ``fresh``, the same function by a module that has not been called yet. Of the
        user's own parameters that x replaces nothing may read an element. InputError if module and loss do not take the
        data, write to them, or give no finite scalar.
        """
        for piece in self.f.pieces:
            yield from narrowed(piece.name, piece.batch, self.f.dtype)
        self._uncalled = dict(fresh.module.named_buffers())
        drawn = _generators()
        self.values = self._evaluated(partial(self._loss, self.x))
        self._draws = drawn != _generators()
        for piece, value in zip(self.f.pieces, self.values, strict=True):
            if not math.isfinite(value):
                yield f"loss of {piece.name} must be finite with the parameters that the model has, got {value}"
        watch, found = Watch(replaced), list[str]()

        def watched(piece: Piece) -> Tensor:
            # x wants no gradient here. So a tensor that does want one is a parameter that does not come from x.
            with enabled(), fresh.constant():
                with watch:
                    loss = fresh.loss_at(self.near, piece)
                found.extend(watch.findings(loss))
            return loss.detach()

        self.beside(watched)
        yield from found
        self.kinked = watch.kinked

    def beside(self, loss: Callable[[Piece], Tensor] | None = None) -> list[float]:
        """The loss of each piece near x, noted with the point: the first of ``FAR`` at which they are finite."""
        if not hasattr(self, "near_values"):
            for step in FAR:
                self.near = moved(self.x, step, self._drawn)
                self.near_values = self._evaluated(loss or (lambda piece: self._loss(self.near, piece)))
                if all(map(math.isfinite, self.near_values)):
                    break
        return self.near_values

    def _loss(self, x: Tensor, piece: Piece) -> Tensor:
        """The loss; InputError where a forward pass writes to the data that it is given."""
        known = [(tensor, tensor._version) for tensor in tensors(piece.batch) if not tensor.is_inference()]
        with torch.no_grad():
            loss = self.f.loss_at(x, piece)
        for tensor, version in known:
            if tensor._version != version:
                raise InputError(
                    "model and loss must write to no input, so that the loss is the same in every evaluation, got a "
                    f"forward pass that changes one of shape {tuple(tensor.shape)} in place"
                )
        return loss

    def _evaluated(self, loss: Callable[[Piece], Tensor]) -> list[float]:
        """The loss of every piece, read from the device all at once."""
        losses = []
        for piece in self.f.pieces:
            with taking(piece.name, tensors(piece.batch)):
                losses.append(loss(piece).double())
        with taking(piece.name, tensors(piece.batch)):  # of a model without numbers
            values: list[float] = torch.stack(losses).tolist()
        return values

    # --- still ----------------------------------------------------------------------------------------------------

    def still(self, *, everywhere: bool = False, at_x: bool = True, times: int = 1) -> Iterator[str]:
        """Where the same x and data give another loss, by noise or by what a module keeps.

        Near x it was computed first by a module that had not been called before: so it shows, too, where the module
        that was called at x keeps something of x.

        One piece is evaluated once more, near x, or ``everywhere`` all are, ``times`` times and, unless ``at_x`` is
        false, at x too: what parts would have shown, repetitions do where no parts are.
        """
        if not hasattr(self, "values"):  # nobody asked whether it is closed
            self.values = self._evaluated(partial(self._loss, self.x))
        near = self.beside()
        # A kernel, as batch_norm's, may write to a buffer that torch counts no change of.
        same = partial(torch.allclose, rtol=0, atol=0, equal_nan=True)
        wrote = []
        for name, (buffer, version) in self._buffers.items():
            uncalled = self._uncalled.get(name, buffer)
            if buffer._version != version or not (buffer is uncalled or same(buffer, uncalled)):
                wrote.append(name)
        for _ in range(RARE if self._draws else times if everywhere else 0):  # noise, perhaps, that is seldom seen
            yield from self._again(self.x, self.values if at_x else ())
            yield from self._again(self.near, near if everywhere else ())
        yield from self._again(self.near, () if everywhere else near[:1])
        for name in wrote:
            yield (
                f"buffer {name!r} of the model must stay what it is in a forward pass, so that the loss depends on "
                "x and the data alone: call model.eval(), or use torch's BatchNorm, got one that is written to"
            )

    def _again(self, x: Tensor, values: Sequence[float]) -> Iterator[str]:
        for piece, value in zip(self.f.pieces, values, strict=False):
            yield from unlike(value, self.f.piece_value(x, piece), ROUNDING * torch.finfo(self.f.dtype).eps)

    # --- continuous -----------------------------------------------------------------------------------------------

    def continuous(self, mu: float, *, sloped: bool = True) -> Iterator[str]:
        """Where differences of the first piece's values at μ are no slopes, or not torch's (``lines.continuous``)."""
        f, x, piece = self.f, self.x, self.f.pieces[0]

        @lru_cache(maxsize=1)
        def direction(p: int) -> Tensor:
            return torch.randn(x.numel(), generator=torch.Generator().manual_seed(p)).to(x.device)

        def value(p: int, c: float) -> float:
            return f.piece_value(x.add(direction(p).to(f.dtype), alpha=c) if c else x, piece)

        def slopes() -> list[float]:
            if not sloped or SPARE * x.element_size() * x.numel() > room(x.device):
                return []
            try:
                with enabled():
                    gradient = f.piece_gradient(x, piece)
            except Exception:  # which a method of differences does not need
                return []
            return [inner(gradient, direction(p)) for p in range(LINES)]

        step = max(mu / 10, relative(x, direction(0), 1e-3))
        eps = torch.finfo(f.dtype).eps
        yield from continuous(value, mu, eps, step=step, slopes=slopes)

    # --- additive -------------------------------------------------------------------------------------------------

    def additive(self, *, size: int | None = None, anew: bool = False) -> Iterator[str]:
        """Where the loss of a piece is not the weighted mean of the losses of its parts, near x.

        Two cuts are tried, for two evaluations of f in all: every piece into parts, of ``size`` or in a ratio in which
        few things repeat; and the parts that meet where two pieces do, which are put together. So pieces that are alike
        inside (sorted by class, or of one example) do not pass for additive where they differ from each other. Pieces
        of other shapes cannot be put together. Losses of pieces are computed ``anew`` where they are others than were
        noted.
        """
        wide, eps = cache(self.f.wide), torch.finfo(self.f.dtype).eps  # made once, if it is needed
        before: tuple[Batch, float, float] | None = None

        def value(batch: Batch) -> float:
            return self.f.piece_value(self.near, Piece(*batch))

        def exact(batch: Batch) -> float:
            return wide().piece_value(self.near.double(), Piece(*batch))

        for piece, noted in zip(self.f.pieces, self.beside(), strict=True):
            batch, n = piece.batch, row_count(piece.batch)
            finding = f"the loss of {piece.name} is not the mean of its parts'"
            if n is None:
                yield finding
                continue
            whole = value(batch) if anew else noted
            step = size if size is not None and n > size else round(0.382 * n) | 1  # odd, so that pairs are cut
            ends = [0, *range(step, n, step if step == size else n), n]
            try:
                cut = [rows(batch, slice(a, b)) for a, b in pairwise(ends)]
                parts = [(part, self.f.weight_of(part), value(part) if n > 1 else whole) for part in cut]
                agree = is_mean(batch, whole, parts, eps, exact)
                if agree and before is not None and shape_of(before[0]) == shape_of(parts[0][0]):
                    both = joined([before[0], parts[0][0]])
                    agree = is_mean(both, value(both), [before, parts[0]], eps, exact)
            except Exception:  # a graph, say, has no halves
                agree = False
            if not agree:
                yield finding
            before = parts[-1] if agree else None


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


def parts_agree(whole: float, parts: Parts, tolerance: float) -> bool:
    """Whether a loss is the weighted mean of its parts', to a share ``tolerance`` of the largest of them."""
    counted = [(weight, value) for _, weight, value in parts if weight > 0]
    total = math.fsum(weight for weight, _ in counted)
    if not total:
        return True
    mean = math.fsum(weight / total * value for weight, value in counted)
    return abs(whole - mean) <= tolerance * max(abs(whole), *(abs(value) for _, value in counted))


def narrowed(name: str, data: Any, dtype: torch.dtype) -> Iterator[str]:
    """Where data in float64 vary by so little beside their size that in x's dtype they are others."""
    for tensor in tensors(data):
        if tensor.dtype != torch.float64 or dtype == torch.float64 or not tensor.numel() or not tensor.ndim:
            continue
        columns = tensor.reshape(len(tensor), -1)
        lost = (columns - columns.to(dtype)).abs().amax(0)
        spread, size = columns.std(0, correction=0), columns.abs().amax(0)
        # What varies by rounding of float64 is constant.
        blurred = (lost > NARROWED * spread) & (spread > 1e-12 * size)
        if blurred.any():
            column = int(blurred.nonzero()[0])
            yield (
                f"numbers of {name} must stay what they are in {str(dtype).removeprefix('torch.')}, as the model has "
                "it: subtract their mean, or give model.double(), got some of "
                f"{float(size[column]):.6g} that vary by {float(spread[column]):.3g}"
            )


def unlike(value: float, again: float, tolerance: float, *, remedy: str = STILL) -> Iterator[str]:
    """Where a loss is not the same again, with what would mend it."""
    if not (math.isclose(value, again, rel_tol=tolerance) or math.isnan(value)):
        yield (f"loss must be a function of x and the data, the same in every evaluation: {remedy}, got {value, again}")


def _generators() -> tuple[Any, ...]:
    """The states of the generators that a forward pass may draw from, to be compared."""
    return bytes(torch.get_rng_state().numpy()), random.getstate(), str(np.random.get_state())
