"""``decomfl bench coverage``: does the interval of κ hold? Many estimates where κ is known, counted.

All eigenvalues of the matrices are known, so the truth is exact, and a thousand runs take a minute.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.mould import HELPS, BenchmarkRow, benchmark, column, names, numbers
from decomfl_lab.errors import require_choice, require_possible
from decomfl_lab.options import option
from hessian.parts import PARTS

_HELP = HELPS["coverage"]
GROSS = 5
"""An estimate that is further from the truth than so many half-widths, and is called reached, is a gross error."""

_MOST_PRODUCTS = 1000  # products that an estimate may take
_MOST_WALKED = 200  # and one of a part, by walks

_EXACT = "exact"  # what estimates are counted as whose interval has room for rounding alone
_ROUNDING = 1e-9  # the widest such interval, as a share of κ

PROBES = (0, 2, 3, 6, 12, 24, 48)  # ends of the classes of probes that runs are counted by
_CLASSES = {
    high: f"{low + 1} to {high} probes" if high > low + 1 else f"{high} probes" for low, high in pairwise(PROBES)
}
"""By the most probes of each class its name."""


@dataclass(frozen=True, kw_only=True)
class CoverageOptions:
    """The options of ``decomfl bench coverage``."""

    seeds: int = option(100, "The number of estimates of every matrix, each with randomness of its own.", ge=1)
    rtol: float = option(0.05, "The half-width that the estimates are asked for.")
    confidence: str = option("0.95", "The confidence, or several, joined by commas.")
    part: str = option("signed", "κ of which part: " + ", ".join(PARTS) + ".", choices=tuple(PARTS))
    products: int | None = option(None, _HELP["products"])
    spectra: str | None = option(None, _HELP["spectra"])


@dataclass(frozen=True, kw_only=True)
class CoverageCount(BenchmarkRow):
    """What some of the estimates came to: those of a spectrum, of a class of probes, or all."""

    timed = False
    title = "κ{what}: {level}intervals of {estimates:,} estimates, counted by {by}"
    estimates: int
    by: str
    what: str = ""  # the part, and what was asked for
    level: str = ""  # the confidence, where a table is of one alone
    name: str = column("")
    d: int | None = column("d", ",", "The dimension of the matrix.")
    runs: int = column("runs", ",")
    coverage: float = column("coverage", "{coverage:.1%} ± {stderr:.1%}", _HELP["held"])
    stderr: float
    too_low: float = column("too low", ".1%", "The share of intervals that end below the truth.")
    too_high: float = column("too high", ".1%", "The share of intervals that begin above it.")
    gross: int = column("gross", "", "Estimates that are called reached and are off by more than five half-widths.")
    rms: float = column("rms error", ".2%", "Of κ/truth − 1.")
    half_width: float = column("half-width", ".2%", "Half of the interval's width over the truth (median).")
    products: float = column("products", ".1f", "Products with the matrix (mean).")
    most_products: int = column("most")


def quoted(rows: Sequence[CoverageCount], options: CoverageOptions) -> tuple[str, str]:
    """What the README says: the coverage of all intervals of the first confidence that chance has a part in."""
    row = next((row for row in rows if row.by == "all" and not row.name.endswith(_EXACT)), rows[-1])
    name = "κ" if options.part == "signed" else f"κ of the {options.part} part"
    return (
        f"{100 * float(options.confidence.split(',')[0]):g} % intervals of {name} on {row.runs:,} cases of known κ",
        f"{100 * row.coverage:.1f} ± {100 * row.stderr:.1f} % hold the truth, after {row.products:.0f} products",
    )


@benchmark(quoted)
def coverage(options: CoverageOptions) -> Iterator[CoverageCount]:
    """Count how often the interval of κ holds, where κ is known.

    The matrices are diagonal ones of 24 kinds of spectrum and Hessians of eight small nets, 3 to 20,000 dimensions.
    The tables count by spectrum, by the probes that an interval rests on, and all. Exact ones, whose intervals have
    room for rounding alone, hold at every confidence, and are counted apart. 100 seeds take some four minutes.
    """
    from benchmarks.ways.spectra import SPECTRA

    seeds = options.seeds
    require_possible("seeds", seeds, operations=1e6 * seeds)
    spectra = names("spectra", options.spectra, SPECTRA)
    settings: dict[str, Any] = {"rtol": options.rtol, "part": options.part, "products": options.products}
    settings["max_products"] = _MOST_PRODUCTS if options.part == "signed" else _MOST_WALKED
    asked = f"by {options.products} products" if options.products else f"by rtol {options.rtol:g}"
    what = f"{'' if options.part == 'signed' else f' of the {options.part} part'} {asked}"
    of_all: list[CoverageCount] = []
    for level in numbers("confidence", options.confidence, float):
        runs = list(coverage_runs(seeds=range(seeds), spectra=spectra, confidence=level, **settings))
        stated = f"{100 * level:g} % "
        for by in ("spectrum", "probes"):
            yield from (replace(row, level=stated, what=what) for row in counted(runs, by))
        of_all += (replace(row, name=stated + row.name, what=what) for row in counted(runs, "all"))
    yield from of_all


@dataclass(frozen=True)
class CoverageRun:
    """One estimate, beside the truth."""

    spectrum: str  # the name of the matrix
    d: int  # the dimension of the matrix
    truth: float  # the matrix's κ, of the part that is asked for
    kappa: float  # the estimate of κ
    low: float  # the lower end of its interval
    high: float  # the upper end of its interval
    reached: bool  # whether it is called as narrow as asked for
    probes: int  # the number of probes
    products: int  # the number of products with H in all

    @property
    def exact(self) -> bool:
        """Whether the interval has room for rounding alone, so that it holds whatever its confidence is."""
        return self.high - self.low <= _ROUNDING * abs(self.kappa)

    @property
    def gross(self) -> bool:
        """Whether it is far outside of an interval that is called reached."""
        return self.reached and abs(self.kappa - self.truth) > GROSS * (self.high - self.low) / 2


def coverage_runs(
    *, seeds: Sequence[int], spectra: Sequence[str] | None = None, **settings: Any
) -> Iterator[CoverageRun]:
    """Estimates of κ on every matrix with every seed, as they are made.

    Args:
        seeds: The seeds of the estimates.
        spectra: The names of matrices in ``benchmarks.ways.spectra``; all by default.
        settings: The arguments of ``effective_rank``: rtol, products, confidence, ...

    Raises:
        InputError: If a setting breaks a rule.
    """
    from benchmarks.ways.spectra import SPECTRA
    from hessian.kappa.effective_rank import effective_rank

    part = PARTS[settings.get("part", "signed")].of
    for name in SPECTRA if spectra is None else spectra:
        operator, values = SPECTRA[name]()
        matrix = name, operator.d, float(part(values).sum() / np.abs(part(values)).max())
        # Seeds of its own: vectors of one seed begin alike whatever d is, and their luck would be that of all spectra.
        first = 1_000_000 * list(SPECTRA).index(name)
        for seed in seeds:
            estimate = effective_rank(operator, seed=first + seed, **settings)
            kappa, (low, high) = estimate.kappa, estimate.interval
            yield CoverageRun(*matrix, kappa, low, high, estimate.reached, estimate.probes, estimate.products)


def counted(runs: Sequence[CoverageRun], by: str) -> list[CoverageCount]:
    """What the runs of ``coverage_runs``, at least one, came to, counted by "spectrum", "probes" or "all".

    A row for each spectrum, for each class of probes, or one for all; exact ones have a row of their own.
    """
    require_choice("by", by, ("spectrum", "probes", "all"))
    groups: dict[str, list[CoverageRun]] = {}
    for run in sorted(runs, key=lambda run: run.probes) if by == "probes" else runs:
        more = f"more than {PROBES[-1]} probes"
        probes = next((name for high, name in _CLASSES.items() if run.probes <= high), more)
        name = {"spectrum": run.spectrum, "probes": probes, "all": "all"}[by]
        name = _EXACT if run.exact and by != "spectrum" else name
        groups.setdefault(name, []).append(run)
    counts = []
    for name, of_group in groups.items():
        held = sum(run.low <= run.truth <= run.high for run in of_group) / len(of_group)
        counts.append(
            CoverageCount(
                estimates=len(runs),
                by=by,
                name=name,
                d=of_group[0].d if by == "spectrum" else None,
                runs=len(of_group),
                coverage=held,
                stderr=(held * (1 - held) / len(of_group)) ** 0.5,
                too_low=sum(run.high < run.truth for run in of_group) / len(of_group),
                too_high=sum(run.low > run.truth for run in of_group) / len(of_group),
                gross=sum(run.gross for run in of_group),
                rms=float(np.sqrt(np.mean([(run.kappa / run.truth - 1) ** 2 for run in of_group]))),
                half_width=float(np.median([(run.high - run.low) / (2 * abs(run.truth)) for run in of_group])),
                products=float(np.mean([run.products for run in of_group])),
                most_products=max(run.products for run in of_group),
            )
        )
    return counts
