"""The authors' logged curves, in the columns of our own: those of a folder, or the thinned ones of the project.

python -m paper_repro.workflow.reference REFERENCE thins the curves of a folder anew.
"""

import gzip
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from decomfl_lab.errors import InputError, require
from decomfl_lab.files import write_atomically
from decomfl_lab.runs.config import TrainConfig
from theory.communication import expected_traffic, table1_scalars_decomfl, table1_scalars_fedavg

FILE_NAME = "authors_curves.csv"
THINNED: Final = Path(__file__).parents[1] / "authors" / "curves.csv.gz"
"""The curves that come with the project: they are drawn, and nothing is judged by them."""
ERRORS: Final = 0.5  # standard errors of an accuracy on ``IMAGES`` that a thinned line may lie beside the whole one
IMAGES: Final = 10_000  # in the test sets of MNIST and Fashion-MNIST
LOSS: Final = 0.02  # the same for a training loss
COLUMNS = ("figure", "series", "seed", "step", "metric", "value")
PANELS = {"fig2_left": ("local-updates", 2000), "fig2_right": ("perturbations", 1500)}
SHOWN = {**dict.fromkeys((*PANELS, "fig3_right"), "test_accuracy"), "fig3_left": "train_loss"}
"""The quantity that a panel of the paper shows."""
M, m, D = 100, 10, 28_938
_FIG3_SERIES = {
    "DeComFL": ("DeComFL", "decomfl", 0.0, 0.0),
    "FedAvg+TopK 10%": ("FedAvg+Top-k 10 %", "fedavg-topk", 0.2, 0.1),
    "FedAvg K": ("FedAvg", "fedavg", 1.0, 0.0),
    "FedCom 8-bit": ("FedCom 8 bit", "fedcom", 0.25, 0.0),
}
"""How a log's name begins: our label, the method, β of its uplink by Table 1, and k/d."""


def curves_file(folder: Path | None) -> Path:
    """The file with the curves of a folder; without one, those that come with the project."""
    return THINNED if folder is None else folder / FILE_NAME


def fig2_reference(folder: Path | None) -> pd.DataFrame:
    """The test accuracies behind the paper's Figure 2, up to the rounds that it plots.

    The logs hold rounds; the scalars are what their 100 clients, 10 sampled, communicate in expectation by
    each counting.

    Args:
        folder: Holds authors_curves.csv with columns figure, series, seed, step (0-based), metric, value; None for the
            thinned curves.

    Returns:
        Columns reading ("authors"), panel, method, series, K, P, seed, round, test_accuracy, wire_scalars,
        table1_scalars, plotted_scalars.

    Raises:
        InputError: If the file is missing, cannot be parsed or lacks a column.
    """
    table = _curves(folder)
    accuracy = table[table.metric == "test_accuracy"]
    accuracy = accuracy.drop_duplicates(["figure", "series", "seed", "step"])  # the logs repeat their last step
    frames = []
    for (figure, series), rows in accuracy.groupby(["figure", "series"]):
        if figure not in PANELS:
            continue
        panel, last = PANELS[str(figure)]
        method, K, P = _parse(str(series))
        rows = rows[rows.step < last]
        rounds = rows.step + 1  # a step of the logs is evaluated at its end
        label = f"{method} K={K} P={P}" if method == "DeComFL" else f"FedAvg K={K}"
        frame = pd.DataFrame(
            {"panel": panel, "series": label, "seed": rows.seed, "round": rounds, "test_accuracy": rows.value}
        )
        frames.append(frame.assign(reading="authors", method=method, K=K, P=P))
    _require_panels(table)
    found = pd.concat(frames, ignore_index=True)
    keys = found[["method", "round", "K", "P"]].itertuples(index=False)
    return fig2_countings(found.assign(wire_scalars=[_wire(*key) for key in keys]), M=M, m=m)


def require_reference(folder: Path) -> None:
    """Raise InputError as ``fig2_reference`` does, in less time."""
    table = _curves(folder)
    for series in sorted(set(table[table.figure.isin(PANELS)].series)):
        _parse(str(series))
    _require_panels(table)


def _require_panels(table: pd.DataFrame) -> None:
    there, name = sorted(set(table.figure)), f"figures in {table.attrs['file']}"
    require(bool(set(there) & set(PANELS)), name, f"include {' and '.join(PANELS)}", there)


def _curves(folder: Path | None) -> pd.DataFrame:
    path = curves_file(folder)
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"reference must be a folder with a readable {FILE_NAME}, got {folder} ({error})") from None
    missing = [column for column in COLUMNS if column not in table.columns]
    require(not missing, f"columns of {path}", f"include {', '.join(COLUMNS)}", list(table.columns))
    table.attrs["file"] = path
    return table


def fig3_reference(folder: Path | None) -> pd.DataFrame:
    """The training losses and test accuracies behind the paper's Figure 3 (DeComFL's loss as logged, not × 0.9).

    Args:
        folder: See ``fig2_reference``.

    Returns:
        Columns series, method, uplink, top_k, seed, round, train_loss, test_accuracy (NaN where a row has the other);
        empty if the file has no curve of the figure.

    Raises:
        InputError: If the file is missing, cannot be parsed or lacks a column.
    """
    table = _curves(folder)
    frames = []
    for (figure, name), rows in table[table.figure.isin(["fig3_left", "fig3_right"])].groupby(["figure", "series"]):
        metric = SHOWN[str(figure)]
        rows = rows[rows.metric == metric].drop_duplicates(["seed", "step"])
        # A log's name goes on behind its method, with the settings of that run.
        series, method, uplink, top_k = next(
            (labels for start, labels in _FIG3_SERIES.items() if str(name).startswith(start)), (None, "", 0.0, 0.0)
        )
        if series is None:
            raise InputError(f"series of {figure} in {FILE_NAME} must be known, got {name!r}")
        # Losses and accuracies are logged apart: a row has one of the two.
        frame = pd.DataFrame({"seed": rows.seed, "round": rows.step + 1, "train_loss": None, "test_accuracy": None})
        frame[metric] = rows.value
        frames.append(frame.assign(series=series, method=method, uplink=uplink, top_k=top_k))
    columns = ["series", "method", "uplink", "top_k", "seed", "round", "train_loss", "test_accuracy"]
    if not frames:
        return pd.DataFrame(columns=columns)
    return pd.concat(frames, ignore_index=True)[columns].astype({"train_loss": float, "test_accuracy": float})


def _parse(series: str) -> tuple[str, int, int]:
    """(method, K, P) of a legend label; FedAvg's "K=4" is the K=5 run that its file was named after."""
    method = "FedAvg" if series.startswith("FedAvg") else "DeComFL"
    renamed = re.search(r"file was named K=(\d+)", series)
    K = renamed or re.search(r"K=(\d+)", series)
    P = re.search(r"P=(\d+)", series)
    if K is None or (P is None and method == "DeComFL"):
        raise InputError(f"series in {FILE_NAME} must name K (and P), got {series!r}")
    return method, int(K[1]), int(P[1]) if P else 0


def countings(
    rows: pd.DataFrame,
    pairs: Callable[[Any], Any],
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
    direction only, no seeds, no lag.

    Args:
        rows: Rows with the column round.
        pairs: Σ K·P over the first R rounds of DeComFL, of a column of R.
        M: Number of clients.
        m: Number of clients sampled a round.
        d: Number of parameters.
        ours: Whether a row is DeComFL's, and not of a method that sends parameters.
        uplink: The share of d that goes up, of a row that is not: see ``table1_scalars_fedavg``.
        axis: What the notebooks multiply a row by besides.
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
    own = {"method": "fedavg"} if method == "FedAvg" else {"local_steps": K, "perturbations": P}
    return expected_traffic(TrainConfig(clients=M, sampled=m, rounds=R, **own), D).bytes / 4


# --- thinned to what a figure can show --------------------------------------------------------------------------------


def thinned(folder: Path) -> pd.DataFrame:
    """The curves of Figures 2 and 3 with so many of their points that straight lines between these show the whole ones.

    A curve of several seeds keeps the same steps of each, as their mean is drawn.
    """
    found = []
    for (figure, _, metric), rows in _curves(folder).groupby(["figure", "series", "metric"], sort=False):
        if SHOWN.get(str(figure)) != metric:
            continue
        _, last = PANELS.get(str(figure), ("", np.inf))
        curve = rows[rows.step < last].drop_duplicates(["seed", "step"])
        table = curve.pivot(index="step", columns="seed", values="value").dropna()
        steps, values = table.index.to_numpy(dtype=float), table.to_numpy()
        near = (
            np.full_like(values, LOSS) if metric == "train_loss" else ERRORS * np.sqrt(values * (1 - values) / IMAGES)
        )
        # Near along the steps and along their logarithms is near along what lies between these: every axis of a figure.
        axes = np.column_stack([steps, np.log(np.maximum(steps, 0.5))])[:, :, None]
        kept = [0]
        while kept[-1] < len(steps) - 1:
            # From the last point kept, the farthest one to which a line passes all values between them.
            after, here = slice(kept[-1] + 1, None), kept[-1]
            run, rise = axes[after] - axes[here], (values[after] - values[here])[:, None, :]
            slope, slack = rise / run, near[after, None, :] / run
            low, high = np.maximum.accumulate(slope - slack), np.minimum.accumulate(slope + slack)
            passes = ((slope >= low) & (slope <= high)).all(axis=(1, 2))
            kept.append(int(here + 1 + np.flatnonzero(passes)[-1]))
        found.append(curve[curve.step.isin(steps[kept])])
    return pd.concat(found)[[*COLUMNS]]


if __name__ == "__main__":
    rows = thinned(Path(sys.argv[1])).to_csv(index=False)
    write_atomically(THINNED, gzip.compress(rows.encode(), mtime=0))
