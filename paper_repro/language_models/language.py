"""Work on language models: a small OPT model pretrained from text, and runs that fine-tune it to a task."""

from __future__ import annotations

import importlib.util
import math
import os
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.language import tasks
from decomfl_lab.language.extra import llm_library
from decomfl_lab.language.opt import SIZES
from decomfl_lab.runs.config import TrainConfig
from decomfl_lab.runs.finetuning import task_dataset
from decomfl_lab.runs.provenance import code_version, read_provenance
from decomfl_lab.runs.told import Progress
from paper_repro.pretraining.corpus import load_corpus
from paper_repro.pretraining.family import PretrainConfig, PretrainProgress, pretrain
from paper_repro.workflow.runs import Job, fingerprint

__all__ = ["Pretraining", "TaskFacts", "TaskJob", "missing", "task_facts"]


def missing(names: Iterable[str], models: Iterable[str], pretrained: Container[str]) -> str:
    """What has to be done before work with these can be done here, in words; empty if nothing.

    Args:
        names: The names of tasks, which are folders of $DECOMFL_DATA.
        models: The models that they begin with.
        pretrained: The models among them that are made here, from the text in $DECOMFL_DATA. The others are the hub's,
            and have to be in its cache on this machine: whole reports do not wait for it.
    """
    models = list(models)
    of_hub = [model for model in models if model not in pretrained]
    folders = [*dict.fromkeys(names), *["corpus"] * (len(of_hub) < len(models))]
    users = os.environ.get("DECOMFL_DATA")
    absent = [name for name in folders if not users or not (Path(users) / name).is_dir()]
    todo = [f"set DECOMFL_DATA to a folder that has {', '.join(absent)}"] if absent else []
    if importlib.util.find_spec("transformers") is None:
        todo.append("install the extra llm (pip install 'decomfl-lab[llm]')")
    else:
        cached = llm_library("huggingface_hub", "a model of the hub").try_to_load_from_cache
        todo += [f"fetch {model} (hf download {model})" for model in of_hub if not cached(model, "config.json")]
    return "; ".join(todo)


@dataclass(frozen=True)
class Pretraining:
    """A small OPT model; its folder is then one that transformers reads."""

    config: PretrainConfig  # size, vocabulary, text and steps

    @property
    def title(self) -> str:
        """See ``Work``."""
        return f"pretraining {self.config.size}"

    def key(self) -> str:
        """See ``Work``: configuration, text and code."""
        return fingerprint(__file__, asdict(self.config), _corpus_digest(os.environ.get("DECOMFL_DATA")))

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
    """A training run on a task of $DECOMFL_DATA, from a pretrained model; ``config.model`` is the model's size."""

    # how the model that it begins with is made; None for a model of the hub, named by ``config.model``
    pretraining: Pretraining | None

    @property
    def needs(self) -> tuple[Pretraining, ...]:
        """See ``Dependent``."""
        return () if self.pretraining is None else (self.pretraining,)

    def key(self) -> str:
        """See ``Work``: configuration, the task's files, the model's key and the code."""
        data = " ".join([task_facts(self.config.task).digest, *(each.key() for each in self.needs)])
        return self.config.fingerprint(data=data, code=code_version())

    def cost(self) -> float:
        """See ``Work``."""
        tokens = self.config.max_length or 31
        return super().cost() * tokens * (_HUB_TOKEN if self.pretraining is None else _token(self.pretraining.config))

    def dataset(self) -> Dataset:
        """The task as token numbers, which runs of the same model and process share."""
        config = self.config
        return _encoded(config.model, config.task, config.max_length, config.cb_two_way)

    def placed(self, folder: Path) -> TaskJob:
        """The job of this folder, with the folder of its model beside it as ``config.model``."""
        models = [str(folder.parent / need.key()) for need in self.needs] or [self.config.model]
        return replace(self, config=self.config.but(model=models[0]))

    def begun(self, root: Path) -> Path | None:
        """See ``Resumable``; runs that begin with a model pretrained here are of this code, as it is."""
        return None if self.needs else super().begun(root)

    def run(self, folder: Path, report: Callable[[Progress], None]) -> str:
        """See ``Work``."""
        return super(TaskJob, self.placed(folder)).run(folder, report)


@lru_cache
def _encoded(model: str, task: str, max_length: int, cb_two_way: bool) -> Dataset:
    return task_dataset(TrainConfig(model=model, task=task, max_length=max_length, cb_two_way=cb_two_way))


def _token(config: PretrainConfig) -> float:
    """What a token's forward pass takes, in passes of the MNIST CNN."""
    size = SIZES[config.size]
    return 12 * size.depth * size.width**2 / 4e5


_HUB_TOKEN = 12 * 12 * 768**2 / 4e5  # the same of OPT-125M


@dataclass(frozen=True)
class TaskFacts:
    """What is to be known of a task's data before anything is run."""

    test: int  # the number of test examples
    majority: float  # the share of them in the most frequent class: the accuracy of always answering the same
    digest: str  # the digest of the files


def task_facts(task: str) -> TaskFacts:
    """Facts of ``$DECOMFL_DATA/<task>``; InputError as ``load_task``."""
    return _task_facts(task, os.environ.get("DECOMFL_DATA"))


@lru_cache
def _task_facts(task: str, users: str | None) -> TaskFacts:  # noqa: ARG001 (part of what is remembered)
    data = tasks.load_task(task)
    classes = Counter(label for _, label in data.test)
    return TaskFacts(len(data.test), max(classes.values()) / len(data.test), data.digest)


@lru_cache
def _corpus_digest(users: str | None) -> str:  # noqa: ARG001 (part of what is remembered)
    return load_corpus().digest
