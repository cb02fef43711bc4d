"""The mean loss of a model over fixed data as a function of the flat parameter vector."""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, Dataset

from decomfl_lab.errors import InputError, require, require_choice, require_int
from decomfl_lab.layout import Layout
from decomfl_lab.models.registry import initialising
from decomfl_lab.plugins import require_mean, require_same, taking

__all__ = [
    "NORMALISATIONS",
    "Data",
    "LossFunction",
    "MeanLoss",
    "Piece",
    "differentiating",
    "digest",
    "gathered",
    "good_chunk",
    "mapped",
    "tensors",
]

NORMALISATIONS = ("eval", "batch")

LossFunction = Callable[[Any, Any], Tensor]
"""loss(outputs, targets), a scalar: the mean over the examples of the batch."""

Data = Iterable[tuple[Any, Any]] | Dataset[Any] | tuple[Any, Any]
"""Batches (inputs, targets), as a list or a DataLoader has them; a Dataset of examples; or one pair of tensors."""

_DTYPES = (torch.float32, torch.float64)
_TRAINING = (
    "model has a BatchNorm in training mode, and f takes its running statistics, as in eval mode; say so by "
    "normalisation='eval', or by 'batch' that f takes the batch's"
)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True)
class Piece:
    """Examples that go through the module together.

    Attributes:
        inputs: What the module takes: a tensor, or a tuple (positional) or mapping (named) of tensors.
        targets: What the loss takes beside the outputs: any tree of tensors, or None.
        examples: The number of examples.
        share: The piece's part of the mean; the shares of all pieces add up to 1.
    """

    inputs: Any
    targets: Any
    examples: int
    share: float

    def cut(self, chunk: int) -> Iterator[Piece]:
        """The same in pieces of at most ``chunk`` examples, in their order."""
        for first in range(0, self.examples, chunk):
            rows = slice(first, min(first + chunk, self.examples))
            inputs, targets = mapped(itemgetter(rows), (self.inputs, self.targets))
            examples = rows.stop - rows.start
            yield Piece(inputs, targets, examples, self.share * examples / self.examples)


class MeanLoss:
    """f(x) = Σ_b w_b loss(module_x(inputs_b), targets_b) / Σ_b w_b, over all batches in their order.

    x are the module's trainable parameters, or some of them, tied weights once, in the module's order. The module is
    never changed: not its parameters, gradients, buffers or training flags. Parameters that are not part of x are used
    where they are, so the module must not be trained meanwhile; buffers are copied.

    Attributes:
        layout: The names and shapes of the parameters in x.
        names: The names of these parameters.
        d: The number of elements of x.
        dtype: The dtype of x, and of everything that is computed.
        device: The device of the parameters; data are moved there, a piece at a time.
        x: The parameters when this was made, (d,).
        value: The mean loss f(x) there.
        pieces: The data, cut.
        weight: The sum Σ_b w_b, by default the number of examples.
        mode: How BatchNorm normalises: "eval" with running statistics, "batch" with those of the batch, "none" where
            there is no BatchNorm.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: LossFunction,
        data: Data,
        *,
        weights: Sequence[float] | None = None,
        parameters: Callable[[str], bool] | Sequence[str] | None = None,
        normalisation: str | None = None,
        dtype: torch.dtype | None = None,
        chunk: int | None = None,
    ) -> None:
        """Check everything that can be checked, by about one evaluation of f.

        Args:
            module: Any torch module. It is called as module(inputs), module(*inputs) for a tuple of inputs, and
                module(**inputs) for a mapping (Hugging Face). What it returns is given to the loss, or its ``logits``
                where it has them.
            loss: loss(outputs, targets), a scalar: the mean over the batch's examples.
            data: Batches, pairs (inputs, targets), in a list, a DataLoader or another iterable; or a Dataset of such
                pairs for one example each; or one pair of tensors. A mapping with "labels" (Hugging Face) is the pair
                of all else and these. Every tensor of a batch has the examples in its first dimension. A loader that
                shuffles gives the same batches each time, and leaves torch's global generator as it was.
            weights: The weight w_b of each batch; by default its number of examples, so that all examples weigh the
                same however the data are cut.
            parameters: The trainable parameters that x consists of: a predicate on their names, or names, prefixes of
                names that end at a dot ("layers.3"), or patterns with * and ?. Default: all.
            normalisation: "eval" or "batch", for every BatchNorm, whatever mode the module is in. Statistics of the
                batch need all data to be one batch. Default: "eval", with a warning if a BatchNorm is in training mode.
            dtype: The dtype, float32 or float64, to which parameters, buffers and data are cast; default: that of the
                parameters.
            chunk: The most examples that go through the module at once, to save memory and time (100 to 250 images
                fit the processor's cache better than 1,000). Default: whole batches; ``good_chunk`` of a Dataset or a
                pair of tensors, unless statistics of the batch need all of it at once.

        Raises:
            InputError: If there is nothing to differentiate or no data, module and loss do not take the data, the loss
                is no finite scalar, differs from one
                evaluation to the next, or is no mean over examples where batches have to be combined; dropout is
                active; a name matches no parameter; dtypes or devices are mixed; an argument is out of range.
        """
        require_choice("normalisation", "eval" if normalisation is None else normalisation, NORMALISATIONS)
        require(dtype is None or dtype in _DTYPES, "dtype", "be float32 or float64", dtype)
        require(callable(loss), "loss", "be a function of (outputs, targets)", loss)
        self._module = module
        self._loss = loss
        chosen = _choose(module, parameters)
        self.device = _one_device(module)
        self.dtype = dtype if dtype is not None else _one_dtype(module)
        self.layout = Layout(tuple(chosen), tuple(p.shape for p in chosen.values()), self.dtype)
        self.names = self.layout.names
        self.d = self.layout.d
        self.x = torch.cat([p.detach().reshape(-1).to(self.dtype) for p in chosen.values()])
        self._fixed = {n: self._place(p.detach()) for n, p in module.named_parameters() if n not in chosen}
        self._buffers = {name: self._place(buffer.detach().clone()) for name, buffer in module.named_buffers()}
        _refuse_dropout(module)
        self._norms = {n: part for n, part in module.named_modules() if isinstance(part, _BATCH_NORMS)}
        self.mode = ("eval" if normalisation is None else normalisation) if self._norms else "none"
        if normalisation is None and any(n.training and n.running_mean is not None for n in self._norms.values()):
            warnings.warn(_TRAINING, stacklevel=2)
        batches, own = _batches(data, self.device)
        chunk = own if chunk is None and self.mode != "batch" else chunk
        self.pieces, self.weight = _cut(batches, weights, chunk)
        self._check_normalisation()
        with taking("data", tensors((self.pieces[0].inputs, self.pieces[0].targets))):
            values = self._values(self.x)
        self.value = math.fsum(piece.share * value for piece, value in zip(self.pieces, values, strict=True))
        self._check_first_piece(values[0], combined=len(self.pieces) > 1 and (weights is None or chunk is not None))

    # --- the function ---------------------------------------------------------------------------------------------

    def __call__(self, x: Tensor) -> float:
        """f(x), accumulated in float64; InputError if it is not finite."""
        self._check_point(x)
        return math.fsum(piece.share * value for piece, value in zip(self.pieces, self._values(x), strict=True))

    def gradient(self, x: Tensor) -> Tensor:
        """∇f(x), shape (d,), summed over the pieces in their order; zero where a parameter is not used."""
        self._check_point(x)
        total = torch.zeros_like(x)
        with differentiating("the gradient"):
            for piece in self.pieces:
                total.add_(self.piece_gradient(x.detach().requires_grad_(), piece), alpha=piece.share)
        return total

    def piece_gradient(self, x: Tensor, piece: Piece, *, create_graph: bool = False) -> Tensor:
        """The gradient of one piece's own mean loss at the leaf ``x``; with a graph back to x if that is asked."""
        loss = self.loss_of(self.outputs(x, piece), piece)
        rule = "depend on the parameters by operations of torch (is there detach, no_grad, item or numpy in between?)"
        require(loss.requires_grad, "loss", rule, "a loss without a gradient")
        (gradient,) = torch.autograd.grad(loss, x, create_graph=create_graph, allow_unused=True, materialize_grads=True)
        return gradient

    def outputs(self, x: Tensor, piece: Piece) -> Any:
        """What the loss is given: the module's outputs for the piece with the parameters x, differentiable in x."""
        parts = zip(self.names, self.layout.shapes, x.split(self.layout.sizes), strict=True)
        tensors = {name: part.view(shape) for name, shape, part in parts}
        tensors |= self._fixed | {name: buffer.clone() for name, buffer in self._buffers.items()}
        inputs = mapped(self._place, piece.inputs)
        with self._normalising():
            if isinstance(inputs, Mapping):
                outputs = functional_call(self._module, tensors, (), dict(inputs))
            else:
                outputs = functional_call(self._module, tensors, inputs if isinstance(inputs, tuple) else (inputs,))
        return getattr(outputs, "logits", outputs)

    def loss_of(self, outputs: Any, piece: Piece) -> Tensor:
        """The piece's mean loss, a scalar tensor, given the module's outputs."""
        loss = self._loss(outputs, mapped(self._place, piece.targets))
        require_mean(loss)
        return loss

    @property
    def weights_are_examples(self) -> bool:
        """Whether a piece's loss is the mean of its examples' losses, each a function of that example alone."""
        return self.mode != "batch" and all(self._is_mean(piece) for piece in self.pieces[:1])

    def has(self, kind: type[nn.Module]) -> bool:
        """Whether the module contains a part of this kind."""
        return any(isinstance(part, kind) for part in self._module.modules())

    def fingerprint(self) -> str:
        """A digest of module, loss, data, weights, mode, dtype, what is in x and what is not, but not of x."""
        h = hashlib.blake2b(digest_size=8)
        loss = getattr(self._loss, "__qualname__", type(self._loss).__qualname__)
        h.update(repr((type(self._module).__qualname__, loss, self.layout, self.mode, self.value.hex())).encode())
        for name, tensor in (self._fixed | self._buffers).items():
            h.update(name.encode())
            digest(h, tensor)
        for piece in self.pieces:
            h.update(repr((piece.examples, piece.share.hex())).encode())
            for tensor in tensors((piece.inputs, piece.targets)):
                digest(h, tensor)
        return h.hexdigest()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)

    @contextmanager
    def _normalising(self) -> Iterator[None]:
        """Inside, every BatchNorm is in the stated mode. What it writes goes to copies of its buffers."""
        before = {name: part.training for name, part in self._norms.items()}
        try:
            for part in self._norms.values():
                part.train(self.mode == "batch")
            yield
        finally:
            for name, part in self._norms.items():
                part.train(before[name])

    def _check_point(self, x: Tensor) -> None:
        wanted = ((self.d,), self.dtype, self.device)
        got = (tuple(x.shape), x.dtype, x.device)
        require(got == wanted, "x", f"have shape, dtype and device {wanted}", got)

    def _check_normalisation(self) -> None:
        if self.mode == "batch":
            require(
                len(self.pieces) == 1,
                "batches",
                "be one, uncut, where normalisation is 'batch': its statistics are those of all data",
                f"{len(self.pieces)} pieces",
            )
        for name, part in self._norms.items():
            require(
                self.mode == "batch" or part.running_mean is not None,
                "normalisation",
                f"be 'batch' where a BatchNorm keeps no running statistics ({name!r})",
                self.mode,
            )

    def _values(self, x: Tensor) -> list[float]:
        """The mean loss of each piece, read from the device all at once."""
        with torch.no_grad():
            losses = [self.loss_of(self.outputs(x, piece), piece) for piece in self.pieces]
        values: list[float] = torch.stack(losses).tolist()
        for b, value in enumerate(values):
            require(math.isfinite(value), f"loss (of piece {b} of the data)", "be finite", value)
        return values

    def _piece_value(self, x: Tensor, piece: Piece) -> float:
        with torch.no_grad():
            return float(self.loss_of(self.outputs(x, piece), piece))

    def _is_mean(self, piece: Piece) -> bool:
        if piece.examples < 2:
            return True
        halves = list(piece.cut(-(-piece.examples // 2)))
        whole = self._piece_value(self.x, piece)
        mean = math.fsum(half.share / piece.share * self._piece_value(self.x, half) for half in halves)
        return abs(whole - mean) <= math.sqrt(torch.finfo(self.dtype).eps) * max(abs(whole), abs(mean))

    def _check_first_piece(self, value: float, *, combined: bool) -> None:
        first = self.pieces[0]
        again = self._piece_value(self.x, first)
        # Some sums have no order on a GPU, that of the losses of sequences for one.
        require_same(value, again, tolerance=0.0 if self.device.type == "cpu" else 64 * torch.finfo(self.dtype).eps)
        require(
            not combined or self._is_mean(first),
            "loss",
            "be the mean over the batch's examples where batches are cut or combined "
            "(give one batch without chunk, or weights for the batches)",
            "something else: the loss of the first batch is not the mean of its halves'",
        )


_REMEDIES = {
    re.compile(r"in-?place"): "operations that make new tensors (y = 2 * y in the place of y *= 2), or forward_only",
    re.compile(r"on Tensor that requires grad"): "torch's operations in the place of numpy's, or forward_only",
    re.compile(
        r"derivative for .* is not implemented|does not support it because|differentiate twice a function"
        r"|double backwards? |implement the jvp function|does not currently support"
    ): "an unfused kernel (eager attention, no torch.compile), or the smoothed operator",
}
"""What to do about torch's errors, by their words."""


@contextmanager
def differentiating(what: str) -> Iterator[None]:
    """InputError with the remedy where torch cannot differentiate a user's model or loss inside."""
    try:
        yield
    except RuntimeError as error:  # NotImplementedError is one
        message = " ".join(str(error).split())
        remedy = next((words for known, words in _REMEDIES.items() if known.search(message)), None)
        if remedy is None:
            raise
        raise InputError(
            f"{what} needs derivatives of every operation in module and loss, got torch's {message[:120]!r}; "
            f"use {remedy}"
        ) from error


# --- parameters -------------------------------------------------------------------------------------------------------


def _choose(module: nn.Module, parameters: Callable[[str], bool] | Sequence[str] | None) -> dict[str, nn.Parameter]:
    """The parameters that x consists of, by the first of their names, in the module's order."""
    aliases: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(p), []).append(name)
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    require(bool(trainable), "module", "have trainable parameters", type(module).__name__)
    if parameters is None:
        return trainable
    if callable(parameters):
        chosen = {n: p for n, p in trainable.items() if any(parameters(alias) for alias in aliases[id(p)])}
        require(bool(chosen), "parameters", "choose at least one trainable parameter", "none")
        return chosen
    patterns = [parameters] if isinstance(parameters, str) else list(parameters)
    require(bool(patterns), "parameters", "name at least one parameter", "none")
    for pattern in patterns:
        if not any(_matches(pattern, alias) for p in trainable.values() for alias in aliases[id(p)]):
            frozen = any(_matches(pattern, alias) for names in aliases.values() for alias in names)
            raise InputError(
                f"parameters must each match a trainable parameter of the module, got {pattern!r}, which matches "
                + ("frozen ones only" if frozen else "none")
            )
    return {
        n: p
        for n, p in trainable.items()
        if any(_matches(pattern, alias) for pattern in patterns for alias in aliases[id(p)])
    }


def _matches(pattern: str, name: str) -> bool:
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def _one_dtype(module: nn.Module) -> torch.dtype:
    dtypes = {p.dtype for p in module.parameters()}
    require(
        len(dtypes) == 1 and dtypes <= set(_DTYPES),
        "dtype of the module's parameters",
        "be float32 for all or float64 for all (dtype= casts them)",
        sorted(map(str, dtypes)),
    )
    return dtypes.pop()


def _one_device(module: nn.Module) -> torch.device:
    devices = {p.device for p in module.parameters()}
    require(len(devices) == 1, "module", "be on one device", sorted(map(str, devices)))
    return devices.pop()


def _refuse_dropout(module: nn.Module) -> None:
    for name, part in module.named_modules():
        random = part.training and isinstance(part, _DROPOUTS) and part.p > 0
        require(
            not random,
            f"module {name!r} ({type(part).__name__})",
            "be in eval mode or have p = 0, so that the loss is a function of x and the data alone",
            "active dropout",
        )


# --- data -------------------------------------------------------------------------------------------------------------


def good_chunk(inputs: Any, device: torch.device) -> int:
    """Examples at once that products are fast with: 250, or 8 sequences of tokens; on a GPU four times as many."""
    tokens = all(tensor.dtype == torch.int64 for tensor in tensors(inputs))
    return (8 if tokens else 250) * (4 if device.type == "cuda" else 1)


def _batches(data: Data, device: torch.device) -> tuple[list[tuple[Any, Any]], int | None]:
    """The batches of ``data``, and the chunk that is good for them where they are not the user's own."""
    if isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[0], Tensor | Mapping):
        return [(data[0], data[1])], good_chunk(data[0], device)
    if isinstance(data, Dataset):
        whole = gathered(DataLoader(data, batch_size=250))
        return [whole], good_chunk(whole[0], device)
    require(isinstance(data, Iterable), "data", "be batches, a Dataset or a pair of tensors", type(data).__name__)
    with initialising(0):  # a loader that shuffles draws from torch's generator
        pairs = list(data)
    require(bool(pairs), "data", "hold at least one batch", "none")
    for b, pair in enumerate(pairs):
        if isinstance(pair, Mapping) and "labels" in pair:  # as loaders for models of transformers have them
            pairs[b] = pair = {name: value for name, value in pair.items() if name != "labels"}, pair["labels"]
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        require(is_pair, f"batches[{b}]", "be a pair (inputs, targets)", type(pair).__name__)
    return [(tuple(inputs) if isinstance(inputs, list) else inputs, targets) for inputs, targets in pairs], None


def gathered(data: Data) -> tuple[Any, Any]:
    """All examples of ``data`` as one batch (inputs, targets).

    Raises:
        InputError: If they are no batches, or these differ in more than their first dimension.
    """
    batches, _ = _batches(data, torch.device("cpu"))
    for b, batch in enumerate(batches):
        _examples(b, batch)
    try:
        inputs, targets = _joined(batches)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"data must have batches that differ in their first dimension only, got {reason}") from error
    return inputs, targets


def _joined(trees: Sequence[Any]) -> Any:
    """Trees of the same form as one, their tensors one after the other."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if isinstance(first, Mapping):
        return {key: _joined([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(_joined(parts) for parts in zip(*trees, strict=True))
    return first


def _cut(
    batches: Sequence[tuple[Any, Any]], weights: Sequence[float] | None, chunk: int | None
) -> tuple[tuple[Piece, ...], float]:
    """Batches in pieces of at most ``chunk`` examples, each with its share of the mean, and Σ_b w_b."""
    if chunk is not None:
        require_int("chunk", chunk, 1)
    wholes = [Piece(*batch, _examples(b, batch), 1.0) for b, batch in enumerate(batches)]
    w = [float(whole.examples) for whole in wholes] if weights is None else [float(weight) for weight in weights]
    require(len(w) == len(wholes), "weights", f"be one for each of the {len(wholes)} batches", len(w))
    require(all(math.isfinite(v) and v > 0 for v in w), "weights", "be finite and above 0", w)
    total = math.fsum(w)
    pieces: list[Piece] = []
    for whole, weight in zip(wholes, w, strict=True):
        shared = Piece(whole.inputs, whole.targets, whole.examples, weight / total)
        pieces += shared.cut(chunk or whole.examples)
    return tuple(pieces), total


def _examples(b: int, batch: Any) -> int:
    """The number of examples of batch ``b``."""
    shapes = [tuple(tensor.shape) for tensor in tensors(batch)]
    require(bool(shapes), f"batches[{b}]", "hold tensors", "none")
    same = all(shapes) and len({shape[0] for shape in shapes if shape}) == 1
    require(same, f"tensors of batches[{b}]", "all have the examples in their first dimension", shapes)
    require(shapes[0][0] > 0, f"batches[{b}]", "hold at least one example", 0)
    return shapes[0][0]


def mapped(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The tree with every tensor replaced; what is neither tensor, tuple, list nor mapping stays."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(mapped(function, value) for value in tree)
    return tree


def tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree, in their order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping | tuple | list):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from tensors(value)


def digest(h: Any, tensor: Tensor) -> None:
    """Feed a tensor's shape, dtype and bytes to the hash ``h``."""
    h.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
    h.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
