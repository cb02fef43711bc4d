"""``decomfl bench kappa`` and ``decomfl bench coverage``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from benchmarks.commands.shared import Rows, print_tables
from benchmarks.coverage import SPECTRA, CoverageRun, counted, coverage_runs
from benchmarks.kappa import KappaRow, Problem, kappa_rows
from decomfl_lab.errors import require_int, require_possible
from decomfl_lab.files import require_writable, write_atomically
from decomfl_lab.runs.progress import RunBars

__all__ = ["coverage", "kappa"]


def kappa(
    *,
    seeds: Annotated[
        int, typer.Option(help="The number of runs of our two estimates, whose coverage is counted.")
    ] = 100,
    library_seeds: Annotated[int, typer.Option(help="The number of runs of everything else.")] = 10,
    products: Annotated[int, typer.Option(help="The number of Hessian-vector products of those runs.")] = 20,
    rtol: Annotated[
        float, typer.Option(help="The half-width that the estimate with its own stop is asked for.")
    ] = 0.05,
    examples: Annotated[int, typer.Option(help="The number of digits in the loss.")] = 1000,
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record of it as JSON.")] = False,
) -> None:
    """Compare estimates of κ, λ_max and the trace with the truth.

    The libraries installed here stand beside them.

    The problem is a CNN (d = 28,426) trained on digits of MNIST; its trace is known exactly. "error" is the median of
    |estimate / truth - 1| over the runs, "coverage" the share of runs whose 95 % interval holds the truth, "gradients"
    the time of one Hessian-vector product over that of one gradient. The default takes about half an hour on two
    cores; --examples 400 --seeds 60 --library-seeds 3 about eight minutes; --seeds 10 --library-seeds 2 about three.
    """
    require_writable("csv", csv)
    work = (require_int("seeds", seeds, 1) + require_int("library_seeds", library_seeds, 1)) * products
    require_possible("seeds and products", (seeds, library_seeds, products), operations=1e6 * work)
    rows: list[KappaRow] = []
    with RunBars() as bars:
        bars.show("training the net", 0, None, "")
        problem = Problem(examples)
        bars.remove("training the net")

        def show(done: int, total: int) -> None:
            bars.show("runs", done, total, f"{len(rows)} methods done")

        options = {"seeds": seeds, "library_seeds": library_seeds, "products": products}
        for row in kappa_rows(problem, **options, rtol=rtol, on_run=show):
            rows.append(row)
    if csv is not None:
        write_atomically(csv, pd.DataFrame([asdict(row) for row in rows]).to_csv(index=False))
    title = (
        f"CNN, d = {problem.operator.d:,}, {examples:,} digits ({problem.source}), loss {problem.loss:.3f}: "
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
    print_tables(Rows(title, [asdict(row) for row in rows], columns, words=3), width=160, as_json=as_json)


def coverage(
    *,
    seeds: Annotated[
        int, typer.Option(help="The number of estimates of every matrix, each with randomness of its own.")
    ] = 100,
    rtol: Annotated[float, typer.Option(help="The half-width that the estimates are asked for.")] = 0.05,
    products: Annotated[
        int, typer.Option(help="The number of products of each estimate; 0 takes as many as --rtol needs.")
    ] = 0,
    max_products: Annotated[int, typer.Option(help="The most products that an estimate may take.")] = 1000,
    confidence: Annotated[float, typer.Option(help="The confidence that is stated for every interval.")] = 0.95,
    spectra: Annotated[str, typer.Option(help=f"The matrices, joined by commas: {', '.join(SPECTRA)}.")] = "",
    first_seed: Annotated[int, typer.Option(help="The first seed; the others follow it.")] = 0,
    csv: Annotated[Path | None, typer.Option(help="Write every estimate to this CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record of it as JSON.")] = False,
) -> None:
    """Count how often the interval of κ holds, where κ is known.

    The matrices are diagonal ones of five kinds of spectrum and Hessians of four small nets, 156 to 400 dimensions.
    "coverage" is the share of intervals that hold the truth, with its standard error; intervals "too low" end below
    it. The tables count by spectrum, by the probes that an interval rests on, and all. 100 seeds take some 20 seconds.
    """
    require_writable("csv", csv)
    work = require_int("seeds", seeds, 1) * max(1, require_int("products", products, 0))
    require_possible("seeds and products", (seeds, products), operations=1e6 * work)
    names = spectra.split(",") if spectra else list(SPECTRA)
    runs: list[CoverageRun] = []
    with RunBars() as bars:
        for run in coverage_runs(
            seeds=range(first_seed, first_seed + seeds),
            spectra=names,
            rtol=rtol,
            products=products or None,
            max_products=max_products,
            confidence=confidence,
        ):
            runs.append(run)
            bars.show("estimates", len(runs), seeds * len(names), run.spectrum)
    if csv is not None:
        write_atomically(csv, pd.DataFrame(runs).to_csv(index=False))
    tables = {by: counted(runs, by) for by in ("spectrum", "probes", "all")}
    asked = f"{products} products" if products else f"rtol {rtol:g}"
    title = f"κ by {asked}: {confidence:.0%} intervals of {len(runs):,} estimates, counted by"
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
    print_tables(*found, width=160, as_json=as_json)
