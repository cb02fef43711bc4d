"""The mean loss of a model over fixed data as a function of the flat parameter vector."""

import copy
import hashlib
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn

from decomfl_lab.datasets.batches import Data, batches_of, tell_draws
from decomfl_lab.errors import THEIRS, InputError, brief, is_number, require, require_choice, require_int
from decomfl_lab.layout import Layout, require_trainable, vector_of
from decomfl_lab.objectives.batch_loss import IGNORED, BatchLoss, Form, LossFunction
from decomfl_lab.objectives.function import Function, Leaves, Piece, enabled
from decomfl_lab.objectives.modules import prepared
from decomfl_lab.objectives.trees import Batch, feed, row_count, rows, tensors
from decomfl_lab.objectives.trials.trial import FAR, Trial, is_mean, refuse
from decomfl_lab.objectives.vectors import moved
from decomfl_lab.plugins import taking
from hessian.operators.options import NORMALISATIONS
from hessian.operators.vocabulary import LeanCrossEntropy

Weights = Sequence[float] | Callable[[Any], Tensor]
"""The weight of every batch, or a function of targets that gives the weights of their examples, tokens or classes."""

LABELS = "labels"  # the key of a mapping that has them
_FEW = 8  # examples by which it is seen whether a loss is the mean over labels
_TOKENS = 256  # tokens that go through a model at once, unless one text has more

_DTYPES = (torch.float32, torch.float64)
_TRAINING = (
    "model has a BatchNorm in training mode, and f takes its running statistics, as in eval mode; say so by "
    "normalisation='eval', or by 'batch' that f takes the batch's"
)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class MeanLoss(Function):
    """f(x) = Σ_b w_b loss_b(x) / Σ_b w_b + (λ/2)‖x‖², loss_b the loss of batch b by the module at x.

    With the number of examples, or the sum of their own weights, for w_b this is f(x) = Σ_i w_i ℓ_i(x) / Σ_i w_i over
    all examples, provided that the loss of a batch is the weighted mean of its examples': then batches may be cut.

    x are the module's trainable parameters, or some of them, tied weights once, in the module's order. The module is
    never changed: not its parameters, gradients, buffers or training flags. Parameters that are not part of x are used
    where they are, so the module must not be trained meanwhile; buffers are copied.

    x is a copy, one vector (d,) more, unless the parameters are one vector already, as those of a run are: then x is
    that vector, and changes with them. ``Layout.of(module).bind(module, Layout.of(module).flatten(module))`` makes
    them one.

    Attributes:
        x: The parameters when this was made, (d,).
        value: f(x) there.
        pieces: The data, cut.
        weight: The sum Σ_b w_b, by default the number of examples, or of labels that count.
        weight_decay: λ.
        trusted: Whether nothing was tried.
        compute: What the products of its matrices are computed in; its values are not.
    """

    compute = "float32"

    def __init__(
        self,
        module: nn.Module,
        loss: LossFunction | None,
        data: Data,
        *,
        weights: Weights | None = None,
        redraw: int = 1,
        weight_decay: float = 0.0,
        parameters: Callable[[str], bool] | Iterable[str | Tensor] | None = None,
        normalisation: str | None = None,
        dtype: torch.dtype | None = None,
        chunk: int | None = None,
        trust: bool = False,
    ) -> None:
        """Try everything that can be tried, by four evaluations of f; more before an error, or where a loss is no mean.

        Args:
            module: Any torch module. It is called as module(inputs), module(*inputs) for a tuple of inputs, and
                module(**inputs) for a mapping (Hugging Face). What it returns is given to the loss, or its ``logits``
                where it has them. Wrappers of torch (DataParallel, compile) are taken off.
            loss: loss(outputs, targets), a scalar: the mean over the batch's examples. A loss whose first parameter is
                called ``model`` gets the module, with x for its parameters, and the batch. None: the loss that the
                module returns when it is given the targets as ``labels``.
            data: Batches, pairs (inputs, targets), in a list, a DataLoader or another iterable; or a Dataset of such
                pairs for one example each; or one pair of tensors, arrays or tables. A mapping with "labels" (Hugging
                Face) is the pair of all else and these. What is drawn while they are read, as by a loader that
                shuffles, is the same each time, and no generator is left changed. Every tensor of a batch has the
                examples in its first dimension, or the batch is never cut.
            weights: The weight w_b of each batch; or a function of the targets (of the batch for a loss of (model,
                batch)) that gives the weights of examples, tokens or classes, which are summed over a batch: those by
                which the loss itself takes its mean. By default the number of examples, so that all weigh the same
                however the data are cut; or that of labels that count (not -100), where examples have unequally many
                and the loss is seen to be the mean over these: then each token weighs the same, padded or not.
            redraw: How many draws are taken of data that are others each time that they are read, as by random
                augmentation; f is the mean over all of them.
            weight_decay: λ of a penalty (λ/2)‖x‖², whose curvature is λI.
            parameters: The trainable parameters that x consists of: a predicate on their names, or names, prefixes of
                names that end at a dot ("layers.3"), or patterns with * and ?, or the tensors themselves. Default: all.
            normalisation: "eval" or "batch", for every BatchNorm, whatever mode the module is in. Statistics of the
                batch need all data to be one batch. Default: "eval", with a warning if a BatchNorm is in training mode.
            dtype: The dtype, float32 or float64, to which parameters, buffers and data are cast; default: that of the
                parameters.
            chunk: The most examples that go through the module at once, to save memory and time (100 to 250 images
                fit the processor's cache better than 1,000). Default: whole batches; ``good_chunk`` of a Dataset or a
                pair of tensors where it may be cut.
            trust: Whether to take it on trust that this is one function of x, and that it may be cut and combined.

        Raises:
            InputError: If there is nothing to differentiate or no data, module and loss do not take the data, the loss
                is no finite scalar, differs from one evaluation to the next, depends on parameters that are not x, or
                is no mean over examples where batches have to be combined; dropout is active; a name matches no
                parameter; dtypes or devices are mixed; an argument is out of range.
        """
        require_choice("normalisation", "eval" if normalisation is None else normalisation, NORMALISATIONS)
        require(dtype is None or dtype in _DTYPES, "dtype", "be float32 or float64", dtype)
        decays = is_number(weight_decay) and weight_decay >= 0
        require(decays, "weight_decay λ", "be a finite number of at least 0", weight_decay)
        measure = BatchLoss.of(loss)
        given, module = module, prepared(module, shared=True)
        self.weight_decay, self.trusted = float(weight_decay), trust
        with enabled():
            chosen = _choose(module, parameters)
            devices = {p.device for p in module.parameters()}
            require(len(devices) == 1, "module", "be on one device", sorted(map(str, devices)))
            dtypes = {dtype} if dtype is not None else {p.dtype for p in module.parameters()}
            one = len(dtypes) == 1 and dtypes <= set(_DTYPES)
            rule = "be float32 for all or float64 for all (dtype= casts them)"
            require(one, "dtype of the module's parameters", rule, sorted(map(str, dtypes)))
            layout = Layout(tuple(chosen), tuple(p.shape for p in chosen.values()), dtypes.pop())
            super().__init__(module, measure, layout, devices.pop(), bound=False)
            x = vector_of(list(chosen.values()), self.dtype)  # the vector that the parameters are, if they are one
            if x is None:
                x = torch.cat([p.detach().reshape(-1).to(self.dtype) for p in chosen.values()])
            self.x = x
            self.fixed = {n: self.place(p.detach()) for n, p in module.named_parameters() if n not in chosen}
            self.buffers = {name: self.place(buffer.detach().clone()) for name, buffer in module.named_buffers()}
            for name, part in module.named_modules():
                random = part.training and isinstance(part, _DROPOUTS) and part.p > 0
                rule = "be in eval mode or have p = 0, so that the loss is a function of x and the data alone"
                require(not random, f"module {name!r} ({type(part).__name__})", rule, "active dropout")
            self.norms = _norms(module)
            self.mode = ("eval" if normalisation is None else normalisation) if self.norms else "none"
            if normalisation is None and any(n.training and n.running_mean is not None for n in self.norms.values()):
                warnings.warn(_TRAINING, stacklevel=2)
            self._additive: bool | None = True if trust else None
            self._weigh = weights if callable(weights) else None
            self._lean: LeanCrossEntropy | None = LeanCrossEntropy()  # None where no piece has logits enough for it
            self.value = self._sum(self.x, self._taken(given, chosen, data, weights, redraw, chunk))

    def _taken(
        self,
        given: nn.Module,
        chosen: Mapping[str, nn.Parameter],
        data: Data,
        weights: Weights | None,
        redraw: int,
        chunk: int | None,
    ) -> list[float]:
        """Cut the data into pieces, try them, and give the loss of each at x."""
        if chunk is not None:
            require_int("chunk", chunk, 1)
        whole = self.measure.form is Form.MODEL
        batches: list[Batch] = []
        cut = False  # whether the user has cut the data
        for draw in range(require_int("redraw", redraw, 1)):
            drawn, cut = batches_of("data", data, whole=whole, draw=draw)
            batches += drawn
        if redraw == 1:
            tell_draws({"data": data})
        if weights is None:
            self._weigh = self._by_labels(batches)
        wholes = self._wholes(batches, weights)
        # What is not cut by its user is cut here to go faster, if it may be: else it goes through in one piece.
        fast = None if cut or self.mode == "batch" else good_chunk(wholes[0].inputs, self.device)
        size = fast if chunk is None else chunk
        self.pieces = wholes
        if size is not None:
            self.pieces = tuple(part for whole in wholes for part in whole.cut(size, self.weight_of))
        if self.mode == "batch":
            rule = "be one, uncut, where normalisation is 'batch': its statistics are those of all data"
            require(len(self.pieces) == 1, "batches", rule, f"{len(self.pieces)} pieces")
        for name, part in self.norms.items():
            rule = f"be 'batch' where a BatchNorm keeps no running statistics ({name!r})"
            require(self.mode == "batch" or part.running_mean is not None, "normalisation", rule, self.mode)
        if self.trusted:
            with taking("data", tensors(self.pieces[0].batch)):
                return self._values(self.x)
        if chunk is None and len(self.pieces) > len(wholes):
            try:
                trial = self._tried(given, chosen)
                refuse(trial.still())
                self._additive = not any(trial.additive())
                if self._additive:
                    return trial.values
            except InputError:  # whatever is wrong, a graph without halves or a fault of the loss, the whole data tell
                self._additive = False
            self.pieces = wholes
        trial = self._tried(given, chosen)
        numbered = weights is not None and not callable(weights)
        if len(self.pieces) > 1 and (not numbered or chunk is not None):
            if self._additive is None:
                refuse(trial.still())
                self._additive = not any(trial.additive())
            if not self._additive:
                refuse(trial.still(everywhere=True))  # noise, or state, would be the reason
                raise InputError(
                    "loss must be the mean over the batch's examples where batches are cut or combined (give one batch "
                    "without chunk; or weights=, a number for each batch, or a function of targets that gives the "
                    "weights of the loss's mean), got something else: the loss of a batch is not the mean of its parts'"
                )
        else:  # what parts would have shown of rare noise, repetitions do
            refuse(trial.still(everywhere=True))
        return trial.values

    def _tried(self, given: nn.Module, chosen: Mapping[str, nn.Parameter]) -> Trial:
        """The trial of all pieces; InputError where a loss is no finite scalar, or reads more than x."""
        fresh = copy.copy(self)  # whose module has not been called yet
        fresh.module = prepared(given, shared=True)
        fresh.norms = _norms(fresh.module)
        trial = Trial(self, self.x)
        refuse(trial.closed(fresh, chosen))
        self._lean = self._lean if self._lean is not None and self._lean.seen else None
        self.kinked = trial.kinked
        return trial

    def _wholes(self, batches: Sequence[Batch], weights: Weights | None) -> tuple[Piece, ...]:
        """The user's batches, each with its share of the mean."""
        for b, batch in enumerate(batches):
            counts = [tuple(tensor.shape) for tensor in tensors(batch)]
            require(row_count(batch) != 0, f"batches[{b}]", "hold at least one example", 0)
            rule = "all have the examples in their first dimension, or weights be given, one for each batch"
            fine = row_count(batch) is not None or len(batches) == 1 or weights is not None
            require(fine, f"tensors of batches[{b}]", rule, counts)
        given: list[Any] | None = None
        if weights is not None and not callable(weights):
            listed: list[Any] = list(weights)
            given = [weight.item() if isinstance(weight, Tensor) else weight for weight in listed]
        numbers = given is None or all(map(is_number, given))
        require(numbers, "weights", "be a number for each batch, or a function of targets", weights)
        w = [self.weight_of(batch) for batch in batches] if given is None else given
        require(len(w) == len(batches), "weights", f"be one for each of the {len(batches)} batches", len(w))
        above = all(v > 0 for v in w) if given is not None else any(w)
        require(all(math.isfinite(v) for v in w) and above, "weights", "be finite and above 0", w)
        self.weight = math.fsum(w)
        ragged = ", whose tensors have not all the examples in their first dimension"
        return tuple(
            Piece(*batch, row_count(batch) or 1, v / self.weight, "data" + ragged * (row_count(batch) is None))
            for batch, v in zip(batches, w, strict=True)
            if v > 0
        )

    def _by_labels(self, batches: Sequence[Batch]) -> Callable[[Any], Tensor] | None:
        """Which labels count, where examples have unequally many and the loss is the mean over these; else None."""
        labels_by_batch = [self._labels(self._weighed(batch)) for batch in batches]
        whole = all(row_count(batch) for batch in batches)
        if not whole or not all(isinstance(y, Tensor) and y.dtype == torch.int64 for y in labels_by_batch):
            return None
        from_second = [y[:, 1:] if y.ndim > 1 else y for y in labels_by_batch]
        # How many labels count in each example.
        numbers = [[(y != IGNORED).reshape(len(y), -1).sum(1) for y in each] for each in (labels_by_batch, from_second)]
        if all(bool((n == n[0]).all()) for n in map(torch.cat, numbers)):
            return None  # the mean over labels is that over examples

        def telling(batch: Batch) -> tuple[bool, int]:
            """How much labels say of a loss: whether a first one counts, and how many do."""
            counts = (self._labels(self._weighed(batch)) != IGNORED).reshape(row_count(batch), -1)
            return bool(counts[:, 0].any()), int(counts.sum())

        try:
            counted = self._mean_over(max((rows(batch, slice(0, _FEW)) for batch in batches), key=telling))
            return None if counted is None else lambda given: counted(self._labels(given))
        except Exception:  # what is wrong with module, loss or data is told when they are tried
            return None

    def _mean_over(self, batch: Batch) -> Callable[[Tensor], Tensor] | None:
        """Which labels count, where the loss of the batch is the mean over these; by leaving some of them out."""
        inputs, targets = batch
        y = self._labels(self._weighed(batch))

        def value(labels: Tensor, f: MeanLoss = self) -> float:
            relabelled = Piece({**inputs, LABELS: labels}, None) if targets is None else Piece(inputs, labels)
            return f.piece_value(at.to(f.dtype), relabelled)

        for step in FAR:
            at = moved(self.x, step)
            loss = value(y)
            if math.isfinite(loss):
                break
        # A causal model predicts the second token first: its loss is the same without the labels of the first.
        shifts = y.ndim > 1 and value(torch.cat([torch.full_like(y[:, :1], IGNORED), y[:, 1:]], 1)) == loss

        def counted(labels: Tensor) -> Tensor:
            return (labels[:, 1:] if shifts else labels) != IGNORED

        order = (y != IGNORED).flatten().cumsum(0).view(y.shape)
        first = order <= round(0.382 * int(order.max()))
        parts = [y.where(first, IGNORED), y.where(~first, IGNORED)]
        wide = cache(self.wide)
        mean = is_mean(
            y,
            loss,
            [(part, float(counted(part).sum()), value(part)) for part in parts],
            torch.finfo(self.dtype).eps,
            lambda labels: value(labels, wide()),
        )
        return counted if mean else None

    def _weighed(self, batch: Batch) -> Any:
        """What the function of weights is given: the targets, or for a loss of (model, batch) the batch."""
        inputs, targets = batch
        if self.measure.form is not Form.MODEL:
            return targets
        return inputs if targets is None else batch

    def _labels(self, given: Any) -> Any:
        """The labels in what the function of weights is given."""
        if isinstance(given, Mapping):
            return given.get(LABELS)
        return given[1] if self.measure.form is Form.MODEL and isinstance(given, tuple) else given

    def weight_of(self, batch: Batch) -> float:
        """The weight of a batch: the number of its examples, or the sum of their own weights."""
        if self._weigh is None:
            return float(row_count(batch) or 1)
        given = self._weighed(batch)
        what = "the batch" if self.measure.form is Form.MODEL else "the targets"
        keys = f" with keys {', '.join(map(str, given))}" * isinstance(given, Mapping)
        rule = f"be a function of {what} (a {type(given).__name__}{keys}) that gives a tensor of weights"
        try:
            weights = self._weigh(given)
            total = float(torch.as_tensor(weights).double().sum())
        except THEIRS as error:
            raise InputError(f"weights must {rule}, got {type(error).__name__}: {brief(str(error), 100)}") from error
        require(not isinstance(weights, bool), "weights", rule, weights)
        fine = math.isfinite(total) and total >= 0
        require(fine, "weights of a batch", "add up to a finite number of at least 0", total)
        return total

    # --- the function ---------------------------------------------------------------------------------------------

    def __call__(self, x: Tensor) -> float:
        """f(x), accumulated in float64; InputError if it is not finite."""
        self._check_point(x)
        return self._sum(x, self._values(x))

    def _sum(self, x: Tensor, values: Sequence[float]) -> float:
        """f(x) of the losses of the pieces there."""
        mean = math.fsum(piece.share * value for piece, value in zip(self.pieces, values, strict=True))
        return mean + 0.5 * self.weight_decay * float(x.double().square().sum()) if self.weight_decay else mean

    def gradient(self, x: Tensor) -> Tensor:
        """∇f(x), shape (d,), summed over the pieces in their order; zero where a parameter is not used."""
        self._check_point(x)
        with enabled(), differentiating("the gradient"):
            total = self.weight_decay * x.detach() if self.weight_decay else torch.zeros_like(x)
            for piece in self.pieces:
                self.add_gradient_(total, x, piece, piece.share)
        return total

    def outputs(self, x: Tensor | Leaves, piece: Piece) -> Any:
        """The module's outputs for the piece at x, differentiable in x; InputError if the loss is none of outputs."""
        rule = "be one of (outputs, targets) for a matrix that is made of the outputs' derivatives"
        require(self._is_of_outputs, "loss", rule, self.measure.form.value)
        return super().outputs(x, piece)

    @property
    def remark(self) -> str:
        """What is to be said of f where it is not the mean over examples, or was not tried; else empty."""
        if self.trusted:
            return "module, loss and data were taken on trust"
        if self._additive is not False:
            return ""
        what = "that of all data as one batch" if len(self.pieces) == 1 else f"the mean over {len(self.pieces)} batches"
        return f"the loss is no mean over examples, so no batch is cut, and f is {what}"

    @property
    def may_be_cut(self) -> bool:  # type: ignore[override]
        """Whether batches are known to be means of their parts."""
        return bool(self._additive)

    @property
    def additive(self) -> bool:
        """Whether the loss of every batch is the weighted mean of its parts'; tried when it is first asked."""
        if self._additive is None:
            with enabled():
                self._additive = not any(Trial(self, self.x).additive())
        return self._additive

    @cached_property
    def _is_of_outputs(self) -> bool:
        """Whether the loss is one of (outputs, targets); the module's own is, where its ``loss_function`` gives it."""
        if self.measure.form is not Form.OWN:
            return self.measure.is_of_outputs
        piece = self.pieces[0]
        try:
            with torch.no_grad():
                own = self.piece_value(self.x, piece)
                found = self.loss_of(super().outputs(self.x, piece), piece)
        except Exception:  # each model has its own way to have no such function
            return False
        return math.isclose(float(found), own, rel_tol=1e-5)

    def require_examples(self, what: str) -> None:
        """InputError unless a piece's loss is the weighted mean of its examples' own, which ``what`` asks for."""
        fits = self.mode != "batch" and self._is_of_outputs and self.additive
        rule = f"be the mean of losses of single examples for {what}"
        require(fits, "loss", rule, "something else (or statistics of the batch)")

    def example_weights(self, piece: Piece) -> Tensor:
        """The weight of each example of a piece in its mean; they add up to 1."""
        if self._weigh is None:
            return torch.full((piece.examples,), 1 / piece.examples, dtype=self.dtype, device=self.device)
        weights = [self.weight_of(rows(piece.batch, slice(i, i + 1))) for i in range(piece.examples)]
        return torch.tensor(weights, dtype=torch.float64).div_(math.fsum(weights)).to(self.device, self.dtype)

    def fingerprint(self) -> str:
        """A digest of module, loss, data, weights, mode, dtype, what is in x and what is not, but not of x."""
        h = hashlib.blake2b(digest_size=8)
        loss = getattr(self.measure.loss, "__qualname__", type(self.measure.loss).__qualname__)
        # Two functions that are equal at x, as with a penalty that is zero there, are seldom so beside it.
        with enabled():
            beside = self._sum(self.x, Trial(self, self.x, drawn=torch.float64).beside())
        facts = (type(self.module).__qualname__, loss, self.layout, self.mode, self.value.hex(), beside.hex())
        h.update(repr((*facts, self.trusted)).encode())
        for name, tensor in (self.fixed | self.buffers).items():
            h.update(name.encode())
            feed(h, tensor)
        for piece in self.pieces:
            h.update(repr((piece.examples, piece.share.hex())).encode())
            for tensor in tensors((piece.inputs, piece.targets)):
                feed(h, tensor)
        return h.hexdigest()

    # --- inside ---------------------------------------------------------------------------------------------------

    def sparing(self) -> AbstractContextManager[Any]:
        """Inside, losses over a vocabulary take little memory."""
        return nullcontext() if self._lean is None else self._lean

    def _check_point(self, x: Tensor) -> None:
        wanted = ((self.d,), self.dtype, self.device)
        got = (tuple(x.shape), x.dtype, x.device)
        require(got == wanted, "x", f"have shape, dtype and device {wanted}", got)

    def _values(self, x: Tensor) -> list[float]:
        """The loss of each piece at x (d,), read from the device all at once."""
        with torch.no_grad():
            losses = [self.loss_at(x, piece) for piece in self.pieces]
        self._lean = self._lean if self._lean is not None and self._lean.seen else None
        values: list[float] = torch.stack(losses).tolist()
        for b, value in enumerate(values):
            require(math.isfinite(value), f"loss (of piece {b} of the data)", "be finite", value)
        return values


_REMEDIES = {
    re.compile(r"in-?place"): "operations that make new tensors (y = 2 * y instead of y *= 2), or forward_only",
    re.compile(r"on Tensor that requires grad"): "torch's operations instead of numpy's, or forward_only",
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
    except Exception as error:  # torch's, or the user's own
        if isinstance(error, InputError):
            raise
        message = " ".join(str(error).split())
        if re.search("allocate memory|out of memory", message):
            raise MemoryError(f"{message[:160]}; fewer examples at once (chunk) take less of it") from error
        remedy = next((f"; use {words}" for known, words in _REMEDIES.items() if known.search(message)), "")
        raise InputError(
            f"{what} needs derivatives of every operation in module and loss, got {message[:160]!r} "
            f"({type(error).__name__}){remedy}"
        ) from error


# --- parameters -------------------------------------------------------------------------------------------------------


def _choose(
    module: nn.Module, parameters: Callable[[str], bool] | Iterable[str | Tensor] | None
) -> dict[str, nn.Parameter]:
    """The parameters that x consists of, by the first of their names, in the module's order."""
    aliases: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(p), []).append(name)
    trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
    require_trainable(module)
    if parameters is None:
        return trainable
    if callable(parameters):
        chosen = {n: p for n, p in trainable.items() if any(parameters(alias) for alias in aliases[id(p)])}
        require(bool(chosen), "parameters", "choose at least one trainable parameter", "none")
        return chosen
    given = [parameters] if isinstance(parameters, str | Tensor) else list(parameters)
    require(bool(given), "parameters", "name at least one parameter", "none")
    patterns = [wanted if isinstance(wanted, str) else next(iter(aliases.get(id(wanted), ())), "") for wanted in given]
    for wanted, pattern in zip(given, patterns, strict=True):  # a tensor stands for its name
        shown = f"another of shape {tuple(wanted.shape)}" if isinstance(wanted, Tensor) else wanted
        require(pattern != "", "parameters", "be names, or tensors of the module's own and no copies of them", shown)
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
    """Whether a pattern is a parameter's name, a prefix of it that ends at a dot, or fits it by * and ?."""
    return name == pattern or name.startswith(f"{pattern}.") or fnmatchcase(name, pattern)


def _norms(module: nn.Module) -> dict[str, Any]:
    return {name: part for name, part in module.named_modules() if isinstance(part, _BATCH_NORMS)}


# --- data -------------------------------------------------------------------------------------------------------------


def good_chunk(inputs: Any, device: torch.device) -> int:
    """Examples at once that products are fast with: 250, or 8 texts of 256 tokens in all; on a GPU four times as many.

    A text's graph grows with its tokens times the layers and the vocabulary.
    """
    ids = list(tensors(inputs))
    if all(tensor.dtype == torch.int64 for tensor in ids):
        longest = max((tensor.shape[1] for tensor in ids if tensor.ndim > 1), default=1)
        chunk = min(8, max(1, _TOKENS // longest))
    else:
        chunk = 250
    return chunk * (4 if device.type == "cuda" else 1)
