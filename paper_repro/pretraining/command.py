"""``decomfl pretrain``: a small OPT model from nothing but text, to fine-tune."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from decomfl_lab.cli.command import command
from decomfl_lab.errors import require, require_int
from decomfl_lab.language.opt import SIZES
from decomfl_lab.options import REQUIRED, option
from decomfl_lab.plain import print_json

if TYPE_CHECKING:
    from paper_repro.pretraining.family import PretrainProgress

__all__ = ["pretrain"]


@dataclass(frozen=True, kw_only=True)
class PretrainOptions:
    """The options of ``decomfl pretrain``."""

    size: str = option("opt-1m", f"The size, d at 4,096 tokens: {', '.join(SIZES)}. [default: opt-1m]")
    out: Path = option(REQUIRED, "The folder for the model, as transformers reads it; a run resumes there.")
    vocabulary: int = option(4096, "The tokens of a byte-level BPE trained on the text. [default: 4096]")
    steps: int | None = option(None, "The steps of AdamW. [default: 1000]")
    tokens: int | None = option(None, "Take as many steps as predict at least N tokens, instead of --steps.")
    batch: int = option(8, "The number of sequences a step. [default: 8]")
    verdicts: int = option(
        0, "Further steps in which the model learns the sentiment of film reviews, line by line. [default: 0]"
    )
    lr: float = option(3e-3, "The largest learning rate. [default: 0.003]")
    seed: int = option(0, "The seed of weights and order. [default: 0]")
    threads: int = option(1, "The CPU threads of torch. [default: 1]")
    as_json: bool = option(False, "Print one JSON object on stdout.", flag="--json")


@command
def pretrain(options: PretrainOptions) -> None:
    """Pretrain a small OPT language model from text alone.

    The text is $DECOMFL_DATA/corpus, or else Python's language reference. The folder is then a model for decomfl
    train --model; the same flags give the same bits with the same threads.
    """
    import pandas as pd

    from decomfl_lab.devices import use_threads_
    from decomfl_lab.runs.progress import RunBars
    from paper_repro.pretraining.family import PretrainConfig
    from paper_repro.pretraining.family import pretrain as run

    require(
        options.steps is None or options.tokens is None,
        "steps and tokens",
        "not both be given",
        (options.steps, options.tokens),
    )
    config = PretrainConfig(
        size=options.size,
        vocabulary=options.vocabulary,
        steps=PretrainConfig.steps if options.steps is None else options.steps,
        batch=options.batch,
        verdicts=options.verdicts,
        lr=options.lr,
        seed=options.seed,
    )
    if options.tokens is not None:
        config = replace(
            config, steps=math.ceil(require_int("tokens", options.tokens, 1) / replace(config, steps=1).tokens)
        )
    use_threads_(options.threads)
    with RunBars() as bars:

        def show(at: PretrainProgress) -> None:
            held_out = "" if math.isnan(at.held_out_loss) else f", held out {at.held_out_loss:.3f}"
            bars.show(f"pretrain {options.size}", at.step, at.steps, f"loss {at.train_loss:.3f}{held_out}")

        facts = run(config, options.out, on_step=show)
    if options.as_json:
        print_json(facts)
        return
    print(pd.DataFrame(facts["evaluations"]).to_string(index=False, float_format="{:.4g}".format))
    print(f"{options.size}: d = {facts['d']:,}, {facts['tokens']:,} tokens; seed {options.seed}; code {facts['code']}")
    print(f"text: {facts['data']}")
    print(f"model in {options.out}")
