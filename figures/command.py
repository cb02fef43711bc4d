"""``decomfl plot``: curves of runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from decomfl_lab.cli.command import command
from decomfl_lab.errors import plural, printable, require
from decomfl_lab.options import REQUIRED, option
from decomfl_lab.runs.folder import CONFIG_FILE, FoundRun, found_runs
from decomfl_lab.storage.files import require_picture, save_picture

if TYPE_CHECKING:
    import pandas as pd

APART = ("seed", "rounds", "eval_every")  # options that tell no two curves apart: seeds are averaged


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """The options of ``decomfl plot``."""

    runs: tuple[Path, ...] = option(REQUIRED, "", argument=True)
    out: Path = option(Path("curves.png"), "The picture, which is replaced: .png, .svg or .pdf.")
    x: str = option("rounds", "The x-axis: rounds, bytes, scalars or seconds.")
    y: str = option("accuracy", "The y-axis: accuracy or loss.")


@command
def plot(options: PlotOptions) -> None:
    """Draw the curves of runs, named by what differs between them.

    RUNS are folders of `decomfl train --out`, or folders that have such folders. Runs that differ in their seed alone
    are one curve, their mean with a band.

      decomfl plot runs/first
      decomfl plot runs --x bytes --out curves.svg
      decomfl plot runs/a runs/b --y loss
    """
    require_picture(options.out, "out")
    every = found_runs(options.runs)
    for each in every:
        if remark := each.trouble or each.remark:
            print(printable(f"{each.folder}: {remark}"), file=sys.stderr)
    found = [each for each in every if each.rows]
    require(bool(found), "runs", "be folders with runs that have rows", ", ".join(map(str, options.runs)))
    from figures.runs import run_curves

    save_picture(run_curves(curves_of(found), x=options.x, y=options.y), options.out)
    print(f"{plural(len(found), 'run')} drawn to {options.out}")


def curves_of(found: Sequence[FoundRun]) -> pd.DataFrame:
    """The rows of the runs, with label, seed and the bytes of a client."""
    import pandas as pd

    from figures.layout import require_columns

    # A label a run: the options that differ between runs that have them, and the folder where runs are all alike.
    for each in found:
        require(bool(each.config), "run", f"have a {CONFIG_FILE}", str(each.folder))
    names = dict.fromkeys(name for each in found for name in each.config)
    known = [name for name in names if name not in APART]
    values = {name: {repr(each.config[name]) for each in found if name in each.config} for name in known}
    differing = [name for name in known if len(values[name]) > 1]
    labels = []
    for each in found:  # the method's name alone, others as name = value without a break
        named = [(name, each.config[name]) for name in differing or ["method"] if name in each.config]
        words = [str(value) if name == "method" else f"{name}\u00a0=\u00a0{value}" for name, value in named]
        labels.append(", ".join(words))
    of_runs = [(label, each.config.get("seed")) for label, each in zip(labels, found, strict=True)]
    frames = []
    for n, each in enumerate(found):
        label = labels[n] if of_runs.count(of_runs[n]) == 1 else f"{labels[n]} ({each.folder})"
        frames.append(pd.DataFrame(each.rows).assign(label=label, seed=each.config.get("seed", 0), run=n))
    rows = pd.concat(frames, ignore_index=True)
    require_columns("rows of the runs", rows, ["wire_scalars"])
    return rows.assign(client_bytes=4 * rows["wire_scalars"])
