"""``decomfl bench round``: how fast are the passes of a round? Every engine against the usual way, in one run."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.mould import HELPS, BenchmarkRow, benchmark, column, names
from benchmarks.ways import IN_PLACE
from benchmarks.ways.clock import in_turns
from decomfl_lab.engines.registry import ENGINES, make_engine
from decomfl_lab.errors import require_possible
from decomfl_lab.options import option

_HELP = HELPS["round"]
_ON_GPU = ("plain", "serial", "batched")  # engines that evaluate losses where a GPU has the model
_PROJECTING = ("fused", "batched", "serial")
"""Engines that are measured by gradient projection too: the kernel, the batched pass, and torch's autograd."""
_MODELS = {"mnist": "cnn-mnist", "fashion": "cnn-fashion"}
_CHECKED = 2  # directions whose scalars are compared with those of float64


@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """The options of ``decomfl bench round``."""

    model: str = option("mnist", "Models to measure: mnist, fashion or both, joined by commas.")
    batch: int = option(256, "Examples in a client's batch.", ge=1)
    clients: int = option(10, "Number m of sampled clients.", symbol="m", ge=1)
    perturbations: int = option(20, "Number P of directions.", symbol="P", ge=1)
    engine: str | None = option(None, _HELP["engine"].format(engines=", ".join(ENGINES), on_gpu=", ".join(_ON_GPU)))
    device: str = option("cpu", "cpu, cuda, cuda:N or auto. [default: cpu]")
    repeats: int = option(2, "Runs of each engine, in turns; the fastest counts.", ge=1)


@dataclass(frozen=True, kw_only=True)
class RoundRow(BenchmarkRow):
    """What was measured: one local step of all sampled clients."""

    title = "A round of {clients} clients, batch {batch}, P = {directions}, {device}"
    model: str = column("model")
    engine: str = column("engine")
    estimator: str = column("estimator")  # "central" (differences) or "projection"
    batch: int
    clients: int
    directions: int
    threads: int  # torch's number of threads
    device: str
    seconds: float = column("s", ".3f", "Seconds of the fastest of the repeated runs.")
    ratio: float = column("ratio", ".2f")
    scalar_error: float = column("scalar error", ".1e", _HELP["scalar_error"])


def quoted(rows: Sequence[RoundRow], _: object) -> tuple[str, str] | None:
    """What the README says: central differences by the engine that a run takes by itself."""
    row = next((row for row in rows if (row.engine, row.estimator) == ("auto", "central")), None)
    if row is None:
        return None
    return (
        f"a round of {row.clients} clients, CNN, P = {row.directions}",
        f"{row.ratio:.1f} times the speed of the authors' way",
    )


@benchmark(quoted)
def round_(options: RoundOptions) -> Iterator[RoundRow]:
    """Time the passes of a round with every engine.

    They are timed against the usual way, in one process.

    A round is one local step of all sampled clients, by default of the paper's sizes, noise and losses included:
    with central differences (2P forward passes), or by gradient projection (one forward and one backward pass and P
    products), as a kernel (fused) and by torch's autograd (serial). It takes about three minutes on 2 cores, and
    seconds with --batch 32 --perturbations 2. The usual way ("in place") is that of MeZO and the authors' code:
    client after client, z by torch.Generator and randn and added in place, the batch in one forward pass, torch's own
    threads.
    """
    import torch

    from benchmarks.ways.mezo import scalar_error
    from benchmarks.ways.step import EngineStep
    from decomfl_lab.devices import describe, find_device, use_tf32_

    place = find_device(options.device)
    models = names("model", options.model, _MODELS)
    able = _ON_GPU if place.type == "cuda" else tuple(ENGINES)
    engines = names("engine", options.engine, ENGINES) if options.engine is not None else able
    sizes = options.batch, options.clients, options.perturbations, options.repeats
    require_possible("batch, clients, P and repeats", sizes, operations=1e5 * math.prod(sizes))
    pixels = options.batch * options.clients * 28 * 28
    require_possible("batch and clients", (options.batch, options.clients), memory=4.0 * pixels)
    use_tf32_(False)
    m, batch, P = options.clients, options.batch, options.perturbations
    for model in models:
        # A row for the usual way, for every engine, and by projection for those of ``_PROJECTING``.
        step, few = (EngineStep(_MODELS[model], batch, m, directions, place) for directions in (P, min(P, _CHECKED)))
        ways = {(IN_PLACE, "central"): EngineStep.in_place}
        for name in engines:
            ways[name, "central"] = partial(EngineStep.scalars, engine=make_engine(name))
        for name in engines:
            if name in _PROJECTING:
                ways[name, "projection"] = partial(EngineStep.slopes, engine=make_engine(name))
        # Every way first measures a few directions, which are compared with float64. After that its code is warm.
        right = {"central": few.reference(), "projection": few.wide_slopes()}
        errors = {way: scalar_error(measure(few), right[way[1]]) for way, measure in ways.items()}
        errors[IN_PLACE, "central"] = scalar_error(few.in_place(), few.in_place(torch.float64))  # its own directions
        runs = {way: partial(measure, step) for way, measure in ways.items()}
        seconds = in_turns(runs, options.repeats)
        for way, taken in seconds.items():
            yield RoundRow(
                model=_MODELS[model],
                engine=way[0],
                estimator=way[1],
                batch=batch,
                clients=m,
                directions=P,
                threads=torch.get_num_threads(),
                device=describe(place),
                seconds=taken,
                ratio=seconds[IN_PLACE, "central"] / taken,
                scalar_error=errors[way],
            )
