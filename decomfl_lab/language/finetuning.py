"""A task and a causal language model as what training knows: a data set of token numbers and a module that classifies.

    loss(ids, c) = −log softmax(logits of the verbalizers at the last position)[c]

so that objectives, engines, evaluations and replicas are those of any other model.

Source: the authors' code (``language_utils.py``), since the paper does not write its loss out.
"""

import hashlib
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.errors import InputError, require
from decomfl_lab.language.adapters import lora_, norms_
from decomfl_lab.language.causal_model import CausalLM, Verbalized, load_causal
from decomfl_lab.language.encoding import encode, verbalizer_ids
from decomfl_lab.language.tasks import TASKS, load_task
from decomfl_lab.models.registry import MODELS


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """What is trained on which prompts; the fields are options of a run, and are explained there."""

    task: str
    model: str
    task_data: str
    max_length: int
    cb_two_way: bool
    tune: str
    lora_rank: int
    lora_alpha: float
    seed: int
    draws: str

    @classmethod
    def of(cls, options: Any) -> Self:
        """What the configuration of a run says of it."""
        return cls(**{each.name: getattr(options, each.name) for each in fields(cls)})

    def dataset(self) -> Dataset:
        """The examples of the task as token numbers of the model's tokenizer.

        Prompts are cut to their last ``max_length`` tokens (of the configuration or, where that is 0, of the task).

        Returns:
            Inputs (N, T) int64, padded on the left; labels (N,), of CB read as two ways neutral as entailment;
            content_free (1, T'), the task's prompt with "N/A" in every column.

        Raises:
            InputError: If the model or the data are not available here, or a prompt does not fit the model's context.
        """
        task, model = TASKS[self.task], self._model()
        data = load_task(self.task, folder=self.task_data or None)
        limit = self.max_length or task.max_length

        def encoded(title: str, examples: list[tuple[str, int]]) -> tuple[Tensor, Tensor]:
            prompts, classes = zip(*examples, strict=True)
            longest = min(limit, model.context)
            try:
                ids = encode(prompts, model.tokenizer, max_length=longest, truncate=limit <= model.context)
            except InputError as error:
                raise InputError(f"{title} examples of task {task.name}: {error}") from None
            return ids, torch.tensor([int(c == 1) for c in classes] if self.cb_two_way else classes)

        train, labels = encoded("training", data.train)
        test, test_labels = encoded("test", data.test)
        digest = hashlib.sha256(f"{data.digest} {model.source}".encode())
        for tensor in (train, labels, test, test_labels):
            digest.update(tensor.numpy().tobytes())
        return Dataset(
            name=self.task,
            train_images=train,
            train_labels=labels,
            test_images=test,
            test_labels=test_labels,
            classes=len(task.classes),
            source=f"{data.source}; {model.source}",
            digest=digest.hexdigest()[:16],
            pad=model.tokenizer.pad,
            content_free=encode([task.content_free], model.tokenizer, max_length=limit),
            models={self.model: model},
        )

    def module(self, dataset: Dataset | None = None) -> nn.Module:
        """The language model as a classifier of the task: ids (N, T) to logits (N, classes).

        What is not to be trained is frozen (``tune``). The model is taken from ``dataset.models``, once, or loaded.

        Raises:
            InputError: If the model is not available here or has nothing to tune so, or its tokenizer gives two classes
                the same token.
        """
        model = (dataset.models.pop(self.model, None) if dataset is not None else None) or self._model()
        if self.tune == "lora":
            lora_(model.module, rank=self.lora_rank, alpha=self.lora_alpha, seed=self.seed, draws=self.draws)
        elif self.tune == "norms":
            norms_(model.module)
        return Verbalized(model.module, verbalizer_ids(TASKS[self.task], model.tokenizer), model.tokenizer.pad)

    def _model(self) -> CausalLM:
        causal = self.model not in MODELS
        require(causal, f"model for task {self.task}", "be a causal language model: a folder, file or name", self.model)
        return load_causal(self.model)
