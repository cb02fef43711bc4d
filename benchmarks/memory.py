"""``decomfl bench memory``: what do server and client need for a round?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmarks.mould import BenchmarkRow, benchmark, column, names, numbers
from decomfl_lab.options import option

__all__ = ["MemoryOptions", "MemoryPeak", "memory"]


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """The options of ``decomfl bench memory``."""

    d: str = option("1e5,1e6,1e7,1e8", "Model sizes d.")
    role: str | None = option(None, "Roles to measure; a wrong one is answered with their names. [default: all]")
    resident: bool = option(False, "Measure resident memory too, from 16 MB on.")


@dataclass(frozen=True, kw_only=True)
class MemoryPeak(BenchmarkRow):
    """A ``decomfl_lab.runs.memory.MemoryRow``, with its peak in models."""

    title = "Peak memory of a round, in models"
    role: str = column("role")
    what: str = column("what")
    d: int = column("d", ",")
    phi: int
    expected: float = column("expected", ".3f", "The vectors that live, and the layers of φ elements.")
    peak_bytes: int | None
    peak_models: float | None = column("peak", ".3f", "Of mapped memory; the model is in it.")
    resident_models: float | None = column("resident", ".3f", "Of resident memory, where --resident asks for it.")


@benchmark()
def memory(options: MemoryOptions) -> Iterator[MemoryPeak]:
    """Measure the memory of server and client, in models.

    It is that of a round, each in a process of its own. The model has eight equal layers: φ, the largest, is d/8.
    Peaks are of mapped memory, every vector being a mapping of its own, to the page of 4 KiB and without sampling.
    """
    from decomfl_lab.runs import memory as measuring

    roles = names("role", options.role, measuring.ROLES)
    for row in measuring.memory_rows(numbers("d", options.d), roles, resident=options.resident):
        yield MemoryPeak(**asdict(row), peak_models=row.peak_models)
