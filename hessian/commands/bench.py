"""``decomfl bench kappa``."""

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

from decomfl_lab.commands.progress import RunBars
from decomfl_lab.files import write_atomically
from hessian.bench import KappaRow, Problem, kappa_rows

__all__ = ["kappa"]


def kappa(
    *,
    seeds: Annotated[int, typer.Option(help="Runs of the estimate whose coverage is counted.")] = 200,
    library_seeds: Annotated[int, typer.Option(help="Runs of everything else.")] = 10,
    products: Annotated[int, typer.Option(help="Hessian-vector products of those runs.")] = 20,
    rtol: Annotated[float, typer.Option(help="Half-width that the estimate with its own stop is asked for.")] = 0.05,
    examples: Annotated[int, typer.Option(help="Digits in the loss.")] = 1000,
    csv: Annotated[Path | None, typer.Option(help="Write the rows to this CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Compare estimates of κ, λ_max and the trace with the truth, side by side with the libraries installed here.

    The problem is a CNN (d = 28,426) trained on digits of MNIST; its trace is known exactly. "error" is the median of
    |estimate / truth - 1| over the runs, "coverage" the share of runs whose 95 % interval holds the truth, "gradients"
    the time of one Hessian-vector product over that of one gradient. The default takes about half an hour on two
    cores; --examples 400 --library-seeds 3 about eight minutes; --seeds 20 --library-seeds 2 about three.
    """
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
