"""What a user may give as data, for training and for curvature alike: examples, as batches (inputs, targets)."""

import copy
import hashlib
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from decomfl_lab.devices import room
from decomfl_lab.errors import THEIRS, InputError, LabWarning, require, shown
from decomfl_lab.models.registry import initialising
from decomfl_lab.objectives.trees import LEAVES, Batch, feed, joined, mapped, row_count, shape_of, tensors, torch_tree

MOST_BATCHES = 100_000
"""More batches than these are not read from what does not say how many it has."""
MOST_AGAIN = 10_000
"""Nor are so many that were there before, at the same place in memory, if that is a hundred times all others."""
_FEW = 16  # examples by which it is seen whether data are drawn
_PARTS = 10_000  # parts of data in which generators are looked for


class Gathered(NamedTuple):
    """All examples as one batch (inputs, targets) that is nobody's own cut."""

    inputs: Any
    targets: Any


Data = Iterable[Any] | Dataset[Any] | tuple[Any, Any] | Mapping[str, Any]
"""Batches in a list or a DataLoader; a Dataset of examples; or one batch: a pair (inputs, targets) or a mapping."""

_RULE = "be (inputs, targets), mappings with labels, batches of them in a list or a DataLoader, or a Dataset"
_TARGETS = ("y", "label", "labels", "target", "targets", "class", "classes")


def batches_of(name: str, data: Any, *, whole: bool = False, draw: int = 0) -> tuple[list[Batch], bool]:
    """The batches of what a user gave.

        (inputs, targets)               one batch; both may be trees, of tensors and numpy's arrays
        {"labels": targets, ...}        one batch of named inputs, as loaders for models of transformers have them
        [batch, batch, ...]             these batches, as they are cut; a DataLoader likewise
        Dataset                         all its examples, as one batch

    Arrays may be tables of pandas, or whatever has ``to_numpy``, and targets a list of numbers. What is drawn while
    they are read, as an order or noise, is the same each time, seeded by the number of the draw, and all generators are
    left as they were. A batch that is taken ``whole``, by a loss of (model, batch), may have any form; a tuple is then
    one batch. Beside the batches is whether they were cut by the user. InputError if they are something else, empty, or
    without an end.
    """
    if isinstance(data, Gathered):
        return [(data.inputs, data.targets)], False
    _require_no_graph(name, data)
    if _is_batch(name, data, whole):
        return [_batch(name, data, whole)], False
    rule = "be 1 for what can be read only once; a DataLoader can be read again"
    require(not (draw and isinstance(data, Iterator)), "redraw", rule, _kind(data))
    try:
        with _seeded(data, draw):
            if _has_examples(data):  # they become one batch
                examples = []
                for n in range(len(data)):
                    example = data[n]
                    _require_no_graph(name, example)
                    numbers = mapped(torch.as_tensor, torch_tree(example, f"example {n} of {name}"), (int, float))
                    examples.append(mapped(lambda tensor: tensor[None], numbers))
                require(bool(examples), name, "have at least one example", 0)
                return [_batch(name, joined(examples), whole)], False
            bare = isinstance(data, (*LEAVES, str, Mapping))
            require(isinstance(data, Iterable) and not bare, name, _RULE, _kind(data))
            batches = _read(name, data, whole)
    except InputError:
        raise
    except THEIRS as error:  # what is in them is the user's own
        raise _refusal(name, data, error) from error
    if not batches:
        kind = "an empty list" if isinstance(data, list) else f"a {_kind(data)} without any"
        raise InputError(f"{name} must hold at least one batch, got {kind}")
    return batches, True


def one_batch(name: str, data: Any, *, whole: bool = False, draw: int = 0) -> Batch:
    """All examples of ``data`` as one batch; InputError as ``batches_of``, or if batches do not fit together."""
    batches, _ = batches_of(name, data, whole=whole, draw=draw)
    for b, batch in enumerate(batches):
        which = name if len(batches) == 1 else f"batch {b} of {name}"
        shapes = [tuple(tensor.shape) for tensor in tensors(batch)]
        count = row_count(batch)
        rule = "have as many examples as each other, in their first dimension"
        require(count is not None, f"tensors of {which}", rule, shapes)
        require(count != 0, which, "have at least one example", 0)
    if len(batches) == 1:
        return batches[0]
    alike = {str(shape_of(batch)) for batch in batches}
    rule = "have batches that differ in their first dimension only"
    require(len(alike) == 1, name, rule, sorted(alike))
    inputs, targets = joined(batches)
    return inputs, targets


def _has_examples(data: Any) -> bool:
    """Whether the data have examples by number, one by one."""
    if isinstance(data, (Dataset, Iterable, Mapping, str, *LEAVES)):
        return isinstance(data, Dataset) and not isinstance(data, IterableDataset)
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _is_batch(name: str, data: Any, whole: bool) -> bool:
    """Whether the data are one batch, and not several; InputError where they may be either."""
    if isinstance(data, Mapping):
        return True
    if whole:
        return isinstance(data, (*LEAVES, tuple))
    if isinstance(data, tuple) and len(data) > 2 and all(isinstance(field, LEAVES) for field in data):
        return True  # of fields too many, as will be said
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    inputs, targets = data
    either = isinstance(data, tuple) and isinstance(inputs, tuple | list) and isinstance(targets, tuple | list)
    rule = "be in a list: [batch, batch] for two batches, [(inputs, targets)] for one, as two tuples may be either"
    require(not either, name, rule, _kind(data))
    if isinstance(data, list) and isinstance(inputs, Mapping) and isinstance(targets, Mapping):
        return False  # two batches of named inputs
    tree = (
        isinstance(inputs, tuple | list)
        and len(list(tensors(torch_tree(inputs, name)))) > 0
        and not isinstance(targets, tuple | list)
    )
    return isinstance(inputs, (*LEAVES, Mapping)) or tree


def _batch(name: str, batch: Any, whole: bool) -> Batch:
    """(inputs, targets) of one batch; InputError if it is none."""
    _require_no_graph(name, batch)
    named = getattr(batch, "_fields", None)
    pair = isinstance(batch, tuple | list) and len(batch) == 2 and not whole
    if pair and named is not None:  # whose second field is the targets by its name
        pair = named[1].lower() in _TARGETS and named[0].lower() not in _TARGETS
    if pair:
        inputs, targets = batch
        # A list of numbers or words is an array.
        kinds = (int, float, str, np.generic)
        if isinstance(targets, list | tuple) and targets and all(isinstance(value, kinds) for value in targets):
            targets = np.asarray(targets)
        batch = inputs, targets
        # Two tables that have the same rows in another order would be paired by place.
        one: Any = getattr(inputs, "index", None)
        other: Any = getattr(targets, "index", None)
        if hasattr(one, "equals") and hasattr(other, "equals"):
            same = one.equals(other) or set(one) != set(other)
            require(same, f"tables of {name}", "have their rows in one order: targets.loc[inputs.index]", "two orders")
    try:
        batch = mapped(Tensor.detach, torch_tree(batch, name))  # data are constants
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise _refusal(name, batch, error) from error
    if isinstance(batch, Mapping):
        if whole:
            inputs, targets = batch, None
        else:
            require("labels" in batch, f"keys of {name}", "have labels, the targets", list(batch))
            inputs = {key: value for key, value in batch.items() if key != "labels"}
            targets = batch["labels"]
    elif isinstance(batch, tuple) and len(batch) == 2 and (pair or named is None):
        inputs, targets = batch
    else:
        rule = "be a pair (inputs, targets), of several inputs ((inputs, ...), targets), or a mapping with labels"
        if isinstance(batch, tuple):
            rule += "; leave other fields out, as by ((x, y) for x, y, *_ in loader), or give a loss(model, batch)"
        require(whole, name, rule, _kind(batch))
        inputs, targets = batch, None
    require(next(tensors(inputs), None) is not None, f"inputs of {name}", "be tensors or arrays", type(inputs).__name__)
    fine = targets is None or next(tensors(targets), None) is not None
    require(fine, f"targets of {name}", "be tensors or arrays", type(targets).__name__)
    for what, tree in (("inputs", inputs), ("targets", targets)):
        for tensor in tensors(tree):
            dense = tensor.layout == torch.strided and not tensor.is_nested
            require(dense, f"{what} of {name}", "be dense tensors, as to_dense() makes them", str(tensor.layout))
    return inputs, targets


def _require_no_graph(name: str, value: Any) -> None:
    """InputError where it is a graph as torch_geometric has it, an object with tensors in its attributes."""
    graph = hasattr(value, "edge_index") and hasattr(value, "x") and not isinstance(value, Dataset | Mapping | tuple)
    rule = 'be tensors: of a graph [{"x": data.x, "edge_index": data.edge_index, "y": data.y}] for a loss(model, batch)'
    require(not (graph and (hasattr(value, "keys") or not isinstance(value, Iterable))), name, rule, _kind(value))


def _read(name: str, data: Any, whole: bool) -> list[Batch]:
    """The batches, one after the other, so that an interrupt ends it; InputError where they have no end.

    What says how many it has is believed. Of anything else no more is taken than there is room for, nor the same batch
    over and over. ``whole`` is that of ``batches_of``.
    """
    length = 0
    with suppress(Exception):  # each kind of loader has its own way to have no length
        length = length_hint(data)
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=250)
    if isinstance(data, DataLoader):  # with workers that have drawn nothing yet, and an eye for masks
        data = copy.copy(data)
        vars(data).update(_iterator=None, collate_fn=_Unmasked(data.collate_fn))
    batches: list[Batch] = []
    places, held = set[Any](), 0  # in memory, of the batches that were taken beyond ``length``; and their bytes
    for b, batch in enumerate(data):
        batches.append(_batch(f"batch {b} of {name}", batch, whole))
        if b < length:
            continue
        # A batch that is the same again, at the same place in memory, takes no more of it.
        place = tuple((tensor.data_ptr(), tuple(tensor.shape)) for tensor in tensors(batches[-1]))
        if place not in places:
            held += sum(tensor.nbytes for tensor in tensors(batches[-1]))
        places.add(place)
        again = b + 1 - length - len(places)
        cycles = again >= max(MOST_AGAIN, 100 * len(places))
        may_end = not cycles and held < room(torch.device("cpu")) and b + 1 < MOST_BATCHES
        got = f"{b + 1:,} batches ({1e-9 * held:.1f} GB) and no end"
        require(may_end, name, "have an end: give the first n, itertools.islice(batches, n), or a list of them", got)
    return batches


# --- what draws -------------------------------------------------------------------------------------------------------


@dataclass
class _Unmasked:
    """A loader's way to put examples together, which would forget masks: those that have one stay as they are."""

    collate: Callable[[Any], Any]

    def __call__(self, examples: Any) -> Any:
        masked = any(map(np.ma.is_masked, tensors(examples, np.ma.MaskedArray)))
        return examples if masked else self.collate(examples)


@contextmanager
def _seeded(data: Any, draw: int) -> Iterator[None]:
    """Inside, what data draw from is seeded by the number of the draw; afterwards it is as it was.

    Generators that the data have of their own, as a loader's ``generator``, go on from where they are for draw 0.
    """
    seed = int(np.random.SeedSequence(draw).generate_state(1)[0])  # that nobody else has chosen
    with ExitStack() as stack:
        for generator in _generators(data):
            torchs = isinstance(generator, torch.Generator)
            put = generator.set_state if torchs else generator.__setstate__
            stack.callback(put, generator.get_state() if torchs else generator.__getstate__())
            if draw:
                generator.manual_seed(seed) if torchs else put(type(generator)(seed).__getstate__())
        stack.enter_context(initialising(draw))
        yield


def _generators(data: Any) -> Iterator[Any]:
    """The generators that data keep in attributes: those of a loader, its sampler, its data set, and their parts."""
    todo, seen = [data], set[int]()
    for part in todo:  # which grows
        if isinstance(part, np.random.Generator):
            yield part.bit_generator
        elif isinstance(part, torch.Generator | np.random.RandomState) or type(part) is random.Random:
            yield part
        elif len(todo) < _PARTS and id(part) not in seen and not isinstance(part, (*LEAVES, type)):
            seen.add(id(part))
            todo += islice(part if isinstance(part, list | tuple) else getattr(part, "__dict__", {}).values(), 100)


def tell_draws(given: Mapping[str, Any]) -> None:
    """Warn in a line of the first data, by their name, that are others each time that they are read."""
    for name, data in given.items():
        first, other = _beginning(data, 0), _beginning(data, 1)
        if first != other and None not in (first, other):
            lasting = "" if first == _beginning(data, 0) else ", which no seed known here gives again"
            words = f"examples of {name} are drawn anew each time that they are read: one draw is taken{lasting}"
            warnings.warn(f"{words} (redraw=N takes N)", LabWarning, stacklevel=3)
            return


def _beginning(data: Any, draw: int) -> str | None:
    """A digest of the first examples of a Dataset, or of a loader's, put together as that does; None of other data."""
    dataset: Any = data.dataset if isinstance(data, DataLoader) else data
    if not _has_examples(dataset):
        return None
    h = hashlib.blake2b()
    with suppress(*THEIRS), _seeded(data, draw):  # what fails is told where all of them are read
        examples: Any = [dataset[n] for n in range(min(len(dataset), _FEW))]
        if isinstance(data, DataLoader) and data.batch_sampler is not None:
            examples = data.collate_fn(examples)
            # Which examples there are, of which an order alone may be drawn.
            chosen = (n for batch in islice(data.batch_sampler, MOST_BATCHES) for n in batch)
            h.update(str(sorted(chosen, key=repr)).encode())
        for tensor in tensors(mapped(torch.as_tensor, torch_tree(examples), (int, float))):
            feed(h, tensor)
        return h.hexdigest()
    return None


# --- words ------------------------------------------------------------------------------------------------------------


def _refusal(name: str, data: Any, error: BaseException) -> InputError:
    got = f"{_kind(data)} ({type(error).__name__}: {shown(str(error))})"
    return InputError(f"{name} must {_RULE}, examples of one shape, got {got}")


def _kind(data: Any) -> str:
    """What a user gave, by its types, and the names and shapes of what a tuple holds."""
    if not isinstance(data, tuple | list):
        return type(data).__name__
    names = [f"{name}: " for name in getattr(data, "_fields", ())] or [""] * len(data)
    kinds = [f"{name}{type(value).__name__}" for name, value in zip(names, data, strict=True)]
    if isinstance(data, tuple):
        kinds = [f"{kind} {tuple(getattr(value, 'shape', ()))}" for kind, value in zip(kinds, data, strict=True)]
    inside = ", ".join(kinds[:6]) + ", ..." * (len(data) > 6)
    return f"({inside})" if isinstance(data, tuple) else f"[{inside}]"
