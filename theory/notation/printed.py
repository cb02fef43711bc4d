"""The paper's own numbers on fine-tuning: its rounds, learning rates and results, and how its costs follow from them.

The tables are in ``printed.toml``, each with its line in the paper's TeX source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from decomfl_lab.storage.tables import table_beside


@dataclass(frozen=True)
class Cell:
    """A cell of a table of results."""

    accuracy: float  # the accuracy in per cent, as printed, with two decimals
    # What a client communicates, as printed, in MB for DeComFL and in TB for the others; None for MeZO.
    cost: float | None = None


def _cells(table: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, tuple[Cell, ...]]:
    return {task: tuple(Cell(*numbers) for numbers in row) for task, row in table.items()}


_TABLES: Final[dict[str, Any]] = table_beside(__name__, "printed.toml")
EXAMPLES: Final[Mapping[str, int]] = _TABLES["examples"]
MOST_FREQUENT: Final[Mapping[str, int]] = _TABLES["most-frequent"]
ROUNDS: Final[Mapping[str, Mapping[str, int]]] = _TABLES["rounds"]
RATES: Final[Mapping[str, Mapping[str, float]]] = _TABLES["rates"]
RESULTS: Final[Mapping[str, Mapping[str, tuple[Cell, ...]]]] = {
    model: _cells(table) for model, table in _TABLES["results"].items()
}
"""{model: {task: (FedAvg, MeZO, FedZO with P = 10, DeComFL with P = 10)}}."""
LORA: Final[Mapping[str, tuple[Cell, ...]]] = _cells(_TABLES["lora"])
"""{task: (MeZO, FedZO with P = 5, DeComFL with P = 5, DeComFL with P = 10)}."""

# Eight clients, two a round (line 883); float32 and 32-bit seeds; parameters of the models by their names.
SHARE, WORD = 2 / 8, 4
PARAMETERS: Final[Mapping[str, float]] = {"OPT-125M": 125e6, "OPT-1.3B": 1.3e9}
LORA_PARAMETERS: Final = 8 * (768 + 768) * 2 * 12  # rank 8 for Q and V, 768 x 768, in each of 12 layers


def decomfl_megabytes(R: int, P: int) -> float:
    """R·P·3 words: what every cell but two follows."""
    return R * P * 3 * WORD / 1e6


def model_terabytes(R: float, d: float) -> float:
    """A model down and a model up in each of the rounds that a client is sampled in: R·(m/M)·2·4d bytes."""
    return R * SHARE * 2 * WORD * d / 1e12


def agree(printed: float, computed: float) -> bool:
    """Whether two decimals of ``computed`` are what is printed."""
    return abs(printed - computed) <= 0.005 + 1e-9
