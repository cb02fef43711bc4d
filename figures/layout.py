"""What figures share: heading, room for the plots, caption under them; and how frames are checked."""

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, cast

import matplotlib
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from decomfl_lab.errors import InputError, require
from figures.style import SOFT, rc

LOST_POINTS = "Points at 0 lie outside the logarithmic axis."

_CHARACTERS_AN_INCH = 16.4  # of caption text
_CAPTION_LINE = 0.165  # inches
_BOLD_CHARACTERS_AN_INCH = 10.0  # of headings
_HEADING_LINE = 0.2  # inches


class Words(TypedDict, total=False):
    """What every figure is given beside what it draws."""

    title: str  # the heading of the whole figure; none by default
    caption: str  # the text under the plots: model, data, scale, seeds; none by default


@contextmanager
def page(
    width: float, height: float, words: Words, more: Sequence[str] = (), *, grid: bool = True
) -> Iterator[tuple[Figure, SubFigure]]:
    """A figure and the part of it that is for the plots, between heading and caption; its style is in force inside.

    Args:
        width: Inches.
        height: Inches of the plots, legends included.
        words: Heading and caption, which is set in small grey text, wrapped.
        more: Sentences to set below the caption; empty ones are left out.
        grid: Whether panels have lines behind what is drawn.
    """
    title = words.get("title", "")
    text = " ".join(" ".join([words.get("caption", ""), *more]).split())
    lines = textwrap.wrap(text, width=int(width * _CHARACTERS_AN_INCH), break_on_hyphens=False)
    foot_height = _CAPTION_LINE * len(lines) + 0.22
    heading = textwrap.wrap(title, width=int(width * _BOLD_CHARACTERS_AN_INCH))
    plots_height = height + (_HEADING_LINE * (1 + len(heading)) if heading else 0.0)
    with matplotlib.rc_context({**rc(), **({} if grid else {"axes.grid": False})}):
        figure = Figure(figsize=(width, plots_height + foot_height))
        parts = figure.subfigures(2, 1, squeeze=False, height_ratios=[plots_height, foot_height])
        plots, foot = cast(list[SubFigure], list(parts[:, 0]))
        if heading:
            plots.suptitle("\n".join(heading), x=0.012, ha="left", fontsize=11.5, fontweight="bold")
        foot.text(
            0.012,
            1.0 - 0.1 / foot_height,
            "\n".join(lines),
            ha="left",
            va="top",
            fontsize=8.0,
            color=SOFT,
            linespacing=1.35,
        )
        yield figure, plots


def axes_of(plots: SubFigure, down: int, across: int, **given: Any) -> list[Axes]:
    """The axes of a grid, row by row; ``given`` are those arguments of matplotlib's ``subplots``."""
    return cast(list[Axes], list(plots.subplots(down, across, squeeze=False, **given).flat))


def legend_below(
    plots: SubFigure,
    axes: Iterable[Axes],
    *,
    columns: int,
    order: Iterable[str] | None = None,
    more: Iterable[tuple[Artist, str]] = (),
) -> None:
    """One legend for all axes, a handle for each label, in this ``order`` (or as they are drawn), and ``more`` last."""
    handles: dict[str, Artist] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = [label for label in (handles if order is None else order) if label in handles]
    shown = [*((handles[label], label) for label in labels), *more]
    plots.legend(*zip(*shown, strict=True), loc="outside lower center", ncols=columns, handlelength=3.3)


def require_columns(name: str, frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """Raise InputError unless ``frame`` has rows and all of ``columns``."""
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise InputError(f"{name} must have the columns {', '.join(columns)}, got none named {', '.join(missing)}")
    require(not frame.empty, name, "have at least one row", len(frame))


def require_known(name: str, found: Iterable[str], known: Collection[str]) -> None:
    """Raise InputError unless all that is ``found`` is ``known``."""
    unknown = sorted(set(found) - set(known))
    require(not unknown, name, f"be among {', '.join(known)}", unknown)
