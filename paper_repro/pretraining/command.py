"""``decomfl pretrain``: a small OPT model from nothing but text, to fine-tune."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from decomfl_lab.devices import use_threads_
from decomfl_lab.errors import require, require_int
from decomfl_lab.language.opt import SIZES
from decomfl_lab.runs.progress import RunBars
from hessian.commands.option import option
from paper_repro.pretraining.family import PretrainConfig, PretrainProgress
from paper_repro.pretraining.family import pretrain as run

__all__ = ["pretrain"]


def pretrain(
    *,
    size: Annotated[
        str,
        option(f"The size, d at 4,096 tokens: {', '.join(SIZES)}. [default: opt-1m]"),
    ] = "opt-1m",
    out: Annotated[Path, typer.Option(help="The folder for the model, as transformers reads it; a run resumes there.")],
    vocabulary: Annotated[
        str,
        option("The tokens of a byte-level BPE trained on the text, or gpt2. [default: 4096]"),
    ] = "4096",
    steps: Annotated[int | None, option("The steps of AdamW. [default: 1000]")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Take as many steps as predict at least so many tokens, in place of --steps.")
    ] = None,
    batch: Annotated[int, option("The number of sequences a step. [default: 8]")] = 8,
    verdicts: Annotated[
        int,
        option("The steps more in which the model learns film reviews' sentiment from their lines. [default: 0]"),
    ] = 0,
    lr: Annotated[float, option("The largest learning rate. [default: 0.003]")] = 3e-3,
    seed: Annotated[int, option("The seed of weights and order. [default: 0]")] = 0,
    threads: Annotated[int, option("The CPU threads of torch. [default: 1]")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Pretrain a small OPT language model from nothing but text.

    The text is $DECOMFL_DATA/corpus, or else Python's language reference. The folder is then a model for decomfl
    train --model; the same flags give the same bits with the same threads.
    """
    require(steps is None or tokens is None, "steps and tokens", "not both be given", (steps, tokens))
    config = PretrainConfig(
        size=size,
        vocabulary=int(vocabulary) if vocabulary.isdecimal() and len(vocabulary) < 20 else vocabulary,
        steps=PretrainConfig.steps if steps is None else steps,
        batch=batch,
        verdicts=verdicts,
        lr=lr,
        seed=seed,
    )
    if tokens is not None:
        config = replace(config, steps=math.ceil(require_int("tokens", tokens, 1) / replace(config, steps=1).tokens))
    use_threads_(threads)
    with RunBars() as bars:

        def show(at: PretrainProgress) -> None:
            held_out = "" if math.isnan(at.held_out_loss) else f", held out {at.held_out_loss:.3f}"
            bars.show(f"pretrain {size}", at.step, at.steps, f"loss {at.train_loss:.3f}{held_out}")

        facts = run(config, out, on_step=show)
    if as_json:
        print(json.dumps(facts))
        return
    print(pd.DataFrame(facts["evaluations"]).to_string(index=False, float_format="{:.4g}".format))
    print(f"{size}: d = {facts['d']:,}, {facts['tokens']:,} tokens; seed {seed}; code {facts['code']}")
    print(f"text: {facts['data']}")
    print(f"model in {out}")
