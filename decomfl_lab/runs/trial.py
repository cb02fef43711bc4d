"""A user's model, loss and data, tried before a run rests on them: whether they are one function of x, and how.

Tried are the batches of every client's first epoch and the held-out ones, in the sizes, the dtype and the mode of the
run, for four evaluations of all of them (``objectives.trial``); for a method that needs gradients, also for a gradient
and two evaluations in float64; for one of differences, the first batch on a few lines, and for a gradient.
"""

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.errors import LabWarning
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.models.registry import initialising
from decomfl_lab.objectives.batch_loss import IGNORED, called, logits_of
from decomfl_lab.objectives.derivatives import sloped
from decomfl_lab.objectives.function import Function, Piece
from decomfl_lab.objectives.normalisation import calibrated
from decomfl_lab.objectives.objective import CHUNK, require_still
from decomfl_lab.objectives.trees import row_count, rows, tensors
from decomfl_lab.objectives.trial import Trial, narrowed, parts_agree, refuse
from decomfl_lab.plugins import taking
from decomfl_lab.runs.evaluation import fast_layout
from decomfl_lab.runs.prepared import Prepared

ODD = CHUNK - 1
"""Examples of a part in which batches are tried: nearly those of a run, and odd, so that a loss of pairs shows."""


class _Batches(Sequence[Piece]):
    """The batches of a run, named by whose they are; they are gathered when they are asked for, and not kept."""

    def __init__(self, start: Prepared) -> None:
        data, size = start.numbers, start.config.batch_size
        trained = fast_layout(data.train_images), data.train_labels
        self.parts: list[tuple[str, Any, Any]] = []
        for i, (index, own) in enumerate(zip(start.chosen, start.batches(), strict=True)):
            for step in range(-(-own.n // own.batch_size)):
                self.parts.append((f"client {i}", trained, index[torch.from_numpy(own(step)).to(index.device)]))
        held = fast_layout(data.test_images), data.test_labels
        for a in range(0, data.held_out, size):
            self.parts.append(("test", held, slice(a, min(a + size, data.held_out))))

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, n: Any) -> Any:
        name, data, chosen = self.parts[n]
        inputs, targets = rows(data, chosen)
        return Piece(inputs, targets, name=name)


def tried(start: Prepared) -> Prepared:
    """The same with a loss that says whether its batches may be cut; all of the lab's own may.

    Raises:
        InputError: If the user's model and loss do not take the data, or are no function of x and a batch alone, or
            torch's derivative is not that function's and the method needs it.
    """
    if not start.own:
        return start
    module, x = copy.deepcopy(start.module), start.x
    require_still(module)
    f = Function(module, start.loss, start.layout, x.device, bound=True)
    f.pieces = _Batches(start)
    fresh = copy.copy(f)
    fresh.module = copy.deepcopy(module)
    trial = Trial(f, x)
    given = {} if start.given is None else dict(start.given.named_parameters())
    with torch.inference_mode(False), initialising(0):
        data = start.dataset
        refuse(narrowed("clients", (data.train_images, data.train_labels), f.dtype))
        refuse(narrowed("test", (data.test_images, data.test_labels), f.dtype))
        refuse(_classes(f, data))
        refuse(trial.closed(fresh, given))
        refuse(trial.still())
        # A BatchNorm has statistics that are fixed while parts are compared with wholes.
        f.layout.bind(module, trial.near)
        with calibrated(module, start.calibration) as fixed:
            additive = not any(trial.additive(size=ODD, anew=fixed))
        if not additive:
            sizes = {f"client {i}": len(index) for i, index in enumerate(start.chosen)}
            refuse(_orders(trial, sizes))
        mu = start.method.plain().get("mu")
        if start.method.gradients:
            varies = trial.values != trial.near_values
            refuse(sloped(f, x, start.method.name, varies=varies, mend=partial(_without_gradients, trial)))
        elif mu is not None:
            for finding in trial.continuous(mu):
                warnings.warn(finding, LabWarning, stacklevel=3)
    return replace(start, loss=replace(start.loss, additive=additive, tried=True), own=False)


def _without_gradients(trial: Trial) -> str:
    """That differences do, if they do."""
    jumps = any(trial.continuous(DeComFL().mu, sloped=False))
    return "" if jumps else " A method of differences (decomfl) follows the values alone"


def _classes(f: Function, dataset: Dataset) -> Iterator[str]:
    """Where a target is not the number of one of the model's outputs, by the client who has it."""
    if f.measure.loss is not cross_entropy:
        return
    first = f.pieces[0]
    with taking(first.name, tensors(first.batch)), torch.no_grad():
        outputs = logits_of(f.measure.needs.met(partial(called, f.module, first.inputs)))
    named = [(f"client {i}", rows(dataset.train_labels, part)) for i, part in enumerate(dataset.parts or ())]
    for who, targets in [*named, ("clients", dataset.train_labels), ("test", dataset.test_labels)]:
        whole = isinstance(targets, Tensor) and targets.ndim == 1 and not targets.is_floating_point()
        if not (whole and isinstance(outputs, Tensor) and outputs.ndim > 1):
            continue
        classes = outputs.shape[1]
        wrong = ((targets < 0) | (targets >= classes)) & (targets != IGNORED)
        if wrong.any():
            at = int(wrong.nonzero()[0])
            rule = f"be a class in 0..{classes - 1}, as the model has {classes} outputs"
            yield f"target {at} of {who} must {rule}, got {int(targets[at])}"


def _orders(trial: Trial, clients: dict[str, int]) -> Iterator[str]:
    """Where a loss that is no mean over examples is noise or state, or hangs on an order that is drawn."""
    f = trial.f
    # Batches that are not all of a client's examples, in its own order.
    drawn = [piece for piece in f.pieces if clients.get(piece.name) not in (None, row_count(piece.batch))]
    yield from trial.still(everywhere=True, at_x=not drawn)
    for piece in drawn:
        turned = Piece(*rows(piece.batch, torch.arange((row_count(piece.batch) or 1) - 1, -1, -1)))
        value, again = f.piece_value(trial.x, piece), f.piece_value(trial.x, turned)
        if not parts_agree(again, [(None, 1.0, value)], math.sqrt(torch.finfo(f.dtype).eps)):
            yield (
                "loss must not depend on the order of a batch's examples, which are drawn anew (or batch_size be all "
                f"examples), got {value, again}"
            )
