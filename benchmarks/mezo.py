"""``decomfl bench mezo``: a step of ``decomfl_lab.optim.MeZO`` beside MeZO's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mould import BenchmarkError, BenchmarkRow, benchmark, column
from benchmarks.ways import IN_PLACE
from benchmarks.ways.clock import in_turns
from decomfl_lab.errors import require_int
from decomfl_lab.options import option

__all__ = ["MezoOptions", "MezoRow", "mezo"]

LR, MU = 1e-4, 1e-3
_APART = 1e-3
"""The largest difference of two losses that rounding explains, in their unit."""


@dataclass(frozen=True, kw_only=True)
class MezoOptions:
    """The options of ``decomfl bench mezo``."""

    model: str = option("opt-0.3m", "Language model: opt-0.3m to opt-125m with random weights, or a folder.")
    vocabulary: int = option(4096, "Number of tokens that an OPT with random weights knows.")
    task_data: str = option("", "The folder of SST-2's files, for a model of a folder; $DECOMFL_DATA/sst2 if empty.")
    trainer: Path | None = option(None, "MeZO's large_models/trainer.py, whose step is then run as it stands.")
    batch_size: int = option(16, "Prompts in a batch.")
    steps: int = option(50, "Steps whose losses are compared, and which the log has.")
    repeats: int = option(7, "Steps of each way that are timed, in turns; the fastest counts.")
    threads: int = option(1, "Number of CPU threads that torch uses.")
    memory: bool = option(True, "Measure peaks too.")
    memory_model: str = option("opt-15m", "The model whose peaks are measured.")


@dataclass(frozen=True, kw_only=True)
class MezoRow(BenchmarkRow):
    """What was measured of a way."""

    title = "A step of MeZO, P = 1: {model}, d = {d:,}, batch {batch_size}, {data}"
    model: str
    d: int
    data: str
    way: str = column("way")
    seconds: float = column("s a step", ".4f", "Seconds of the fastest step.")
    ratio: float = column("ratio", ".2f", "Speed beside the first row's.")
    apart: float = column("loss apart", ".1e", "The largest difference of a loss from the first row's, with equal z.")
    drift: float = column("drift", ".1e", "The largest |x - x_0| after as many steps with a learning rate of 0.")
    peak_models: float | None = column(
        "peak models", ".3f", "Peak resident memory of a step, in models of --memory-model."
    )
    log_bytes: float | None = column("log, bytes a step", ".0f", "What a step adds to the log, which is replayed.")


@benchmark()
def mezo(options: MezoOptions) -> Iterator[MezoRow]:
    """Time a step of decomfl_lab.optim.MeZO, and compare its losses with those of MeZO's way.

    In place is MeZO's way, written anew: x is moved by torch's normal numbers to both points and back. With --trainer
    the step of MeZO's own trainer is run, too. Losses are of the token of the answer, by the whole vocabulary.
    """
    from copy import deepcopy
    from functools import partial

    import torch

    import decomfl_lab as lab
    from benchmarks.ways import mezo as ways
    from benchmarks.ways.language import RANDOM
    from decomfl_lab.devices import use_threads_

    use_threads_(options.threads)
    for name in ("batch_size", "steps", "repeats"):
        require_int(name, getattr(options, name), 1)
    module = ways.loaded(options.model, options.vocabulary)
    known = options.model in RANDOM
    batches = (
        ways.random(options.vocabulary, options.batch_size)
        if known
        else ways.sst2(options.model, options.task_data, options.batch_size)
    )
    batches = [batches[n % len(batches)] for n in range(options.steps)]
    chosen = [IN_PLACE, *([ways.THEIRS] if options.trainer else []), ways.OBJECT, ways.LOGGED]

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "run.dcl")
        losses = {}
        for way in chosen:
            same = ways.stepping(way, deepcopy(module), LR, MU, trainer=options.trainer, same_z=True)
            losses[way] = list(map(same, batches))
        logged = deepcopy(module)
        optimizer, step = ways.ours(logged, LR, MU, log)
        step(batches[0])
        first = log.stat().st_size
        for inputs in batches[1:]:
            step(inputs)
        each = (log.stat().st_size - first) / max(1, len(batches) - 1)
        optimizer.seal()
        again = lab.replay(log, module)
        pairs = zip(again.model.parameters(), logged.parameters(), strict=True)
        if not (again.agrees and all(torch.equal(a, b) for a, b in pairs)):
            raise BenchmarkError("the log does not give the trained weights to the bit")
        timed = {way: ways.stepping(way, deepcopy(module), LR, MU, trainer=options.trainer) for way in chosen[:-1]}
        timed[ways.LOGGED] = ways.ours(deepcopy(module), LR, MU, Path(folder, "timed.dcl"))[1]
        seconds = in_turns({way: partial(own, batches[0]) for way, own in timed.items()}, options.repeats + 1)

    for way in chosen:
        apart = max(abs(a - b) for a, b in zip(losses[way], losses[IN_PLACE], strict=True))
        model, size = options.memory_model, options.vocabulary
        yield MezoRow(
            model=options.model if known else Path(options.model).name,
            d=sum(p.numel() for p in module.parameters()),
            data="random prompts" if known else "SST-2",
            way=way,
            seconds=seconds[way],
            ratio=seconds[IN_PLACE] / seconds[way],
            apart=apart,
            drift=ways.drift(way, module, MU, batches, options.trainer),
            peak_models=ways.peak_apart(model, size, way, options.trainer) if options.memory else None,
            log_bytes=each if way == ways.LOGGED else None,
        )
        if apart > _APART:
            raise BenchmarkError(f"{way} has other losses than {IN_PLACE}, by {apart:.1e}")
