"""Training a model of one's own: the functions behind ``decomfl_lab.train`` and ``decomfl_lab.load``."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import inference_mode, nn
from torch.nn.functional import cross_entropy

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.datasets.user_data import own_dataset
from decomfl_lab.errors import require
from decomfl_lab.federations.carrier import Elsewhere
from decomfl_lab.files import as_path
from decomfl_lab.layout import MODULE
from decomfl_lab.methods.decomfl import DeComFL
from decomfl_lab.methods.method import Method
from decomfl_lab.objectives.batch_loss import BatchLoss, Form, LossFunction
from decomfl_lab.plugins import OWN
from decomfl_lab.runs.building import name_of_loss, names_of_metrics
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.evaluation import Metric
from decomfl_lab.runs.hooks import Hook, as_hooks
from decomfl_lab.runs.prepared import Prepared
from decomfl_lab.runs.progress import run_bar
from decomfl_lab.runs.run import Run, load_run
from decomfl_lab.runs.trial import tried
from decomfl_lab.runs.tuning import tuned, without_auto


@inference_mode(False)  # what is made here is differentiated, wherever the caller stands
def train(
    model: nn.Module,
    loss: LossFunction | None = cross_entropy,
    clients: Sequence[Any] = (),
    *,
    method: Method | str | None = None,
    test: Any = None,
    sampled: int | None = None,
    rounds: int = 100,
    seed: int = 0,
    redraw: int = 1,
    out: Path | str | None = None,
    device: str | None = None,
    progress: bool = False,
    on_round: Hook | Sequence[Hook] | None = None,
    federation: Elsewhere | None = None,
    metrics: Mapping[str, Metric] | None = None,
    **options: Any,
) -> Run:
    """Train any module on the examples of any clients.

    Args:
        model: The model at x_0; it is copied and never changed. d is the number of its parameters that need gradients.
        loss: The loss(outputs, targets) of a batch, a scalar; or loss(model, batch), if the first parameter is called
            ``model``; None for the loss that the model returns of its own when it is given ``labels``.
        clients: The examples of each client, read once: (inputs, targets), a mapping with labels, batches of them in a
            list or a DataLoader, or a torch data set. They may be trees of tensors, arrays and tables.
        method: A method with its options, or its name; None for ``DeComFL()`` with the authors' settings.
        test: The held-out examples, in one of these forms, on which the run is evaluated; None for no evaluation.
        sampled: The number m of clients sampled a round; None for all.
        rounds: The number R of communication rounds.
        seed: The seed of everything random but x_0: batches, clients, directions.
        redraw: How many draws are taken of clients' examples that are others each time that they are read, as by random
            augmentation: an epoch of a client is as long as ever, and epoch e has draw e mod ``redraw``.
        out: A folder in which the run is saved, and from which it resumes.
        device: The device, cpu, cuda, cuda:N or auto; None for the one that the examples are on.
        progress: Whether a progress bar is shown on stderr.
        on_round: A function, or a list of them, that is called after every round with a ``runs.hooks.Round``: round,
            train_loss, test_accuracy and test_loss where the round was evaluated, up_bytes, down_bytes, lr, seconds,
            and copies of model and metrics; ``stop()`` ends the run. ``lab.TensorBoard(folder)`` and
            ``lab.WandB(project)`` are such functions.
        federation: Where the clients are, ``Ray(workers=N)`` for N actors of Ray, or another
            ``federations.carrier.Elsewhere``; None for this process. Records, losses and models are the same to the
            bit.
        metrics: {name: metric} of what else is measured on the held-out examples: metric(outputs, targets), a number,
            is called with all of them at once, on the CPU, and stands as test_NAME in the table, beside the accuracy.
        options: Other options of a run (batch_size, eval_every, engine, trust, ...) or of the method (lr, ...).

    Model, loss and data are tried first (``runs.trial``), unless ``trust`` is true: f_i(x; ξ) is the loss of a batch ξ
    by a model whose parameters are x, and is cut into smaller forward passes only where it is the mean of its parts.

    Returns:
        The run: ``run.model``, ``run.metrics``, ``run.traffic``, ``run.verify()``, ``run.check_traffic()``,
        ``run.save(folder)``, ``run.plot(file)``, ``run.more(rounds)``.

    Raises:
        InputError: If a value breaks a rule; the message names the argument, the rule and the value.
        DivergedError: If scalars or models are no longer finite; the run up to there is its attribute ``run``.
        HookError: If a hook fails; the run is saved, and the error's attribute ``run``.

    Source: [DeComFL, Algorithms 3 and 4] for the default method.
    """
    require("data" not in options, "data", "be given as clients", options.get("data"))
    require(isinstance(model, nn.Module), "model", MODULE, model)
    hooks = as_hooks(on_round)
    dataset = own_dataset(clients, test, whole=BatchLoss.of(loss).form is Form.MODEL, redraw=redraw)
    assert dataset.parts is not None
    M = len(dataset.parts)
    options, wanted = without_auto(options | {"redraw": redraw})
    config = TrainConfig(DeComFL() if method is None else method)
    config = config.but(model=OWN, data=OWN, loss=name_of_loss(loss), rounds=rounds, seed=seed, **options)
    config = config.but(metrics=names_of_metrics(metrics))
    config = config if config.method.alone else config.but(clients=M, sampled=M if sampled is None else sampled)
    start = tuned(tried(Prepared.of(config, dataset, model, loss, device=device)), wanted)
    run = Run.of(*start, federation, metrics or {})
    folder = None if out is None else as_path("out", out)
    with run_bar(config.method.name) if progress else nullcontext() as show:
        run.train(out=folder, on_round=show, hooks=hooks)
    return run


def load(
    folder: Path | str,
    model: nn.Module | None = None,
    loss: LossFunction | None = None,
    clients: Sequence[Any] | None = None,
    *,
    test: Any = None,
    federation: Elsewhere | None = None,
    metrics: Mapping[str, Metric] | None = None,
    trust_code: bool = False,
) -> Run:
    """The run that was saved in a folder: bit for bit what it was, ready to go on (``run.more``).

    Args:
        folder: The folder that ``run.save``, ``out`` or ``decomfl train --out`` wrote.
        model: The model at x_0, where the run trained a module of one's own; its weights matter where clients join.
        loss: The loss, where it is neither torch's nor a function of a module that can be imported.
        clients: The clients' examples, where they brought their own: the same as then, and after them those of clients
            that join in the next round.
        test: The held-out examples: the same as then.
        federation: Where the clients are from now on; see ``train``.
        metrics: The user's own measures by name, where they are no functions of a module that can be imported.
        trust_code: Whether to import the code that the folder's files name as module:function, of a model, data, loss
            or metrics that are not given here, or a method: whoever wrote the files can then do here what you can.

    Raises:
        InputError: If the folder holds no run, its checkpoint is damaged, model or data are others, or it names code.
    """
    whole = loss is not None and BatchLoss.of(loss).form is Form.MODEL

    def dataset(config: TrainConfig) -> Dataset:
        return own_dataset([] if clients is None else clients, test, whole=whole, redraw=config.redraw)

    given = None if clients is None else dataset
    return load_run(
        as_path("folder", folder),
        given,
        trust_code=trust_code,
        module=model,
        loss=loss,
        federation=federation,
        metrics=metrics,
    )
