"""Which number predicts what random directions do: how far they move a tangent kernel, how many rounds they take."""

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn.functional import avg_pool2d, cross_entropy, mse_loss

from decomfl_lab.datasets.images import Dataset, load_dataset
from decomfl_lab.datasets.splits import fixed_choice
from decomfl_lab.errors import DivergedError
from decomfl_lab.noise import Distribution, direction
from decomfl_lab.objectives.batch_loss import LossFunction
from decomfl_lab.progress import Progress
from decomfl_lab.runs.hooks import Round
from decomfl_lab.runs.run import train
from decomfl_lab.storage.provenance import provenance
from figures.spectra import kernel_figure
from hessian.estimate import Estimate
from hessian.kappa.effective_rank import effective_rank, tangent_kernel
from hessian.operators.curvature import HessianOperator
from hessian.operators.mean_loss import MeanLoss
from paper_repro.workflow.data import digest_named
from paper_repro.workflow.part import Made, Options, made
from paper_repro.workflow.report import caption, notes
from paper_repro.workflow.runs import Report, Result, Work
from paper_repro.workflow.scales import Sizes

SEED: Final = 0
CONFIDENCE: Final = 0.95
_CHOICE: Final = 12  # purpose of the random choice of examples (see ``fixed_choice``)
PREDICTORS: Final = ("r of all", "κ", "κ₊", "V", "d")
"""What the rounds are compared with."""
FORETOLD: Final = ("√(r/P) + r/P", "√(V log V/P)", "√(n log n/P)")
"""What the error of the kernel is compared with."""


@dataclass(frozen=True)
class KernelTask:
    """Numbers of several digits: images of single ones beside each other, pooled to a side, and the number mod V."""

    inputs: Tensor  # (examples, digits · side²) float32
    targets: Tensor  # numbers mod V, (examples,); ±1.0, (examples, 1), where V = 1
    loss: LossFunction

    @classmethod
    def of(cls, dataset: Dataset, digits: int, side: int, V: int, examples: int) -> "KernelTask":
        """So many examples; with one output the loss is of ±1, whether the number is odd."""
        examples = min(examples, dataset.N // digits)
        chosen = fixed_choice(dataset.N, digits * examples, _CHOICE)
        images = dataset.train_images[chosen]
        pooled = avg_pool2d(images, images.shape[-1] // side).reshape(examples, -1)
        places = 10 ** torch.arange(digits)
        numbers = (dataset.train_labels[chosen].reshape(examples, digits) * places).sum(1)
        if V == 1:
            return cls(pooled, (2.0 * (numbers % 2) - 1)[:, None], mse_loss)
        return cls(pooled, numbers % V, cross_entropy)


def jobs(options: Options) -> list[Work]:
    """A work for each network."""
    size = options.scale.kernels
    return [
        Work(
            title=f"kernels: {name}",
            function=measured,
            arguments={"network": tuple(network), "size": size.but(networks={})},
            labels={"network": name},
            data=partial(digest_named, "mnist"),
            layers=("hessian",),
            cost=2e5 * sum(size.P),
        )
        for name, network in size.networks.items()
    ]


def measured(_: Path, report: Report, network: Sequence[int], size: Sizes) -> Result:
    """The kernel's error for every distribution and P, the numbers that may predict it, and rounds to the target."""
    digits, side, V, depth, width = network
    dataset = load_dataset("mnist")
    task = KernelTask.of(dataset, digits, side, V, size.examples)
    # An MLP of ReLU; every weight and bias is uniform within 1/√(inputs of its layer).
    sizes = [task.inputs.shape[1], *[width] * depth, V]
    generator = torch.Generator().manual_seed(SEED)
    linear = [nn.Linear(before, after) for before, after in pairwise(sizes)]
    for layer in linear:
        for tensor in (layer.weight, layer.bias):
            nn.init.uniform_(tensor, -(layer.in_features**-0.5), layer.in_features**-0.5, generator=generator)
    module = nn.Sequential(*chain(*((layer, nn.ReLU()) for layer in linear[:-1])), linear[-1])
    few = max(1, min(size.inputs, size.outputs // V))
    # J of all outputs of these inputs, (n, d).
    weights = {name: tensor.detach() for name, tensor in module.named_parameters()}
    jacobian = jacrev(lambda own: functional_call(module, own, task.inputs[:few]).flatten(), chunk_size=64)(weights)
    J = torch.cat([tensor.flatten(1) for tensor in jacobian.values()], 1)
    # The effective ranks with their intervals (r of the kernel's inputs, the others of all examples), and λ_max.
    options: dict[str, Any] = {"products": size.products, "confidence": CONFIDENCE, "seed": SEED}
    H = HessianOperator(MeanLoss(module, task.loss, (task.inputs, task.targets)))
    ranks = {
        "r": tangent_kernel(module, (task.inputs[:few], task.targets[:few]), **options),
        "r of all": tangent_kernel(module, (task.inputs, task.targets), **options),
        "κ": effective_rank(H, **options),
        "κ₊": effective_rank(H, part="positive", **options),
    }
    numbers = {"λ_max": ranks["κ₊"].lambda_max}
    for name, rank in ranks.items():
        numbers |= {name: rank.kappa, f"{name} low": rank.interval[0], f"{name} high": rank.interval[1]}
    numbers |= {"V": V, "d": J.shape[1], "outputs": J.shape[0]}
    rows = [{"kind": "error", **error} for error in kernel_errors(J, size)]
    for done, P in enumerate(size.rounds_at):
        report(Progress(1 + done, 1 + len(size.rounds_at)))
        rounds = _rounds(module, task, numbers, P, size)
        rows.append({"kind": "rounds", "distribution": "gaussian", "P": P, **rounds})
    return pd.DataFrame(rows).assign(**numbers), provenance(dataset)


def kernel_errors(J: Tensor, size: Sizes) -> list[dict[str, Any]]:
    """‖K_P − K‖/‖K‖ of the lab's own directions: the mean over seeds, and its standard error; J is (n, d), K (n, n)."""
    d, K = J.shape[1], (J @ J.T).double()
    rows = []
    norm = float(torch.linalg.eigvalsh(K)[-1])
    for distribution in Distribution:
        errors = defaultdict(list)
        for seed in range(size.draws):
            z = np.stack([direction(seed, p, d, distribution=distribution) for p in range(max(size.P))])
            Jz = (J @ torch.from_numpy(z).T).double()  # (n, P): K_P = (1/P) Σ_p Jz_p (Jz_p)ᵀ, of the first P
            for P in size.P:
                gap = torch.linalg.eigvalsh(Jz[:, :P] @ Jz[:, :P].T / P - K)
                errors[P].append(float(gap.abs().max()) / norm)
        for P, of_seeds in errors.items():
            mean = Estimate.of(of_seeds)
            rows.append({"distribution": distribution.value, "P": P, "value": mean.value, "stderr": mean.stderr})
    return rows


def _rounds(module: nn.Module, task: KernelTask, numbers: Mapping[str, float], P: int, size: Sizes) -> dict[str, float]:
    """The fewest rounds to the target over the learning rates, means over seeds; infinite where none gets there.

    The rates are multiples of the largest one that Theorem 2's form allows, 1/(λ_max(1 + (κ₊ + 1)/P)).
    """
    largest = 1 / (numbers["λ_max"] * (1 + (numbers["κ₊"] + 1) / P))
    best = {"value": math.inf, "factor": math.nan}
    for factor in size.factors:
        total = 0.0
        for seed in range(size.seeds_of_rounds):
            most = math.ceil(min(size.rounds, size.seeds_of_rounds * best["value"] - total))
            total += rounds_at(module, task, factor * largest, P, most, size.target, seed)
            if total >= size.seeds_of_rounds * best["value"]:
                break
        else:
            best = {"value": total / size.seeds_of_rounds, "factor": factor}
    return best


def rounds_at(module: nn.Module, task: KernelTask, lr: float, P: int, most: int, target: float, seed: int) -> float:
    """The rounds until the loss is that share of the first, between two of them by its logarithm.

    One client with all examples and one local step: f itself, without noise.
    """
    losses: list[float] = []

    def hook(round_: Round) -> None:
        losses.append(round_.train_loss)
        if not target * losses[0] < losses[-1] < 2 * losses[0]:
            round_.stop()

    logging.disable(logging.WARNING)  # a rate that is too large is an answer here
    try:
        train(
            module, task.loss, [(task.inputs, task.targets)], rounds=most, lr=lr, perturbations=P, rule="sgd",
            batch_size=len(task.targets), seed=seed, on_round=hook,
        )  # fmt: skip
    except DivergedError:
        pass
    finally:
        logging.disable(logging.NOTSET)
    if len(losses) < 2 or losses[-1] > target * losses[0]:
        return math.inf
    before, last = (math.log(each / (target * losses[0])) for each in losses[-2:])
    return len(losses) - 2 + before / (before - last)


# --- what is made of it -----------------------------------------------------------------------------------------------


def predicted(rows: pd.DataFrame) -> pd.DataFrame:
    """The errors beside what foretells them; V are the outputs of an example, n those of the kernel."""
    errors = rows[rows["kind"] == "error"]
    r, V, n = (errors[name] / errors["P"] for name in ("r", "V", "outputs"))
    foretold = np.sqrt(r) + r, np.sqrt(V * np.log(errors["V"].clip(lower=2))), np.sqrt(n * np.log(errors["outputs"]))
    return errors.assign(**dict(zip(FORETOLD, foretold, strict=True)))


def correlations(rows: pd.DataFrame) -> pd.DataFrame:
    """Spearman's rank correlation of the rounds with each number, and its interval over networks (bootstrap)."""
    table = []
    for P, of_P in rows[rows["kind"] == "rounds"].groupby("P"):
        counted = of_P.assign(value=of_P["value"].clip(upper=1e9))  # where no rate gets there it comes last
        resamples = [counted.sample(frac=1, replace=True, random_state=seed) for seed in range(500)]
        ranks = [each[[*PREDICTORS, "value"]].rank() for each in (counted, *resamples)]
        for name in PREDICTORS:
            with np.errstate(invalid="ignore"):  # NaN where a column has one value
                value, *others = [np.corrcoef(each[name], each["value"])[0, 1] for each in ranks]
            low, high = pd.Series(others).quantile([0.025, 0.975])
            table.append({"P": P, "number": name, "correlation": value, "low": low, "high": high})
    return pd.DataFrame(table)


def make(rows: pd.DataFrame, provenance: Sequence[Mapping[str, Any]], options: Options) -> Made:
    """The figure, the networks' table, and the rank correlations."""
    errors, ranks = predicted(rows), correlations(rows)
    keys = ["network", "d", "V", "outputs", "r", "κ", "κ₊", "r of all", *FORETOLD, "value"]
    gaussian = errors[(errors["distribution"] == "gaussian") & (errors["P"] == options.scale.kernels.shown)]
    rounds = rows[rows["kind"] == "rounds"].pivot(index="network", columns="P", values="value")
    table = (
        gaussian[keys]
        .rename(columns={"value": "error"})
        .merge(rounds.add_prefix("rounds, P = "), on="network")
        .sort_values("d", ignore_index=True)
    )
    words = options.scale.words("kernels", named=False)
    text = caption("kernels", scale=words, networks=rows["network"].nunique(), data=provenance[0]["data"])
    figure = partial(kernel_figure, errors, ranks, FORETOLD, title="Two theories, one kind of number", caption=text)
    part_notes = notes("kernels", **vars(options.scale.kernels))
    frames = {"kernels": table, "kernels-correlations": ranks, "kernels-rows": rows}
    return made("kernels", [], {"kernels": figure}, frames, notes=part_notes)
