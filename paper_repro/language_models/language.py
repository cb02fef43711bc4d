"""What parts on language models share: a small OPT model pretrained from text, and κ of a task's prompts."""

import os
from functools import lru_cache, partial
from pathlib import Path

import pandas as pd
from torch import Tensor, nn

from decomfl_lab.datasets.images import Dataset
from decomfl_lab.language.corpus import load_corpus
from decomfl_lab.language.opt import SIZES
from decomfl_lab.language.pretraining import PretrainConfig, pretrain
from decomfl_lab.storage.files import file_digest
from decomfl_lab.storage.provenance import read_provenance
from hessian.kappa.effective_rank import effective_rank
from hessian.operators.curvature import GaussNewtonOperator
from hessian.operators.mean_loss import MeanLoss
from hessian.operators.options import CurvatureOptions
from hessian.trained_models import TrainedModel
from paper_repro.workflow.runs import Report, Result, Work, tokens_cost


def pretraining(config: PretrainConfig) -> Work:
    """A small OPT model; its folder is then one that transformers reads."""
    size = SIZES[config.size]
    cost = tokens_cost(3 * config.tokens, size)  # a backward pass is worth two
    title = f"pretraining {config.size}"
    corpus = partial(_corpus, os.environ.get("DECOMFL_DATA"))
    return Work(title=title, function=_pretrained, arguments={"config": config}, data=corpus, cost=cost)


def _pretrained(folder: Path, report: Report, config: PretrainConfig) -> Result:
    """The evaluations (step, held_out_loss, bits_per_byte, ...), with the digests of the model's files."""
    pretrain(config, folder, on_step=report)
    facts = read_provenance(folder)
    # Hidden files are locks.
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
    facts["files"] = {path.name: file_digest(path) for path in files}
    return pd.DataFrame(facts["evaluations"]).assign(size=config.size, d=facts["d"]), facts


def prompts_loss(module: nn.Module, dataset: Dataset, *, chunk: int, examples: int) -> MeanLoss:
    """The mean loss of some training prompts, from the model that a run begins with."""
    begins = TrainedModel(
        module=module, dataset=dataset, calibration=dataset.train_images[:0], name="begins", history="as pretrained"
    )
    (objective,) = begins.mean_loss(CurvatureOptions(chunk=chunk), examples=examples)
    return objective


def kappa_of(objective: MeanLoss, x: Tensor, products: int) -> dict[str, float]:
    """κ = tr(G)/‖G‖₂ of the Gauss-Newton matrix at x with its 95 % interval, and λ_max."""
    rank = effective_rank(GaussNewtonOperator(objective, x), products=products, confidence=0.95, seed=0)
    low, high = rank.interval
    return {"kappa": rank.kappa, "low": low, "high": high, "lambda_max": rank.lambda_max}


@lru_cache
def _corpus(users: str | None) -> str:  # noqa: ARG001 (part of what is remembered)
    """The digest of the text."""
    return load_corpus().digest
