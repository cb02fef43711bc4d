"""``decomfl bench round``: how fast the engines are."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from benchmarks.commands.shared import Rows, measured, names, print_tables
from decomfl_lab.cli.command import command
from decomfl_lab.engines.registry import ENGINES
from decomfl_lab.options import option

__all__ = ["round_"]

ENGINES_ON_GPU = ("plain", "serial", "batched")
"""Engines that evaluate losses where a GPU has the model."""
_SHORT = {"mnist": "cnn-mnist", "fashion": "cnn-fashion"}


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """The options of ``decomfl round``."""

    model: str = option("mnist", "Models to measure: mnist, fashion or both, joined by commas.")
    batch: int = option(256, "Examples in a client's batch.")
    clients: int = option(10, "Number m of sampled clients.")
    perturbations: int = option(20, "Number P of directions.")
    engine: str | None = option(
        None, f"Engines to measure: {', '.join(ENGINES)}. [default: all, on a GPU {', '.join(ENGINES_ON_GPU)}]"
    )
    device: str = option("cpu", "cpu, cuda or auto. [default: cpu]")
    repeats: int = option(2, "Runs of each engine, in turns; the fastest counts.")
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


@command
def round_(options: RoundOptions) -> None:
    """Time the passes of a round with every engine.

    They are timed against the usual way, in one process.

    A round is one local step of all sampled clients, by default of the paper's sizes, noise and losses included:
    with central differences (2P forward passes), or by gradient projection (one forward and one backward pass and P
    products), as a kernel (fused) and by torch's autograd (serial). It takes about three minutes on 2 cores, and
    seconds with --batch 32 --perturbations 2. The usual way ("in place") is that of MeZO and the authors' code:
    client after client, z by torch.Generator and randn and added in place, the batch in one forward pass, torch's own
    threads. "of peak" is the share of the best float32 matrix product of this run, on all threads; operations are
    counted as layers are defined, and fused convolutions need fewer, so that it passes 100%. "scalar error" is the
    largest |g - g_ref| over the root mean square of g_ref, whose losses or gradients are float64.
    """
    from benchmarks.round import engine_rows
    from decomfl_lab.devices import find_device

    place = find_device(options.device)
    able = ENGINES_ON_GPU if place.type == "cuda" else tuple(ENGINES)
    models, engines = names("model", options.model, _SHORT), names("engine", options.engine or ",".join(able), ENGINES)
    sizes = {"batch": options.batch, "clients": options.clients, "P": options.perturbations, "repeats": options.repeats}
    each = (list(engine_rows(_SHORT[name], **sizes, engines=engines, device=place.type)) for name in models)
    rows = [row for own in measured(each, len(models)) for row in own]
    title = (
        f"A round of {options.clients} clients, batch {options.batch}, P = {options.perturbations}, {rows[0].device}"
    )
    columns = {
        "model": "{model}",
        "engine": "{engine}",
        "estimator": "{estimator}",
        "s": "{seconds:.3f}",
        "µs/image": "{us_per_image:.1f}",
        "ratio": "{ratio:.2f}",
        "GFLOP/s": "{gflops:.1f}",
        "of peak": "{peak_share:.0%}",
        "scalar error": "{scalar_error:.1e}",
    }
    print_tables(Rows(title, [asdict(row) for row in rows], columns, words=3), width=120, as_json=options.as_json)
