"""The tables of the recorded runs at the paper's own sizes: ``python -m paper_repro.commands.tables`` prints them.

``make docs`` makes a page of them, docs/paper-tables.md.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import pandas as pd

from paper_repro.parts.fig3 import AT
from paper_repro.studies.edge_runs import PAPER_STEP
from paper_repro.workflow import claims, recorded
from paper_repro.workflow.estimators import gaps
from paper_repro.workflow.health import complaint
from paper_repro.workflow.measures import diverges, lines_of, settled

__all__ = ["TABLES", "TEXTS", "page"]

_HEAD: Final = """# The recorded runs in tables

Made of `paper_repro/results` by `python -m paper_repro.commands.tables`. What the numbers say is in
[The paper's figures at three scales](paper-scales.md)."""
_COMPARED: Final = (
    "last accuracy",
    "best accuracy",
    *(f"training loss at {r}" for r in AT),
)
TEXTS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""The heading of each table and what its columns are, by its name."""
_POINT: Final = ["estimator", "batch", "P", "K", "beta", "factor"]


def page() -> str:
    """All tables as a page of Markdown, each under its heading."""
    parts = [f"## {TEXTS[name]['title']}\n\n{TEXTS[name]['about']}\n\n{rows()}" for name, rows in TABLES.items()]
    return "\n\n".join([_HEAD, *parts]) + "\n"


def _rows(part: str) -> pd.DataFrame:
    kept = recorded.load(part, "full")
    assert kept is not None
    return kept.rows


def _lines(part: str) -> pd.DataFrame:
    """The runs of a part that do not merely check others."""
    return lines_of(_rows(part))


def _measured(claim: str) -> Mapping[str, Any]:
    """The recorded numbers of a claim."""
    found = json.loads(claims.RECORDED.read_text(encoding="utf-8"))
    return next((row["measured"] for row in found if row["id"] == claim), {})


def _in_the_logs(claim: str, series: str) -> tuple[int, float, float] | None:
    """Last common round, our accuracy and the authors' there, as a claim about a band has them."""
    name = re.compile(rf"{re.escape(series)}, to round (\d+): last accuracy, ours")
    for told, ours in _measured(claim).items():
        if at := name.fullmatch(told):
            return int(at[1]), ours, _measured(claim)[told.replace("ours", "authors'")]
    return None


def _figure_2() -> str:
    lines = _lines("fig2")
    plotted = lines[lines.reading == "as-plotted"]
    table = []
    for (panel, series), own in plotted.groupby(["panel", "series"], sort=False):
        found = _in_the_logs("fig2.band", f"{panel}, {series}")
        if found is None:
            continue
        r, ours, theirs = found
        written_out = lines[(lines.reading == "as-written") & (lines.panel == panel) & (lines.series == series)]
        by_text = written_out[written_out["round"] == r].test_accuracy.mean()
        seeds = settled(own, ["series"]).seed.nunique()
        told = seeds if seeds == own.seed.nunique() else f"{seeds} of {own.seed.nunique()}"
        table.append((panel, series, told, f"{r:,}", _share(ours), _share(theirs), _share(by_text)))
    head = ("panel", "series", "our seeds in the mean", "round", "ours", "authors' logs", "ours by the text")
    return _markdown(head, table)


def _estimators() -> str:
    fig2 = _rows("fig2")
    plotted = fig2[fig2.reading == "as-plotted"]
    both = {
        "Figure 2": (plotted, ["panel", "series"]),
        "Figure 3": (_rows("fig3"), ["series"]),
        "Table 1": (_rows("table1"), ["series"]),
    }
    table = []
    for figure, (rows, by) in both.items():
        for name, own in gaps(rows, by).groupby(by, sort=False):
            first = own[own.seed == own.seed.min()]
            worst, last = own.sort_values("gap").iloc[-1], first.sort_values("round").iloc[-1]
            distance = f"{100 * worst.gap:.2f} points (round {worst['round']:,})"
            ends = _share(last.test_accuracy), _share(last.test_accuracy_projection)
            panel = name[0] if len(by) > 1 else figure
            table.append((panel, name[-1], f"{last['round']:,}", distance, *ends))
    head = ("panel", "series", "rounds by differences", "largest distance in accuracy")
    return _markdown((*head, "last, by differences", "by projection"), table)


def _curves() -> str:
    """Every series of Figure 3, of the top-k figure and of Table 1: where it ends, and whether its runs trained."""
    table = []
    seen: set[str] = set()
    for part, figure in (("fig3", "Figure 3"), ("topk", "top-k"), ("table1", "Table 1")):
        for series, own in _lines(part).groupby("series", sort=False):
            if series in seen:
                continue  # the top-k figure shares runs with Figure 3
            seen.add(str(series))
            whole = own[own.finished.astype(bool)]
            mean = (
                (own if whole.empty else settled(own, ["series"]))
                .groupby("round")[["test_accuracy", "train_loss"]]
                .mean()
            )
            best = int(mean.test_accuracy.to_numpy().argmax())
            found = _in_the_logs("fig3.band", str(series)) if part == "fig3" else None
            ill = [words for _, run in own.groupby("seed") if (words := complaint(run)) is not None]
            of = own.seed.nunique()
            seeds = whole.seed.nunique() or of
            told = seeds if seeds == of else f"{seeds} of {of}"
            cells = [figure, series, told, f"{mean.index[-1]:,}", _share(mean.test_accuracy.iloc[-1])]
            cells += [
                f"{_share(mean.test_accuracy.iloc[best])} ({mean.index[best]:,})",
                "–" if found is None else _share(found[2]),
            ]
            cells += [f"{mean.train_loss.min():.3f}", f"{mean.train_loss.iloc[-1]:.3f}"]
            table.append((*cells, f"no: {'; '.join(dict.fromkeys(ill))}" if ill else "yes"))
    head = ("part", "series", "seeds", "rounds", "last accuracy", "best (at round)", "authors' last")
    return _markdown((*head, "least training loss", "last", "trained"), table)


def _first_order() -> str:
    """The first-order series of Figure 3 beside the authors' logs, as the claim about their settings has them."""
    told = _measured("fig3.settings")
    end = ": largest distance of training losses"
    table = []
    for name, distance in told.items():
        if not name.endswith(end):
            continue
        series = name.removesuffix(end)
        sides = [[told.get(f"{series}: {what}, {side}") for side in ("ours", "authors'")] for what in _COMPARED]
        cells = [" / ".join("–" if value is None else f"{value:.3f}" for value in pair) for pair in sides]
        known = "found" if distance <= claims.limits("fig3").near else "unknown"
        table.append((series, *cells, f"{100 * distance:.0f} %", known))
    head = ("series", *_COMPARED)
    return _markdown((*head, "largest distance, rounds 30 to 301", "setting of the log"), table)


def _edge() -> str:
    table = []
    for point, own in _rows("edge").groupby(_POINT, sort=False):
        estimator, batch, P, K, beta, factor = cast(tuple[Any, ...], point)
        apart = sum(diverges(run) for _, run in own.groupby("seed"))
        step = f"{factor * PAPER_STEP:g}"
        table.append((estimator, batch, P, K, f"{beta:g}", step, f"{apart} of {own.seed.nunique()}"))
    # From large batches to small ones, momentum before none.
    ordered = sorted(table, key=lambda row: (row[0] != "projection", -row[1], row[2], row[3], row[4] == "0", row[5]))
    return _markdown(("estimator", "B", "P", "K", "β", "η/(1 − β)", "diverged"), ordered)


def _share(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:.3f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "figure-2": _figure_2,
    "estimators": _estimators,
    "curves": _curves,
    "first-order": _first_order,
    "edge": _edge,
}
"""The rows of each table, by its name."""

if __name__ == "__main__":
    print(page(), end="")
