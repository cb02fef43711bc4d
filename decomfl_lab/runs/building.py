"""What a configuration names: data, loss and module, and who has which examples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset, load_dataset
from decomfl_lab.datasets.splits import split
from decomfl_lab.datasets.user_data import data_of
from decomfl_lab.devices import find_device
from decomfl_lab.errors import require
from decomfl_lab.layout import MODULE, Layout
from decomfl_lab.models.registry import build_model
from decomfl_lab.objectives.batch_loss import BatchLoss, Form, LossFunction
from decomfl_lab.objectives.modules import prepared
from decomfl_lab.objectives.normalisation import freeze_, use_batch_statistics_
from decomfl_lab.plugins import OWN, is_own, made, named
from decomfl_lab.runs.configuration import CROSS_ENTROPY, OWN_LOSS, TrainConfig
from decomfl_lab.runs.evaluation import Metric, calibration_images
from decomfl_lab.runs.finetuning import task_dataset, task_module


def dataset_of(config: TrainConfig, device: str = "cpu") -> Dataset:
    """The data of a run, its task's prompts, its data set or its user's own; InputError if they are not here."""
    place = find_device(device)
    require(config.data != OWN, "clients", "be given again, as the run was trained on examples given in Python", None)
    if is_own(config.data):
        whole = loss_is_of_model(config)
        return data_of(made("data", config.data, object), whole=whole, redraw=config.redraw).to(place)
    return (task_dataset(config) if config.task else load_dataset(config.data)).to(place)


def fitted(config: TrainConfig, dataset: Dataset, sampled: int | None = None) -> TrainConfig:
    """The run with as many clients as the data bring, where they come as clients' own.

    Args:
        config: The run.
        dataset: Its data.
        sampled: The number of sampled clients where the user gave it; None for the configuration's, or all if fewer.

    Raises:
        InputError: If ``sampled`` is more than the clients.
    """
    M = config.clients if dataset.parts is None else len(dataset.parts)
    m = min(config.sampled, M) if sampled is None else sampled
    return config if config.method.alone else config.but(clients=M, sampled=m)


def loss_of(config: TrainConfig) -> LossFunction | None:
    """The loss that a run's configuration names; None for the module's own."""
    if config.loss == CROSS_ENTROPY:
        return cross_entropy
    if config.loss == OWN_LOSS:
        return None
    require(
        is_own(config.loss), "loss", "be given again, as the run was trained with a loss given in Python", config.loss
    )
    return own_loss(config.loss)


def loss_is_of_model(config: TrainConfig, loss: LossFunction | None = None) -> bool:
    """Whether the loss of a run is one of (model, batch), so that batches are taken whole."""
    known = loss is not None or is_own(config.loss)
    return known and BatchLoss.of(loss_of(config) if loss is None else loss).form is Form.MODEL


def own_loss(target: str) -> LossFunction:
    """The loss that a ``module:function`` is, or that a ``module:Class`` of losses makes, as torch.nn:HuberLoss."""
    loss: Any = named("loss", target)
    loss = made("loss", target, object) if isinstance(loss, type) else loss
    rule = "be a function of (outputs, targets), or of (model, batch)"
    require(callable(loss), f"loss {target!r}", rule, type(loss).__name__)
    return loss  # type: ignore[no-any-return]


def name_of_loss(loss: LossFunction | None) -> str:
    """What a configuration calls a loss: module:function where it can be found so again, else "own ..."."""
    if loss is None:
        return OWN_LOSS
    require(callable(loss), "loss", "be a function of (outputs, targets), or of (model, batch)", loss)
    if loss is cross_entropy:
        return CROSS_ENTROPY
    return _name_of(loss)


def _name_of(function: Any) -> str:
    """The module:function by which a function can be imported again, else "own ..."."""
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    known = is_own(name) and not name.startswith("__main__")
    return name if known else f"{OWN} {getattr(function, '__qualname__', function)}"


def names_of_metrics(metrics: Mapping[str, Metric] | None) -> str:
    """What a configuration calls a user's measures; InputError if they are none."""
    rule = "be {name: function of (outputs, targets)}"
    require(metrics is None or isinstance(metrics, Mapping), "metrics", rule, metrics)
    pieces = []
    for name, metric in (metrics or {}).items():
        require(callable(metric), f"metric {name!r}", "be a function of (outputs, targets)", metric)
        # What has no name of its own may have any signs in the words that print it.
        nameless = f"{OWN} {type(metric).__name__}"
        pieces.append(f"{name}={_name_of(metric) if hasattr(metric, '__qualname__') else nameless}")
    return ",".join(pieces)


def metrics_of(config: TrainConfig, given: Mapping[str, Metric] | None) -> dict[str, Metric]:
    """A run's measures of the user's own by their columns: those that are given, else what the configuration names."""
    found: dict[str, Metric] = {}
    if given is not None:
        require(given.keys() == config.measures.keys(), "metrics", f"be {[*config.measures]}, as in the run", [*given])
    for name, target in config.measures.items():
        if given is None:
            rule = "be given again, as the run was measured by a function given in Python"
            require(is_own(target), f"metric {name!r}", rule, target)
        metric = found[f"test_{name}"] = named("metrics", target) if given is None else given[name]
        require(callable(metric), f"metric {name!r}", "be a function of (outputs, targets)", target)
    return found


def workspace(config: TrainConfig, dataset: Dataset, module: nn.Module | None, x: Tensor | None = None) -> nn.Module:
    """A module of the run's own at x_0, where the data are.

    Args:
        config: The run.
        dataset: Its data.
        module: The user's own module, which is copied; None for the one that the run names.
        x: x_0, where it is known otherwise, as from a log; None for what the module has, or the run draws.

    Raises:
        InputError: If there is no module, it has no finite values, or another number of them than x.
    """
    require(module is None or isinstance(module, nn.Module), "model", MODULE, module)
    if config.task:
        task = task_module(config, dataset)
        _start_at_(task, x)
        return task.to(dataset.device)
    lacks = config.model == OWN and module is None
    require(not lacks, "model", "be given again, as the run trained a module given in Python", None)
    if module is not None or is_own(config.model):
        own = prepared(made("model", config.model, nn.Module) if module is None else module, shared=False)
    else:
        in_shape = tuple(dataset.train_images.shape[1:])
        own = build_model(
            config.model, seed=config.seed, in_shape=in_shape, classes=dataset.classes, draws=config.draws
        )
    empty = any(p.is_meta for p in own.parameters())
    require(not empty, "model", "have values, and not be on the meta device", type(own).__name__)
    _start_at_(own, x)
    unfit = next((name for name, p in own.named_parameters() if not p.isfinite().all()), None)
    require(unfit is None, "model", "have finite parameters", f"{type(own).__name__} with NaN or infinity in {unfit}")
    own.to(dataset.device)
    if config.batchnorm == "frozen":
        numbers = next((p.dtype for p in own.parameters() if p.is_floating_point()), torch.float32)
        freeze_(own, calibration_images(config, dataset.cast(numbers)))
    else:
        use_batch_statistics_(own)
    return own


def _start_at_(module: nn.Module, x: Tensor | None) -> None:
    """Give the module's trainable parameters the values of x, where there is one."""
    if x is not None:
        layout = Layout.of(module)
        require(layout.d == x.numel(), "model", f"have d = {x.numel()}, as x_0 in the log", layout.d)
        require(layout.dtype == x.dtype, "dtype of the parameters", f"be {x.dtype}, as of x_0 in the log", layout.dtype)
        layout.bind(module, x)


def parts_of(config: TrainConfig, dataset: Dataset) -> Sequence[NDArray[np.int64]]:
    """The numbers of each client's examples."""
    labels = dataset.train_labels
    if dataset.parts is None:
        if not isinstance(labels, Tensor):
            require(config.split == "iid", "split", "be iid where targets are no tensor of classes", config.split)
            labels = torch.zeros(dataset.N)
        labels = labels[: dataset.N]  # of the first draw
        labels = labels if labels.ndim == 1 else labels[:, 0]  # of text
        numbers = labels.cpu().numpy()
        return split(config.split, numbers, config.clients, config.seed, alpha=config.alpha, draws=config.draws)
    if config.method.alone:
        return [np.arange(dataset.N)]
    require(len(dataset.parts) == config.clients, "clients M", f"be {len(dataset.parts)}, as in data", config.clients)
    return dataset.parts
