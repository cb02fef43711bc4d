"""``decomfl bench rebuild``: how fast do records become a model?

The plain way seeds a ``torch.Generator``, draws z with ``randn`` and adds it with ``add_``, direction after
direction: what a direct reading of the paper does, and what the authors' code does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.mould import HELPS, BenchmarkRow, benchmark, column, names, numbers
from benchmarks.ways.clock import apart, fastest
from decomfl_lab.errors import require, require_int, require_possible
from decomfl_lab.noise import Distribution, Program, cpu_backend, sphere_scale
from decomfl_lab.options import option

if TYPE_CHECKING:
    from torch import Tensor

_D = "28938,1206590,125000000"
_PAIRS = "1,10,100,1000"
_QUOTED = 100  # missed directions of the rebuild that the README quotes
_MOST_WORK = 1.3e10  # elements times pairs beyond which a default row is left out: 10⁹ take about a second and worker
_PLAIN_WORK = 250_000_000
"""Elements times pairs that the plain way is measured on; its time per pair does not depend on their number."""


@dataclass(frozen=True, kw_only=True)
class RebuildOptions:
    """The options of ``decomfl bench rebuild``."""

    d: str | None = option(None, f"Model sizes d. [default: {_D}]")
    pairs: str | None = option(None, f"Numbers of missed directions. [default: {_PAIRS}]")
    workers: str = option("1,2", "Numbers of CPU threads.")
    distribution: str = option("gaussian,sphere,rademacher", "Distributions of z.")
    device: str = option("cpu", "cpu, cuda, cuda:N or auto. [default: cpu]")


@dataclass(frozen=True)
class RebuildSetting:
    """One rebuild: ``pairs`` missed directions of one step on a model of d parameters."""

    distribution: Distribution
    d: int
    pairs: int
    workers: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_int("d", self.d, 1)
        require_int("pairs", self.pairs, 1)
        require_int("workers", self.workers, 1, 1024)
        require_possible("d", self.d, memory=4 * self.d)
        require_possible("d and pairs", (self.d, self.pairs), operations=self.d * self.pairs)


@dataclass(frozen=True, kw_only=True)
class RebuildRow(BenchmarkRow):
    """What was measured of one rebuild."""

    title = "Rebuild against torch.Generator + randn + add_"
    distribution: str = column("distribution")
    backend: str = column("backend")
    device: str
    d: int = column("d", ",")
    pairs: int = column("pairs")
    workers: int = column("workers")
    ns_per_element_pair: float = column("ns/(element·pair)", ".3f", "Nanoseconds of a rebuild / (d · pairs).")
    plain_ns: float = column("plain ns", ".2f", HELPS["rebuild"]["plain_ns"])
    ratio: float = column("ratio", ".1f")
    peak_models: float | None = column("peak models", ".3f", HELPS["rebuild"]["peak_models"])
    plain_peak_models: float | None = column("plain peak", ".3f")


def quoted(rows: Sequence[RebuildRow], _: object) -> tuple[str, str] | None:
    """What the README says: the fastest rebuild of 100 directions, along normal numbers and along signs."""
    ratios = {
        z: max((row.ratio for row in rows if (row.distribution, row.pairs) == (z, _QUOTED)), default=None)
        for z in (Distribution.GAUSSIAN, Distribution.RADEMACHER)
    }
    gaussian, signs = ratios.values()
    if gaussian is None or signs is None:
        return None
    return (
        f"rebuild of {rows[0].d:,} parameters along {_QUOTED} missed directions",
        f"{gaussian:.1f} times the speed of `randn` and `add_` (signs: {signs:.0f} times)",
    )


@benchmark(quoted)
def rebuild(options: RebuildOptions) -> Iterator[RebuildRow]:
    """Time rebuilds against torch.Generator + randn + add_.

    Every row is one lag of PAIRS directions applied to a model of D parameters in one pass. By default rows of more
    than 1.3e10 elements times pairs are left out: name --d and --pairs to have them.
    """
    from decomfl_lab.devices import find_device

    device = find_device(options.device)
    place = device.type if options.device == "auto" else options.device
    sizes, lags = numbers("d", options.d or _D), numbers("pairs", options.pairs or _PAIRS)
    distributions = [Distribution(name) for name in names("distribution", options.distribution, Distribution)]
    threads = numbers("workers", options.workers) if place == "cpu" else (1,)
    settings = [
        RebuildSetting(z, size, lag, count, place)
        for size, z, lag, count in product(sizes, distributions, lags, threads)
        if (options.d is not None and options.pairs is not None) or size * lag <= _MOST_WORK
    ]
    require(bool(settings), "d, pairs, distribution and workers", "leave at least one row", settings)
    # A fresh process for each d, so that peaks of memory are those of one model.
    for d in dict.fromkeys(setting.d for setting in settings):
        asked = json.dumps([asdict(setting) for setting in settings if setting.d == d])
        outcome = apart(["-m", "benchmarks.rebuild"], given=asked)
        last_line = outcome.said.rpartition("\n")[2]
        require(outcome.exit == 0, f"measuring d={d}", "end well", f"exit code {outcome.exit}: {last_line}")
        yield from (RebuildRow(**row) for row in outcome.found)


def _measured(settings: Sequence[RebuildSetting]) -> Iterator[RebuildRow]:
    """Rows of settings that share d and device, measured in this process, one after another."""
    import torch

    from decomfl_lab.methods.memory import peak_of, status_bytes

    d, device = settings[0].d, settings[0].device
    threads = torch.get_num_threads()
    synchronize = (lambda: None) if device == "cpu" else (lambda: torch.cuda.synchronize(device))
    # Everything is compiled and warm before memory is looked at.
    small = torch.zeros(512, device=device)
    for setting in settings:
        _rebuild(setting, small, 0)()
        _plain(small, 1)()
    without_model = status_bytes("VmRSS") if device == "cpu" else None  # None: no peaks
    x = torch.ones(d, device=device)
    model_bytes = x.numel() * x.element_size()
    plain_pairs = max(1, min(10, _PLAIN_WORK // d))
    plain = _plain(x, plain_pairs)
    plain_peak = peak_of(plain, model_bytes, without_model)
    plain_ns: list[float] = []

    def time_plain() -> None:
        for count in {1, threads} if device == "cpu" else {threads}:
            torch.set_num_threads(count)
            plain_ns.append(1e9 * fastest(plain, synchronize) / (d * plain_pairs))
        torch.set_num_threads(threads)

    time_plain()
    measured = []
    for setting in settings:
        work = _rebuild(setting, x, 7)
        peak = peak_of(work, model_bytes, without_model)
        measured.append((setting, 1e9 * fastest(work, synchronize) / (d * setting.pairs), peak))
    time_plain()  # before and after: a machine that got slower meanwhile would show in the ratio
    best = min(plain_ns)
    for setting, ns, peak in measured:
        yield RebuildRow(
            **asdict(setting),
            backend=cpu_backend() if device == "cpu" else "triton",
            ns_per_element_pair=ns,
            plain_ns=best,
            ratio=best / ns,
            peak_models=peak,
            plain_peak_models=plain_peak,
        )


def _rebuild(setting: RebuildSetting, x: Tensor, seed: int) -> Callable[[], None]:
    """The lab's way: all missed directions in one pass over x."""
    from decomfl_lab.replicas.rebuild import rebuild_

    program = Program(["x"])
    coefficients = np.linspace(-1e-3, 1e-3, setting.pairs)
    program.noise("x", seed, coefficients, setting.distribution)

    def work() -> None:
        sphere_scale.cache_clear()  # a sphere's norms are part of the work
        rebuild_(program, [{"x": x}], workers=setting.workers)

    return work


def _plain(x: Tensor, pairs: int) -> Callable[[], None]:
    """The plain way: each direction is drawn into a tensor of its own and added."""
    import torch

    generator = torch.Generator(device=x.device)

    def work() -> None:
        generator.manual_seed(1)
        for p in range(pairs):
            z = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
            x.add_(z, alpha=1e-3 * (p + 1))

    return work


if __name__ == "__main__":
    asked = [
        RebuildSetting(**{**one, "distribution": Distribution(one["distribution"])}) for one in json.load(sys.stdin)
    ]
    json.dump([asdict(row) for row in _measured(asked)], sys.stdout)
