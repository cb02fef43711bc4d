"""Trained models by name: a run of ``decomfl train``, a file of weights, a model trained here, or a user's own.

A user's own model, data and loss are named as ``module:function`` (see ``decomfl_lab.plugins``), and each of them goes
with the lab's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.batches import Gathered
from decomfl_lab.datasets.images import Dataset, load_dataset
from decomfl_lab.datasets.splits import fixed_choice
from decomfl_lab.datasets.user_data import data_of, own_dataset
from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.language.causal_model import is_pretrained, load_pretrained
from decomfl_lab.language.finetuning import task_dataset, task_module
from decomfl_lab.models.registry import MODELS, build_model
from decomfl_lab.objectives.batch_loss import BatchLoss, Form, LossFunction
from decomfl_lab.objectives.descent import Descent
from decomfl_lab.objectives.normalisation import freeze_, use_batch_statistics_, uses_batch_statistics
from decomfl_lab.objectives.trees import LEAVES, Batch, mapped, rows
from decomfl_lab.plugins import OWN, Trust, code_in, is_own, made
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.runs.configuration import OWN_LOSS, TrainConfig, read_config
from decomfl_lab.runs.folder import CHECKPOINT_FILE, CONFIG_FILE
from decomfl_lab.runs.messages import RISEN
from decomfl_lab.runs.preparation import Materials, own_loss
from decomfl_lab.runs.run import load_run
from hessian.operators.mean_loss import MeanLoss, differentiating
from hessian.operators.options import CurvatureOptions
from hessian.operators.selection import mean_loss_of

_EXAMPLES = 8  # purpose of the random choice of examples (see ``fixed_choice``)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedModel:
    """A model at the x where its curvature is wanted, and its data."""

    module: nn.Module  # the module with these parameters
    dataset: Dataset  # what it was trained on
    calibration: Tensor  # training images on which BatchNorm's statistics are made where the module has none of its own
    name: str  # the name of the architecture
    history: str  # how its parameters came about, in words
    loss: LossFunction | None = cross_entropy  # the loss of a batch; None for the module's own

    @property
    def examples(self) -> Batch:
        """All training examples, (inputs, targets)."""
        return self.dataset.train_images, self.dataset.train_labels

    def mean_loss(
        self, asked: CurvatureOptions | None = None, *, examples: int = 0, parts: int = 1
    ) -> tuple[MeanLoss, ...]:
        """The loss on fixed training examples, where the module is, as a function of the parameters.

        Args:
            asked: Of which parameters, in which dtype, in which pieces; BatchNorm takes the statistics of the
                calibration images unless it says otherwise.
            examples: The number of examples, chosen at random but the same for every call and seed; 0 for all.
            parts: The number of disjoint parts of equal size that they are cut into, one function each (for split
                samples).

        Raises:
            InputError: If there are no examples, a part would be empty, or MeanLoss refuses something.
        """
        n = self.dataset.N
        chosen = fixed_choice(n, require_int("examples", examples, 0, n) or n, _EXAMPLES)
        require(len(chosen) >= parts, "examples", f"be at least {parts}", len(chosen))
        device = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        asked = CurvatureOptions() if asked is None else asked
        asked = replace(asked, normalisation=asked.normalisation or "eval")
        if asked.normalisation == "eval" and uses_batch_statistics(self.module):
            freeze_(self.module, self.calibration.to(device))
        size = len(chosen) // parts
        drawn = self.dataset.drawn
        return tuple(
            mean_loss_of(
                self.module,
                self.loss,
                Gathered(*mapped(lambda tensor: tensor.to(device), rows(self.examples, drawn(index)))),
                asked,
            )
            for index in chosen[: parts * size].split(size)
        )


def from_run(
    folder: Path,
    *,
    model: str | None = None,
    data: str | None = None,
    loss: str | None = None,
    trust_code: Trust = False,
) -> TrainedModel:
    """The model that a run left in its folder.

    Args:
        folder: What ``decomfl train --out`` or ``lab.train(out=)`` wrote.
        model: A ``module:function`` that makes the module, where the run was given it from Python, or names one that
            is not trusted; None otherwise.
        data: A ``module:function`` that makes the clients, or (clients, test), likewise.
        loss: A ``module:function`` that is the loss, likewise.
        trust_code: Whether the folder's files may name such themselves, or which.

    Raises:
        InputError: If there is no run, something is not given that the run's folder does not name, or is given that
            it does; or if it names code that is neither trusted nor given.
    """
    given = {"model": model, "data": data, "loss": loss}
    if (written := folder / CONFIG_FILE).exists():
        known = read_config(written, plain=True)
        # Names that the run has too are trusted, and the run finds them itself.
        model, data, loss = (None if named == known.get(name) else named for name, named in given.items())
        wanted = [name for name in given if str(known.get(name)).split(" ")[0] == OWN]
        allowed = {*wanted, *code_in(known)}
        superfluous = [f"--{name}" for name in given if given[name] is not None and name not in allowed]
        require(not superfluous, " and ".join(superfluous), "stay unset for a run, which has its own", superfluous)
        lacking = [f"--{name} module:function" for name in wanted if given[name] is None]
        rule = f"be given for {folder}, which was trained in Python and has no name of it"
        require(not lacking, " and ".join(lacking), rule, None)
    chosen = None if loss is None else own_loss(loss)
    whole = chosen is not None and BatchLoss.of(chosen).form is Form.MODEL
    run = load_run(
        folder,
        None if data is None else lambda config: data_of(made("data", data, object), whole=whole, redraw=config.redraw),
        module=None if model is None else made("model", model, nn.Module).eval(),
        loss=chosen,
        trust_code=trust_code,
    )
    config = run.config
    return TrainedModel(
        module=run.as_trained,
        dataset=run.dataset,
        calibration=Materials(config).calibration(run.dataset),
        name=config.model,
        history=f"{config.method.name}, {config.rounds} rounds, seed {config.seed} (run {folder.name})",
        loss=Materials(config).loss_function() if chosen is None else chosen,
    )


def scale_of(source: Path, *, trust_code: Trust = False) -> Tensor:
    """The vector s by which directions are scaled, u = s ⊙ z, shape (d,), as a run left it or a file has it.

    Args:
        source: A folder of ``decomfl train`` whose method scales its directions, as hiso does, or its checkpoint; or a
            .npy file; or a .safetensors file of one tensor.
        trust_code: Whether a run's files may name code to import, or which.

    Raises:
        InputError: If there is no such file, it cannot be read, has no such vector, or names code.
    """
    if source.is_dir() or source.name == CHECKPOINT_FILE:
        run = load_run(source if source.is_dir() else source.parent, trust_code=trust_code)
        observer: Replica | None = getattr(run.federation, "observer", None)  # which averaging federations have not
        if observer is None or observer.rule.scaling is None:
            raise InputError(f"whiten must be a run that scales its directions, as hiso does, got {source}")
        return observer.state[observer.rule.scaling]
    try:
        if source.suffix == ".npy":
            return torch.from_numpy(np.load(source, allow_pickle=False))
        tensors = list(load_file(source).values())
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"whiten must be a run, a .npy or a .safetensors file, got {source} ({reason})") from None
    require(len(tensors) == 1, "whiten", "be a file of one tensor", f"{source} with {len(tensors)}")
    return tensors[0]


def from_task(task: str, *, model: str, files: str = "") -> TrainedModel:
    """A causal language model as it is in a folder of transformers, as a classifier of the task's prompts.

    Args:
        task: A name in ``decomfl_lab.language.tasks.TASKS``.
        model: A folder of transformers, a GGUF file or a name of the hub.
        files: The folder of the task's files; empty for where the lab looks for them.

    Raises:
        InputError: If the task is unknown, or its files or the model are not available here.
    """
    config = TrainConfig(task=task, model=model, task_data=files)
    dataset = task_dataset(config)
    return TrainedModel(
        module=task_module(config, dataset),
        dataset=dataset,
        calibration=dataset.train_images[:0],
        name=model,
        history=f"as it is, on prompts of {task}",
    )


def from_weights(
    path: Path, *, model: str, data: str = "", loss: str | None = None, task: str | None = None, files: str = ""
) -> TrainedModel:
    """The model ``model`` with the weights of a safetensors file (a state dict), on the data ``data`` or a task.

    The file is as ``decomfl replay --save`` writes it; the other arguments are those of ``untrained`` or, with a
    task, of ``from_task``. Statistics of BatchNorm are the file's where it has them, else those of the calibration
    images.

    Raises:
        InputError: If the file cannot be read, or does not fit the model.
    """
    start = untrained(model, data, seed=0, loss=loss) if task is None else from_task(task, model=model, files=files)
    try:
        keys = start.module.load_state_dict(load_file(path), strict=False)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"weights must be a safetensors file that fits model {model}, got {path} ({reason})") from None
    parameters = {name for name, _ in start.module.named_parameters()}
    misfits = sorted(parameters & set(keys.missing_keys)) + sorted(keys.unexpected_keys)
    require(not misfits, f"weights in {path}", f"be exactly those of model {model}", misfits[:3])
    if any(name.endswith("running_mean") for name in keys.missing_keys):
        use_batch_statistics_(start.module)
    start.module.eval()
    return replace(start, history=f"weights of {path.name}")


def trained_here(
    model: str,
    data: str,
    *,
    steps: int,
    descent: Descent,
    seed: int = 0,
    loss: str | None = None,
    device: str | torch.device = "cpu",
    on_step: Callable[[int, float], None] | None = None,
) -> TrainedModel:
    """The model ``model``, initialised from ``seed`` and trained for ``steps`` first-order steps on ``data``.

    Args:
        model: See ``untrained``.
        data: See ``untrained``.
        steps: The number of steps; 0 for the model at its start, whose curvature is not that of a trained one unless it
            is the user's own.
        descent: The optimizer with its settings.
        seed: The seed of the initial parameters, the same on every device.
        loss: See ``untrained``.
        device: Where it is trained, and stays.
        on_step: A function that is called with the number of steps taken and the loss of the last one's batch.

    Raises:
        InputError: If a name is unknown, model and data do not fit, or training diverges.
    """
    start = untrained(model, data, seed=seed, loss=loss)
    module = start.module.to(device)
    users = model not in MODELS
    if not users:
        use_batch_statistics_(module)
    if not steps:
        return start
    inputs, targets = start.examples
    before = _value(module, start, descent.batch_size)
    if users:
        module.train()
    with differentiating("training"):
        for step, value in enumerate(descent(module, start.loss, inputs, targets, steps), 1):
            if on_step is not None:
                on_step(step, value)
    if users:
        module.eval()
    after = _value(module, start, descent.batch_size)
    rule = f"be at most {RISEN:g} times the {before:.3g} before it (a smaller lr may help)"
    require(after <= RISEN * abs(before), "loss after training", rule, after)
    words = f"{steps} steps of {descent.optimizer}, lr {descent.lr:g}, batch {descent.batch_size}, seed {seed}"
    return replace(start, history=words)


def _value(module: nn.Module, start: TrainedModel, count: int) -> float:
    """The loss of the first examples, with the module as it is."""
    device = next(module.parameters()).device
    batch = mapped(lambda tensor: tensor[:count].to(device), start.examples)
    with torch.no_grad():
        return float(BatchLoss.of(start.loss)(module, *batch))


def untrained(model: str, data: str, *, seed: int, loss: str | None = None) -> TrainedModel:
    """The model ``model`` as it is made, on the data ``data``.

    Args:
        model: A name in ``decomfl_lab.models.registry.MODELS``, initialised from ``seed``; or a ``module:function``
            that makes a torch module, which is put into eval mode; or a folder of transformers, taken as it is.
        data: A name in ``decomfl_lab.datasets.images.DATA_SETS``; or a ``module:function`` that makes batches, a
            Dataset or a pair of tensors (see ``MeanLoss``), all of one shape but for the number of examples.
        seed: The seed of the lab's models.
        loss: A ``module:function`` that is called as loss(outputs, targets), or a class of such; None for
            cross-entropy.

    Raises:
        InputError: If a name is unknown, model and data do not fit, or a ``module:function`` does not make these.
    """
    chosen: LossFunction | None = cross_entropy
    if loss is not None:
        chosen = None if loss == OWN_LOSS else own_loss(loss)  # None is the module's own
    module = made("model", model, nn.Module).eval() if is_own(model) else None
    history = f"as {model} makes it"
    if is_pretrained(model):
        module, history = load_pretrained(model), f"as it is in {model}"
    whole = BatchLoss.of(chosen).form is Form.MODEL
    if is_own(data):
        made_data: Any = made("data", data, object)
        if isinstance(made_data, tuple) and len(made_data) == 2 and not isinstance(made_data[0], (*LEAVES, Mapping)):
            made_data = made_data[0]  # the other are held-out examples, as `decomfl train` takes them
        # Examples of batches, or of clients, all together.
        dataset = own_dataset(made_data if isinstance(made_data, list) else [made_data], whole=whole)
        dataset = replace(dataset, name=data, source=f"{dataset.N:,} examples of {data}", parts=None)
    else:
        dataset = load_dataset(data)
    if module is None:
        in_shape = tuple(dataset.train_images.shape[1:])
        module = build_model(model, seed=seed, in_shape=in_shape, classes=dataset.classes)
        history = "at its start"
    return TrainedModel(
        module=module,
        dataset=dataset,
        calibration=Materials(TrainConfig()).calibration(dataset),
        name=model,
        history=history,
        loss=chosen,
    )
