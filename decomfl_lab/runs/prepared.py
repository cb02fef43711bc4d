"""What a run is made of, resolved once from its configuration: data, module, loss, layout, method.

Whatever comes after takes from here what it needs, and asks the configuration no more how to make it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.devices import find_device, use_tf32_
from decomfl_lab.engines.probation import Tried
from decomfl_lab.engines.registry import make_engine
from decomfl_lab.errors import InputError, require
from decomfl_lab.federations.carrier import Elsewhere
from decomfl_lab.federations.federation import Federation
from decomfl_lab.federations.remote import CarriedFederation, host_of
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.layout import Layout
from decomfl_lab.methods.method import Method
from decomfl_lab.methods.registry import LAGGING
from decomfl_lab.objectives.batch_loss import BatchLoss, LossFunction
from decomfl_lab.objectives.modules import copied
from decomfl_lab.objectives.objective import EpochBatches, ModuleObjective, Objective, RoundedObjective
from decomfl_lab.plugins import is_own
from decomfl_lab.protocol.session import Host
from decomfl_lab.runs.building import dataset_of, loss_of, parts_of, workspace
from decomfl_lab.runs.configuration import CROSS_ENTROPY, TrainConfig
from decomfl_lab.runs.evaluation import by_length, calibration_images, fast_layout

PATIENCE = 1e9
"""Seconds that a simulated round may take, as it may in one process."""


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
        """Resolve a configuration.

        Args:
            config: The configuration of the run.
            dataset: The data; None for those that ``config`` names.
            module: The model at x_0, which is copied; None for the one that ``config`` names.
            loss: The loss of a batch; None for the one that ``config`` names. A ``BatchLoss`` has been tried.
            device: The device, cpu, cuda, cuda:N or auto; None for the one that the data are on.
            x: x_0, as a log has it; None for what the module has, or ``config`` draws.

        Raises:
            InputError: If there are no such data, or module and loss do not fit them.
        """
        dataset = dataset_of(config) if dataset is None else dataset
        dataset = dataset if device is None else dataset.to(find_device(device))
        use_tf32_(config.compute == "tf32")
        on_gpu = dataset.device.type == "cuda"
        require(config.compute != "tf32" or on_gpu, "compute", "be float32 or bfloat16 on the CPU", config.compute)
        own = module is not None or loss is not None or any(map(is_own, (config.model, config.data, config.loss)))
        untried = own and not isinstance(loss, BatchLoss) and not config.trust
        measure = BatchLoss.of(loss_of(config) if loss is None else loss)
        copied = workspace(config, dataset, module, x)
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

    @property
    def method(self) -> Method:
        """The method."""
        return self.config.method

    @cached_property
    def numbers(self) -> Dataset:
        """The data in the dtype of x."""
        return self.dataset.cast(self.layout.dtype)

    @cached_property
    def calibration(self) -> Any:
        """The images on which BatchNorm's statistics are made."""
        return calibration_images(self.config, self.numbers)

    @cached_property
    def chosen(self) -> list[Tensor]:
        """The numbers of each client's examples in all draws, where these are."""
        data = self.numbers
        chosen = [data.drawn(torch.from_numpy(part)).to(data.device) for part in parts_of(self.config, data)]
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
        own = partial(EpochBatches, draws=self.config.draws, ascending=ascending, redraw=redraw)
        return [
            # 3 tells batches from what else is drawn
            own(len(index) // redraw, B, (seed, 3, i))
            for i, index in enumerate(self.chosen)
        ]

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
        exact = [first.of(index, own) for index, own in zip(self.chosen, batches, strict=True)]
        return [RoundedObjective(objective) for objective in exact] if rounded else [*exact]

    def setting(self) -> TrainingSetting:
        """What the method trains."""
        config, engine = self.config, make_engine(self.config.engine)
        engine = Tried(engine, config.engine) if self.loss.tried else engine
        return TrainingSetting(self.x, self.objectives(), config.sampled, config.seed, engine, joined=config.joined)

    def federation(self, by: Elsewhere | None = None) -> Federation:
        """The method's federation at round 0, its clients in this process or elsewhere.

        Raises:
            InputError: If the data cannot be split so, or clients that are elsewhere send more than scalars, or keep
                something in this process.
        """
        here = self.method.federation(self.setting())
        if by is None:
            return here
        rule = "be lab.Ray(workers=N), or None for this process, or another federations.carrier.Elsewhere"
        require(isinstance(by, Elsewhere), "federation", rule, by)
        federation = movable(here, self.method)
        self.method.require_carried(by)
        require(self.dataset.device.type == "cpu", "device", f"be cpu with federation {by}", self.dataset.device.type)
        # In each host there is one model for all of its clients anyway: they replay.
        there = self.config.but(self.method.replaying())
        make = partial(build_host, there, self.dataset, self.given, self.loss)
        run, m = there.identity(federation.observer.digest()), there.sampled
        return CarriedFederation.of(federation, by.carrier(make, there.clients), run, quorum=m, patience=PATIENCE)


def build_federation(
    config: TrainConfig,
    dataset: Dataset,
    *,
    module: nn.Module | None = None,
    loss: LossFunction | BatchLoss | None = None,
) -> tuple[Federation, nn.Module, Layout]:
    """The federation of ``config`` in this process, and the module and layout to evaluate its model with.

    Args and errors are those of ``Prepared.of``; nothing is tried.
    """
    start = Prepared.of(config, dataset, module, loss)
    return start.federation(), start.module, start.layout


def build_host(
    config: TrainConfig,
    dataset: Dataset,
    module: nn.Module | None,
    loss: LossFunction | BatchLoss | None,
    ids: Iterable[int],
) -> Host:
    """The host of these clients of ``config``, as it is made in another process; see ``build_federation``."""
    found, _, _ = build_federation(config, dataset, module=module, loss=loss)
    federation = movable(found, config.method)
    return host_of(federation, config.identity(federation.observer.digest()), ids)


def movable(federation: Federation, method: Method) -> DeComFLFederation:
    """The federation; InputError unless its clients can be in other processes, as only scalars travel."""
    found = federation.by_records
    if found is None or not found.movable:
        rule = f"be one of {', '.join(LAGGING)} where clients are in other processes, as only scalars travel"
        raise InputError(f"method must {rule}, got {method.name}")
    kind = None if found.attack is None else found.attack.kind
    require(
        kind is None, "attack", "be none where clients are in other processes, as liars here know all replies", kind
    )
    return found
