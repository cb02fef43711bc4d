"""A task and a causal language model as what training knows: a data set of token numbers and a module that classifies.

    loss(ids, c) = −log softmax(logits of the verbalizers at the last position)[c]

so that objectives, engines, evaluations and replicas are those of any other model.

Source: the authors' code (``language_utils.py``), since the paper does not write its loss out.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.errors import InputError, require
from decomfl_lab.language.adapters import lora_, norms_
from decomfl_lab.language.causal_model import CausalLM, Verbalized, load_causal
from decomfl_lab.language.encoding import encode, verbalizer_ids
from decomfl_lab.language.tasks import TASKS, load_task
from decomfl_lab.models.registry import MODELS


def task_dataset(config: Any) -> Dataset:
    """The examples of a run's task as token numbers of the model's tokenizer.

    Prompts are cut to their last ``max_length`` tokens (of the configuration or, where that is 0, of the task).

    Args:
        config: The configuration of a run on a task; its options are explained there.

    Returns:
        Inputs (N, T) int64, padded on the left; labels (N,), of CB read as two ways neutral as entailment;
        content_free (1, T'), the task's prompt with "N/A" in every column.

    Raises:
        InputError: If the model or the data are not available here, or a prompt does not fit the model's context.
    """
    task, model = TASKS[config.task], _model(config)
    data = load_task(config.task, folder=config.task_data or None)
    limit = config.max_length or task.max_length

    def encoded(title: str, examples: list[tuple[str, int]]) -> tuple[Tensor, Tensor]:
        prompts, classes = zip(*examples, strict=True)
        longest = min(limit, model.context)
        try:
            ids = encode(prompts, model.tokenizer, max_length=longest, truncate=limit <= model.context)
        except InputError as error:
            raise InputError(f"{title} examples of task {task.name}: {error}") from None
        return ids, torch.tensor([int(c == 1) for c in classes] if config.cb_two_way else classes)

    train, labels = encoded("training", data.train)
    test, test_labels = encoded("test", data.test)
    digest = hashlib.sha256(f"{data.digest} {model.source}".encode())
    for tensor in (train, labels, test, test_labels):
        digest.update(tensor.numpy().tobytes())
    return Dataset(
        name=config.task,
        train_images=train,
        train_labels=labels,
        test_images=test,
        test_labels=test_labels,
        classes=len(task.classes),
        source=f"{data.source}; {model.source}",
        digest=digest.hexdigest()[:16],
        pad=model.tokenizer.pad,
        content_free=encode([task.content_free], model.tokenizer, max_length=limit),
        models={config.model: model},
    )


def task_module(config: Any, dataset: Dataset | None = None) -> nn.Module:
    """The language model as a classifier of the run's task: ids (N, T) to logits (N, classes).

    What is not to be trained is frozen (``tune``). The model is taken from ``dataset.models``, once, or loaded.

    Raises:
        InputError: If the model is not available here or has nothing to tune so, or its tokenizer gives two classes
            the same token.
    """
    model = (dataset.models.pop(config.model, None) if dataset is not None else None) or _model(config)
    if config.tune == "lora":
        lora_(model.module, rank=config.lora_rank, alpha=config.lora_alpha, seed=config.seed, draws=config.draws)
    elif config.tune == "norms":
        norms_(model.module)
    return Verbalized(model.module, verbalizer_ids(TASKS[config.task], model.tokenizer), model.tokenizer.pad)


def _model(config: Any) -> CausalLM:
    rule = "be a causal language model: a folder, file or name"
    require(config.model not in MODELS, f"model for task {config.task}", rule, config.model)
    return load_causal(config.model)
