"""The paper's own numbers on fine-tuning: its rounds, learning rates and results, and how its costs follow from them.

Lines are those of the paper's TeX source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Examples of the sets on which accuracy is measured: the public validation sets of GLUE and SuperGLUE.
EXAMPLES: Final[Mapping[str, int]] = {"SST-2": 872, "CB": 56, "WSC": 104, "WIC": 638, "RTE": 277, "BoolQ": 3270}
# Of these, how many have the most frequent answer.
MOST_FREQUENT: Final[Mapping[str, int]] = {"SST-2": 444, "CB": 28, "WSC": 66, "WIC": 319, "RTE": 146, "BoolQ": 2033}

# Line 888, rounds R.
ROUNDS: Final[Mapping[str, Mapping[str, int]]] = {
    "OPT-125M": {"SST-2": 3000, "CB": 1000, "WSC": 3000, "WIC": 3000, "RTE": 2000, "BoolQ": 2000},
    "OPT-1.3B": {"SST-2": 2000, "CB": 3000, "WSC": 3000, "WIC": 2000, "RTE": 1500, "BoolQ": 1500},
    "OPT-125M+LoRA": {"SST-2": 3000, "CB": 1000, "WSC": 1000, "WIC": 2000, "RTE": 500, "BoolQ": 500},
}
# The same line, learning rates η.
RATES: Final[Mapping[str, Mapping[str, float]]] = {
    "OPT-125M": {"SST-2": 5e-6, "CB": 2e-6, "WSC": 5e-6, "WIC": 2e-7, "RTE": 2e-6, "BoolQ": 2e-6},
    "OPT-1.3B": {"SST-2": 2e-6, "CB": 5e-6, "WSC": 5e-6, "WIC": 2e-7, "RTE": 2e-6, "BoolQ": 2e-6},
    "OPT-125M+LoRA": {"SST-2": 1e-4, "CB": 1e-4, "WSC": 1e-4, "WIC": 1e-4, "RTE": 5e-5, "BoolQ": 1e-4},
}


@dataclass(frozen=True)
class Cell:
    """A cell of a table of results."""

    accuracy: float  # the accuracy in per cent, as printed, with two decimals
    # What a client communicates, as printed, in MB for DeComFL and in TB for the others; None for MeZO.
    cost: float | None = None


def _rows(text: str) -> dict[str, tuple[Cell, ...]]:
    """``SST-2 87.32 0.24, 83.99`` -> its cells."""
    rows = {}
    for line in text.strip().splitlines():
        name, cells = line.split(maxsplit=1)
        rows[name] = tuple(Cell(*(float(number) for number in cell.split())) for cell in cells.split(","))
    return rows


# Line 582: FedAvg, MeZO, FedZO (P = 10), DeComFL (P = 10).
RESULTS: Final[Mapping[str, Mapping[str, tuple[Cell, ...]]]] = {
    "OPT-125M": _rows("""
        SST-2 87.32 0.24, 83.99, 84.11 0.75, 85.08 0.36
        CB    82.14 0.12, 72.49, 74.41 0.38, 75.00 0.12
        WSC   63.25 0.12, 55.18, 59.47 0.75, 59.59 0.36
        WIC   60.83 0.12, 53.25, 53.37 0.75, 53.38 0.36
        RTE   63.96 0.48, 52.91, 54.16 0.50, 57.05 0.24
        BoolQ 62.34 0.24, 61.46, 61.25 0.50, 61.60 0.24
    """),
    "OPT-1.3B": _rows("""
        SST-2 90.38 1.27, 90.23, 90.33 5.20, 90.78 0.24
        CB    83.93 1.27, 74.01, 74.49 7.80, 75.71 0.36
        WSC   65.65 1.27, 58.21, 61.11 7.80, 64.16 0.36
        WIC   65.82 1.27, 55.95, 56.08 5.20, 56.14 0.24
        RTE   66.13 2.54, 57.57, 59.21 3.90, 60.89 1.80
        BoolQ 63.83 5.08, 61.98, 62.14 3.90, 62.50 1.80
    """),
}

# Line 920: MeZO, FedZO (P = 5), DeComFL (P = 5), DeComFL (P = 10); OPT-125M with LoRA.
LORA: Final[Mapping[str, tuple[Cell, ...]]] = _rows("""
    SST-2 85.07, 85.34 0.66, 85.42 0.18, 85.44 0.36
    CB    69.64, 70.55 0.22, 71.07 0.06, 71.43 0.12
    WSC   52.66, 54.61 0.22, 54.53 0.06, 57.03 0.12
    WIC   53.49, 53.12 0.44, 53.08 0.12, 53.71 0.24
    RTE   50.15, 50.92 0.11, 51.40 0.03, 51.40 0.06
    BoolQ 60.68, 60.53 0.11, 60.12 0.03, 60.78 0.06
""")

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
