"""Eigenvalues of a Hessian along training: their density, the outer ones, and every κ; and κ of many networks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from figures.layout import Words, axes_of, legend_below, page, require_known
from figures.style import LOOKS, OKABE_ITO, SOFT

KAPPAS: Mapping[str, str] = {name: meaning for name, (meaning, _, _) in LOOKS["kappas"].items()}
"""What each κ of an indefinite H is."""

_BLUE, _ORANGE, _GREEN, _RED = OKABE_ITO[2], OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[3]
_LOOKS = {name: {"marker": marker, "color": colour} for name, (_, marker, colour) in LOOKS["kappas"].items()}


def training_spectra(
    curves: pd.DataFrame,
    single: pd.DataFrame,
    kappas: pd.DataFrame,
    extremes: pd.DataFrame,
    *,
    d: int,
    near: float,
    **words: Unpack[Words],
) -> Figure:
    """Above: the density at several steps of training; below: every κ, and λ_max, λ_min and the loss, by step.

    Args:
        curves: Columns step, value (λ), density (share of the eigenvalues per unit of λ), low and high (its error band)
            and bandwidth (standard deviation of the Gaussian that it is smoothed by, in units of λ).
        single: Columns step and value: the eigenvalues that are known one by one; there may be none.
        kappas: Columns step, kappa (a key of ``KAPPAS``), value, low and high.
        extremes: Columns step, lambda_max, lambda_min, "near zero" (the share of eigenvalues that ``near`` calls 0)
            and loss.
        d: Number of eigenvalues.
        near: Share of the largest magnitude below which an eigenvalue counts as 0.
        words: See ``Words``.

    Returns:
        A figure without pyplot state; InputError if a κ is unknown.
    """
    require_known("kappas", kappas["kappa"], KAPPAS)
    steps = sorted(curves["step"].unique())
    explained = [
        "Above: share of the d eigenvalues per unit of λ, smoothed by a Gaussian; band: its error over probes; stems: "
        f"eigenvalues known one by one. Near 0: |λ| below {near:.0%} of the largest.",
        "Bars of κ: its interval.",
    ]
    with page(max(9.6, 2.7 * len(steps)), 6.8, words, explained) as (figure, plots):
        upper, lower = plots.subfigures(2, 1, squeeze=False, height_ratios=[0.9, 1.25])[:, 0]
        axes = axes_of(upper, 1, len(steps), sharex=True, sharey=True)
        widths = curves.groupby("step")["bandwidth"].first()
        for ax, step in zip(axes, steps, strict=True):
            # The curve with its band, and single eigenvalues as stems.
            curve = curves[curves["step"] == step].sort_values("value")
            alone = single.loc[single["step"] == step, "value"]
            one = _one(d, float(widths[step]))  # the height of a single eigenvalue
            low = curve["low"].clip(lower=one / 1e3)
            ax.fill_between(curve["value"], low, curve["high"], color=_BLUE, alpha=0.22, linewidth=0)
            ax.plot(curve["value"], curve["density"], color=_BLUE, linewidth=1.4, label="density")
            ax.vlines(alone, one / 1e3, one, color=_RED, linewidth=1.1, label="single eigenvalues")
            ax.plot(alone, np.full(len(alone), one), "o", color=_RED, markersize=2.8, label="_heads")
            _set_scale(ax, curves, float(widths.max()), d)
            share = float(extremes.loc[extremes["step"] == step, "near zero"].iloc[0])
            ax.text(0.98, 0.96, f"{share:.1%} near 0", transform=ax.transAxes, ha="right", va="top", color=SOFT)
            ax.set_title("before training" if step == 0 else f"after {step:,} steps")
            ax.set_xlabel("eigenvalue λ")
        axes[0].set_ylabel("density")
        by_step, outer = axes_of(lower, 1, 2, width_ratios=[1.2, 1.0])
        _kappas(by_step, kappas, d)
        rows = extremes.sort_values("step")
        outer.plot(rows["step"], rows["lambda_max"], color=_RED, marker="s", markersize=3.8, label="λ_max")
        outer.plot(rows["step"], -rows["lambda_min"], color=OKABE_ITO[4], marker="v", markersize=3.8, label="−λ_min")
        outer.plot(rows["step"], rows["loss"], color=SOFT, marker=".", linestyle=":", label="loss")
        outer.set(yscale="log", title="outer eigenvalues and loss", xlabel="steps of training")
        outer.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        outer.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24))
    return figure


def _set_scale(ax: Axes, curves: pd.DataFrame, bandwidth: float, d: int) -> None:
    """Axes on which a density with a huge peak at 0 and single outliers can be read, the same for all curves.

    log y, down to a third of one eigenvalue; symmetric log x, linear within three bandwidths of 0, with ticks at 0 and
    outside at powers of ten, or at 1, 2, 5, 10 where these are few.
    """
    linear = 3 * bandwidth
    floor = _one(d, bandwidth) / 3
    ax.set_yscale("log")
    ax.set_ylim(floor, max(2 * float(curves[["density", "high"]].max().max()), 10 * floor))
    ax.set_xlim(min(1.4 * float(curves["value"].min()), -linear), max(1.4 * float(curves["value"].max()), linear))
    multiples = (1,) if max(map(abs, ax.get_xlim())) > 30 * linear else (1, 2, 5)
    powers = [10.0**k for k in range(math.floor(math.log10(linear)), 13)]
    decades = [m * power for power in powers for m in multiples]
    decades = [place for place in decades if place >= linear]
    ax.set_xscale("symlog", linthresh=linear, linscale=0.6)
    ax.xaxis.set_major_locator(FixedLocator([-each for each in reversed(decades)] + [0.0] + decades))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
    ax.yaxis.set_major_locator(LogLocator(numticks=6))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _one(d: int, bandwidth: float) -> float:
    """The height of a single one of d eigenvalues, smoothed."""
    return 1.0 / (d * bandwidth * math.sqrt(2 * math.pi))


def _kappas(ax: Axes, kappas: pd.DataFrame, d: int) -> None:
    """Every κ against steps, with its interval, under the line κ = d."""
    for name in (each for each in KAPPAS if each in set(kappas["kappa"])):
        rows = kappas[kappas["kappa"] == name].sort_values("step")
        positive = rows[rows["value"] > 0]
        ax.errorbar(
            positive["step"],
            positive["value"],
            yerr=[
                (positive["value"] - positive["low"].clip(lower=positive["value"] / 10)).clip(lower=0),
                (positive["high"] - positive["value"]).clip(lower=0),
            ],
            **_LOOKS[name],
            markersize=4.2,
            linewidth=1.5,
            elinewidth=1.1,
            capsize=2.5,
            label=f"{name}: {KAPPAS[name]}",
        )
    ax.axhline(d, color=SOFT, linewidth=1.0, linestyle=(0, (4, 2)), label=f"d = {d:,}")
    ax.set(yscale="log", title="effective rank κ", xlabel="steps of training")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24))


_OWN = ["network", "data", "loss"]  # columns that name a network of the census


def census_figure(rows: pd.DataFrame, last: pd.DataFrame, **words: Unpack[Words]) -> Figure:
    """Left: every κ of every network, beside its d; right: κ of the positive part along training, and against n.

    Args:
        rows: Columns network, data, loss, steps (of training; NaN for a network as it is shipped), n (examples), d,
            reading (a key of ``KAPPAS``), value, low and high.
        last: The same of the networks at their last moments, a row for each reading.
        words: See ``Words``.

    Returns:
        A figure without pyplot state; InputError if a reading is unknown.
    """
    require_known("readings", rows["reading"], KAPPAS)
    order = last.drop_duplicates(_OWN)
    places = {key: n for n, key in enumerate(order[_OWN].itertuples(index=False, name=None))}
    explained = ["Bars and bands: intervals. A κ, or an end of its interval, below 1 is at the edge."]
    with page(12.5, max(5.0, 0.27 * len(places) + 1.4), words, explained) as (figure, plots):
        left, right = plots.subfigures(1, 2, squeeze=False, width_ratios=[1.75, 1.0])[0]
        (ax,) = axes_of(left, 1, 1)
        for n, (name, meaning) in enumerate(KAPPAS.items()):
            of_kappa = last[last["reading"] == name]
            heights = [places[key] + 0.16 * (n - 1.5) for key in of_kappa[_OWN].itertuples(index=False, name=None)]
            value, low, high = (of_kappa[column].clip(lower=1) for column in ("value", "low", "high"))
            look: dict[str, Any] = {**_LOOKS[name], "markersize": 3.6, "label": f"{name}: {meaning}"}
            ends = [(value - low).clip(lower=0), (high - value).clip(lower=0)]
            ax.errorbar(value, heights, xerr=ends, linestyle="none", elinewidth=1.0, **look)
        ax.plot(order["d"], range(len(places)), "|", color=SOFT, markersize=9, label="d, the number of parameters")
        ax.set_yticks(range(len(places)), [_named(*key) for key in places])
        ax.set(
            xscale="log", xlim=(0.9, 2 * order["d"].max()), ylim=(len(places) - 0.4, -0.6), xlabel="effective rank κ"
        )
        legend_below(left, [ax], columns=2)
        positive = rows[rows["reading"] == "positive"]
        several = [key for key, of_network in positive.groupby(_OWN, sort=False) if of_network["n"].nunique() > 1]
        colours = dict(zip(several, OKABE_ITO, strict=False))
        axis_labels = {"steps": "steps of training", "n": "n, the examples of the loss"}
        # Along training at the usual n, and by n at the last moment: the other of the two is as in ``last``.
        for ax, x, fixed in zip(axes_of(right, 2, 1), axis_labels, reversed(axis_labels), strict=True):
            ax.set_xscale("symlog", linthresh=float(rows.loc[rows[x] > 0, x].min()))
            for key, curve in positive.merge(order[[*_OWN, fixed]]).sort_values(x).groupby(_OWN, sort=False):
                if curve[x].nunique() > 1:
                    colour, label = colours.get(key, SOFT), _named(*map(str, key))
                    ax.plot(curve[x], curve["value"], "^-", color=colour, markersize=3, linewidth=1, label=label)
                    low = curve["low"].clip(lower=1)
                    ax.fill_between(curve[x], low, curve["high"], color=colour, alpha=0.12, linewidth=0)
            if not ax.lines:
                ax.text(0.5, 0.5, "not recorded", transform=ax.transAxes, color=SOFT, ha="center")
            ax.set(yscale="log", xlabel=axis_labels[x], ylabel="κ positive")
        if several:
            ax.legend(fontsize=7)
    return figure


def _named(network: str, data: str, loss: str) -> str:
    """A network with its data, and its loss where that is not cross-entropy."""
    return f"{network}, {data}" + ("" if loss == "cross-entropy" else f" ({loss.removeprefix('cross-entropy, ')})")


def kernel_figure(
    errors: pd.DataFrame, correlations: pd.DataFrame, predictors: Sequence[str], **words: Unpack[Words]
) -> Figure:
    """Left: the error of tangent kernels against what foretells it; right: rank correlations of rounds with numbers.

    Args:
        errors: Columns value (‖K_P − K‖/‖K‖) and those of ``predictors``, a row for each network, P and distribution.
        correlations: Columns P, number, correlation, low and high.
        predictors: The names of the columns that foretell the error.
        words: See ``Words``.

    Returns:
        A figure without pyplot state.
    """
    with page(11.0, 4.4, words, ["Bars: 95 % intervals over networks."]) as (figure, plots):
        against, ranks = axes_of(plots, 1, 2, width_ratios=[1.2, 1.0])
        for name, colour, marker in zip(predictors, (_BLUE, _ORANGE, _GREEN), ("o", "x", "+"), strict=True):
            against.plot(errors[name], errors["value"], marker, color=colour, markersize=4, alpha=0.7, label=name)
        ends = [errors["value"].min(), errors["value"].max()]
        against.plot(ends, ends, color=SOFT, linewidth=1, label="equal")
        against.set(xscale="log", yscale="log", xlabel="foretold", ylabel="‖K_P − K‖ / ‖K‖, measured")
        against.legend()
        numbers = list(dict.fromkeys(correlations["number"]))
        for n, (P, of_P) in enumerate(correlations.groupby("P")):
            across = [numbers.index(each) + 0.2 * (n - 1) for each in of_P["number"]]
            spread = [of_P["correlation"] - of_P["low"], of_P["high"] - of_P["correlation"]]
            ranks.errorbar(
                across, of_P["correlation"], yerr=spread, fmt="s", color=OKABE_ITO[n], markersize=4, label=f"P = {P}"
            )
        ranks.axhline(0, color=SOFT, linewidth=1)
        ranks.set(xticks=range(len(numbers)), ylim=(-1.05, 1.05), ylabel="rank correlation with the rounds needed")
        ranks.set_xticklabels(numbers)
        ranks.legend(loc="lower left")
    return figure
