"""``decomfl export``: the trained model, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decomfl_lab.errors import require

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(show_default=False)],
    out: Annotated[Path, typer.Argument(show_default=False)],
) -> None:
    """Write a run's model as safetensors, or for transformers.

    RUN is a folder of `decomfl train --out`. OUT ends in .safetensors for a file of weights by parameter name; of a run
    that fine-tuned a language model it may be a new folder, which `from_pretrained` of transformers reads and
    `decomfl train --model` too. What lora added is merged.

      decomfl export runs/first digits.safetensors
      decomfl export runs/sst2 opt-sst2

    The data of the run must be at hand, since the model's shape depends on them.
    """
    require(out.parent.is_dir(), "out", "be in a folder that exists", str(out))
    require(not out.is_dir(), "out", "be a file, or a folder that does not exist yet", str(out))
    from decomfl_lab.runs.export import export as write
    from decomfl_lab.runs.run import load_run

    loaded = load_run(run)
    write(loaded, out)
    print(f"written to {out}: the model after {loaded.round} of {loaded.config.rounds} rounds")
