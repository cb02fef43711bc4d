"""The authors' logged curves, in the columns of our own."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from decomfl_lab.errors import InputError, require
from theory.communication import (
    plotted_scalars_decomfl,
    plotted_scalars_fedavg,
    table1_scalars_decomfl,
    table1_scalars_fedavg,
    wire_bytes_decomfl,
    wire_bytes_fedavg,
)

__all__ = ["FILE_NAME", "fig2_reference"]

FILE_NAME = "authors_curves.csv"
COLUMNS = ("figure", "series", "seed", "step", "metric", "value")
PANELS = {"fig2_left": ("local-updates", 2000), "fig2_right": ("perturbations", 1500)}
M, m, D = 100, 10, 28_938


def fig2_reference(folder: Path) -> pd.DataFrame:
    """The test accuracies behind the paper's Figure 2, up to the rounds that it plots.

    The logs hold rounds; the scalars are what their 100 clients, 10 sampled, communicate in expectation by
    each counting.

    Args:
        folder: Holds authors_curves.csv with columns figure, series, seed, step (0-based), metric, value.

    Returns:
        Columns reading ("authors"), panel, method, series, K, P, seed, round, test_accuracy, wire_scalars,
        table1_scalars, plotted_scalars.

    Raises:
        InputError: If the file is missing, cannot be parsed or lacks a column.
    """
    path = folder / FILE_NAME
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"reference must be a folder with a readable {FILE_NAME}, got {folder} ({error})") from None
    missing = [column for column in COLUMNS if column not in table.columns]
    require(not missing, f"columns of {path}", f"include {', '.join(COLUMNS)}", list(table.columns))
    accuracy = table[table.metric == "test_accuracy"]
    accuracy = accuracy.drop_duplicates(["figure", "series", "seed", "step"])  # the logs repeat their last step
    frames = []
    for (figure, series), rows in accuracy.groupby(["figure", "series"]):
        if figure not in PANELS:
            continue
        panel, last = PANELS[str(figure)]
        method, K, P = _parse(str(series))
        rows = rows[rows.step < last]
        rounds = rows.step + 1
        label = f"{method} K={K} P={P}" if method == "DeComFL" else f"FedAvg K={K}"
        frame = pd.DataFrame(
            {"panel": panel, "series": label, "seed": rows.seed, "round": rounds, "test_accuracy": rows.value}
        )
        frames.append(frame.assign(reading="authors", method=method, K=K, P=P, **_scalars(rounds, method, K, P)))
    require(bool(frames), f"figures in {path}", f"include {' and '.join(PANELS)}", sorted(set(table.figure)))
    return pd.concat(frames, ignore_index=True)


def _parse(series: str) -> tuple[str, int, int]:
    """(method, K, P) of a legend label; FedAvg's "K=4" is the K=5 run that its file was named after."""
    method = "FedAvg" if series.startswith("FedAvg") else "DeComFL"
    renamed = re.search(r"file was named K=(\d+)", series)
    K = renamed or re.search(r"K=(\d+)", series)
    P = re.search(r"P=(\d+)", series)
    if K is None or (P is None and method == "DeComFL"):
        raise InputError(f"series in {FILE_NAME} must name K (and P), got {series!r}")
    return method, int(K[1]), int(P[1]) if P else 0


def _scalars(rounds: pd.Series[int], method: str, K: int, P: int) -> dict[str, list[float]]:
    if method == "FedAvg":
        return {
            "wire_scalars": [wire_bytes_fedavg(R, M=M, m=m, d=D) / 4 for R in rounds],
            "table1_scalars": [table1_scalars_fedavg(R, M=M, m=m, d=D) for R in rounds],
            "plotted_scalars": [plotted_scalars_fedavg(R, d=D) for R in rounds],
        }
    return {
        "wire_scalars": [wire_bytes_decomfl(R, M=M, m=m, K=K, P=P) / 4 for R in rounds],
        "table1_scalars": [table1_scalars_decomfl(R, M=M, m=m, K=K, P=P) for R in rounds],
        "plotted_scalars": [plotted_scalars_decomfl(R, K=K, P=P) for R in rounds],
    }
