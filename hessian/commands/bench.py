"""``decomfl bench kappa`` and ``decomfl bench coverage``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from decomfl_lab.errors import require_int, require_possible
from decomfl_lab.files import require_writable, write_atomically
from decomfl_lab.runs.progress import RunBars
from hessian.bench import KappaRow, Problem, kappa_rows
from hessian.coverage import SPECTRA, CoverageRun, counted, coverage_runs

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
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Compare estimates of κ, λ_max and the trace with the truth, side by side with the libraries installed here.

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
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    title = (
        f"CNN, d = {problem.operator.d:,}, {examples:,} digits ({problem.source}), loss {problem.loss:.3f}: "
        f"κ = {problem.kappa:.3f}, λ_max = {problem.lambda_max:.2f}, tr = {problem.trace:.1f}"
    )
    table = Table(title=title, title_justify="left")
    for head in ("library", "quantity", "method", "runs", "products", "error", "rms", "coverage", "half-width", "s"):
        table.add_column(head, justify="left" if head in ("library", "quantity", "method") else "right")
    table.add_column("gradients", justify="right")
    for row in rows:
        table.add_row(
            row.library,
            row.quantity,
            row.method,
            str(row.seeds),
            f"{row.products:g}",
            f"{row.relative_error:.2%}" if row.quantity != "product" else f"{row.relative_error:.0e}",
            f"{row.rms_error:.2%}" if row.quantity != "product" else "–",
            "–" if row.coverage is None else f"{row.coverage:.1%}",
            "–" if row.half_width is None else f"{row.half_width:.1%}",
            f"{row.seconds:.2f}",
            "–" if row.gradients is None else f"{row.gradients:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


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
    as_json: Annotated[bool, typer.Option("--json", help="Print the three tables as JSON.")] = False,
) -> None:
    """Count how often the interval of κ holds, on matrices whose κ is known.

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
    if as_json:
        print(json.dumps({by: table.to_dict("records") for by, table in tables.items()}))
        return
    asked = f"{products} products" if products else f"rtol {rtol:g}"
    table = Table(title=f"κ by {asked}: {confidence:.0%} intervals of {len(runs):,} estimates", title_justify="left")
    for head in ("", "runs", "coverage", "too low", "too high", "rms error", "half-width", "products", "most"):
        table.add_column(head, justify="right" if head else "left")
    for part in tables.values():
        for row in part.itertuples():
            table.add_row(
                str(row.name),
                str(row.runs),
                f"{row.coverage:.1%} ± {row.stderr:.1%}",
                f"{row.too_low:.1%}",
                f"{row.too_high:.1%}",
                f"{row.rms:.2%}",
                f"{row.half_width:.2%}",
                f"{row.products:.1f}",
                str(row.most_products),
            )
        table.add_section()
    Console(width=None if sys.stdout.isatty() else 160).print(table)
