"""Steps of MeZO in every way that they can be done, on batches of prompts whose answers' tokens are the labels."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.ways import IN_PLACE
from benchmarks.ways.clock import apart
from benchmarks.ways.language import answering, random_prompts
from decomfl_lab.errors import InputError, require
from decomfl_lab.language.causal import load_causal
from decomfl_lab.language.encoding import encode, verbalizer_ids
from decomfl_lab.language.opt import SPECIAL
from decomfl_lab.language.tasks import TASKS, load_task
from decomfl_lab.noise import derive_seed, direction
from decomfl_lab.optim import MeZO
from decomfl_lab.protocol.server import DIRECTIONS
from decomfl_lab.runs.memory import ENVIRONMENT, peak_of, resident_bytes

__all__ = [
    "LOGGED",
    "OBJECT",
    "THEIRS",
    "drift",
    "in_place",
    "loaded",
    "ours",
    "peak_apart",
    "random",
    "sst2",
    "stepping",
]

THEIRS = "MeZO's trainer"
OBJECT = "decomfl_lab.optim"
LOGGED = "decomfl_lab.optim, log"
SEED = 0

Inputs = dict[str, Tensor]
Stepping = Callable[[Inputs], float]
"""A step on a batch; it returns f(x + μz)."""
Directions = Callable[[int], Iterator[Tensor]]
"""z of a step, a parameter after the other."""


def sst2(model: str, folder: str, batch: int) -> list[Inputs]:
    """Batches of SST-2's training part, all of one length that is the longest; labels are the verbalizers' tokens."""
    causal, task = load_causal(model), TASKS["sst2"]
    examples = load_task("sst2", folder=folder or None).train[: 64 * batch]
    ids = encode([prompt for prompt, _ in examples], causal.tokenizer, max_length=task.max_length)
    answers = torch.tensor(verbalizer_ids(task, causal.tokenizer))[[label for _, label in examples]]
    return _batches(ids, answers, causal.tokenizer.pad, batch)


def random(vocabulary: int, batch: int) -> list[Inputs]:
    """Batches of random prompts as long as SST-2's, for models that know no words."""
    pad = SPECIAL.index("<pad>")
    ids, classes = random_prompts(64 * batch, vocabulary=vocabulary, pad=pad, seed=SEED)
    return _batches(ids, classes + len(SPECIAL), pad, batch)


def _batches(ids: Tensor, answers: Tensor, pad: int, batch: int) -> list[Inputs]:
    whole = torch.cat([ids, answers[:, None]], 1)
    labels = torch.full_like(whole, -100)
    labels[:, -1] = answers
    each = {"input_ids": whole, "attention_mask": (whole != pad).long(), "labels": labels}
    return [{name: part[a : a + batch] for name, part in each.items()} for a in range(0, len(ids), batch)]


def loaded(model: str, vocabulary: int) -> nn.Module:
    """The model, of which the forward pass returns the loss of labels."""
    return answering(model, vocabulary).module


def _stream(module: nn.Module) -> Directions:
    """Z as the object makes it."""
    sizes = [p.numel() for p in module.parameters()]

    def z(step: int) -> Iterator[Tensor]:
        seed = derive_seed(derive_seed(derive_seed(SEED, DIRECTIONS), step), 0)
        whole = torch.from_numpy(direction(seed, 0, sum(sizes)))
        yield from (part.view_as(p) for part, p in zip(whole.split(sizes), module.parameters(), strict=True))

    return z


def _torchs(module: nn.Module) -> Directions:
    """Z by torch's generator."""

    def z(step: int) -> Iterator[Tensor]:
        torch.manual_seed(step)
        for p in module.parameters():
            yield torch.normal(0.0, 1.0, p.shape, dtype=p.dtype)

    return z


def in_place(module: nn.Module, lr: float, mu: float, z: Directions) -> Stepping:
    """MeZO's way: x is moved to x + μz, x − μz and back, and z is made a fourth time for the update."""
    taken = 0

    def move(c: float) -> None:
        for p, own in zip(module.parameters(), z(taken), strict=True):
            p.add_(own, alpha=c)

    @torch.inference_mode()
    def step(inputs: Inputs) -> float:
        nonlocal taken
        move(mu)
        above = float(module(**inputs).loss)
        move(-2 * mu)
        below = float(module(**inputs).loss)
        move(mu)
        move(-lr * (above - below) / (2 * mu))
        taken += 1
        return above

    for p in module.parameters():
        p.requires_grad_(False)
    return step


def theirs(path: Path, module: nn.Module, lr: float, mu: float, z: Directions | None) -> Stepping:
    """The step of MeZO's own trainer: the functions ``zo_...`` of its class, run as they stand in the file.

    Args:
        path: ``large_models/trainer.py`` of princeton-nlp/MeZO.
        module: The model.
        lr: The learning rate.
        mu: The smoothing radius, their zo_eps.
        z: The directions instead of those by ``torch.normal``; None for theirs.

    Raises:
        InputError: If the file has no such functions.
    """
    taken = 0
    source = ast.parse(path.read_text())
    found = [own for own in ast.walk(source) if isinstance(own, ast.FunctionDef) and own.name.startswith("zo_")]
    wanted = {"zo_perturb_parameters", "zo_forward", "zo_step", "zo_update"}
    there = {own.name for own in found}
    require(wanted <= there, "trainer", f"be MeZO's large_models/trainer.py, with {sorted(wanted)}", sorted(there))
    run: Any = torch
    if z is not None:
        run = SimpleNamespace(**{name: getattr(torch, name) for name in ("inference_mode", "float32", "tensor")})
        current: Iterator[Tensor] = iter(())

        def manual_seed(_: int) -> None:
            nonlocal current
            current = z(taken)

        run.manual_seed, run.normal = manual_seed, lambda **_: next(current)
    names: dict[str, Any] = {"torch": run, "np": np}
    exec(compile(ast.Module([*found], []), str(path), "exec"), names)
    trainer: Any = SimpleNamespace(
        args=SimpleNamespace(
            zo_eps=mu, weight_decay=0.0, n_gpu=1, non_diff=False, gradient_accumulation_steps=1, device="cpu"
        ),
        lr_scheduler=SimpleNamespace(step=lambda: None),
        _get_learning_rate=lambda: lr,
        _prepare_inputs=lambda inputs: inputs,
        compute_loss_context_manager=nullcontext,
        compute_loss=lambda model, inputs: model(**inputs).loss,
    )
    for name in there:
        setattr(trainer, name, MethodType(names[name], trainer))

    def step(inputs: Inputs) -> float:
        nonlocal taken
        loss = float(trainer.zo_step(module, inputs))
        trainer.zo_update(module)
        taken += 1
        return loss

    return step


def ours(module: nn.Module, lr: float, mu: float, log: Path | None) -> tuple[MeZO, Stepping]:
    """The object, and its step."""
    optimizer = MeZO(module.named_parameters(), lr, mu=mu, seed=SEED, log=log)

    def step(inputs: Inputs) -> float:
        found = []

        def loss() -> Tensor:
            found.append(module(**inputs).loss)
            return found[-1]  # type: ignore[no-any-return]

        optimizer.step(loss)
        return float(found[0])

    return optimizer, step


def stepping(
    way: str, module: nn.Module, lr: float, mu: float, *, trainer: Path | None = None, same_z: bool = False
) -> Stepping:
    """The steps of a way, on the module itself; ``same_z`` for those of the lab's noise stream."""
    match way:
        case _ if way == IN_PLACE:
            return in_place(module, lr, mu, _stream(module) if same_z else _torchs(module))
        case _ if way == THEIRS:
            if trainer is None:
                raise InputError(f"trainer must be given for the way {way}")
            return theirs(trainer, module, lr, mu, _stream(module) if same_z else None)
    return ours(module, lr, mu, None)[1]


def drift(way: str, module: nn.Module, mu: float, batches: Sequence[Inputs], trainer: Path | None) -> float:
    """The largest |x − x_0| after steps at η = 0, where nothing should move."""
    own = deepcopy(module)
    step = stepping(way, own, 0.0, mu, trainer=trainer)
    for inputs in batches:
        step(inputs)
    pairs = zip(own.parameters(), module.parameters(), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)


# Memory ---------------------------------------------------------------------------------------------------------------


def peak_apart(model: str, vocabulary: int, way: str, trainer: Path | None) -> float | None:
    """The peak of a step, in models and with the model's own, measured in a process of its own."""
    arguments = model, str(vocabulary), way, str(trainer or "")
    peak: float | None = apart(way, "benchmarks.ways.mezo", *arguments, env=ENVIRONMENT)
    return peak


def _peak(model: str, vocabulary: int, way: str, trainer: Path | None) -> float | None:
    ids = torch.full((1, 2), len(SPECIAL))
    inputs = {"input_ids": ids, "labels": ids}
    stepping(way, loaded("opt-0.3m", 300), 1e-6, 1e-3, trainer=trainer)(inputs)  # code and threads are there
    before = resident_bytes()
    module = loaded(model, vocabulary)
    step = stepping(way, module, 1e-6, 1e-3, trainer=trainer)
    d = sum(p.numel() for p in module.parameters())
    return peak_of(lambda: step(inputs), 4 * d, before)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(_peak(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]) if sys.argv[4] else None)))
