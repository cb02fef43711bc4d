"""``decomfl bench kappa`` and ``decomfl bench coverage``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.commands.shared import Rows, print_tables
from decomfl_lab.cli.command import command
from decomfl_lab.errors import require_int, require_possible
from decomfl_lab.files import require_writable, write_atomically
from decomfl_lab.options import option

__all__ = ["coverage", "kappa"]


@dataclass(frozen=True, kw_only=True)
class KappaOptions:
    """The options of ``decomfl kappa``."""

    seeds: int = option(100, "The number of runs of our two estimates, whose coverage is counted.")
    library_seeds: int = option(10, "The number of runs of everything else.")
    products: int = option(20, "The number of Hessian-vector products of those runs.")
    rtol: float = option(0.05, "The half-width that the estimate with its own stop is asked for.")
    examples: int = option(1000, "The number of digits in the loss.")
    csv: Path | None = option(None, "Write the rows to this CSV file.")
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


@command
def kappa(options: KappaOptions) -> None:
    """Compare estimates of κ, λ_max and the trace with the truth.

    The libraries installed here stand beside them.

    The problem is a CNN (d = 28,426) trained on digits of MNIST; its trace is known exactly. "error" is the median of
    |estimate / truth - 1| over the runs, "coverage" the share of runs whose 95 % interval holds the truth, "gradients"
    the time of one Hessian-vector product over that of one gradient. The default takes about half an hour on two
    cores; --examples 400 --seeds 60 --library-seeds 3 about eight minutes; --seeds 10 --library-seeds 2 about three.
    """
    import pandas as pd

    from benchmarks.kappa import KappaRow, Problem, kappa_rows
    from decomfl_lab.runs.progress import RunBars

    require_writable("csv", options.csv)
    work = (
        require_int("seeds", options.seeds, 1) + require_int("library_seeds", options.library_seeds, 1)
    ) * options.products
    require_possible(
        "seeds and products", (options.seeds, options.library_seeds, options.products), operations=1e6 * work
    )
    rows: list[KappaRow] = []
    with RunBars() as bars:
        bars.show("training the net", 0, None, "")
        problem = Problem(options.examples)
        bars.remove("training the net")

        def show(done: int, total: int) -> None:
            bars.show("runs", done, total, f"{len(rows)} methods done")

        counts = {"seeds": options.seeds, "library_seeds": options.library_seeds, "products": options.products}
        for row in kappa_rows(problem, **counts, rtol=options.rtol, on_run=show):
            rows.append(row)
    if options.csv is not None:
        write_atomically(options.csv, pd.DataFrame([asdict(row) for row in rows]).to_csv(index=False))
    title = (
        f"CNN, d = {problem.operator.d:,}, {options.examples:,} digits ({problem.source}), loss {problem.loss:.3f}: "
        f"κ = {problem.kappa:.3f}, λ_max = {problem.lambda_max:.2f}, tr = {problem.trace:.1f}"
    )
    columns = {
        "library": "{library}",
        "quantity": "{quantity}",
        "method": "{method}",
        "runs": "{seeds}",
        "products": "{products:g}",
        "error": "{relative_error:.2%}",
        "rms": "{rms_error:.2%}",
        "coverage": "{coverage:.1%}",
        "half-width": "{half_width:.1%}",
        "s": "{seconds:.2f}",
        "gradients": "{gradients:.2f}",
    }
    print_tables(Rows(title, [asdict(row) for row in rows], columns, words=3), width=160, as_json=options.as_json)


@dataclass(frozen=True, kw_only=True)
class CoverageOptions:
    """The options of ``decomfl coverage``."""

    seeds: int = option(100, "The number of estimates of every matrix, each with randomness of its own.")
    rtol: float = option(0.05, "The half-width that the estimates are asked for.")
    products: int = option(0, "The number of products of each estimate; 0 takes as many as --rtol needs.")
    max_products: int = option(1000, "The most products that an estimate may take.")
    confidence: float = option(0.95, "The confidence that is stated for every interval.")
    spectra: str = option("", "The matrices, joined by commas; the error for another lists them. [default: all]")
    first_seed: int = option(0, "The first seed; the others follow it.")
    csv: Path | None = option(None, "Write every estimate to this CSV file.")
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


@command
def coverage(options: CoverageOptions) -> None:
    """Count how often the interval of κ holds, where κ is known.

    The matrices are diagonal ones of five kinds of spectrum and Hessians of four small nets, 156 to 400 dimensions.
    "coverage" is the share of intervals that hold the truth, with its standard error; intervals "too low" end below
    it. The tables count by spectrum, by the probes that an interval rests on, and all. 100 seeds take some 20 seconds.
    """
    import pandas as pd

    from benchmarks.coverage import SPECTRA, CoverageRun, counted, coverage_runs
    from decomfl_lab.runs.progress import RunBars

    require_writable("csv", options.csv)
    work = require_int("seeds", options.seeds, 1) * max(1, require_int("products", options.products, 0))
    require_possible("seeds and products", (options.seeds, options.products), operations=1e6 * work)
    names = options.spectra.split(",") if options.spectra else list(SPECTRA)
    runs: list[CoverageRun] = []
    with RunBars() as bars:
        for run in coverage_runs(
            seeds=range(options.first_seed, options.first_seed + options.seeds),
            spectra=names,
            rtol=options.rtol,
            products=options.products or None,
            max_products=options.max_products,
            confidence=options.confidence,
        ):
            runs.append(run)
            bars.show("estimates", len(runs), options.seeds * len(names), run.spectrum)
    if options.csv is not None:
        write_atomically(options.csv, pd.DataFrame(runs).to_csv(index=False))
    tables = {by: counted(runs, by) for by in ("spectrum", "probes", "all")}
    asked = f"{options.products} products" if options.products else f"rtol {options.rtol:g}"
    title = f"κ by {asked}: {options.confidence:.0%} intervals of {len(runs):,} estimates, counted by"
    columns = {
        "": "{name}",
        "runs": "{runs}",
        "coverage": "{coverage:.1%} ± {stderr:.1%}",
        "too low": "{too_low:.1%}",
        "too high": "{too_high:.1%}",
        "rms error": "{rms:.2%}",
        "half-width": "{half_width:.2%}",
        "products": "{products:.1f}",
        "most": "{most_products}",
    }
    found = [Rows(f"{title} {by}", table.to_dict("records"), columns) for by, table in tables.items()]
    print_tables(*found, width=160, as_json=options.as_json)
