"""``decomfl export``: the trained model, for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from decomfl_lab.cli.command import command
from decomfl_lab.errors import require
from decomfl_lab.options import REQUIRED, option

__all__ = ["export"]


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of ``decomfl export``."""

    run: Path = option(REQUIRED, "", argument=True)
    out: Path = option(REQUIRED, "", argument=True)


@command
def export(options: ExportOptions) -> None:
    """Write a run's model as safetensors, or for transformers.

    RUN is a folder of `decomfl train --out`. OUT ends in .safetensors for a file of weights by parameter name; of a run
    that fine-tuned a language model it may be a new folder, which `from_pretrained` of transformers reads and
    `decomfl train --model` too. What lora added is merged.

      decomfl export runs/first digits.safetensors
      decomfl export runs/sst2 opt-sst2

    The data of the run must be available here, since the model's shape depends on them.
    """
    require(options.out.parent.is_dir(), "out", "be in a folder that exists", str(options.out))
    require(not options.out.is_dir(), "out", "be a file, or a folder that does not exist yet", str(options.out))
    from decomfl_lab.runs.export import export as write
    from decomfl_lab.runs.run import load_run

    loaded = load_run(options.run)
    write(loaded, options.out)
    print(f"written to {options.out}: the model after {loaded.round} of {loaded.config.rounds} rounds")
