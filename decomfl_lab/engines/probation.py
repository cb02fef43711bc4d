"""An engine on probation: its losses and gradients of a user's own model are compared with the plain way.

``runs.preparation`` wraps the engine of a run of somebody's own model in ``Tried``.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from decomfl_lab.devices import on_host
from decomfl_lab.engines.base import Engine, Line, Plain, SampleLoss, Serial
from decomfl_lab.errors import THEIRS, InputError
from decomfl_lab.estimators.differences import Point, Values
from decomfl_lab.objectives.objective import ModuleObjective
from decomfl_lab.objectives.trials.trial import refuse

AGREES = 1e-3
"""What engines round differently is less, relative to a loss."""

TINY = 1e-6
"""Differences of which less is not looked at."""

T = TypeVar("T")
logger = logging.getLogger("decomfl_lab")


class Tried:
    """An engine whose answers are compared with those of ``Plain``, the module on the whole batch.

    Compared are the losses of all samples of a call at its first and its last point, in calls 1, 2, 4, 8, ..., as f may
    behave otherwise far from x_0. A user's loss may do what an engine cannot (a tensor's value in an ``if``, under
    ``vmap``): then ``Serial`` takes its place where the engine was chosen automatically, and an error says so where it
    was asked for.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        """The engine of this name."""
        self.engine, self.name = engine, name
        self._calls = 0

    def losses(self, line: Line, points: Sequence[Point], samples: Sequence[SampleLoss]) -> Values:
        """See ``Engine``."""
        losses = self._run(lambda engine: engine.losses(line, points, samples))
        if self._is_due():
            # The plain way is slow, so only the first and the last point are evaluated again.
            ends = [0, len(points) - 1]
            plain = Plain().losses(line, [points[n] for n in ends], samples)
            refuse(self._differing(on_host(losses)[:, ends].ravel(), plain.ravel()))
        return losses

    def gradients(self, points: Sequence[Tensor], samples: Sequence[SampleLoss]) -> tuple[Values, Tensor]:
        """See ``Engine``."""
        losses, slopes = self._run(lambda engine: engine.gradients(points, samples))
        if self._is_due():
            whole: list[SampleLoss] = []  # objectives that cut no batch
            for objective, step in samples:
                if isinstance(objective, ModuleObjective):
                    chunk = objective.batches.batch_size
                    objective = copy.copy(objective)
                    objective.chunk = chunk
                whole.append((objective, step))
            plain, plain_slopes = Serial().gradients(points, whole)
            refuse(self._differing(on_host(losses), plain))
            sizes = plain_slopes.double().norm(dim=1)
            # Gradients are compared by the length of their difference: single elements may be all rounding.
            off = (slopes.double() - plain_slopes.double()).norm(dim=1)
            # Said with "not", so that NaN is an error too.
            if not bool((off <= AGREES * sizes + TINY).all()):
                worst = float((off / sizes.clamp_min(TINY)).nan_to_num(float("inf")).max())
                refuse([self._finding("gradients", f"one that is {worst:.1%} off by {self.name}")])
        return losses, slopes

    def release(self) -> None:
        """See ``Engine``."""
        self.engine.release()

    def _is_due(self) -> bool:
        """Whether this call's number is a power of two."""
        self._calls += 1
        return self._calls & (self._calls - 1) == 0

    def _run(self, work: Callable[[Engine], T]) -> T:
        try:
            return work(self.engine)
        except InputError:
            raise
        except THEIRS as error:  # whatever a user's model does in there
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            # Only an engine that was chosen automatically is replaced, and only before it has given any values.
            if self.name != "auto" or self._calls:
                raise InputError(
                    f"engine must be one that takes this model and loss, as serial does, got {self.name} ({reason})"
                ) from error
            logger.info(
                f"losses are evaluated by the engine serial, as model and loss do not fit the fast one ({reason})"
            )
            self.engine = Serial()
            return work(self.engine)

    def _differing(self, losses: Any, plain: Any) -> Iterator[str]:
        """A finding on the first of the losses (n,) that is too far from the plain one, if there is any."""
        with np.errstate(invalid="ignore"):
            far = ~(np.abs(losses - plain) <= AGREES * np.maximum(np.abs(losses), np.abs(plain)) + TINY)
        # Where the plain way diverges itself, there is nothing to compare with.
        differing = np.flatnonzero(far & np.isfinite(plain))
        if differing.size:
            n = int(differing[0])
            yield self._finding("losses", f"{losses[n]:.6g} by {self.name} for {plain[n]:.6g}")

    def _finding(self, what: str, got: str) -> str:
        return (
            f"engine must give the {what} of the module on the whole batch, as plain does, got {got} (a loss that is "
            "no mean over examples far from x_0 needs plain)"
        )
