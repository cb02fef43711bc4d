"""A task and a causal language model as what training knows: a data set of token numbers and a module that classifies.

    loss(ids, c) = −log softmax(logits of the verbalizers at the last position)[c]

so that objectives, engines, evaluations and replicas are those of any other model. Prompts are token numbers, padded on
the left so that every prompt's last token stands in the last column:

    ids[n] = (pad, ..., pad, first, ..., last)

The answer is not part of them: the loss is that of the token after the last one.

Source: the authors' code (``language_utils.py``), since the paper does not write its loss out.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.errors import InputError, require
from decomfl_lab.language.adapters import lora_, norms_
from decomfl_lab.language.causal_model import CausalLM, HubTokens, Verbalized, load_causal
from decomfl_lab.language.tasks import TASKS, load_task
from decomfl_lab.models.registry import MODELS


def encode(prompts: Sequence[str], tokenizer: HubTokens, *, max_length: int, truncate: bool = True) -> Tensor:
    """The token numbers of N prompts, (N, T) int64, T the length of the longest one.

    Of longer prompts than ``max_length`` so many tokens are kept, the last ones (so the first, special ones go), or
    they are refused. InputError, with its index, if a prompt is empty, too long, or has the padding token in it.
    """
    rows = []
    for n, prompt in enumerate(prompts):
        row = tokenizer.encode(prompt)
        require(len(row) > 0, f"prompt {n}", "have at least one token", prompt)
        if len(row) > max_length and not truncate:
            rule = f"fit the model's context of {max_length} tokens (a max_length of at most that cuts longer prompts)"
            raise InputError(f"prompt {n} must {rule}, got {len(row)} tokens")
        rows.append(row[-max_length:])
        require(tokenizer.pad not in rows[-1], f"prompt {n}", f"be free of the padding token {tokenizer.pad}", prompt)
    longest = max(map(len, rows))
    return torch.tensor([[tokenizer.pad] * (longest - len(row)) + row for row in rows])


def by_length(ids: Tensor, pad: int) -> Tensor:
    """The order of prompts (N, T) by length: those that pass together cost what the longest of them does."""
    return (ids != pad).sum(1).argsort(stable=True).cpu()


def task_dataset(config: Any) -> Dataset:
    """The examples of a run's task as token numbers of the model's tokenizer.

    Prompts are cut to their last ``max_length`` tokens (of the run's configuration or, where that is 0, of the task).

    Inputs are (N, T) int64, padded on the left; labels (N,), of CB read as two ways neutral as entailment; content_free
    is (1, T'), the task's prompt with "N/A" in every column. InputError if the model or the data are not available
    here, or a prompt does not fit the model's context.
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
    InputError if it is not available here or has nothing to tune so, or its tokenizer gives two classes the same token.
    """
    model = (dataset.models.pop(config.model, None) if dataset is not None else None) or _model(config)
    if config.tune == "lora":
        lora_(model.module, rank=config.lora_rank, alpha=config.lora_alpha, seed=config.seed, draws=config.draws)
    elif config.tune == "norms":
        norms_(model.module)
    # The last token of its verbalizer stands for a class.
    words = TASKS[config.task].verbalizers
    ids = tuple(model.tokenizer.encode(word)[-1] for word in words)
    rule = f"end with different tokens for {', '.join(map(repr, words))}"
    require(len(set(ids)) == len(ids), f"verbalizers of task {config.task}", rule, ids)
    return Verbalized(model.module, ids, model.tokenizer.pad)


def _model(config: Any) -> CausalLM:
    rule = "be a causal language model: a folder, file or name"
    require(config.model not in MODELS, f"model for task {config.task}", rule, config.model)
    return load_causal(config.model)
