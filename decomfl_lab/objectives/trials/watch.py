"""What module and loss touch while they compute: parameters behind those that they are given, kinks, classes."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.functional import cross_entropy, multi_margin_loss, nll_loss

from decomfl_lab.objectives.perturbation import memory_of, reads_no_element
from decomfl_lab.objectives.trees import tensors
from decomfl_lab.objectives.trials.needs import Calls
from decomfl_lab.storage.tables import table_beside

_SEEN = {kind: frozenset(names) for kind, names in table_beside(__name__, "functions.toml")["seen"].items()}
"""Names of functions that make kinks, move elements, or change scores."""

_LABELLED: tuple[Any, ...] = (cross_entropy, nll_loss, multi_margin_loss)
"""Losses of scores and classes, which are dimension 1."""


class Watch(Calls):
    """Inside, what module and loss touch is seen."""

    def __init__(self, replaced: Mapping[str, Tensor]) -> None:
        """A watch over the user's own parameters that x replaces, so that nothing may read their elements."""
        super().__init__()
        self._names = {id(p): name for name, p in replaced.items() if p.numel()}
        # The elements of each, with its name, by the memory that it is in.
        self._spans: dict[int | None, list[tuple[range, str]]] = {}
        for name, p in replaced.items():
            self._spans.setdefault(memory_of(p), []).append((_span(p), name))
        self._read: str | None = None
        self._made: list[Tensor] = []  # kept, so that no other tensor can get their ids
        self.kinked = False  # whether some function was not smooth

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        plain = name.strip("_").removesuffix("_with_indices")
        compared = plain in _SEEN["comparisons"] and any(tensor.is_floating_point() for tensor in tensors(args))
        self.kinked = self.kinked or compared or plain in _SEEN["kinks"]
        if self._read is None and not reads_no_element(func, args):
            for tensor in tensors((args, kwargs)):
                # One of the replaced parameters, or a view of it.
                spans = self._spans.get(memory_of(tensor), ()) if tensor.numel() and memory_of(tensor) else ()
                read = _span(tensor) if spans else range(0)
                names = (owner for span, owner in spans if span.start < read.stop and read.start < span.stop)
                self._read = self._read or self._names.get(id(tensor)) or next(names, None)
        result = func(*args, **kwargs)
        leaf = args[0] if func == Tensor.requires_grad.__set__ else result  # type: ignore[attr-defined]
        if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_leaf:  # an input to differentiate in
            self._made.append(leaf)
        return result

    def findings(self, loss: Tensor) -> Iterator[str]:
        """Of what a loss, computed inside from parameters that need no gradient, is a function beside x."""
        if self._read is not None:
            yield (
                "loss must see the parameters that it is given, and so must the module, got one that reads the module "
                f"behind them ({self._read!r}), where its value would stay what it was: write it as "
                "loss(model, batch), or give weight_decay= for a penalty on all weights"
            )
        made = set(map(id, self._made))
        # The tensors that autograd would give a gradient to.
        leaves = [loss] if loss.requires_grad and loss.is_leaf else []
        leaves += [node.variable for node in nodes([loss.grad_fn]) if hasattr(node, "variable")]
        for leaf in leaves:
            if isinstance(leaf, nn.Parameter) or id(leaf) not in made:
                yield (
                    "loss must depend on no parameters but the module's, nor on what was computed from them outside of "
                    "it, as that would be neither trained nor counted: register them in the module (nn.ModuleList for "
                    f"layers in a list), or use them under torch.no_grad(), got one of shape {tuple(leaf.shape)}"
                )


class Classes(Calls):
    """Inside, a loss is seen to take outputs for scores of classes, where it does.

    It calls one of torch's losses of classes with the outputs and the targets, or takes a softmax of the outputs.
    Outputs may be moved about and shifted on the way (by a temperature, a prior, a margin): predictions are by the
    outputs themselves, but for a factor that is a number, which may turn their order round.
    """

    def __init__(self, outputs: Tensor, targets: Tensor) -> None:
        """A watch over the loss of a batch."""
        super().__init__()
        self._known = [outputs, targets]  # kept, so that no other tensor can get their ids
        self._scores, self._labels = {id(outputs): outputs}, {id(targets): targets}
        self._shares: list[Tensor] = []
        self._pairs: list[tuple[Tensor, Tensor | None, Any]] = []

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "").strip("_")
        first = args[0] if args else kwargs.get("input")
        scores = self._scores.get(id(first))
        if func in _LABELLED and scores is not None:
            arguments = inspect.signature(func).bind(*args, **kwargs).arguments
            target = arguments["target"]
            by_class = scores.movedim(min(1, scores.ndim - 1), -1)  # of one example it is the only dimension
            if target.is_floating_point():  # probabilities, perhaps made of labels
                self._shares.append(by_class)
            else:
                self._pairs.append((by_class, self._labels.get(id(target)), arguments.get("ignore_index", -100)))
        elif name in _SEEN["shares"] and scores is not None:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if isinstance(dim, int):
                self._shares.append(scores.movedim(dim, -1))
            if isinstance(result, Tensor) and result.shape == scores.shape:
                self._known.append(result)
                self._scores[id(result)] = scores
        elif isinstance(result, Tensor) and args:
            # Scores or labels may be made of others: these are known, too.
            self._known.append(result)
            alone = sum(isinstance(argument, Tensor) for argument in args) == 1
            for table in (self._scores, self._labels):
                known = next((argument for argument in args if id(argument) in table), None)
                if known is None:
                    continue
                plain = table[id(known)]  # the same without what shifted it
                shifted = name in _SEEN["shifts"] and plain.shape == result.shape
                if (name in _SEEN["moves"] and known is args[0]) or (shifted and alone):
                    others = [plain if argument is known else argument for argument in args]
                    table[id(result)] = result if plain is known else func(*others, **kwargs)
                elif shifted and table is self._scores:
                    table[id(result)] = plain
        return result

    def seen(self) -> tuple[Tensor, Tensor] | None:
        """Which of the labels that count were predicted, and which count, both bool; None where nothing is a class."""
        pairs = self._pairs
        if not pairs:  # a softmax of the outputs, and targets that are numbers of classes
            classes = [labels for labels in self._labels.values() if labels.dtype == torch.int64]
            for scores in self._shares:
                fitting = [labels for labels in classes if labels.shape == scores.shape[:-1]]
                if fitting:
                    pairs.append((scores, fitting[-1], -100))
        calls: list[tuple[Tensor, Tensor, Tensor]] = []  # of each which are right, which count, and the labels
        for scores, labels, ignored in pairs:
            if labels is None or labels.shape != scores.shape[:-1]:
                return None  # of labels that are none of the targets
            counted = (labels >= 0) & (labels < scores.shape[-1]) & (labels != ignored)
            right = (scores.argmax(-1) == labels) & counted
            calls.append((right.flatten(), counted.flatten(), labels.flatten()))
        if not calls:
            return None
        right, counted, labels = (torch.cat(list(parts)) for parts in zip(*calls, strict=True))
        if torch.equal(labels, self._known[1].flatten()):  # examples one by one, perhaps
            return right, counted
        # Else what is asked more than once is the same, and not of several tasks or of labels that are mixed.
        same = all(all(map(torch.equal, calls[0], call)) for call in calls)
        return calls[0][:2] if same else None


def _span(tensor: Tensor) -> range:
    """The elements of its storage that a tensor lies within."""
    first = tensor.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(first, last + 1 if tensor.numel() else first)


def nodes(roots: Iterable[Node | None]) -> Iterator[Node]:
    """The nodes of autograd's graph behind these, each once."""
    todo, seen = list(roots), set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [following for following, _ in node.next_functions]
