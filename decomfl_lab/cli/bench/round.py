"""``decomfl bench round``: how fast the engines are."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from decomfl_lab.cli.bench.shared import DEVICE, measuring, names, print_table
from decomfl_lab.engines.registry import ENGINES

__all__ = ["round_"]

ENGINES_ON_GPU = ("plain", "serial", "batched")
"""Engines that evaluate losses where a GPU has the model."""
_SHORT = {"mnist": "cnn-mnist", "fashion": "cnn-fashion"}


def round_(
    *,
    model: Annotated[str, typer.Option(help="Models to measure: mnist, fashion or both, joined by commas.")] = "mnist",
    batch: Annotated[int, typer.Option(help="Examples in a client's batch.")] = 256,
    clients: Annotated[int, typer.Option(help="Number m of sampled clients.")] = 10,
    perturbations: Annotated[int, typer.Option(help="Number P of directions.")] = 20,
    engine: Annotated[
        str | None,
        typer.Option(
            help=f"Engines to measure: {', '.join(ENGINES)}. [default: all, on a GPU {', '.join(ENGINES_ON_GPU)}]"
        ),
    ] = None,
    device: DEVICE = "cpu",
    repeats: Annotated[int, typer.Option(help="Runs of each engine, in turns; the fastest counts.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Time the passes of a round with every engine against the usual way, in one process.

    A round is one local step of all sampled clients, by default of the paper's sizes, noise and losses included:
    with central differences (2P forward passes), or by gradient projection (one forward and one backward pass and P
    products), as a kernel (fused) and by torch's autograd (serial). It takes about three minutes on 2 cores, and
    seconds with --batch 32 --perturbations 2. The usual way ("in place") is that of MeZO and the authors' code:
    client after client, z by torch.Generator and randn and added in place, the batch in one forward pass, torch's own
    threads. "of peak" is the share of the best float32 matrix product of this run, on all threads. "scalar error" is
    the largest |g - g_ref| over the root mean square of g_ref, whose losses or gradients are float64.
    """
    from decomfl_lab.bench.round import EngineRow, engine_rows
    from decomfl_lab.devices import find_device

    place = find_device(device)
    able = ENGINES_ON_GPU if place.type == "cuda" else tuple(ENGINES)
    models, engines = names("model", model, _SHORT), names("engine", engine or ",".join(able), ENGINES)
    rows: list[EngineRow] = []
    with measuring() as bars:
        task = bars.add_task("measuring", total=len(models))
        for name in models:
            sizes = {"batch": batch, "clients": clients, "P": perturbations, "repeats": repeats}
            rows += engine_rows(_SHORT[name], **sizes, engines=engines, device=place.type)
            bars.advance(task)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    title = f"A round of {clients} clients, batch {batch}, P = {perturbations}, {rows[0].device}"
    table = [
        {
            "model": row.model,
            "engine": row.engine,
            "estimator": row.estimator,
            "s": f"{row.seconds:.3f}",
            "µs/image": f"{row.us_per_image:.1f}",
            "ratio": f"{row.ratio:.2f}",
            "GFLOP/s": f"{row.gflops:.1f}",
            "of peak": f"{row.peak_share:.0%}",
            "scalar error": f"{row.scalar_error:.1e}",
        }
        for row in rows
    ]
    print_table(title, table, words=3, width=120)
