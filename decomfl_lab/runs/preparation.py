"""The preparation of a run: what its configuration names is made, once; a user's own is tried before a run rests on it.

Whatever comes after takes from ``Prepared`` what it needs, and asks the configuration no more how to make it.

Tried are the batches of every client's first epoch and the held-out ones, in the sizes, the dtype and the mode of the
run, for four evaluations of all of them (``objectives.trials``); for a method that needs gradients, also for a gradient
and two evaluations in float64; for one of differences, the first batch on a few lines, and for a gradient.
"""

import copy
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset, load_dataset
from decomfl_lab.datasets.splits import fixed_choice, split
from decomfl_lab.datasets.user_data import data_of, own_dataset
from decomfl_lab.devices import find_device, use_tf32_
from decomfl_lab.engines.probation import Tried
from decomfl_lab.engines.registry import make_engine
from decomfl_lab.errors import InputError, LabWarning, require
from decomfl_lab.federations.carrier import Elsewhere
from decomfl_lab.federations.remote import CarriedFederation, host_of
from decomfl_lab.federations.setting import Federation, TrainingSetting
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.language.finetuning import by_length, task_dataset, task_module
from decomfl_lab.layout import MODULE, Layout
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.methods.method import Method
from decomfl_lab.methods.registry import LAGGING
from decomfl_lab.models.registry import build_model, initialising
from decomfl_lab.objectives.batch_loss import IGNORED, BatchLoss, Form, LossFunction, called, logits_of
from decomfl_lab.objectives.function import Function, Piece
from decomfl_lab.objectives.modules import copied, prepared
from decomfl_lab.objectives.normalisation import calibrated, freeze_, use_batch_statistics_
from decomfl_lab.objectives.objective import (
    CHUNK,
    EpochBatches,
    ModuleObjective,
    Objective,
    RoundedObjective,
    require_still,
)
from decomfl_lab.objectives.trees import row_count, rows, tensors
from decomfl_lab.objectives.trials.derivatives import sloped
from decomfl_lab.objectives.trials.trial import Trial, narrowed, parts_agree, refuse
from decomfl_lab.plugins import OWN, OwnFunction, is_own, made, name_of, taking
from decomfl_lab.protocol.session import Host
from decomfl_lab.runs.configuration import CROSS_ENTROPY, OWN_LOSS, TrainConfig

PATIENCE = 1e9
"""Seconds that a simulated round may take, as it may in one process."""
ODD = CHUNK - 1
"""Examples of a part in which batches are tried: nearly those of a run, and odd, so that a loss of pairs shows."""


@dataclass(frozen=True)
class Materials:
    """What a run is made of as its configuration names it: data, loss and model, each made when it is asked for."""

    config: TrainConfig

    def dataset(
        self,
        device: str = "cpu",
        *,
        clients: Sequence[Any] | None = None,
        test: Any = None,
        loss: LossFunction | None = None,
    ) -> Dataset:
        """A task's prompts, a data set or the user's own data; InputError if they are not here.

        Args:
            device: Where those that the configuration names are to be.
            clients: The clients' examples, where they brought their own.
            test: The held-out examples, likewise.
            loss: The loss where it is given: one of (model, batch) takes batches whole.
        """
        config, place = self.config, find_device(device)
        rule = "be given again, as the run was trained on examples given in Python"
        require(config.data != OWN or clients is not None, "clients", rule, None)
        if clients is None and not is_own(config.data):
            dataset = task_dataset(config) if config.task else load_dataset(config.data)
            return dataset.to(place)
        loss = self.loss_function() if loss is None and is_own(config.loss) else loss
        whole = loss is not None and BatchLoss.of(loss).form is Form.MODEL
        if clients is not None:
            return own_dataset(clients, test, whole=whole, redraw=config.redraw)
        return data_of(made("data", config.data, object), whole=whole, redraw=config.redraw).to(place)

    def loss_function(self) -> LossFunction | None:
        """The loss; None for the module's own."""
        if self.config.loss == CROSS_ENTROPY:
            return cross_entropy
        if self.config.loss == OWN_LOSS:
            return None
        return own_loss(self.config.loss)

    def workspace(self, dataset: Dataset, module: nn.Module | None, x: Tensor | None = None) -> nn.Module:
        """A module of the run's own at x_0, where the data are: a copy of the user's, None for the one that is named.

        x is x_0, (d,), where it is known otherwise, as from a log; None for what the module has, or the run draws.
        InputError if there is no module, it has no finite values, or another number of them than x.
        """
        config = self.config
        require(module is None or isinstance(module, nn.Module), "model", MODULE, module)
        lacks = config.model == OWN and module is None and not config.task
        require(not lacks, "model", "be given again, as the run trained a module given in Python", None)
        if config.task:
            workspace = task_module(config, dataset)
        elif module is not None or is_own(config.model):
            workspace = prepared(made("model", config.model, nn.Module) if module is None else module, shared=False)
        else:
            shape, classes = tuple(dataset.train_images.shape[1:]), dataset.classes
            workspace = build_model(config.model, seed=config.seed, in_shape=shape, classes=classes, draws=config.draws)
        empty = any(p.is_meta for p in workspace.parameters())
        require(not empty, "model", "have values, and not be on the meta device", type(workspace).__name__)
        if x is not None:
            layout = Layout.of(workspace)
            require(layout.d == x.numel(), "model", f"have d = {x.numel()}, as x_0 in the log", layout.d)
            same = layout.dtype == x.dtype
            require(same, "dtype of the parameters", f"be {x.dtype}, as of x_0 in the log", layout.dtype)
            layout.bind(workspace, x)
        workspace.to(dataset.device)
        if config.task:
            return workspace
        unfit = next((name for name, p in workspace.named_parameters() if not p.isfinite().all()), None)
        got = f"{type(workspace).__name__} with NaN or infinity in {unfit}"
        require(unfit is None, "model", "have finite parameters", got)
        if config.batchnorm == "frozen":
            numbers = next((p.dtype for p in workspace.parameters() if p.is_floating_point()), torch.float32)
            freeze_(workspace, self.calibration(dataset.cast(numbers)))
        else:
            use_batch_statistics_(workspace)
        return workspace

    def calibration(self, dataset: Dataset) -> Any:
        """Training images, the same for every seed, on which BatchNorm's statistics are made; labels play no part.

        Those of clients that join later are not among them: the losses of the others stay what they were.
        """
        numbers = np.arange(dataset.N)
        if self.config.joined and dataset.parts is not None:
            numbers = np.concatenate(dataset.parts[: self.config.present.initial])
        chosen = torch.from_numpy(numbers)[fixed_choice(len(numbers), self.config.calibration_examples, 6)]
        return fast_layout(rows(dataset.train_images, chosen))


def fast_layout(images: Any) -> Any:
    """Channels-last images: the same numbers, in the memory order in which CPU convolutions are fastest.

    Trees of tensors, and what is no batch of images, stay as they are.
    """
    is_images = isinstance(images, Tensor) and images.ndim == 4
    return images.to(memory_format=torch.channels_last) if is_images else images


def own_loss(target: str) -> LossFunction:
    """The loss that a ``module:function`` is, or that a ``module:Class`` of losses makes, as torch.nn:HuberLoss."""
    loss: LossFunction = OwnFunction(target, "loss", "(outputs, targets), or of (model, batch)").function
    return loss


def name_of_loss(loss: LossFunction | None) -> str:
    """What a configuration calls a loss: module:function where it can be found so again, else "own ..."."""
    if loss is None:
        return OWN_LOSS
    require(callable(loss), "loss", "be a function of (outputs, targets), or of (model, batch)", loss)
    if loss is cross_entropy:
        return CROSS_ENTROPY
    return name_of(loss) if hasattr(loss, "__qualname__") else f"{OWN} {loss}"


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run at round 0, before anybody trains."""

    config: TrainConfig  # the configuration
    dataset: Dataset  # the data, where the run computes
    given: nn.Module | None  # the user's own module; None where the configuration names it
    module: nn.Module  # the run's module, a copy of that: a workspace, whose parameters become views of any x
    layout: Layout  # where x lies in the module
    loss: BatchLoss  # the loss of a batch, which says whether batches may be cut (``trial``)
    x: Tensor  # x_0, shape (d,)
    own: bool  # whether module, loss or data are the user's, so that they are to be tried first

    @classmethod
    def of(
        cls,
        config: TrainConfig,
        dataset: Dataset | None = None,
        module: nn.Module | None = None,
        loss: LossFunction | BatchLoss | None = None,
        *,
        device: str | None = None,
        x: Tensor | None = None,
    ) -> Self:
        """Resolve a configuration; arguments and errors as of ``Run``.

        A ``BatchLoss`` has been tried; x is x_0, (d,), as a log has it, None for what the module has or ``config``
        draws.
        """
        materials = Materials(config)
        dataset = materials.dataset() if dataset is None else dataset
        dataset = dataset if device is None else dataset.to(find_device(device))
        use_tf32_(config.compute == "tf32")
        on_gpu = dataset.device.type == "cuda"
        require(config.compute != "tf32" or on_gpu, "compute", "be float32 or bfloat16 on the CPU", config.compute)
        users = module is not None or loss is not None or any(map(is_own, (config.model, config.data, config.loss)))
        untried = users and not isinstance(loss, BatchLoss) and not config.trust
        measure = BatchLoss.of(materials.loss_function() if loss is None else loss)
        copied = materials.workspace(dataset, module, x)
        layout = Layout.of(copied)
        targets = dataset.train_labels
        if measure.loss is cross_entropy and isinstance(targets, Tensor):
            classes = not targets.is_floating_point() or (targets.ndim > 1 and targets.shape[-1] > 1)
            rule = (
                "suit the targets: these are numbers, and cross-entropy takes classes (int64) or their probabilities; "
                "choose another loss, as torch.nn.functional.mse_loss"
            )
            require(classes, "loss", rule, CROSS_ENTROPY)
        return cls(config, dataset, module, copied, layout, measure, layout.flatten(copied), untried)

    @cached_property
    def numbers(self) -> Dataset:
        """The data in the dtype of x."""
        return self.dataset.cast(self.layout.dtype)

    @cached_property
    def calibration(self) -> Any:
        """The images on which BatchNorm's statistics are made."""
        return Materials(self.config).calibration(self.numbers)

    @cached_property
    def chosen(self) -> list[Tensor]:
        """The numbers of each client's examples in all draws, where these are."""
        config, data = self.config, self.numbers
        labels, parts = data.train_labels, data.parts
        if parts is None:
            if not isinstance(labels, Tensor):
                require(config.split == "iid", "split", "be iid where targets are no tensor of classes", config.split)
                labels = torch.zeros(data.N)
            labels = labels[: data.N]  # of the first draw
            classes = (labels if labels.ndim == 1 else labels[:, 0]).cpu().numpy()  # of text the first of a sequence
            parts = split(config.split, classes, config.clients, config.seed, alpha=config.alpha, draws=config.draws)
        elif config.method.alone:
            parts = [np.arange(data.N)]
        else:
            require(len(parts) == config.clients, "clients M", f"be {len(parts)}, as in data", config.clients)
        chosen = [data.drawn(torch.from_numpy(part)).to(data.device) for part in parts]
        if data.pad is None:
            return chosen
        # Prompts of like length lie together, so that a batch has little padding.
        return [index[by_length(data.train_images[index], data.pad)] for index in chosen]

    def batches(self) -> list[EpochBatches]:
        """The batches of every client.

        Examples are in their user's order within a batch where the loss is no mean over them: it may hang on it.
        """
        ascending = self.dataset.pad is not None or not self.loss.additive
        B, seed, redraw = self.config.batch_size, self.config.seed, self.dataset.redraw
        make = partial(EpochBatches, draws=self.config.draws, ascending=ascending, redraw=redraw)
        # 3 tells batches from what else is drawn
        return [make(len(index) // redraw, B, (seed, 3, i)) for i, index in enumerate(self.chosen)]

    def objectives(self) -> list[Objective]:
        """f_i of every client, all in the one module."""
        module, layout = self.module, self.layout
        rounded = self.config.compute == "bfloat16"
        if rounded:  # losses come from a copy in 16 bits; x, and the module that is evaluated, stay float32
            module, layout = copied(module).bfloat16(), replace(layout, dtype=torch.bfloat16)
        batches, data = self.batches(), self.numbers
        first = ModuleObjective(
            module, layout, self.loss, fast_layout(data.train_images), data.train_labels, batches[0]
        )
        exact = [first.of(index, of_client) for index, of_client in zip(self.chosen, batches, strict=True)]
        return [RoundedObjective(objective) for objective in exact] if rounded else [*exact]

    def federation(self, by: Elsewhere | None = None) -> Federation:
        """The method's federation at round 0, its clients in this process or elsewhere.

        InputError if the data cannot be split so, or clients that are elsewhere send more than scalars, or keep
        something in this process.
        """
        config, method, engine = self.config, self.config.method, make_engine(self.config.engine)
        engine = Tried(engine, config.engine) if self.loss.tried else engine
        objectives = self.objectives()
        setting = TrainingSetting(self.x, objectives, config.sampled, config.seed, engine, joined=config.joined)
        local = method.federation(setting)
        if by is None:
            return local
        rule = "be lab.Ray(workers=N), or None for this process, or another federations.carrier.Elsewhere"
        require(isinstance(by, Elsewhere), "federation", rule, by)
        federation = movable(local, method)
        method.require_carried(by)
        require(self.dataset.device.type == "cpu", "device", f"be cpu with federation {by}", self.dataset.device.type)
        # In each host there is one model for all of its clients anyway: they replay.
        carried = config.but(method.replaying())
        make = partial(build_host, carried, self.dataset, self.given, self.loss)
        run, m = carried.identity(federation.observer.digest()), carried.sampled
        return CarriedFederation.of(federation, by.carrier(make, carried.clients), run, quorum=m, patience=PATIENCE)


def build_host(
    config: TrainConfig,
    dataset: Dataset,
    module: nn.Module | None,
    loss: LossFunction | BatchLoss | None,
    ids: Iterable[int],
) -> Host:
    """The host of these clients, as it is made in another process; see ``Prepared.of``. Nothing is tried."""
    federation = movable(Prepared.of(config, dataset, module, loss).federation(), config.method)
    return host_of(federation, config.identity(federation.observer.digest()), ids)


def movable(federation: Federation, method: Method) -> DeComFLFederation:
    """The federation; InputError unless its clients can be in other processes, as only scalars travel."""
    by_records = federation.by_records
    if by_records is None or by_records.delivery.models:
        rule = f"be one of {', '.join(LAGGING)} where clients are in other processes, as only scalars travel"
        raise InputError(f"method must {rule}, got {method.name}")
    kind = None if by_records.attack is None else by_records.attack.kind
    rule = "be none where clients are in other processes, as liars here know all replies"
    require(kind is None, "attack", rule, kind)
    return by_records


class _Batches(Sequence[Piece]):
    """The batches of a run, named by whose they are; they are gathered when they are asked for, and not kept."""

    def __init__(self, start: Prepared) -> None:
        data, size = start.numbers, start.config.batch_size
        trained = fast_layout(data.train_images), data.train_labels
        self.parts: list[tuple[str, Any, Any]] = []
        for i, (index, batches) in enumerate(zip(start.chosen, start.batches(), strict=True)):
            for step in range(-(-batches.n // batches.batch_size)):
                self.parts.append((f"client {i}", trained, index[torch.from_numpy(batches(step)).to(index.device)]))
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

    InputError if the user's model and loss do not take the data, or are no function of x and a batch alone, or torch's
    derivative is not that function's and the method needs it.
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
    replaced = {} if start.given is None else dict(start.given.named_parameters())
    with torch.inference_mode(False), initialising(0):
        data = start.dataset
        refuse(narrowed("clients", (data.train_images, data.train_labels), f.dtype))
        refuse(narrowed("test", (data.test_images, data.test_labels), f.dtype))
        if f.measure.loss is cross_entropy:  # a target must be the number of one of the model's outputs
            one = f.pieces[0]
            with taking(one.name, tensors(one.batch)), torch.no_grad():
                outputs = logits_of(f.measure.needs.met(partial(called, module, one.inputs)))
            named = [(f"client {i}", rows(data.train_labels, part)) for i, part in enumerate(data.parts or ())]
            for who, targets in [*named, ("clients", data.train_labels), ("test", data.test_labels)]:
                whole = isinstance(targets, Tensor) and targets.ndim == 1 and not targets.is_floating_point()
                if not (whole and isinstance(outputs, Tensor) and outputs.ndim > 1):
                    continue
                rule = f"be a class in 0..{outputs.shape[1] - 1}, as the model has {outputs.shape[1]} outputs"
                wrong = ((targets < 0) | (targets >= outputs.shape[1])) & (targets != IGNORED)
                for n in wrong.nonzero()[:1, 0].tolist():
                    require(False, f"target {n} of {who}", rule, int(targets[n]))
        refuse(trial.closed(fresh, replaced))
        refuse(trial.still())
        # A BatchNorm has statistics that are fixed while parts are compared with wholes.
        f.layout.bind(module, trial.near)
        with calibrated(module, start.calibration) as fixed:
            additive = not any(trial.additive(size=ODD, anew=fixed))
        if not additive:  # the loss may be noise or state, or hang on an order that is drawn
            sizes = {f"client {i}": len(index) for i, index in enumerate(start.chosen)}
            # Batches that are not all of a client's examples, in its own order.
            drawn = [piece for piece in f.pieces if sizes.get(piece.name) not in (None, row_count(piece.batch))]
            refuse(trial.still(everywhere=True, at_x=not drawn))
            for piece in drawn:
                turned = Piece(*rows(piece.batch, torch.arange((row_count(piece.batch) or 1) - 1, -1, -1)))
                value, again = f.piece_value(trial.x, piece), f.piece_value(trial.x, turned)
                if not parts_agree(again, [(None, 1.0, value)], math.sqrt(torch.finfo(f.dtype).eps)):
                    raise InputError(
                        "loss must not depend on the order of a batch's examples, which are drawn anew (or batch_size "
                        f"be all examples), got {value, again}"
                    )
        method = start.config.method
        mu = method.plain().get("mu")
        if method.gradients:
            varies = trial.values != trial.near_values

            def mend() -> str:
                """That differences do, if they do."""
                jumps = any(trial.continuous(DeComFL().mu, sloped=False))
                return "" if jumps else " A method of differences (decomfl) follows the values alone"

            refuse(sloped(f, x, method.name, varies=varies, mend=mend))
        elif mu is not None:
            for finding in trial.continuous(mu):
                warnings.warn(finding, LabWarning, stacklevel=3)
    return replace(start, loss=replace(start.loss, additive=additive, tried=True), own=False)
