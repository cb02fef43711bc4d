"""Pretrain a small OPT language model from text alone, to fine-tune it by scalars.

``python examples/pretrain.py opt-0.3m FOLDER`` takes a minute, and goes on where it was interrupted; opt-0.5m and
opt-1m are larger. The text is $DECOMFL_DATA/corpus, or else Python's language reference; the recipe is the
report's. The folder is then a model for ``decomfl train --model``.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd

from decomfl_lab.language.corpus import load_corpus
from decomfl_lab.language.pretraining import pretrain
from decomfl_lab.progress import Progress
from paper_repro.workflow.scales import SCALES


def show(at: Progress) -> None:
    """A line now and then."""
    if at.round % 100 == 0:
        print(f"step {at.round} of {at.rounds}: loss {at.train_loss:.3f}", flush=True)


if __name__ == "__main__":
    size, folder, *few = sys.argv[1:]
    recipe = SCALES["default"].pretrained[size]
    if few:  # so many steps, to try it
        recipe = replace(recipe, steps=int(few[0]))
    if not load_corpus().reviews:  # of films, whose verdicts it would learn, too
        recipe = replace(recipe, verdicts=0)
    found = pretrain(recipe, Path(folder), on_step=show)
    print(pd.DataFrame(found["evaluations"]).to_string(index=False, float_format="{:.4g}".format))
    print(f"{size}: d = {found['d']:,}, {found['tokens']:,} tokens of {found['data']}; code {found['code']}")
