"""The tables of the paper as they were transcribed, against its source."""

from __future__ import annotations

import re
from collections.abc import Sequence

from theory.findings.source import TexSource
from theory.notation.printed import EXAMPLES, LORA, RATES, RESULTS, ROUNDS, Cell

__all__ = ["mistranscribed"]

_NAMES = "|".join(EXAMPLES)


def mistranscribed(source: TexSource) -> list[str]:
    """What of ``notation.printed`` the source has otherwise: Table 2, the table of LoRA, rounds and learning rates."""
    results = "\n".join(source.lines[581:607])
    rows = [_numbers(part).removesuffix(" 1.3") for part in re.split(_NAMES, results)[1:]]  # the second model's name
    lora = [_numbers(line) for line in source.lines[919:937] if re.match(rf"\s*({_NAMES}) &", line)]
    settings = source.lines[887:908]
    rounds = [
        [round(1000 * float(k)) for k in re.findall(r"([\d.]+)k", line)] for line in settings if "Comm. rounds" in line
    ]
    rates = [[float(rate) for rate in re.findall(r"\de-\d", line)] for line in settings if "Learning rate" in line]
    # What it is, how the source has it, how it was transcribed.
    compared: list[tuple[str, object, object]] = [
        ("Table 2", rows, [_printed(cells) for model in RESULTS.values() for cells in model.values()]),
        ("the table of LoRA", lora, [_printed(cells) for cells in LORA.values()]),
        ("rounds", rounds, [list(each.values()) for each in ROUNDS.values()]),
        ("learning rates", rates, [list(each.values()) for each in RATES.values()]),
    ]
    return [f"{what} in the source: {found}, transcribed: {kept}" for what, found, kept in compared if found != kept]


def _printed(cells: Sequence[Cell]) -> str:
    """As in the source, without what stands between the numbers."""
    return " ".join(f"{c.accuracy:.2f}" + ("" if c.cost is None else f" {c.cost:.2f}") for c in cells)


def _numbers(line: str) -> str:
    return " ".join(re.findall(r"\d+\.\d+", line))
