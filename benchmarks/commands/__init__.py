"""``decomfl bench``: how fast and how good, measured on this machine in one run."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from benchmarks.commands.circumstances import begin
from decomfl_lab.cli.lazy import LazyGroup

__all__ = ["bench"]

_GROUP = "decomfl.benchmarks"
_OWN = {
    "rebuild": "rebuild:rebuild",
    "moments": "moments:moments",
    "memory": "memory:memory",
    "round": "round:round_",
    "llm-round": "llm_round:llm_round",
    "device": "device:device",
    "stream": "stream:stream",
    "tuning": "tuning:tuning",
    "page": "page:page",
    "coverage": "kappa:coverage",
    "kappa": "kappa:kappa",
}

bench = LazyGroup(
    "bench",
    [EntryPoint(name, f"{__name__}.{where}", _GROUP) for name, where in _OWN.items()],
    help="Measure on this machine: speed, memory, bytes and errors.\n\nWith --json the commands print records with "
    "machine, load and date, of which page makes a page of Markdown.",
    callback=begin,
)
