"""Work on language models: a small OPT model pretrained from text, and runs that fine-tune it to a task."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from decomfl_lab.llm.corpus import load_corpus
from decomfl_lab.llm.family import SIZES, PretrainConfig, PretrainProgress, pretrain
from decomfl_lab.llm.tasks import load_task
from decomfl_lab.training import Progress, code_version, read_provenance
from paper_repro.runs import Job, fingerprint

__all__ = ["Pretraining", "TaskJob"]


@dataclass(frozen=True)
class Pretraining:
    """A small OPT model; its folder is then one that transformers reads.

    Attributes:
        config: Size, vocabulary, text and steps.
    """

    config: PretrainConfig

    @property
    def title(self) -> str:
        """See ``Work``."""
        return f"pretraining {self.config.size}"

    def key(self) -> str:
        """See ``Work``: configuration, text and code."""
        return fingerprint(__file__, asdict(self.config), load_corpus().digest)

    def cost(self) -> float:
        """See ``Work``."""
        return 3 * self.config.tokens * _token(self.config)

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """See ``Work``."""

        def on_step(at: PretrainProgress) -> None:
            report(Progress(at.step, at.steps, at.train_loss, math.nan, 0.0))

        pretrain(self.config, folder, on_step=on_step)
        return f"{self.config.steps} steps"

    def result(self, folder: Path, ended: str) -> tuple[pd.DataFrame, dict[str, Any]]:  # noqa: ARG002 (of the protocol)
        """See ``Work``: the evaluations (step, held_out_loss, bits_per_byte, ...)."""
        facts = read_provenance(folder)
        return pd.DataFrame(facts["evaluations"]).assign(size=self.config.size, d=facts["d"]), facts


@dataclass(frozen=True)
class TaskJob(Job):
    """A training run on a task, from a pretrained model; ``config.model`` is the model's size.

    Attributes:
        pretraining: Of the model that it begins with.
    """

    pretraining: Pretraining

    @property
    def needs(self) -> tuple[Pretraining, ...]:
        """See ``Dependent``."""
        return (self.pretraining,)

    def key(self) -> str:
        """See ``Work``: configuration, the task's files, the model's key and the code."""
        data = f"{load_task(self.config.task).digest} {self.pretraining.key()}"
        return self.config.fingerprint(data=data, code=code_version())

    def cost(self) -> float:
        """See ``Work``."""
        tokens = self.config.max_length or 31
        return super().cost() * tokens * _token(self.pretraining.config)

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """See ``Work``."""
        config = replace(self.config, model=str(folder.parent / self.pretraining.key()))
        return Job(config, self.labels, self.title).run(folder, report)


def _token(config: PretrainConfig) -> float:
    """What a token's forward pass takes, in passes of the MNIST CNN."""
    size = SIZES[config.size]
    return 12 * size.depth * size.width**2 / 4e5
