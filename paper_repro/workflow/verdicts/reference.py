"""The authors' logged curves, in the columns of our own rows, for the figures and the claims on "logs"."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from decomfl_lab.errors import InputError, require
from decomfl_lab.runs.configuration import TrainConfig
from theory.communication import expected_traffic, table1_scalars_decomfl, table1_scalars_fedavg

FILE_NAME = "authors_curves.csv"
THINNED: Final = Path(__file__).parents[2] / "authors" / "curves.csv.gz"
"""The curves that come with the project, with few of their points: they are drawn, and nothing is judged by them."""
COLUMNS = ("figure", "series", "seed", "step", "metric", "value")
PANELS = {"fig2_left": ("local-updates", 2000), "fig2_right": ("perturbations", 1500)}
"""Figure 2's panels, by the name of the paper's, and the rounds that it plots."""
SHOWN = {**dict.fromkeys((*PANELS, "fig3_right"), "test_accuracy"), "fig3_left": "train_loss"}
"""The quantity that a panel of the paper shows."""
M, m, D = 100, 10, 28_938  # clients, those sampled a round, parameters of the CNN of Figure 2
_NAME: Final = re.compile(r"(DeComFL|FedAvg\+TopK 10%|FedAvg|FedCom 8-bit)(?: |$)(?:.*\bK=(\d+))?(?:.*\bP=(\d+))?")
"""A log's name; FedAvg's "K=4" is the K=5 run that its file was named after, which the name says behind."""
_LOGS: Final = {
    "DeComFL": ("DeComFL", "decomfl", 0.0, 0.0),
    "FedAvg+TopK 10%": ("FedAvg+Top-k 10 %", "fedavg-topk", 0.2, 0.1),
    "FedAvg": ("FedAvg", "fedavg", 1.0, 0.0),
    "FedCom 8-bit": ("FedCom 8 bit", "fedcom", 0.25, 0.0),
}
"""How a log's name begins: our label, the method, β of its uplink by Table 1, and k/d."""


def curves_file(folder: Path | None) -> Path:
    """The file with the curves of a folder; without one, those that come with the project."""
    return THINNED if folder is None else folder / FILE_NAME


def curves(folder: Path | None) -> pd.DataFrame:
    """The logs behind Figures 2 and 3, a row an evaluation, up to the rounds that the paper plots.

    Args:
        folder: Holds authors_curves.csv with columns figure, series, seed, step (0-based), metric, value; None for the
            thinned curves.

    Returns:
        The columns of the file, round, and what the names of the logs say: label, method, uplink, top_k, K, P.

    Raises:
        InputError: If the file is missing, cannot be parsed, lacks a column or Figure 2, or has an unknown series.
    """
    path = curves_file(folder)
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"reference must be a folder with a readable {FILE_NAME}, got {folder} ({error})") from None
    missing = [column for column in COLUMNS if column not in table.columns]
    require(not missing, f"columns of {path}", f"include {', '.join(COLUMNS)}", list(table.columns))
    figures = sorted(set(table.figure))
    require(bool(set(figures) & set(PANELS)), f"figures in {path}", f"include {' and '.join(PANELS)}", figures)
    plotted = table.figure.map({figure: last for figure, (_, last) in PANELS.items()}).fillna(np.inf)
    table = table[(table.metric == table.figure.map(SHOWN)) & (table.step < plotted)]
    table = table.drop_duplicates(["figure", "series", "seed", "step"])  # the logs repeat their last step
    parsed = {}
    for name in dict.fromkeys(map(str, table.series)):
        match = _NAME.match(name)
        log, K, P = match.groups(default="") if match else ("", "", "")
        known = bool(K) and (bool(P) or log != "DeComFL")
        require(known, f"series in {FILE_NAME}", "name a method that is known, K (and P)", name)
        parsed[name] = (*_LOGS[log], int(K), int(P or 0))
    labels = pd.DataFrame.from_dict(parsed, orient="index", columns=["label", "method", "uplink", "top_k", "K", "P"])
    # A step of the logs is evaluated at its end.
    return table.join(labels, on="series").assign(round=table.step + 1)


def fig2_reference(folder: Path | None) -> pd.DataFrame:
    """The test accuracies behind the paper's Figure 2, of ``curves``.

    The logs hold rounds; the scalars are what their 100 clients, 10 sampled, communicate in expectation by
    each counting.

    Returns:
        Columns reading ("authors"), panel, method, series, K, P, seed, round, test_accuracy, wire_scalars,
        table1_scalars, plotted_scalars.
    """
    table = curves(folder).sort_values(["figure", "series"], kind="stable")
    table = table[table.figure.isin(PANELS)].reset_index(drop=True)
    series = [
        f"{label} K={K}" + (f" P={P}" if P else "") for label, K, P in zip(table.label, table.K, table.P, strict=True)
    ]
    rows = table[["seed", "round", "K", "P"]].assign(
        reading="authors",
        panel=table.figure.map({figure: panel for figure, (panel, _) in PANELS.items()}),
        method=table.label,
        series=series,
        test_accuracy=table.value,
    )
    keys = rows[["method", "round", "K", "P"]].itertuples(index=False)
    return fig2_countings(rows.assign(wire_scalars=[_wire(*key) for key in keys]), M=M, m=m)


def fig3_reference(folder: Path | None) -> pd.DataFrame:
    """The training losses and test accuracies behind the paper's Figure 3 (DeComFL's loss as logged, not × 0.9).

    Returns:
        Columns series, method, uplink, top_k, seed, round, train_loss, test_accuracy (NaN where a row has the other),
        of ``curves``; empty if the file has no curve of the figure.
    """
    table = curves(folder).sort_values(["figure", "series"], kind="stable")
    table = table[~table.figure.isin(PANELS)].reset_index(drop=True)
    # Losses and accuracies are logged apart: a row has one of the two.
    by_metric = {metric: table.value.where(table.metric == metric) for metric in ("train_loss", "test_accuracy")}
    rows = table[["label", "method", "uplink", "top_k", "seed", "round"]].rename(columns={"label": "series"})
    return rows.assign(**by_metric)


def countings(
    rows: pd.DataFrame,
    pairs: Callable[["pd.Series[int]"], Any],
    *,
    M: int,
    m: int,
    d: int = D,
    ours: Any = True,
    uplink: Any = 1.0,
    axis: Any = 1.0,
) -> pd.DataFrame:
    """The rows with the countings by formula: table1_scalars of the paper's Table 1, plotted_scalars of its axes.

    The authors' notebooks multiply the 0-based index of a round by K·P, or by d whatever the participation: one
    direction only, no seeds, no lag. ``rows`` have the column round; m of M clients are sampled a round.

    ``pairs`` is Σ K·P over the first R rounds of DeComFL, of a column of R. Of each row, or of all alike: ``ours``,
    whether it is DeComFL's and not of a method that sends parameters; ``uplink``, the share of d that goes up where it
    is not (see ``table1_scalars_fedavg``); ``axis``, what the notebooks multiply it by besides.
    """
    R = rows["round"]
    a_pair = table1_scalars_decomfl(1, M=M, m=m, K=1, P=1)
    by_row = zip(R, np.broadcast_to(uplink, R.shape), strict=True)
    first_order = [table1_scalars_fedavg(r, M=M, m=m, d=d, uplink=share) for r, share in by_row]
    return rows.assign(
        table1_scalars=np.where(ours, a_pair * pairs(R), first_order),
        plotted_scalars=axis * np.where(ours, pairs(R - 1), (R - 1) * d),
    )


def fig2_countings(rows: pd.DataFrame, *, M: int, m: int) -> pd.DataFrame:
    """``countings`` of rows with method (DeComFL or FedAvg), K and P."""
    return countings(rows, lambda R: R * rows.K * rows.P, M=M, m=m, ours=rows.method != "FedAvg")


@cache  # seeds share it, and so do two drawings of one part
def _wire(method: str, R: int, K: int, P: int) -> float:
    """What the codec would encode after R rounds, in expectation, per client and in scalars of 4 bytes."""
    options = {"method": "fedavg"} if method == "FedAvg" else {"local_steps": K, "perturbations": P}
    return expected_traffic(TrainConfig(clients=M, sampled=m, rounds=R, **options), D).bytes / 4
