"""``decomfl bench device``: are a device's bits those of the CPU, and how fast is it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.llm_round import LlmRoundOptions, llm_round
from benchmarks.mould import BenchmarkError, BenchmarkRow, benchmark, column
from benchmarks.rebuild import RebuildOptions, rebuild
from benchmarks.round import RoundOptions, round_
from decomfl_lab.options import option

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BitsRow", "DeviceOptions", "RatioRow", "device", "ratio_bars"]


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """The options of ``decomfl bench device``."""

    device: str = option("auto", "cpu, cuda, cuda:N or auto.")
    model: str | None = option(None, "Language model, named as for llm-round. [default: opt-125m, on the CPU opt-0.3m]")


_ON_GPU = (
    RebuildOptions(d="1206590,125000000,1000000000", pairs="1,10,100", distribution="gaussian,rademacher"),
    RoundOptions(model="mnist,fashion", engine="batched"),
    LlmRoundOptions(model="opt-125m", vocabulary=50_272, way="serial,auto,lean", memory=False),
)
_ON_CPU = (
    RebuildOptions(d="28938,1206590", pairs="1,100", workers="1", distribution="gaussian,rademacher"),
    RoundOptions(batch=32, clients=2, perturbations=5, engine="batched"),
    LlmRoundOptions(batch_size=8, perturbations=2, way="serial,auto,lean", memory=False),
)
_MEASURED = {"cuda": _ON_GPU, "cpu": _ON_CPU}
"""What is timed on a device. On the CPU all is small."""


@dataclass(frozen=True, kw_only=True)
class BitsRow(BenchmarkRow):
    """A ``decomfl_lab.laws.devices.BitCheck``: a comparison of a device's bits with the CPU's."""

    title = "Bits: {device} beside the CPU"
    device: str
    what: str = column("what")
    cases: int = column("cases")
    equal: int = column("equal to the bit")
    holds: bool


@dataclass(frozen=True, kw_only=True)
class RatioRow(BenchmarkRow):
    """What was timed on a device."""

    title = "Times, and ratios to the usual way on the same device"
    device: str
    what: str = column("what")
    how: str = column("how")
    seconds: float = column("seconds", ".3g")
    ratio: float = column("ratio", ".2f")
    of_limit: float | None = column("of limit", ".0%", "The share of what the device would allow, where it is known.")


def ratio_bars(rows: Sequence[BenchmarkRow]) -> Figure:
    """Bars of the ratio to the usual way, one for each thing that was timed, on a logarithmic axis.

    Colour: what was timed. At each bar stand its ratio, its seconds and the share of the device's limit. The dotted
    line at 1 is the usual way, which has no bar.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from figures.style import OKABE_ITO, rc

    bars = [row for row in rows if isinstance(row, RatioRow) and row.ratio != 1.0]
    kinds = list(dict.fromkeys(row.what for row in bars))
    ratios = [row.ratio for row in bars]
    places = list(range(len(bars)))[::-1]  # the first is on top
    with matplotlib.rc_context(rc()):
        figure = Figure(figsize=(8.2, 1.1 + 0.27 * len(bars)))
        ax = figure.subplots()
        colors = [OKABE_ITO[kinds.index(row.what) % len(OKABE_ITO)] for row in bars]
        ax.barh(places, ratios, color=colors, height=0.72)
        for place, row in zip(places, bars, strict=True):
            share = "" if row.of_limit is None else f", {row.of_limit:.0%} of the limit"
            ax.annotate(
                f"{row.ratio:.1f}×  ({row.seconds:.2g} s{share})",
                (row.ratio, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
        ax.axvline(1.0, color="#57606A", linestyle=":", linewidth=1.0)
        ax.set_xscale("log")
        ax.set_xlim(min(0.5, 0.7 * min(ratios)), 30 * max(ratios))  # room for the words at the longest bar
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_yticks(places, [f"{row.what}: {row.how}" for row in bars])
        ax.set_xlabel("times faster than the usual way on the same device")
        ax.set_title(bars[0].device, loc="left")
        return figure


@benchmark(draw=ratio_bars)
def device(options: DeviceOptions) -> Iterator[BitsRow | RatioRow]:
    """Check a device's bits against the CPU's, and time it.

    It is timed against the usual way on the same device.

    First comes what must be exact: directions of every distribution at odd sizes and at offsets beyond 2^32, and
    replays of short runs of every rule, precision and grid; on the CPU itself the fast backend is checked against the
    reference. If a bit differs, nothing is timed and the exit code is 1. Then come ratios: rebuilds (against randn +
    add_), rounds of the CNNs by differences and by projection, and of a language model (against the way of MeZO and
    the authors' code), in float32 without TF32. On the CPU everything is small: the bits matter there, not the ratios.
    """
    from decomfl_lab.devices import describe, find_device, use_tf32_
    from decomfl_lab.laws.devices import checks

    place = find_device(options.device)
    use_tf32_(False)
    differing = []
    for check in checks(place):
        yield BitsRow(device=describe(place), **check.to_dict())
        if not check.holds:
            differing.append(check.what)
    if differing:
        raise BenchmarkError(f"bits differ: {'; '.join(differing)}; nothing was timed")
    rebuilds, rounds, language = _MEASURED[place.type]
    rebuilds, rounds = replace(rebuilds, device=options.device), replace(rounds, device=options.device)
    language = replace(language, device=options.device)
    if options.model is not None:
        language = replace(language, model=options.model)
    yield from _ratios(describe(place), rebuilds, rounds, language)


def _ratios(
    device: str, rebuilds: RebuildOptions, rounds: RoundOptions, language: LlmRoundOptions
) -> Iterator[RatioRow]:
    """The rows of three other benchmarks, as ratios."""

    def ratio(what: str, how: str, seconds: float, ratio: float, of_limit: float | None = None) -> RatioRow:
        return RatioRow(device=device, what=what, how=how, seconds=seconds, ratio=ratio, of_limit=of_limit)

    for row in rebuild.rows(rebuilds):
        seconds = 1e-9 * row.ns_per_element_pair * row.d * row.pairs
        directions = f"{row.pairs} {row.distribution} direction{'s' * (row.pairs > 1)}"
        yield ratio(f"rebuild, d = {row.d:,}", directions, seconds, row.ratio, row.share_of_limit)
    for step in round_.rows(rounds):
        yield ratio(
            f"round of {step.model}", f"{step.engine}, {step.estimator}", step.seconds, step.ratio, step.peak_share
        )
    for tuned in llm_round.rows(language):
        yield ratio(f"round of {tuned.model}, d = {tuned.d:,}", tuned.way, tuned.seconds, tuned.ratio)
