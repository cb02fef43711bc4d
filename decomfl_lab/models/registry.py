"""Models by name, initialised from a seed of their own; global generators are left as they were."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from threading import RLock
from typing import Final

import numpy as np
import torch
from torch import nn

from decomfl_lab.errors import require, require_choice, require_int, require_possible
from decomfl_lab.models import WRITTEN
from decomfl_lab.models.gpt import Gpt
from decomfl_lab.models.initialisers import draw_
from decomfl_lab.models.resnet import resnet
from decomfl_lab.noise.draws import STREAM

Shape = tuple[int, ...]
_OTHERS = "have shape (1, 28, 28) (for others there are the models mlp, logistic, resnet8)"


def _cnn_mnist(in_shape: Shape, classes: int) -> nn.Module:
    """The paper's small CNN: d = 28,938 for 28×28 grey images and 10 classes."""
    require(in_shape == (1, 28, 28), "images for model cnn-mnist", _OTHERS, in_shape)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, classes),
    )


def _cnn_fashion(in_shape: Shape, classes: int, *, outputs: int | None = None) -> nn.Module:
    """The paper's larger CNN for 28×28 grey images: d = 1,198,592 + 129·(outputs, by default one a class)."""
    outputs = classes if outputs is None else outputs
    require(classes <= outputs, "classes for model cnn-fashion", f"be at most {outputs}", classes)
    require(in_shape == (1, 28, 28), "images for model cnn-fashion", _OTHERS, in_shape)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Linear(128, outputs),
    )


def _dense(in_shape: Shape, classes: int, *, hidden: Sequence[int]) -> nn.Module:
    """Linear layers, the hidden ones with so many units."""
    widths = [math.prod(in_shape), *hidden, classes]
    layers = [layer for into, out in pairwise(widths) for layer in (nn.Linear(into, out), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


_KINDS: dict[str, Callable[..., nn.Module]] = {
    "cnn-mnist": _cnn_mnist,
    "cnn-fashion": _cnn_fashion,
    "resnet": resnet,
    "dense": _dense,
    "gpt": Gpt,
}
MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    name: partial(_KINDS[own["kind"]], **{key: value for key, value in own.items() if key != "kind"})
    for name, own in WRITTEN.items()
}


def build_model(name: str, *, seed: int, in_shape: Shape, classes: int, draws: str = STREAM) -> nn.Module:
    """The model ``name`` of ``MODELS`` with the initialisation of its field, drawn from ``seed`` alone.

    Its inputs are images of shape (C, H, W), or sequences (T,). It is drawn from the lab's own stream
    (``models.initialisers``), with the same bits on any machine, or, for ``draws`` = "libraries", by torch's
    initialisers, by which earlier versions drew, and whose bits depend on the processor.

    Raises:
        InputError: If the name is unknown, the images do not fit the model, or there are no classes.
    """
    rule = "be a model for images, or be given with --task, as names of the hub and folders are language models"
    require("/" not in name, "model", rule, name)
    require_choice("model", name, MODELS)
    d = size_of(name, in_shape, classes)
    require_possible(f"parameters d of {name}", d, memory=4.0 * d)
    with initialising(seed):  # torch draws in any case, as a layer is made
        module = MODELS[name](in_shape, classes)
    if draws == STREAM:
        draw_(module, seed)
    return module


def size_of(name: str, in_shape: Shape, classes: int) -> int:
    """D of ``build_model``, whose arguments these are; nothing is drawn, and no memory taken for the parameters."""
    require_int(f"classes for model {name}", classes, 1)
    with torch.device("meta"):
        return num_parameters(MODELS[name](in_shape, classes))


_GENERATOR: Final = RLock()


@contextmanager
def initialising(seed: int) -> Iterator[None]:
    """Global generators are seeded with ``seed`` inside, folded to 32 bits, and as they were afterwards.

    They are torch's, of the CPU and of GPUs that are in use, numpy's and Python's. One thread is inside at a time, for
    they share the generators.
    """
    require_int("seed", seed, 0, 2**64 - 1)
    folded = int(np.random.SeedSequence(seed).generate_state(1)[0])
    gpus = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
    with _GENERATOR, torch.random.fork_rng(devices=gpus), ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        torch.default_generator.manual_seed(folded)
        random.seed(folded)
        np.random.seed(folded)
        if gpus:
            torch.cuda.manual_seed_all(folded)
        yield


def num_parameters(module: nn.Module) -> int:
    """d, the number of trainable parameters; tied weights count once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
