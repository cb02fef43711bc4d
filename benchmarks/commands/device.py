"""``decomfl bench device``: a device's bits and its speed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.commands.shared import Rows, measuring, print_tables
from decomfl_lab.cli.command import command
from decomfl_lab.cli.drawing import drawing
from decomfl_lab.noise import Distribution
from decomfl_lab.options import option

if TYPE_CHECKING:
    from benchmarks.language_round import LlmRow
    from benchmarks.rebuild import Row
    from benchmarks.round import EngineRow

__all__ = ["device", "device_ratios"]


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


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """The options of ``decomfl device``."""

    device: str = option("auto", "cpu, cuda or auto.")
    model: str | None = option(None, "Language model, named as for llm-round. [default: opt-125m, on the CPU opt-0.3m]")
    plot: Path | None = option(None, "Draw the ratios to this file (.png, .pdf, .svg).")
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


@command
def device(options: DeviceOptions) -> None:
    """Check a device's bits against the CPU's, and time it.

    It is timed against the usual way on the same device.

    First comes what must be exact: directions of every distribution at odd sizes and at offsets beyond 2^32, and
    replays of short runs of every rule, precision and grid; on the CPU itself the fast backend is checked against the
    reference. If a bit differs, nothing is timed and the exit code is 1. Then come ratios: rebuilds (against randn +
    add_), rounds of the CNNs by differences and by projection, and of a language model (against the way of MeZO and
    the authors' code), in float32 without TF32. On the CPU everything is small: the bits matter there, not the ratios.
    """
    import pandas as pd

    from benchmarks.language_round import llm_rows
    from benchmarks.rebuild import Setting, rebuild_rows
    from benchmarks.round import engine_rows
    from decomfl_lab.devices import describe, find_device
    from decomfl_lab.laws.devices import Check, checks

    draw = drawing("device-ratios", options.plot) if options.plot is not None else None
    place = find_device(options.device)
    extent = _EXTENTS[place.type]
    llm = extent.llm | ({"model": options.model} if options.model is not None else {})
    settings = [
        Setting(z, size, lag, 1, device=place.type)
        for z, size, lag in product((Distribution.GAUSSIAN, Distribution.RADEMACHER), extent.d, extent.pairs)
    ]
    bits: list[Check] = []
    rebuilds: list[Row] = []
    rounds: list[EngineRow] = []
    language: list[LlmRow] = []
    with measuring() as bars:
        task = bars.add_task("bits", total=None)
        for check in checks(place):
            bits.append(check)
            bars.update(task, description=check.what)
        if all(check.holds for check in bits):
            bars.update(task, description="rebuilds")
            rebuilds = [row for group in rebuild_rows(settings) for row in group]
            for name in extent.models:
                bars.update(task, description=f"rounds of {name}")
                rounds += engine_rows(name, **extent.round, engines=("batched",), device=place.type)
            bars.update(task, description=f"rounds of {llm['model']}")
            language = list(llm_rows(**llm, ways=("serial", "auto", "lean"), memory=False, device=place.type))
    ratios = device_ratios(rebuilds, rounds, language)
    if draw is not None and ratios:
        draw(pd.DataFrame(ratios), device=describe(place))
    agreed = {"what": "{what}", "cases": "{cases}", "equal to the bit": "{equal}"}
    tables = [Rows(f"Bits: {describe(place)} beside the CPU", [check.to_dict() for check in bits], agreed)]
    columns = {"what": "{what}", "how": "{how}", "seconds": "{seconds:.3g}", "ratio": "{ratio:.2f}"}
    columns["of limit"] = "{of limit:.0%}"
    if ratios:
        tables.append(Rows("Times, and ratios to the usual way on the same device", ratios, columns, words=2))
    print_tables(*tables, width=120, as_json=options.as_json)
    if differing := [check.what for check in bits if not check.holds]:
        print(f"bits differ: {'; '.join(differing)}; nothing was timed", file=sys.stderr)
        raise click.exceptions.Exit(1)


def device_ratios(
    rebuilds: Sequence[Row], rounds: Sequence[EngineRow], language: Sequence[LlmRow]
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
