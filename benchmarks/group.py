"""``decomfl bench``: how fast and how good, measured on this machine in one run."""

from importlib.metadata import EntryPoint

from benchmarks.mould import begin
from decomfl_lab.cli.screen import LazyGroup

_WHERE = {
    "rebuild": "rebuild:rebuild",
    "round": "round:round_",
    "llm-round": "llm_round:llm_round",
    "page": "page:page",
    "coverage": "coverage:coverage",
    "kappa": "kappa:kappa",
}
"""The module and the object of every command."""

bench = LazyGroup(
    "bench",
    [EntryPoint(name, f"benchmarks.{where}", "decomfl.benchmarks") for name, where in _WHERE.items()],
    help="Measure on this machine: speed, memory and errors.\n\nWith --json the commands print records with "
    "machine, load and date, of which page makes a page of Markdown.",
    callback=begin,
)
