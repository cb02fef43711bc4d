"""One run, from a configuration to a table of evaluations: built, advanced, evaluated, saved, resumed."""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from decomfl_lab import __version__
from decomfl_lab.checkpoint import read_checkpoint, write_checkpoint
from decomfl_lab.datasets.images import Dataset, load_dataset
from decomfl_lab.datasets.splits import split
from decomfl_lab.devices import describe, find_device, use_tf32_
from decomfl_lab.engines.registry import make_engine
from decomfl_lab.errors import DivergedError, InputError, require
from decomfl_lab.estimators.second_differences import CURVATURE_COLUMNS
from decomfl_lab.federations.federation import Federation
from decomfl_lab.files import held, write_atomically
from decomfl_lab.interrupts import Interrupted, postponed, telling
from decomfl_lab.language.extra import installed
from decomfl_lab.layout import Layout
from decomfl_lab.methods.method import Setting
from decomfl_lab.models.registry import build_model
from decomfl_lab.noise import STREAM_VERSION, cpu_backend
from decomfl_lab.objectives.normalisation import calibrated, freeze_, use_batch_statistics_
from decomfl_lab.objectives.objective import (
    EpochBatches,
    LossFunction,
    ModuleObjective,
    Objective,
    RoundedObjective,
    mean_losses,
)
from decomfl_lab.runs.config import TrainConfig, config_from_mapping
from decomfl_lab.runs.finetuning import task_dataset, task_module

__all__ = [
    "CONFIG_FILE",
    "METRICS_FILE",
    "PROVENANCE_FILE",
    "Progress",
    "build_federation",
    "calibration_images",
    "code_version",
    "dataset_of",
    "fixed_choice",
    "load_run",
    "provenance",
    "read_provenance",
    "train",
    "write_provenance",
]

CHECKPOINT_SECONDS = 20.0
"""Between two checkpoints, times the seconds that one takes where that is more than one: 5 % of the time at most."""
METRICS = (
    "round",
    "test_accuracy",
    "test_loss",
    "train_loss",
    "wire_scalars",
    "wire_bytes",
    "up_bytes",
    "gradient_scalars",
    "model_pulls",
    "seconds",
)
"""Columns of a run's table."""
METRICS_FILE = "metrics.csv"
CHECKPOINT_FILE = "checkpoint.safetensors"
CONFIG_FILE = "config.toml"
PROVENANCE_FILE = "provenance.json"


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round."""

    round: int
    rounds: int
    train_loss: float
    test_accuracy: float  # of the latest evaluation, NaN before the first
    scalars: float  # communicated scalars a client, bytes / 4, averaged over clients


@lru_cache
def code_version(root: Path = Path(__file__).parents[1]) -> str:
    """Digest of the source of a package, by default this one: results of another source are not reused."""
    h = hashlib.blake2b(digest_size=6)
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in ("cli", "laws"):
            h.update(path.relative_to(root).as_posix().encode())
            h.update(path.read_bytes())
    return f"{__version__}+{h.hexdigest()}"


def provenance(dataset: Dataset, codes: Sequence[str] = (), devices: Sequence[str] = ()) -> dict[str, Any]:
    """What a result was computed with: versions (of a task's run that of transformers too), data, machine.

    ``codes`` and ``devices`` are those of all versions of the code, and of all devices, that worked on it.
    """
    hub = installed("transformers") if dataset.pad is not None else None
    return {
        "code": code_version(),
        **{name: list(own) for name, own in {"codes": codes, "devices": devices}.items() if len(own) > 1},
        "data": dataset.source,
        "data_digest": dataset.digest,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        **({} if hub is None else {"transformers": hub}),
        "noise_backend": cpu_backend(),
        "stream_version": STREAM_VERSION,
        "device": describe(dataset.device),
    }


def write_provenance(folder: Path, dataset: Dataset, **hands: Sequence[str]) -> None:
    """Write ``provenance`` to the folder's ``PROVENANCE_FILE``."""
    write_atomically(folder / PROVENANCE_FILE, json.dumps(provenance(dataset, **hands), indent=1, ensure_ascii=False))


def read_provenance(folder: Path) -> dict[str, Any]:
    """What ``write_provenance`` wrote."""
    found: dict[str, Any] = json.loads((folder / PROVENANCE_FILE).read_text(encoding="utf-8"))
    return found


def dataset_of(config: TrainConfig, device: str = "cpu") -> Dataset:
    """The data of a run, its task's prompts or its data set, on a device; InputError if either is not at hand."""
    place = find_device(device)
    return (task_dataset(config) if config.task else load_dataset(config.data)).to(place)


def _workspace(config: TrainConfig, dataset: Dataset) -> nn.Module:
    if config.task:
        return task_module(config, dataset).to(dataset.device)
    in_shape = tuple(dataset.train_images.shape[1:])
    module = build_model(config.model, seed=config.seed, in_shape=in_shape, classes=dataset.classes).to(dataset.device)
    if config.batchnorm == "frozen":
        freeze_(module, calibration_images(config, dataset))
    else:
        use_batch_statistics_(module)
    return module


def _fast_layout(images: torch.Tensor) -> torch.Tensor:
    """Channels-last images: the same numbers, in the memory order in which CPU convolutions are fastest."""
    return images.to(memory_format=torch.channels_last) if images.ndim == 4 else images


def build_federation(config: TrainConfig, dataset: Dataset) -> tuple[Federation, nn.Module, Layout]:
    """The federation of ``config`` where the data are, and the module and layout to evaluate its model with.

    Raises:
        InputError: If the data cannot be split so, or the model does not fit the data.
    """
    module = _workspace(config, dataset)
    layout = Layout.of(module)
    x = layout.flatten(module)
    labels = dataset.train_labels if dataset.train_labels.ndim == 1 else dataset.train_labels[:, 0]  # of text
    on_gpu = dataset.device.type == "cuda"
    require(config.compute != "tf32" or on_gpu, "compute", "be float32 or bfloat16 on the CPU", config.compute)
    parts = split(config.split, labels.cpu().numpy(), config.clients, config.seed, alpha=config.alpha)
    images = _fast_layout(dataset.train_images)
    chosen = [torch.from_numpy(part).to(dataset.device) for part in parts]
    if dataset.pad is not None:
        chosen = [index[_by_length(images[index], dataset.pad)] for index in chosen]
    rounded = config.compute == "bfloat16"
    workspace, own = (
        (copy.deepcopy(module).bfloat16(), replace(layout, dtype=torch.bfloat16)) if rounded else (module, layout)
    )
    exact = [
        ModuleObjective(
            workspace,
            own,
            cross_entropy,
            images,
            dataset.train_labels,
            EpochBatches(len(index), config.batch_size, (config.seed, 3, i), ascending=dataset.pad is not None),
            index,
        )
        for i, index in enumerate(chosen)
    ]
    objectives: Sequence[Objective] = [RoundedObjective(objective) for objective in exact] if rounded else exact
    setting = Setting(x, objectives, config.sampled, config.seed, make_engine(config.engine))
    return config.method.federation(setting), module, layout


def _by_length(ids: torch.Tensor, pad: int) -> torch.Tensor:
    """The order of prompts (N, T) by length: those that pass together cost what the longest of them does."""
    return (ids != pad).sum(1).argsort(stable=True).cpu()


def _held_out(config: TrainConfig, dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """The held-out images and labels that a run is evaluated on: all, or a fixed random choice of them."""
    n = len(dataset.test_labels)
    images, labels = dataset.test_images, dataset.test_labels
    if 0 < config.test_examples < n:
        chosen = fixed_choice(n, config.test_examples, 5)
        images, labels = images[chosen], labels[chosen]
    if dataset.pad is not None:
        order = _by_length(images, dataset.pad)
        images, labels = images[order], labels[order]
    return _fast_layout(images), labels


def calibration_images(config: TrainConfig, dataset: Dataset) -> torch.Tensor:
    """Training images, the same for every seed, on which BatchNorm's statistics are made; labels play no part."""
    chosen = fixed_choice(len(dataset.train_labels), config.calibration_examples, 6)
    return _fast_layout(dataset.train_images[chosen])


def fixed_choice(n: int, count: int, purpose: int) -> torch.Tensor:
    """At most ``count`` of 0..n-1, chosen at random but by no run's seed."""
    order = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(purpose,))).permutation(n)
    return torch.from_numpy(order[:count])


def _accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == targets).float().mean()


def _evaluate(module: nn.Module, dataset: Dataset, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """Means over the examples: test_accuracy, test_loss and of a task calibrated_accuracy (see ``train``)."""
    measures: dict[str, LossFunction] = {"test_accuracy": _accuracy, "test_loss": cross_entropy}
    if dataset.content_free is not None:
        with torch.inference_mode():
            prior = module(dataset.content_free)
        measures["calibrated_accuracy"] = lambda outputs, wanted: _accuracy(outputs - prior, wanted)
    return dict(zip(measures, mean_losses(module, list(measures.values()), inputs, targets), strict=True))


def _continues(saved: dict[str, Any], config: TrainConfig) -> bool:
    """Whether a saved run is this one: the same in all but its length."""
    earlier = config_from_mapping(saved, "the saved run", lenient=True)
    return earlier.but(rounds=config.rounds) == config


def train(
    config: TrainConfig,
    *,
    dataset: Dataset | None = None,
    out: Path | None = None,
    on_round: Callable[[Progress], None] | None = None,
    on_start: Callable[[dict[str, float]], None] | None = None,
    on_end: Callable[[Federation], None] | None = None,
    any_code: bool = False,
    device: str | None = None,
) -> pd.DataFrame:
    """Run ``config``; with ``out`` it resumes what is there and can be interrupted at any time.

    A first SIGINT or SIGTERM is held back to the end of the round, which is then saved in ``out``; a second one is not.

    Args:
        config: The run.
        dataset: Its data; None for ``dataset_of(config)``.
        out: Folder for metrics.csv, config.toml, provenance.json and the checkpoint; made if missing.
        on_round: Called after every round.
        on_start: Called before the first round, of a task alone, with the row of round 0: zero-shot accuracies.
        on_end: Called after the last round with the federation.
        any_code: Go on with a run that another version of the code began; its provenance lists every version.
        device: Where it computes: cpu, cuda or auto; None for where the data are. A run may go on on another device,
            and its provenance lists all: records are applied to the same bits, losses agree to rounding.

    Returns:
        One row an evaluation, columns ``METRICS``: round (completed), test_accuracy, test_loss, train_loss (mean
        over the rounds since the last evaluation), wire_scalars (bytes / 4 a client, mean over clients), wire_bytes
        (all) and those of them that went up, gradient_scalars (all), model_pulls (rebuilds replaced by sending the
        model), seconds (training time so far); with revert sync also drift, the largest ‖x_i − x‖∞ / ‖x‖∞ of a
        client's rebuilt model so far; with log_kappa also ``CURVATURE_COLUMNS`` of the rounds since the last
        evaluation. Of a task the first row is of round 0, before any training, and there is calibrated_accuracy:

            argmax_c log p_c(prompt) − log p_c(prompt without content)        in place of    argmax_c log p_c(prompt)

        (Zhao, Wallace, Feng, Klein and Singh, "Calibrate before use", ICML 2021; "N/A" in every column).

    Raises:
        InputError: If the configuration, the data or the folder does not fit, or another process writes to the folder;
            nothing is half-written.
        Interrupted: After a signal, once the round is saved; it says where.
        DivergedError: If losses are no longer finite; the evaluations up to there are in ``out``.
    """
    dataset = dataset_of(config) if dataset is None else dataset
    dataset = dataset if device is None else dataset.to(find_device(device))
    use_tf32_(config.compute == "tf32")
    federation, module, layout = build_federation(config, dataset)
    held_out, calibration = _held_out(config, dataset), calibration_images(config, dataset)
    rows: list[dict[str, float]] = []
    losses: list[float] = []
    seconds = 0.0
    saved_round: int | None = None
    hands = {"codes": [code_version()], "devices": [describe(dataset.device)]}

    def resume(folder: Path) -> None:
        nonlocal rows, losses, seconds, saved_round
        if not (folder / CHECKPOINT_FILE).exists():
            return
        tensors, saved = read_checkpoint(folder / CHECKPOINT_FILE)
        if not _continues(saved["config"], config) or saved["data"] != dataset.digest:
            raise InputError(f"out must be empty or hold the same run (only rounds may differ), got {folder}")
        for name, own in hands.items():
            earlier = saved.get(name, [saved["code"]] if name == "codes" else [])
            hands[name] = list(dict.fromkeys([*earlier, *own]))
        if saved["code"] != code_version() and not any_code:
            raise InputError(f"out must hold a run of this code ({code_version()}), got one of {saved['code']}")
        if saved["federation"]["round"] > config.rounds:
            raise InputError(f"rounds must be at least the {saved['federation']['round']} of the run in {folder}")
        federation.load((tensors, saved["federation"]))
        rows, losses, seconds = saved["rows"], saved["losses"], saved["seconds"]
        saved_round = federation.round

    def table() -> pd.DataFrame:
        more = ["calibrated_accuracy"] if config.task else []
        plain = config.method.plain()
        more += ["drift"] if plain.get("revert") == "sync" else []
        more += list(CURVATURE_COLUMNS) if plain.get("log_kappa") else []
        return pd.DataFrame(rows, columns=[*METRICS, *more])

    def save() -> None:
        nonlocal saved_round
        if out is not None:
            tensors, values = federation.save()
            state = {"federation": values, "rows": rows, "losses": losses, "seconds": seconds, **hands}
            state |= {"config": config.to_dict(), "data": dataset.digest, "code": code_version()}
            write_checkpoint(out / CHECKPOINT_FILE, tensors, state)
            publish(out)
            saved_round = federation.round

    def publish(folder: Path) -> None:
        write_atomically(folder / CONFIG_FILE, config.to_toml())
        write_provenance(folder, dataset, **hands)
        write_atomically(folder / METRICS_FILE, table().to_csv(index=False))

    def evaluate() -> None:
        layout.bind(module, federation.x.to(layout.dtype))
        with calibrated(module, calibration):
            found = _evaluate(module, dataset, *held_out)
        rows.append(
            {
                "round": federation.round,
                **found,
                "train_loss": float(np.mean(losses)) if losses else float("nan"),
                "wire_scalars": federation.ledger.scalars_per_client,
                "wire_bytes": federation.ledger.bytes,
                "up_bytes": federation.ledger.bytes_up,
                "gradient_scalars": federation.ledger.scalars,
                "model_pulls": federation.pulls,
                "seconds": seconds,
            }
        )
        if federation.drift is not None:
            rows[-1]["drift"] = federation.drift
        if federation.curvature is not None and losses:
            rows[-1].update(federation.curvature.columns())
            federation.curvature.clear()
        losses.clear()

    def interrupted() -> str:
        if out is None:
            return f"interrupted after round {federation.round}; nothing is kept without --out DIR"
        if saved_round is None:
            where = f"nothing was saved in {out} yet"
        else:
            where = f"saved in {out}" + ("" if saved_round == federation.round else f" after round {saved_round}")
        return f"interrupted after round {federation.round}; {where}; the same command goes on"

    with telling(interrupted), ExitStack() as stack:
        if out is not None:
            stack.enter_context(held(out))
            resume(out)
        if config.task and not rows:
            evaluate()
        if config.task and on_start is not None:
            on_start(rows[0])
        # Half a round cannot be saved, so an interrupt waits for its end where there is a folder to save it in.
        came = stack.enter_context(postponed()) if out is not None else []
        last_save, saving = time.monotonic(), 0.0
        while federation.round < config.rounds:
            started = time.monotonic()
            try:
                loss = federation.advance()
            except DivergedError:
                if out is not None:  # no checkpoint: there is nothing to go on with
                    publish(out)
                raise
            seconds += time.monotonic() - started
            losses.append(loss)
            if federation.round % config.eval_every == 0 or federation.round == config.rounds:
                evaluate()
            try:
                if on_round is not None:
                    accuracy = rows[-1]["test_accuracy"] if rows else float("nan")
                    scalars = federation.ledger.scalars_per_client
                    on_round(Progress(federation.round, config.rounds, loss, accuracy, scalars))
                if came:
                    raise Interrupted(number=came[0])
            except KeyboardInterrupt:
                save()
                raise
            if (began := time.monotonic()) - last_save > CHECKPOINT_SECONDS * max(1.0, saving):
                save()
                last_save = time.monotonic()
                saving = last_save - began
        save()
        stack.close()
        if on_end is not None:
            on_end(federation)
    return table()


def load_run(out: Path, dataset: Dataset | None = None) -> tuple[TrainConfig, Dataset, nn.Module]:
    """The trained model that ``train`` left in the folder ``out``: its configuration, its data and its module at x_r.

    All of it is the checkpoint's, under its checksum; config.toml is for people and for ``--config``. A BatchNorm
    normalises as it did in training (see ``normalisation``); the module's parameters are x_r. ``dataset`` is the run's
    data where they are loaded already.

    Raises:
        InputError: If the folder holds no run, or one of other data than are at hand now.
    """
    tensors, saved = read_checkpoint(out / CHECKPOINT_FILE)
    config = config_from_mapping(saved.get("config", {}), f"run {out}", lenient=True)
    dataset = dataset_of(config) if dataset is None else dataset
    if saved["data"] != dataset.digest:
        raise InputError(f"run {out} must be of the data at hand ({dataset.source}), got one of other data")
    federation, module, layout = build_federation(config, dataset)
    federation.load((tensors, saved["federation"]))
    layout.bind(module, federation.x.to(layout.dtype).clone())
    return config, dataset, module
