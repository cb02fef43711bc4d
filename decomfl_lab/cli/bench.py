"""``decomfl bench``: how fast and how good, measured on this machine in one run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from decomfl_lab.bench import rebuild as measuring
from decomfl_lab.bench.device import Check, checks
from decomfl_lab.bench.language_round import WAYS, LlmRow, llm_rows
from decomfl_lab.bench.memory import ROLES, memory_rows
from decomfl_lab.bench.moments import stream_statistics
from decomfl_lab.bench.round import EngineRow, engine_rows
from decomfl_lab.cli.drawing import drawing, plot_option
from decomfl_lab.cli.layers import contributions
from decomfl_lab.cli.numbers import integer
from decomfl_lab.devices import describe, find_device
from decomfl_lab.engines.registry import ENGINES
from decomfl_lab.errors import InputError, require, require_choice, require_int
from decomfl_lab.files import write_atomically
from decomfl_lab.language.opt import SIZES
from decomfl_lab.noise import Distribution

__all__ = ["bench"]

bench = typer.Typer(
    help="Measure on this machine: rebuild, round and llm-round (speed), device (bits and speed of a GPU), moments "
    "(is the stream random?), memory (of both sides), kappa (error and coverage for how many products), coverage (does "
    "its interval hold?).",
    rich_markup_mode=None,
    no_args_is_help=True,
)

_DEVICE = Annotated[str, typer.Option(help="cpu, cuda or auto. [default: cpu]", show_default=False)]
_D = (28_938, 1_206_590, 125_000_000)
_PAIRS = (1, 10, 100, 1000)
_MOST_WORK = 1.3e10
"""Elements times pairs beyond which a default row is left out: 10⁹ take about a second and worker."""


def _numbers(option: str, text: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    """Comma-separated positive integers."""
    if text is None:
        return default
    try:
        return tuple(map(integer, text.split(",")))
    except ValueError:
        raise InputError(f"{option} must be integers separated by commas, got {text!r}") from None


def _names(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(require_choice(option, part, known) for part in text.split(","))


@bench.command()
def rebuild(
    *,
    d: Annotated[str | None, typer.Option(help="Model sizes. [default: 28938,1206590,125000000]")] = None,
    pairs: Annotated[str | None, typer.Option(help="Missed directions. [default: 1,10,100,1000]")] = None,
    workers: Annotated[str, typer.Option(help="CPU threads. [default: 1,2]", show_default=False)] = "1,2",
    distribution: Annotated[
        str, typer.Option(help="[default: gaussian,sphere,rademacher]", show_default=False)
    ] = "gaussian,sphere,rademacher",
    dtype: Annotated[
        str, typer.Option(help="Of the model: float32, float64, bfloat16, float16.", show_default=False)
    ] = "float32",
    device: _DEVICE = "cpu",
    backend: Annotated[str | None, typer.Option(help="On the CPU: numba or numpy. [default: the fastest]")] = None,
    plot: Annotated[
        Path | None, plot_option("rebuild-speed", "Draw the ratios to this file (.png, .pdf, .svg).")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Time rebuilds against torch.Generator + randn + add_, side by side in one process.

    Every row is one lag of PAIRS directions applied to a model of D parameters in one pass. The ratio is to
    the plain way at whichever of one thread and torch's own number of threads is faster for it. "of limit" is
    the share of what this machine's measured instruction rate or memory bandwidth would allow. Peak memory is
    in models, the model itself included, for models of 16 MB and more. By default rows of more than 1.3e10
    elements times pairs are left out: name --d and --pairs to have them.
    """
    draw = drawing("rebuild-speed", plot) if plot is not None else None
    place = find_device(device).type
    sizes, lags = _numbers("d", d, _D), _numbers("pairs", pairs, _PAIRS)
    distributions = [Distribution(name) for name in _names("distribution", distribution, tuple(Distribution))]
    dtypes = _names("dtype", dtype, tuple(measuring.DTYPES))
    threads = _numbers("workers", workers, (1,)) if place == "cpu" else (1,)
    settings = [
        measuring.Setting(law, size, lag, count, kind, backend, place)
        for size, kind, law, lag, count in product(sizes, dtypes, distributions, lags, threads)
        if (d is not None and pairs is not None) or size * lag <= _MOST_WORK
    ]
    require(bool(settings), "d, pairs, distribution and workers", "leave at least one row", settings)
    rows: list[measuring.Row] = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("measuring", total=len(settings))
        for group in measuring.rebuild_rows(settings):
            rows += group
            bars.advance(task, len(group))
    frame = pd.DataFrame([asdict(row) for row in rows])
    if csv is not None:
        write_atomically(csv, frame.to_csv(index=False).encode())
    if draw is not None:
        draw(frame)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    table = Table(title="Rebuild against torch.Generator + randn + add_", title_justify="left")
    heads = ("distribution", "backend", "dtype", "d", "pairs", "workers", "ns/(element·pair)", "plain ns", "ratio")
    for head in (*heads, "of limit", "peak models", "plain peak"):
        table.add_column(head, justify="left" if head in heads[:3] else "right")
    for row in rows:
        table.add_row(
            row.distribution,
            row.backend,
            row.dtype,
            f"{row.d:,}",
            str(row.pairs),
            str(row.workers),
            f"{row.ns_per_element_pair:.3f}",
            f"{row.plain_ns:.2f}",
            f"{row.ratio:.1f}",
            f"{row.share_of_limit:.0%} {row.limited_by}",
            "–" if row.peak_models is None else f"{row.peak_models:.3f}",
            "–" if row.plain_peak_models is None else f"{row.plain_peak_models:.3f}",
        )
    Console(width=None if sys.stdout.isatty() else 150).print(table)


@bench.command()
def moments(
    *,
    draws: Annotated[
        float, typer.Option(help="Numbers to draw, 1e6 or more. [default: 1e8]", show_default=False)
    ] = 1e8,
    distribution: Annotated[
        str, typer.Option(help="[default: gaussian,sphere,rademacher]", show_default=False)
    ] = "gaussian,sphere,rademacher",
    seed: Annotated[int, typer.Option(help="Run key. [default: 0]", show_default=False)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Compare moments, tails and correlations of the stream with what they should be.

    Exit code 1 if one average is more than five standard errors away.
    """
    require(draws >= 1e6, "draws", "be at least 1e6", draws)
    rows = []
    started = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        for name in _names("distribution", distribution, tuple(Distribution)):
            task = bars.add_task(name, total=int(draws))

            def show(done: int, task: TaskID = task) -> None:
                bars.update(task, completed=done)

            for at in stream_statistics(Distribution(name), int(draws), seed=seed, on_draws=show):
                rows.append({"distribution": name, **asdict(at), "deviation": at.deviation})
    worst = max(abs(float(row["deviation"])) for row in rows)
    if as_json:
        print(json.dumps(rows))
    else:
        table = Table(title=f"Averages over the stream (seed {seed}, {time.monotonic() - started:.0f} s)")
        for head in ("distribution", "average of", "draws", "value", "expected", "standard error", "deviation"):
            table.add_column(head, justify="left" if head in ("distribution", "average of") else "right")
        for row in rows:
            table.add_row(
                row["distribution"],
                row["name"],
                f"{row['draws']:,}",
                f"{row['value']:.7f}",
                f"{row['expected']:.7f}",
                f"{row['standard_error']:.1e}",
                f"{row['deviation']:+.2f}",
            )
        Console(width=None if sys.stdout.isatty() else 130).print(table)
        print(f"largest deviation: {worst:.2f} standard errors")
    if worst > 5:
        raise typer.Exit(1)


@bench.command()
def memory(
    *,
    d: Annotated[
        str, typer.Option(help="Model sizes. [default: 1e5,1e6,1e7,1e8]", show_default=False)
    ] = "1e5,1e6,1e7,1e8",
    role: Annotated[str, typer.Option(help=f"Of {', '.join(ROLES)}. [default: all]", show_default=False)] = ",".join(
        ROLES
    ),
    resident: Annotated[bool, typer.Option("--resident", help="Measure resident memory too, from 16 MB on.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Measure what server and client need for a round, in models, each in a process of its own.

    The model has eight equal layers: φ, the largest, is d/8. Peaks are of mapped memory, every vector being a mapping
    of its own, to the page of 4 KiB and without sampling; the model is in them.
    """
    sizes, roles = _numbers("d", d, ()), _names("role", role, tuple(ROLES))
    rows = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("measuring", total=len(sizes) * len(roles))
        for row in memory_rows(sizes, roles, resident=resident):
            rows.append(row)
            bars.advance(task)
    if as_json:
        print(json.dumps([{**asdict(row), "peak_models": row.peak_models} for row in rows]))
        return
    table = Table(title="Peak memory of a round, in models", title_justify="left")
    heads = ("role", "what", "d", "expected", "peak", *(["resident"] if resident else []))
    for head in heads:
        table.add_column(head, justify="left" if head in ("role", "what") else "right")
    for row in rows:
        peaks = (row.peak_models, *([row.resident_models] if resident else []))
        shown = ("–" if peak is None else f"{peak:.3f}" for peak in peaks)
        table.add_row(row.role, row.what, f"{row.d:,}", f"{row.expected:.3f}", *shown)
    Console(width=None if sys.stdout.isatty() else 130).print(table)


ENGINES_ON_GPU = ("plain", "serial", "batched")
"""Engines that evaluate losses where a GPU has the model."""
_SHORT = {"mnist": "cnn-mnist", "fashion": "cnn-fashion"}


@bench.command(name="round")
def round_(
    *,
    model: Annotated[str, typer.Option(help="Models to measure, of mnist and fashion, joined by commas.")] = "mnist",
    batch: Annotated[int, typer.Option(help="Examples a client.")] = 256,
    clients: Annotated[int, typer.Option(help="Sampled clients m.")] = 10,
    perturbations: Annotated[int, typer.Option(help="Directions P.")] = 20,
    engine: Annotated[
        str | None,
        typer.Option(
            help=f"Of {', '.join(ENGINES)}. [default: all, on a GPU {', '.join(ENGINES_ON_GPU)}]", show_default=False
        ),
    ] = None,
    device: _DEVICE = "cpu",
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
    place = find_device(device)
    able = ENGINES_ON_GPU if place.type == "cuda" else tuple(ENGINES)
    models, engines = _names("model", model, tuple(_SHORT)), _names("engine", engine or ",".join(able), tuple(ENGINES))
    rows: list[EngineRow] = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("measuring", total=len(models))
        for name in models:
            sizes = {"batch": batch, "clients": clients, "P": perturbations, "repeats": repeats}
            rows += engine_rows(_SHORT[name], **sizes, engines=engines, device=place.type)
            bars.advance(task)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    title = f"A round of {clients} clients, batch {batch}, P = {perturbations}, {rows[0].device}"
    table = Table(title=title, title_justify="left")
    for head in ("model", "engine", "estimator", "s", "µs/image", "ratio", "GFLOP/s", "of peak", "scalar error"):
        table.add_column(head, justify="left" if head in ("model", "engine", "estimator") else "right")
    for row in rows:
        table.add_row(
            row.model,
            row.engine,
            row.estimator,
            f"{row.seconds:.3f}",
            f"{row.us_per_image:.1f}",
            f"{row.ratio:.2f}",
            f"{row.gflops:.1f}",
            f"{row.peak_share:.0%}",
            f"{row.scalar_error:.1e}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


@bench.command(name="llm-round")
def llm_round(
    *,
    model: Annotated[
        str,
        typer.Option(help=f"Of {', '.join(SIZES)} (random weights), or a model's folder or name.", show_default=False),
    ] = "opt-0.3m",
    vocabulary: Annotated[int, typer.Option(help="Tokens of a model with random weights.")] = 4096,
    batch_size: Annotated[int, typer.Option(help="Prompts a client.")] = 32,
    clients: Annotated[int, typer.Option(help="Sampled clients m.")] = 2,
    perturbations: Annotated[int, typer.Option(help="Directions P.")] = 5,
    way: Annotated[str, typer.Option(help=f"Of {', '.join(WAYS)}. [default: all]", show_default=False)] = ",".join(
        WAYS
    ),
    threads: Annotated[int, typer.Option(help="CPU threads of torch.")] = 1,
    device: _DEVICE = "cpu",
    repeats: Annotated[int, typer.Option(help="Rounds of each way, in turns; the fastest counts.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure peaks too, of models of 16 MB and more.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Time a round that fine-tunes a language model against the usual way, in one process.

    A round is one local step of all sampled clients with central differences, noise, losses and update included, on
    random tokens in prompts as long as SST-2's. The usual way ("in place") is that of MeZO and the authors' code:
    client after client, z by torch's randn, a tensor at a time, added in place and taken back; batches in no order,
    padded to their longest; logits of the whole vocabulary at every position. "scalar error" is the largest
    |g - g_ref| over the root mean square of g_ref, whose losses are float64. Peaks are of resident memory, in models
    and with the client's own, on a prompt of two tokens, each in a process of its own.
    """
    torch.set_num_threads(require_int("threads", threads, 1))
    rows: list[LlmRow] = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("measuring", total=None)
        for row in llm_rows(
            model,
            vocabulary=vocabulary,
            batch=batch_size,
            clients=clients,
            P=perturbations,
            repeats=repeats,
            ways=_names("way", way, tuple(WAYS)),
            memory=memory,
            device=device,
        ):
            rows.append(row)
            bars.advance(task)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    title = (
        f"A round, m = {clients}: {rows[0].model}, d = {rows[0].d:,}, batch {batch_size} of {rows[0].tokens:.1f} "
        f"tokens on average, P = {perturbations}, central, {rows[0].device}"
    )
    table = Table(title=title, title_justify="left")
    for head in ("way", "s a round", "losses/s", "ratio", "scalar error", "peak models"):
        table.add_column(head, justify="left" if head == "way" else "right")
    for row in rows:
        table.add_row(
            row.way,
            f"{row.seconds:.3f}",
            f"{row.forwards:.1f}",
            f"{row.ratio:.2f}",
            f"{row.scalar_error:.1e}",
            "–" if row.peak_models is None else f"{row.peak_models:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


@dataclass(frozen=True)
class _Extent:
    """How much ``bench device`` measures."""

    d: tuple[int, ...]
    pairs: tuple[int, ...]
    models: tuple[str, ...]
    round: dict[str, int]
    llm: dict[str, Any]


_EXTENTS = {
    "cuda": _Extent(
        d=(1_206_590, 125_000_000, 1_000_000_000),
        pairs=(1, 10, 100),
        models=("cnn-mnist", "cnn-fashion"),
        round={"batch": 256, "clients": 10, "P": 20},
        llm={"model": "opt-125m", "vocabulary": 50_272, "batch": 32, "clients": 2, "P": 5},
    ),
    "cpu": _Extent(
        d=(28_938, 1_206_590),
        pairs=(1, 100),
        models=("cnn-mnist",),
        round={"batch": 32, "clients": 2, "P": 5},
        llm={"model": "opt-0.3m", "vocabulary": 4096, "batch": 8, "clients": 2, "P": 2},
    ),
}


@bench.command()
def device(
    *,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto. [default: auto]", show_default=False)] = "auto",
    model: Annotated[
        str | None,
        typer.Option(
            help="Language model: as of llm-round. [default: opt-125m, on the CPU opt-0.3m]", show_default=False
        ),
    ] = None,
    plot: Annotated[
        Path | None, plot_option("device-ratios", "Draw the ratios to this file (.png, .pdf, .svg).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Check a device's bits against the CPU's, then time it against the usual way on the same device.

    First what must be exact: directions of every law at odd sizes and at offsets beyond 2^32, and replays of short
    runs of every rule, precision and grid; on the CPU itself the fast backend is checked against the reference. If a
    bit differs, nothing is timed and the exit code is 1. Then ratios: rebuilds (against randn + add_), rounds of the
    CNNs by differences and by projection, and of a language model (against the way of MeZO and the authors' code), in
    float32 without TF32. On the CPU everything is small: the bits matter there, not the ratios.
    """
    draw = drawing("device-ratios", plot) if plot is not None else None
    place = find_device(device)
    extent = _EXTENTS[place.type]
    llm = extent.llm | ({"model": model} if model is not None else {})
    settings = [
        measuring.Setting(law, size, lag, 1, device=place.type)
        for law, size, lag in product((Distribution.GAUSSIAN, Distribution.RADEMACHER), extent.d, extent.pairs)
    ]
    bits: list[Check] = []
    rebuilds: list[measuring.Row] = []
    rounds: list[EngineRow] = []
    language: list[LlmRow] = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("bits", total=None)
        for check in checks(place):
            bits.append(check)
            bars.update(task, description=check.what)
        if all(check.holds for check in bits):
            bars.update(task, description="rebuilds")
            rebuilds = [row for group in measuring.rebuild_rows(settings) for row in group]
            for name in extent.models:
                bars.update(task, description=f"rounds of {name}")
                rounds += engine_rows(name, **extent.round, engines=("batched",), device=place.type)
            bars.update(task, description=f"rounds of {llm['model']}")
            language = list(llm_rows(**llm, ways=("serial", "auto", "lean"), memory=False, device=place.type))
    ratios = device_ratios(rebuilds, rounds, language)
    if draw is not None and ratios:
        draw(pd.DataFrame(ratios), device=describe(place))
    if as_json:
        found: dict[str, Any] = {"device": describe(place), "bits": [check.to_dict() for check in bits]}
        found |= {"rebuild": list(map(asdict, rebuilds)), "round": list(map(asdict, rounds))}
        print(json.dumps(found | {"llm_round": list(map(asdict, language))}))
    else:
        table = Table(title=f"Bits: {describe(place)} beside the CPU", title_justify="left")
        for head in ("what", "cases", "equal to the bit"):
            table.add_column(head, justify="left" if head == "what" else "right")
        for check in bits:
            table.add_row(check.what, str(check.cases), str(check.equal))
        console = Console(width=None if sys.stdout.isatty() else 120)
        console.print(table)
        times = Table(title="Times, and ratios to the usual way on the same device", title_justify="left")
        for head in ("what", "how", "seconds", "ratio", "of limit"):
            times.add_column(head, justify="left" if head in ("what", "how") else "right")
        for row in ratios:
            limit = "–" if row["of limit"] is None else f"{row['of limit']:.0%}"
            times.add_row(row["what"], row["how"], f"{row['seconds']:.3g}", f"{row['ratio']:.2f}", limit)
        if ratios:
            console.print(times)
    if differing := [check.what for check in bits if not check.holds]:
        print(f"bits differ: {'; '.join(differing)}; nothing was timed", file=sys.stderr)
        raise typer.Exit(1)


def device_ratios(
    rebuilds: Sequence[measuring.Row], rounds: Sequence[EngineRow], language: Sequence[LlmRow]
) -> list[dict[str, Any]]:
    """What was timed, how, seconds, the ratio to the usual way, and the share of the device's limit where known."""
    found: list[dict[str, Any]] = []

    def add(what: str, how: str, seconds: float, ratio: float, limit: float | None) -> None:
        found.append({"what": what, "how": how, "seconds": seconds, "ratio": ratio, "of limit": limit})

    for row in rebuilds:
        seconds = 1e-9 * row.ns_per_element_pair * row.d * row.pairs
        directions = f"{row.pairs} {row.distribution} direction{'s' * (row.pairs > 1)}"
        add(f"rebuild, d = {row.d:,}", directions, seconds, row.ratio, row.share_of_limit)
    for step in rounds:
        add(f"round of {step.model}", f"{step.engine}, {step.estimator}", step.seconds, step.ratio, step.peak_share)
    for tuned in language:
        add(f"round of {tuned.model}, d = {tuned.d:,}", tuned.way, tuned.seconds, tuned.ratio, None)
    return found


for _name, _command in contributions("decomfl.benchmarks"):
    bench.command(_name)(_command)
