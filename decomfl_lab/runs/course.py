"""A run as far as it has come: what it is made of, its federation, and what came of its rounds."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from decomfl_lab.devices import describe
from decomfl_lab.errors import require
from decomfl_lab.estimators.resolution import Resolution
from decomfl_lab.federations.carrier import Elsewhere
from decomfl_lab.federations.federation import Federation
from decomfl_lab.objectives.modules import constants, copied, handed_back_
from decomfl_lab.objectives.normalisation import calibrated
from decomfl_lab.objectives.objective import mean_losses
from decomfl_lab.objectives.trees import row_count, rows
from decomfl_lab.objectives.vectors import length
from decomfl_lab.plugins import OWN, is_own
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.replicas.replica import Snapshot
from decomfl_lab.runs.building import metrics_of
from decomfl_lab.runs.configuration import CROSS_ENTROPY
from decomfl_lab.runs.evaluation import Metric, evaluate, held_out
from decomfl_lab.runs.folder import METRICS, further
from decomfl_lab.runs.prepared import Prepared
from decomfl_lab.runs.provenance import code_version
from decomfl_lab.runs.tuning import Tuning


class Course:
    """What training moves on and a folder keeps.

    Attributes (beside those that ``run.Run`` has for its users):
        rows: The evaluations so far.
        losses: The training losses since the last of them.
        first: The training loss of the first round; None before it.
        hands: Every version of the code, and every device, that had a hand in the run; and what chose its learning
            rate.
        saved: The round that the folder was saved at last; None for none.
        calibration: The images on which BatchNorm's statistics are made.
        x0: x_0, which clients need who join a saved run; None until one joins.
        log: The log of a run that has no folder yet; None for none.
        measures: The user's own measures on the held-out examples, by their columns.
        whole: That batches are the whole data of every client, in words; empty where they are not.
    """

    def __init__(
        self,
        start: Prepared,
        by: Elsewhere | None = None,
        tuning: Tuning | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        """A run at round 0, with its clients in this process or elsewhere."""
        self.config, self.dataset, self.tuning = start.config, start.dataset, tuning
        self.federation: Federation = start.federation(by)
        exact = "float64" if start.layout.dtype == torch.float64 else "float32"
        self.resolution = Resolution("bfloat16" if start.config.compute == "bfloat16" else exact)
        self.federation.watch(self.resolution)
        self.module, self.layout, self.loss = start.module, start.layout, start.loss
        self._numbers = start.numbers.train_images, start.numbers.train_labels
        self._held_out = held_out(start.config, start.numbers)
        self.calibration = start.calibration
        self.rows: list[dict[str, float]] = []
        self.losses: list[float] = []
        self.first: float | None = None
        tunings = [] if tuning is None else [str(tuning)]
        self.hands = {"codes": [code_version()], "devices": [describe(self.dataset.device)], "tunings": tunings}
        self.seconds = 0.0
        self.folder: Path | None = None
        self.saved: int | None = None
        self.x0: Snapshot | None = None
        self.log: RunLog | None = None
        sizes = [len(own) for own in start.chosen]
        span = str(max(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        self.whole = (
            f"a batch is a client's whole data, {span} examples" if max(sizes) < start.config.batch_size else ""
        )
        self.measures = metrics_of(self.config, metrics)
        if self.measures:  # whatever they fail with is told before the first round
            first, again = self._measured(), self._measured()
            for column in self.measures:
                same = np.array_equal(first[column], again[column], equal_nan=True)
                rule = "be the same for the same outputs and targets: keep nothing between calls, seed what is random"
                require(same, f"metric {column.removeprefix('test_')!r}", rule, (first[column], again[column]))

    @property
    def round(self) -> int:
        """Rounds completed."""
        return self.federation.round

    @property
    def wire_scalars(self) -> float:
        """The bytes that a client sent and got so far, divided by 4, mean over the clients that were there."""
        return self.federation.ledger.bytes / 4 / self.config.present(max(self.round - 1, 0))

    @property
    def model(self) -> nn.Module:
        """A module of its own with the global model's parameters, which gives the losses that evaluations report.

        A BatchNorm has the statistics of the calibration images (``objectives.normalisation``), in eval mode.

        Each reading makes a new module. Take it once before it is used (``model = run.model``): inside a function that
        torch.func differentiates it cannot be made.
        """
        self._bind()
        with calibrated(self.module, self.calibration):
            return handed_back_(copied(self.module))

    @property
    def as_trained(self) -> nn.Module:
        """The same but that a BatchNorm normalises as in training, by its batch."""
        self._bind()
        return handed_back_(copied(self.module))

    @property
    def metrics(self) -> pd.DataFrame:
        """One row an evaluation, see ``train``."""
        method = self.config.method
        more = [*further(self.config), *(["drift"] if method.drifts else [])]
        more += [] if self.federation.curvature is None else list(self.federation.curvature.names)
        return pd.DataFrame(self.rows, columns=[*METRICS, *more])

    def evaluate(self) -> None:
        """Add a row: how good the model is, and what it took."""
        federation = self.federation
        found = self._measured()
        self.rows.append(
            {
                "round": federation.round,
                **found,
                "train_loss": float(np.mean(self.losses)) if self.losses else float("nan"),
                "norm": length(federation.x),
                "wire_scalars": self.wire_scalars,
                "wire_bytes": federation.ledger.bytes,
                "up_bytes": federation.ledger.bytes_up,
                "gradient_scalars": federation.ledger.scalars,
                "model_pulls": federation.pulls,
                "seconds": self.seconds,
            }
        )
        if federation.drift is not None:
            self.rows[-1]["drift"] = federation.drift
        if federation.curvature is not None and self.losses:
            self.rows[-1].update(federation.curvature.columns())
        if self.config.evaluates(federation.round):  # else a longer run's next row still needs them
            self.losses.clear()
            if federation.curvature is not None:
                federation.curvature.clear()

    def _measured(self) -> dict[str, float]:
        """What is measured on the held-out examples."""
        self.layout.bind(self.module, self.federation.x.to(self.layout.dtype))
        with calibrated(self.module, self.calibration):
            B = self.config.batch_size
            return evaluate(self.module, self.loss, self.dataset, *self._held_out, B, self.measures)

    def constants(self) -> str:
        """What a user's own module brings beside x, which the run does not keep."""
        own = self.config.model == OWN or is_own(self.config.model)
        return constants(self.module, self.layout.names) if own else ""

    def probe(self) -> float | None:
        """The loss of a batch of a user's own model, in its order, by which another model or loss is noticed."""
        own = self.config.model == OWN or is_own(self.config.model) or self.config.loss != CROSS_ENTROPY
        if not own or self.config.trust:
            return None
        n = self.dataset.N if self.dataset.parts is None else len(self.dataset.parts[0])
        inputs, targets = rows(self._numbers, slice(0, min(n, self.config.batch_size)))  # of the first client
        self._bind()
        with calibrated(self.module, self.calibration):
            return mean_losses(self.module, [self.loss], inputs, targets, row_count(inputs))[0]

    def _bind(self) -> None:
        """Give the module a copy of the global model."""
        self.layout.bind(self.module, self.federation.x.to(self.layout.dtype).clone())
