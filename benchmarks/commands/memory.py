"""``decomfl bench memory``: what server and client need for a round."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from benchmarks.commands.shared import Rows, measured, names, numbers, print_tables
from decomfl_lab.cli.command import command
from decomfl_lab.options import option

__all__ = ["memory"]


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """The options of ``decomfl memory``."""

    d: str = option("1e5,1e6,1e7,1e8", "Model sizes d.")
    role: str | None = option(None, "Roles to measure; a wrong one is answered with their names. [default: all]")
    resident: bool = option(False, "Measure resident memory too, from 16 MB on.")
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


@command
def memory(options: MemoryOptions) -> None:
    """Measure the memory of server and client, in models.

    It is that of a round, each in a process of its own.

    The model has eight equal layers: φ, the largest, is d/8. Peaks are of mapped memory, every vector being a mapping
    of its own, to the page of 4 KiB and without sampling; the model is in them.
    """
    from decomfl_lab.runs.memory import ROLES, memory_rows

    sizes, roles = numbers("d", options.d), tuple(ROLES) if options.role is None else names("role", options.role, ROLES)
    found = measured(memory_rows(sizes, roles, resident=options.resident), len(sizes) * len(roles))
    columns = {
        "role": "{role}",
        "what": "{what}",
        "d": "{d:,}",
        "expected": "{expected:.3f}",
        "peak": "{peak_models:.3f}",
    }
    columns |= {"resident": "{resident_models:.3f}"} if options.resident else {}
    rows = [{**asdict(row), "peak_models": row.peak_models} for row in found]
    print_tables(Rows("Peak memory of a round, in models", rows, columns, words=2), width=130, as_json=options.as_json)
