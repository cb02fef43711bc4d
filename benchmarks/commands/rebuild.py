"""``decomfl bench rebuild``: how fast records become a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from benchmarks.commands.shared import DISTRIBUTIONS, Rows, measured, names, numbers, print_tables
from decomfl_lab.cli.command import command
from decomfl_lab.cli.drawing import drawing
from decomfl_lab.errors import require
from decomfl_lab.files import require_writable, write_atomically
from decomfl_lab.noise import Distribution
from decomfl_lab.options import option

__all__ = ["rebuild"]

_D = "28938,1206590,125000000"
_PAIRS = "1,10,100,1000"
_MOST_WORK = 1.3e10
"""Elements times pairs beyond which a default row is left out: 10⁹ take about a second and worker."""


@dataclass(frozen=True, kw_only=True)
class RebuildOptions:
    """The options of ``decomfl rebuild``."""

    d: str | None = option(None, f"Model sizes d. [default: {_D}]")
    pairs: str | None = option(None, f"Numbers of missed directions. [default: {_PAIRS}]")
    workers: str = option("1,2", "Numbers of CPU threads.")
    distribution: str = option(DISTRIBUTIONS, "Distributions of z.")
    dtype: str = option("float32", "Types of numbers, also float64, bfloat16, float16.")
    device: str = option("cpu", "cpu, cuda or auto. [default: cpu]")
    backend: str | None = option(None, "Which code makes z on the CPU: numba or numpy. [default: the fastest]")
    plot: Path | None = option(None, "Draw the ratios to this file (.png, .pdf, .svg).")
    csv: Path | None = option(None, "Write the rows to this CSV file.")
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


@command
def rebuild(options: RebuildOptions) -> None:
    """Time rebuilds against torch.Generator + randn + add_.

    Every row is one lag of PAIRS directions applied to a model of D parameters in one pass. The ratio is to
    the plain way at whichever of one thread and torch's own number of threads is faster for it. "of limit" is
    the share of what this machine's measured instruction rate or memory bandwidth would allow. Peak memory is
    in models, the model itself included, for models of 16 MB and more. By default rows of more than 1.3e10
    elements times pairs are left out: name --d and --pairs to have them.
    """
    import pandas as pd

    from benchmarks.rebuild import DTYPES, Setting, rebuild_rows
    from decomfl_lab.devices import find_device

    draw = drawing("rebuild-speed", options.plot) if options.plot is not None else None
    require_writable("csv", options.csv)
    place = find_device(options.device).type
    sizes, lags = numbers("d", options.d or _D), numbers("pairs", options.pairs or _PAIRS)
    distributions = [Distribution(name) for name in names("distribution", options.distribution, Distribution)]
    dtypes = names("dtype", options.dtype, DTYPES)
    threads = numbers("workers", options.workers) if place == "cpu" else (1,)
    settings = [
        Setting(z, size, lag, count, kind, options.backend, place)
        for size, kind, z, lag, count in product(sizes, dtypes, distributions, lags, threads)
        if (options.d is not None and options.pairs is not None) or size * lag <= _MOST_WORK
    ]
    require(bool(settings), "d, pairs, distribution and workers", "leave at least one row", settings)
    found = measured((row for group in rebuild_rows(settings) for row in group), len(settings))
    rows = [asdict(row) for row in found]
    frame = pd.DataFrame(rows)
    if options.csv is not None:
        write_atomically(options.csv, frame.to_csv(index=False).encode())
    if draw is not None:
        draw(frame)
    columns = {
        "distribution": "{distribution}",
        "backend": "{backend}",
        "dtype": "{dtype}",
        "d": "{d:,}",
        "pairs": "{pairs}",
        "workers": "{workers}",
        "ns/(element·pair)": "{ns_per_element_pair:.3f}",
        "plain ns": "{plain_ns:.2f}",
        "ratio": "{ratio:.1f}",
        "of limit": "{share_of_limit:.0%} {limited_by}",
        "peak models": "{peak_models:.3f}",
        "plain peak": "{plain_peak_models:.3f}",
    }
    title = "Rebuild against torch.Generator + randn + add_"
    print_tables(Rows(title, rows, columns, words=3), width=150, as_json=options.as_json)
