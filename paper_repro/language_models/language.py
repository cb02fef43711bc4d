"""Work on language models: a small OPT model pretrained from text, and runs that fine-tune it to a task."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import pandas as pd

from decomfl_lab.files import file_digest
from decomfl_lab.language.corpus import load_corpus
from decomfl_lab.language.opt import SIZES
from decomfl_lab.runs.pretraining import PretrainConfig, pretrain
from decomfl_lab.runs.provenance import read_provenance
from paper_repro.workflow.runs import Report, Result, Work, tokens_cost


def pretraining(config: PretrainConfig) -> Work:
    """A small OPT model; its folder is then one that transformers reads."""
    size = SIZES[config.size]
    cost = tokens_cost(3 * config.tokens, size)  # a backward pass is worth two
    title = f"pretraining {config.size}"
    return Work(title=title, function=_pretrained, arguments={"config": config}, data=_corpus, cost=cost)


def _pretrained(folder: Path, report: Report, config: PretrainConfig) -> Result:
    """The evaluations (step, held_out_loss, bits_per_byte, ...), with the digests of the model's files."""
    pretrain(config, folder, on_step=report)
    facts = read_provenance(folder)
    # Hidden files are locks.
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith("."))
    facts["files"] = {path.name: file_digest(path) for path in files}
    return pd.DataFrame(facts["evaluations"]).assign(size=config.size, d=facts["d"]), facts


def _corpus() -> str:
    return _corpus_digest(os.environ.get("DECOMFL_DATA"))


@lru_cache
def _corpus_digest(users: str | None) -> str:  # noqa: ARG001 (part of what is remembered)
    return load_corpus().digest
