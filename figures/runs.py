"""Curves of several runs, told apart by what differs between them."""

import textwrap

import pandas as pd
from matplotlib.figure import Figure

from decomfl_lab.errors import require, require_choice
from figures.curves import BAND, draw_mean
from figures.layout import legend_below, page, require_columns
from figures.style import LOOKS, series_styles

X, Y = LOOKS["axes"]["x"], LOOKS["axes"]["y"]
"""What can be on either axis: the column, and what is said of it."""
_WIDTH = 80  # the characters of a line of the legend


def run_curves(frame: pd.DataFrame, *, x: str = "rounds", y: str = "accuracy") -> Figure:
    """One line a label; where runs of a label differ in the seed alone, their mean with its band.

    The frame has columns label, seed, round and those that ``X`` and ``Y`` name by their keys x and y.

    Raises:
        InputError: If x or y is unknown, a column is missing, or there is no row with a value.
    """
    (across, x_words), (up, y_words) = X[require_choice("x", x, X)], Y[require_choice("y", y, Y)]
    require_columns("frame", frame, ["label", "seed", "round", across])
    with_values = [name for name, (column, _) in Y.items() if column in frame and frame[column].notna().any()]
    require(bool(with_values) or frame.empty, "runs", "have held-out examples, of which their curves are", "none")
    rule = f"be {' or '.join(with_values)}, as the runs have nothing else on held-out examples"
    require(y in with_values or frame.empty, "y", rule, y)
    drawn = frame.dropna(subset=[across, up])
    require_columns(f"rows with {y}", drawn, [up])
    styles = series_styles(drawn["label"])
    several = drawn.groupby("label")["seed"].nunique().max() > 1
    words = {label: textwrap.fill(label, _WIDTH) for label in styles}
    lines = sum(text.count("\n") + 1 for text in words.values())  # of the legend
    with page(6.4, 3.6 + 0.18 * lines, {}, [BAND] if several else []) as (figure, plots):
        ax = plots.subplots()
        for label, style in styles.items():
            draw_mean(ax, drawn[drawn["label"] == label], across, up, style, label=words[label])
        ax.set(xlabel=x_words, ylabel=y_words)
        legend_below(plots, [ax], columns=1)
    return figure
