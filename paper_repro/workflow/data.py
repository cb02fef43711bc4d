"""Data and models that are at hand on this machine, and what is missing."""

import importlib.util
import os
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from decomfl_lab.datasets.images import Dataset, at_hand, load_dataset
from decomfl_lab.installation import command_for
from decomfl_lab.language import tasks
from decomfl_lab.language.extra import llm_library
from decomfl_lab.language.finetuning import task_dataset
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.runs.preparation import Materials


def data_set(name: str) -> str:
    """The data set of this name where it is available here, else MNIST, which always is; captions say which."""
    return name if at_hand(name) else "mnist"


def missing(names: Iterable[str], models: Iterable[str], pretrained: Container[str]) -> str:
    """What has to be done before work with these tasks and models can be done here, in words; empty if nothing.

    Tasks are folders of $DECOMFL_DATA. The models in ``pretrained`` are made here, from the text in $DECOMFL_DATA; the
    others are the hub's, and have to be in its cache on this machine: whole reports do not wait for it.
    """
    models = list(models)
    of_hub = [model for model in models if model not in pretrained]
    folders = [*dict.fromkeys(names), *["corpus"] * (len(of_hub) < len(models))]
    data_folder = os.environ.get("DECOMFL_DATA")
    absent = [name for name in folders if not data_folder or not (Path(data_folder) / name).is_dir()]
    todo = [f"set DECOMFL_DATA to a folder that has {', '.join(absent)}"] if absent else []
    if importlib.util.find_spec("transformers") is None:
        todo.append(f"install the extra llm ({command_for('llm')})")
    else:
        cached = llm_library("huggingface_hub", "a model of the hub").try_to_load_from_cache
        todo += [f"fetch {model} (hf download {model})" for model in of_hub if not cached(model, "config.json")]
    return "; ".join(todo)


@dataclass(frozen=True)
class TaskFacts:
    """What is to be known of a task's data before anything is run."""

    test: int  # the number of test examples
    majority: float  # the share of them in the most frequent class: the accuracy of always answering the same
    digest: str  # the digest of the files


def task_facts(task: str) -> TaskFacts:
    """Facts of ``$DECOMFL_DATA/<task>``; InputError as ``load_task``."""
    return _task_facts(task, os.environ.get("DECOMFL_DATA"))


def digest_of(config: TrainConfig) -> str:
    """The digest of the data of a run, or of its task's files."""
    return task_facts(config.task).digest if config.task else Materials(config).dataset().digest


def digest_named(name: str) -> str:
    """The digest of a data set, or of a task's files."""
    return task_facts(name).digest if name in tasks.TASKS else load_dataset(name).digest


@lru_cache
def _task_facts(task: str, users: str | None) -> TaskFacts:  # noqa: ARG001 (part of what is remembered)
    data = tasks.load_task(task)
    classes = Counter(label for _, label in data.test)
    return TaskFacts(len(data.test), max(classes.values()) / len(data.test), data.digest)


@lru_cache
def tokens_of(model: str, task: str, max_length: int, cb_two_way: bool) -> Dataset:
    """The task of a run as token numbers, which runs of the same model and process share."""
    return task_dataset(TrainConfig(model=model, task=task, max_length=max_length, cb_two_way=cb_two_way))
