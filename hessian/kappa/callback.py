"""``hessian.KappaEvery``: κ of a model every n steps while it is trained, without touching the training."""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from decomfl_lab.datasets.batches import Data
from decomfl_lab.errors import InputError, require_int
from decomfl_lab.language.extra import llm_library
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.runs.hooks import Round
from hessian.kappa.effective_rank import effective_rank
from hessian.kappa.result import EffectiveRank

logger = logging.getLogger("decomfl_lab")


class KappaEvery:
    """κ at the start and every n steps of a training, kept in ``history`` and handed to ``report``.

        watch = hessian.KappaEvery(loss, data, every=100, rtol=0.1)
        lab.train(model, loss, clients, on_round=watch)
        Trainer(..., callbacks=[watch.trainer_callback()])

    Training goes on to the same bits as without it: the model is measured in eval mode and then put back into its own,
    gradients and buffers are not written, and the random generators of Python, numpy, torch and of a loader of data are
    where they were. What cannot be measured at first is an error; later it is a warning, and training goes on.

    Attributes:
        history: (step, κ) of every measurement.
        report: A function that gets each as {"step", "kappa", "kappa_low", "kappa_high", "trace", "norm"}, for example
            ``trainer.log``; None for none. In a Trainer the row then goes to ``state.log_history``.
    """

    def __init__(
        self,
        loss: LossFunction | None,
        data: Data,
        *,
        every: int = 100,
        report: Callable[[dict[str, float]], object] | None = None,
        **options: Any,
    ) -> None:
        """A watch that measures nothing yet.

        Args:
            loss: The loss of a batch, as ``effective_rank`` takes it; None for the model's own, given ``labels``.
            data: The data on which κ is measured, the same each time: a few hundred fixed examples, say.
            every: Steps of a Trainer, or rounds of ``lab.train``, from one measurement to the next.
            report: See the attribute.
            options: Other options of ``effective_rank``: rtol, products, operator, parameters, ...

        Raises:
            InputError: If ``every`` is no positive integer.
        """
        self.loss, self.data, self.options = loss, data, options
        self.every = require_int("every", every, 1)
        self.report = report
        self.history: list[tuple[int, EffectiveRank]] = []

    def __call__(self, at: Round) -> None:
        """After a round of ``lab.train(..., on_round=...)``."""
        if at.round == 1 or at.round % self.every == 0:
            self.measure(at.model, at.round)

    def measure(self, model: nn.Module, step: int) -> dict[str, float] | None:
        """Measure κ now and report it; the row, or None where it cannot be measured.

        Raises:
            InputError: Where the first measurement fails, as ``effective_rank`` does.
        """
        try:
            with _undisturbed(model, self.data):
                rank = effective_rank(model, self.loss, self.data, **self.options)
        except InputError as error:
            if not self.history:
                raise
            logger.warning(f"κ at step {step} is not measured: {error}")
            return None
        self.history.append((step, rank))
        low, high = rank.interval
        row = {"step": step, "kappa": rank.kappa, "kappa_low": low, "kappa_high": high}
        row |= {"trace": rank.trace.value, "norm": rank.norm}
        if self.report is not None:
            self.report(row)
        return row

    def trainer_callback(self) -> Any:
        """A ``transformers.TrainerCallback`` that measures at the start and after every n steps, in the main process.

        Raises:
            InputError: If transformers is not installed.
        """
        library, watch = llm_library("transformers", "a callback of its Trainer"), self

        class KappaCallback(library.TrainerCallback):  # type: ignore[misc, name-defined]
            """See ``hessian.KappaEvery``."""

            def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
                self._measure(state, given["model"])

            def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
                if state.global_step % watch.every == 0:
                    self._measure(state, given["model"])

            def _measure(self, state: Any, model: nn.Module) -> None:
                if not state.is_world_process_zero:
                    return
                row = watch.measure(model, state.global_step)
                if row is not None and watch.report is None:
                    state.log_history.append({**row, "epoch": state.epoch})

        return KappaCallback()


@contextmanager
def _undisturbed(model: nn.Module, data: Any) -> Iterator[None]:
    """Inside, the model is in eval mode; afterwards modes and random generators are as they were."""
    modes = {part: part.training for part in model.modules()}
    generator = getattr(data, "generator", None)  # of a loader
    python, numpy = random.getstate(), np.random.get_state()
    of_loader = None if generator is None else generator.get_state()
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=list(devices)):
            model.eval()
            yield
    finally:
        for part, training in modes.items():
            part.training = training
        random.setstate(python)
        np.random.set_state(numpy)
        if generator is not None:
            generator.set_state(of_loader)
