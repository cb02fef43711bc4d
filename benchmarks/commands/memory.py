"""``decomfl bench memory``: what server and client need for a round."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from benchmarks.commands.shared import Rows, measured, names, numbers, print_tables

__all__ = ["memory"]


def memory(
    *,
    d: Annotated[str, typer.Option(help="Model sizes d.")] = "1e5,1e6,1e7,1e8",
    role: Annotated[
        str | None, typer.Option(help="Roles to measure; a wrong one is answered with their names. [default: all]")
    ] = None,
    resident: Annotated[bool, typer.Option("--resident", help="Measure resident memory too, from 16 MB on.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record of it as JSON.")] = False,
) -> None:
    """Measure the memory of server and client, in models.

    It is that of a round, each in a process of its own.

    The model has eight equal layers: φ, the largest, is d/8. Peaks are of mapped memory, every vector being a mapping
    of its own, to the page of 4 KiB and without sampling; the model is in them.
    """
    from decomfl_lab.runs.memory import ROLES, memory_rows

    sizes, roles = numbers("d", d), tuple(ROLES) if role is None else names("role", role, ROLES)
    found = measured(memory_rows(sizes, roles, resident=resident), len(sizes) * len(roles))
    columns = {
        "role": "{role}",
        "what": "{what}",
        "d": "{d:,}",
        "expected": "{expected:.3f}",
        "peak": "{peak_models:.3f}",
    }
    columns |= {"resident": "{resident_models:.3f}"} if resident else {}
    rows = [{**asdict(row), "peak_models": row.peak_models} for row in found]
    print_tables(Rows("Peak memory of a round, in models", rows, columns, words=2), width=130, as_json=as_json)
