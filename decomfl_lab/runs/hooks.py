"""Hooks: functions of the user's that are called after every round, and loggers that are such functions.

A hook sees copies. It cannot change a run by accident: what it is given is not the run's own, and torch's settings are
put back after it. No generator that it draws from is one that the run reads.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from decomfl_lab.errors import THEIRS, HookError, brief, printable, require, require_choice
from decomfl_lab.installation import without_extra
from decomfl_lab.objectives.trees import tensors

if TYPE_CHECKING:
    import pandas as pd

    from decomfl_lab.runs.configuration import TrainConfig
    from decomfl_lab.runs.run import Run

logger = logging.getLogger("decomfl_lab")


@dataclass(frozen=True)
class Round:
    """A round that is over, as a hook is given it."""

    round: int  # the number of rounds that are done
    rounds: int  # the number of rounds R of the run
    train_loss: float  # the mean loss of the clients' batches in this round
    # the share of held-out examples that are classified right; NaN in rounds without an evaluation
    test_accuracy: float
    test_loss: float  # the mean loss on the held-out examples; NaN in rounds without an evaluation
    up_bytes: int  # the bytes that all clients together have sent so far
    down_bytes: int  # the bytes that all clients together have got so far
    lr: float  # the learning rate η of this round
    seconds: float  # the seconds of training so far, without evaluations
    measures: Mapping[str, float]  # the user's own ``metrics``, by column; empty in rounds without an evaluation
    _run: Run = field(repr=False, compare=False)
    _stops: list[bool] = field(repr=False, compare=False, default_factory=list)

    @property
    def model(self) -> nn.Module:
        """A copy of the global model."""
        return self._run.model

    @property
    def metrics(self) -> pd.DataFrame:
        """A copy of the run's table, a row for each evaluation so far."""
        return self._run.metrics

    @property
    def config(self) -> TrainConfig:
        """The configuration of the run."""
        return self._run.config

    def values(self) -> dict[str, float]:
        """What is known of the round by name, as loggers take it: without round and rounds, and what is not finite."""
        names = ("train_loss", "test_accuracy", "test_loss", "up_bytes", "down_bytes", "lr", "seconds")
        known = {name: getattr(self, name) for name in names} | dict(self.measures)
        return {name: value for name, value in known.items() if math.isfinite(value)}

    def stop(self) -> None:
        """Let the run end with this round, which is evaluated and saved; the same command, or ``run.more``, goes on."""
        self._stops.append(True)


Hook = Callable[[Round], object]
"""Called after every round; where it has a method ``close``, that is called when training ends, in whatever way."""


def as_hooks(on_round: Hook | Sequence[Hook] | None) -> tuple[Hook, ...]:
    """The hooks that a user gives; InputError if they are none."""
    hooks = () if on_round is None else tuple(on_round) if isinstance(on_round, list | tuple) else (on_round,)
    for hook in hooks:
        require(callable(hook), "on_round", "be a function of a round, or a list of such functions", hook)
    return hooks


def call(hooks: Sequence[Hook], run: Run, train_loss: float) -> bool:
    """Call every hook; whether one of them asks for the end.

    Raises:
        HookError: If a hook fails, or has changed the run.
    """
    if not hooks:
        return False
    row = run.rows[-1] if run.rows and run.rows[-1]["round"] == run.round else {}
    ledger = run.federation.ledger
    round_ = Round(
        run.round,
        run.config.rounds,
        train_loss,
        row.get("test_accuracy", math.nan),
        row.get("test_loss", math.nan),
        ledger.bytes_up,
        ledger.bytes - ledger.bytes_up,
        run.config.method.eta(run.round - 1),
        run.seconds,
        {name: row[name] for name in run.measures if name in row},
        run,
    )
    # The settings of torch that bits hang on are put back after each.
    dtype = torch.get_default_dtype()
    threads = torch.get_num_threads()
    graded = torch.is_grad_enabled()
    for hook in hooks:
        before = _state(run)
        try:
            hook(round_)
        except THEIRS as error:
            what = f"{type(error).__name__}: {brief(printable(str(error)), 300)}"
            raise HookError(f"hook {_name(hook)} failed after round {run.round} with {what}") from error
        finally:
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(graded)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
        if _state(run) != before:
            raise HookError(f"hook {_name(hook)} must leave the run as it is, but changed it after round {run.round}")
    return bool(round_._stops)


@contextmanager
def closing(hooks: Sequence[Hook]) -> Iterator[None]:
    """Close the hooks that can be closed at the end; one that fails then is warned of, as all is saved."""
    try:
        yield
    finally:
        for hook in hooks:
            close = getattr(hook, "close", None)
            try:
                if callable(close):
                    close()
            except THEIRS as error:
                logger.warning(f"hook {_name(hook)} could not be closed: {printable(str(error))}")


def _state(run: Run) -> tuple[int, ...]:
    """What changes where somebody plays a round, or writes into the model or the data: torch counts writes."""
    data = run.dataset
    examples = (data.train_images, data.train_labels, data.test_images, data.test_labels)
    counted = (tensor for tensor in tensors((run.federation.x, *examples)) if not tensor.is_inference())
    return run.round, *(tensor._version for tensor in counted)


def _name(hook: Hook) -> str:
    return printable(getattr(hook, "__qualname__", type(hook).__name__))


class TensorBoard:
    """Write ``Round.values`` to an event file for TensorBoard."""

    def __init__(self, folder: Path | str) -> None:
        """A writer to an event file in the folder, made if missing; InputError if tensorboard is not installed."""
        self._writer = _library("tensorboard", "torch.utils.tensorboard").SummaryWriter(str(folder))

    def __call__(self, at: Round) -> None:
        """Write a round."""
        for name, value in at.values().items():
            self._writer.add_scalar(name, value, at.round)

    def close(self) -> None:
        """Write what is not on the disk yet."""
        self._writer.close()


class WandB:
    """Log ``Round.values``, and the configuration, to Weights & Biases."""

    def __init__(self, project: str, **options: Any) -> None:
        """A tracker, whose run begins with the first round.

        Args:
            project: The project's name.
            options: Other arguments of ``wandb.init``: name, mode, id, ...

        Raises:
            InputError: If wandb is not installed.
        """
        self._module, self._open = _library("wandb", "wandb"), False
        self._options = {"project": project, **options}

    def __call__(self, at: Round) -> None:
        """Log a round."""
        if not self._open:
            self._module.init(config=at.config.to_dict(), **self._options)
            self._open = True
        self._module.log(at.values(), step=at.round)

    def close(self) -> None:
        """End the tracker's run."""
        if self._open:
            self._module.finish()
            self._open = False


LOGGERS: dict[str, Callable[[str], Hook]] = {"tensorboard": TensorBoard, "wandb": WandB}
"""The loggers by the names of their extras."""


def logger_of(text: str) -> Hook:
    """The logger that "tensorboard:FOLDER" or "wandb:PROJECT" names; InputError for others."""
    name, _, where = text.partition(":")
    kind = LOGGERS[require_choice("log_to", name, LOGGERS)]
    require(bool(where), "log_to", f"say where to, as {name}:runs", text)
    return kind(where)


def _library(extra: str, module: str) -> Any:
    """The module of an extra; InputError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        without_extra(f"logger {extra}", extra, error)
