"""Arguments of a Trainer of transformers: with MeZO it does as a plain one, or refuses them before the first step."""

import os
from functools import partial
from unittest import mock

from torch.nn.functional import cross_entropy

from tests.decomfl_lab.language.tiny import tiny
from tests.situations.judge import RIGHT, Table, refused

at = TABLE = Table()
EVALUATED = {"eval_strategy": "steps"}
BEST = {"metric_for_best_model": "parts"} | EVALUATED  # the first is the best, as all are equal


def language():
    """A model without dropout, as MeZO measures in eval mode and a plain Trainer does not."""
    return tiny("llama", depth=1)


def of_labels(outputs, labels, num_items_in_batch=None):
    """A loss that the Trainer gives the labels, which it takes out of the batch."""
    return cross_entropy(outputs.logits.transpose(1, 2), labels)


def of_small_batches(outputs, labels, num_items_in_batch=None):
    if len(labels) > 4:
        raise RuntimeError("CUDA out of memory.")
    return of_labels(outputs, labels)


at("a loss of the labels", trainer=RIGHT)(language, of_labels, None)
at("batches that are too large", trainer=RIGHT.given(auto_find_batch_size=True))(language, of_small_batches, None)
for _options in (
    {},
    {"bf16": True},
    {"bf16_full_eval": True} | EVALUATED,
    {"gradient_checkpointing": True, "torch_empty_cache_steps": 1, "use_cache": True, "debug": "underflow_overflow"},
    {"torch_compile": True, "torch_compile_backend": "eager"},
    {"weight_decay": 0.1, "max_grad_norm": 0.0},
    {"lr_scheduler_type": "cosine", "warmup_steps": 2},
    {"lr_scheduler_type": "reduce_lr_on_plateau"} | EVALUATED,
    {"num_train_epochs": 1.5, "max_steps": -1, "save_strategy": "epoch", "logging_strategy": "epoch"},
    {"include_num_input_tokens_seen": "all", "average_tokens_across_devices": False},
    {"eval_delay": 3, "eval_accumulation_steps": 1, "prediction_loss_only": True, "save_total_limit": 1} | EVALUATED,
    {"save_strategy": "no"},
    {"save_only_model": True},
    {"load_best_model_at_end": True} | BEST,
    {"restore_callback_states_from_checkpoint": True, "seed": 7},
    {"ignore_data_skip": True, "data_seed": 7},
    {"dataloader_drop_last": True, "dataloader_num_workers": 1},
):
    _name = ", ".join(f"{argument}={value}" for argument, value in _options.items())
    _inside = partial(mock.patch.dict, os.environ)  # which some arguments write to
    at(f"TrainingArguments({_name})", trainer=RIGHT.given(**_options))(language, None, None, inside=_inside)
for _value, _names in {
    2: ("gradient_accumulation_steps",),
    True: ("fp16", "use_liger_kernel"),
    0.123: ("learning_rate", "weight_decay", "max_grad_norm", "neftune_noise_alpha"),
    0.8: ("adam_beta1", "adam_beta2", "adam_epsilon"),
    "another": ("optim", "optim_args", "optim_target_modules", "deepspeed", "fsdp", "parallelism_config"),
}.items():
    for _name in _names:
        _verdict = refused(f"{_name} of the arguments must be ").given(**{_name: _value})
        at(f"TrainingArguments({_name}={_value}), refused", trainer=_verdict)(language, None, None)
