"""The panels that are no curves of runs alone: memory, spectra, bounds, fine-tuning, sizes, the edge."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex

from figures import theory as bounds
from figures.style import OKABE_ITO, method_styles
from paper_repro.language_models.llm import FULL, P5
from paper_repro.parts.memory import ROLES
from paper_repro.workflow import recordings
from paper_repro.workflow.part import Made
from tests.paper_repro.recomputed import others
from tests.paper_repro.recomputed.axes import bands_of, lines_of, named, wrong_in
from tests.paper_repro.recomputed.common import having, rows
from tests.paper_repro.test_panels import Plant, made, wrong_curves
from theory.bounds.sweeps import SMALL_D
from theory.notation.printed import LORA_PARAMETERS, PARAMETERS, ROUNDS

MIXED = ("theory", "hessian")
"""Parts whose rows are drawn in another order than they are recorded."""
AVERAGE = "mean over rounds of E‖∇f‖²"


def mixed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sample(frac=1.0, random_state=0)


@cache
def drawn(part: str) -> tuple[Made, pd.DataFrame]:
    """What is made of a part at its largest scale, and its rows."""
    scale = recordings.largest(part).scale  # type: ignore[union-attr]
    return made(part, scale, mixed if part in MIXED else lambda frame: frame), rows(part, scale)


def labelled(ax: Axes) -> dict[str, np.ndarray]:
    """The points of the lines that have a name, from left to right."""
    found = {label: points for label, _, points in lines_of(ax) if not label.startswith("_")}
    # Points with error bars have their name at the bars.
    bars = {str(each.get_label()): each.lines[0] for each in ax.containers if hasattr(each, "lines")}
    found |= {name: np.column_stack(line.get_data()) for name, line in bars.items() if name and name[0] != "_"}
    return {name: points[points[:, 0].argsort(kind="stable")] for name, points in found.items()}


def bars_of(ax: Axes) -> list[np.ndarray]:
    """The two ends of every vertical error bar, container by container."""
    bars = [getattr(each, "lines", (None, None, ()))[2] for each in ax.containers]
    return [np.array([ends[:, 1] for ends in each.get_segments()]) for own in bars for each in own]


def alike(one: Any, other: Any) -> bool:
    a, b = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True))


def otherwise(shown: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """The names under which something else is shown than expected, or either is nothing."""
    return [name for name in {**shown, **expected} if not alike(shown.get(name, [()]), expected.get(name, [[()]]))]


def same_lines(ax: Axes, expected: Sequence[np.ndarray]) -> bool:
    """Whether the panel has these lines and no others, but for one at the height of 1 from edge to edge."""
    shown = [points for _, _, points in lines_of(ax) if len(points) != 2 or not alike(points[:, 1], [1, 1])]
    return len(shown) == len(expected) and all(any(alike(points, own) for points in shown) for own in expected)


# --- memory, SmolLM2, sizes -------------------------------------------------------------------------------------------


def test_the_memory_figure_shows_its_rows() -> None:
    made_of, frame = drawn("memory")
    names = [ROLES[role].what for role in frame.role]
    own = frame.assign(series=names, seed=0, measured=frame.peak_bytes / (4 * frame.d))
    columns = {"parameters d": "d", "peak memory in models": "measured"}
    assert wrong_in(made_of.figures["memory"]().axes[0], {"curves": own}, by="d", columns=columns) == []


def test_the_figure_of_smollm2_shows_its_rows() -> None:
    made_of, frame = drawn("smollm2")
    clients = recordings.largest("smollm2").provenance[0]["settings"]["clients"]  # type: ignore[union-attr]
    frame = frame.assign(kB=frame.wire_bytes / clients / 1000)
    columns = {"rounds": "round", "kB that a client and the server exchanged": "kB"}
    for ax in made_of.figures["smollm2"]().axes:
        curves = [frame[[columns[ax.get_xlabel()], f"{name}_accuracy"]].to_numpy() for name in ("test", "calibrated")]
        starts = [np.column_stack([own[[0, -1], 0], own[[0, 0], 1]]) for own in curves]
        assert ax.get_ylabel() == "test accuracy"
        assert same_lines(ax, [*curves, *starts])


def test_the_scale_figure_shows_its_rows() -> None:
    made_of, frame = drawn("sizes")
    own = frame[frame.what == "evaluation"]
    start = own[own["round"] == 0].set_index(["model", "seed"]).test_loss
    share = own.test_loss / start.reindex(pd.MultiIndex.from_frame(own[["model", "seed"]])).to_numpy()
    own = own.assign(series=own.model, share=share)
    panels = named(made_of.figures["sizes"]())
    for title, column in (("test accuracy", "test_accuracy"), ("test loss, of that before training", "share")):
        panels[title].set_ylabel(title)  # here the title says what the axis has
        columns = {"rounds completed": "round", title: column}
        assert wrong_in(panels[title], {"curves": own}, columns=columns) == []
    runs = others.size_runs(frame)
    rounds = runs[runs.settled].groupby("d").rounds.mean()
    kappa = frame[(frame.what == "kappa") & (frame["at"] == "start")].groupby("d").kappa.mean()
    (last,) = (ax for title, ax in panels.items() if title.startswith("rounds to "))
    spots = {
        tuple(map(float, np.ravel(line.get_data()))) for line in last.get_lines() if line.get_marker() in ("o", "s")
    }
    assert alike(sorted(spots), sorted((x, r) for d, r in rounds.items() for x in (kappa[d], d)))


# --- spectra ----------------------------------------------------------------------------------------------------------


def wrong_spectra(figure: Any, frame: pd.DataFrame) -> list[str]:
    own = frame[frame["kind"] != "check"]
    numbers = own[own["kind"] == "estimate"].pivot(index="step", columns="name", values="value")
    told = []
    panels = named(figure)
    for step, at in own.groupby("step"):
        ax = panels["before training" if step == 0 else f"after {step:,.0f} steps"]
        curve = at[at["kind"] == "curve"].sort_values("value")
        single = np.sort(at[at["kind"] == "single"].value)
        one = 1 / (numbers.d[step] * numbers.bandwidth[step] * (2 * np.pi) ** 0.5)  # the height of one eigenvalue
        low = curve.groupby("value").low.first().clip(lower=one / 1e3)  # on a log axis
        high = curve.groupby("value").high.first()
        shown = {label: points[points[:, 0].argsort()] for label, _, points in lines_of(ax)}
        shown["band"] = next(iter(bands_of(ax).values()))[0]
        expected = {
            "density": curve[["value", "density"]],
            "band": np.sort(np.column_stack([low, high]), axis=1),
            "_heads": np.column_stack([single, np.full(len(single), one)]),
        }
        told += [f"{step}: {name}" for name in otherwise({name: shown[name] for name in expected}, expected)]
        told += [f"{step}: share"] * ([t.get_text() for t in ax.texts] != [f"{numbers['near zero'][step]:.1%} near 0"])
        assert (ax.get_xlabel(), figure.axes[0].get_ylabel()) == ("eigenvalue λ", "density")
        assert (ax.get_xscale(), ax.get_yscale()) == ("symlog", "log")
        assert ax.get_ylim()[0] < one < ax.get_ylim()[1]
        assert ax.get_xlim()[0] < curve.value.min() < curve.value.max() < ax.get_xlim()[1]
    (d,) = numbers.d.unique()
    of_kappa = panels["effective rank κ"]
    shown = {label.partition(":")[0]: points for label, points in labelled(of_kappa).items()}
    told += ["d"] * (not alike(shown.pop(f"d = {d:,.0f}")[:, 1], [d, d]))
    kappas = {
        name: own[(own["kind"] == "estimate") & (own["name"] == name) & (own.value > 0)].sort_values("step")
        for name in others.READINGS
    }
    told += otherwise(shown, {name: each[["step", "value"]] for name, each in kappas.items()})
    for each, ends in zip(kappas.values(), bars_of(of_kappa), strict=True):
        low = each.low.clip(lower=each.value / 10).clip(upper=each.value)
        told += ["interval of κ"] * (not alike(ends, np.column_stack([low, each.high])))
    outer = {"λ_max": numbers.lambda_max, "−λ_min": -numbers.lambda_min, "loss": numbers.loss}
    shown = labelled(panels["outer eigenvalues and loss"])
    return told + otherwise(shown, {name: value.reset_index() for name, value in outer.items()})


def test_the_hessian_figure_shows_its_rows() -> None:
    found, frame = drawn("hessian")
    assert wrong_spectra(found.figures["hessian"](), frame) == []


# --- theory -----------------------------------------------------------------------------------------------------------


def theory(name: str) -> tuple[Any, pd.DataFrame]:
    found, frame = drawn("theory")
    return found.figures[f"theory-{name}"](), frame


def wrong_bounds(figure: Any, frame: pd.DataFrame) -> list[str]:
    told = []
    panels = (
        ("by-d", "d", "parameters d", "d grows, κ = "),
        ("by-kappa", "kappa", "effective rank κ", "κ grows, d = "),
    )
    for ax, (sweep, x, label, title) in zip(figure.axes, panels, strict=True):
        own = frame[frame.sweep == sweep]
        fixed = own.kappa if x == "d" else own.d
        assert (ax.get_xlabel(), ax.get_title(loc="left")) == (label, f"{title}{fixed.iloc[0]:,.0f}")
        assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
        expected = {str(name): each.sort_values(x)[[x, "value"]] for name, each in own.groupby("series")}
        if x == "d":
            simulated = frame[frame.sweep == "simulated"].sort_values("d", kind="stable")
            expected["simulated runs"] = simulated[["d", "value"]]
            (bars,), (line,) = bars_of(ax), (each.lines[0] for each in ax.containers)
            told += ["intervals"] * (not alike(bars[line.get_xdata().argsort()], simulated[["low", "high"]]))
            far = own[(own.d >= 1000) & own.series.str.startswith("measured")].groupby("series").value
            words = f"measured, from d = 1,000 on:\nmost / least − 1 = {(far.max() / far.min()).max() - 1:.1e}"
            told += ["words"] * ([text.get_text() for text in ax.texts] != [words])
        told += [f"{sweep}: {name}" for name in otherwise(labelled(ax), expected)]
    return told


def test_the_figure_of_the_dimension_shows_its_rows() -> None:
    figure, frame = theory("dimension")
    assert wrong_bounds(figure, frame) == []
    assert figure.axes[0].get_ylabel() == AVERAGE
    # Recorded intervals are the same to both sides; here they are not.
    skewed = frame.assign(low=frame.low - frame.value / 2)
    by_d, by_kappa, simulated = (skewed[skewed.sweep == name] for name in ("by-d", "by-kappa", "simulated"))
    assert wrong_bounds(bounds.dimension_free(by_d, by_kappa, simulated), skewed) == []
    assert not bounds.dimension_free(by_d, by_kappa, simulated[:0]).axes[0].containers


ENDS = {"P": (SMALL_D, "P = d"), "K": (SMALL_D, "K = d/P")}
KNOBS = {"m": "more clients sampled", "P": "more directions", "K": "more local steps"}


@pytest.mark.parametrize("unreached", [False, True])
def test_the_figure_of_the_speed_ups_shows_its_rows(unreached: bool) -> None:
    figure, frame = theory("rounds")
    own = frame[frame.sweep == "rounds"]
    if unreached:  # as no recorded one is
        own = own.assign(rounds=own.rounds.mask(own["at"] == own["at"].max()))
        figure = bounds.speed_ups(own, ends=ENDS)
    own = own.dropna(subset=["rounds"])
    assert figure.axes[0].get_ylabel() == "rounds R to reach ε"
    for ax in figure.axes:
        knob = ax.get_xlabel()
        assert ax.get_title(loc="left") == KNOBS[knob]
        expected = {
            f"{name}, {noise}": each.sort_values("at")[["at", "rounds"]]
            for (noise, name), each in own[own.knob == knob].groupby(["noise", "series"])
        }
        assert otherwise(labelled(ax), expected) == []
        slopes = [points for label, _, points in lines_of(ax) if label == "_slope"]
        firsts = [each.to_numpy()[0].prod() for name, each in expected.items() if name.startswith("measured")]
        assert alike(sorted(points.prod(1).max() for points in slopes), sorted(firsts))
        assert alike([points.prod(1).min() for points in slopes], [points.prod(1).max() for points in slopes])
        ends = [points[:, 0] for label, _, points in lines_of(ax) if label == "_end"]
        words = [words for each, (_, words) in ENDS.items() if each == knob]
        assert alike(ends, [[SMALL_D] * 2] * len(words))
        assert [text.get_text() for text in ax.texts] == words


def test_the_maps_of_step_sizes_show_their_rows() -> None:
    figure, frame = theory("step-sizes")
    own = frame[frame.sweep == "step-sizes"]
    names = ("variance", "drift", "local_steps", "smoothing")
    shades = {
        "binds": own.binding.map(names.index),
        "corrected": np.log10(own.stated / own.corrected),
        "limit": np.log10(own.limit / own.stated),
    }
    maps = [(shade, K) for shade in shades.values() for K in sorted(own.K.unique())]
    meshes = [mesh for ax in figure.axes for mesh in ax.collections if isinstance(mesh, QuadMesh)]
    # A bar of colours is a mesh of one column.
    panels = [mesh for mesh in meshes if min(mesh.get_array().shape) > 1][: len(maps)]
    for mesh, (shade, K) in zip(panels, maps, strict=True):
        table = own.assign(shade=shade)[own.K == K].pivot(index="m", columns="ratio", values="shade")
        assert alike(mesh.get_array(), table.to_numpy())
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert [title for title in titles if title] == [f"K = {K:g}" for K in sorted(own.K.unique())]
    colours = {name: to_hex(panels[0].to_rgba(n)).upper() for n, name in enumerate(names)}
    assert colours == bounds.CONDITIONS
    (legend,) = [each for part in figure.subfigs for each in part.legends]
    present = [f"{name.replace('_', ' ')} binds" for name in names if name in set(own.binding)]
    assert [text.get_text() for text in legend.get_texts()] == present


def test_the_figure_of_training_shows_its_rows() -> None:
    figure, frame = theory("training")
    own = frame[frame.sweep == "training"]
    d = own[(own["kind"] == "constant") & (own.series == "d")].set_index("model").value
    for model, each in own.groupby("model"):
        ax = named(figure)[f"{model}, d = {d[model]:,.0f}"]
        runs = each[each["kind"] == "run"].groupby("round").value.agg(["mean", "min", "max"])
        expected = {"measured": runs["mean"].reset_index()}
        for name, points in each[each["kind"] == "bound"].groupby("series"):
            expected[str(name)] = points.sort_values("round")[["round", "value"]]
        assert otherwise(labelled(ax), expected) == []
        assert ax.get_xlabel() == "rounds R"
        ((band,),) = bands_of(ax).values()
        assert alike(band, runs[["min", "max"]])


# --- fine-tuning ------------------------------------------------------------------------------------------------------


def test_the_figure_of_fine_tuning_shows_its_cells() -> None:
    found, frame = drawn("llm")
    cells = others.cells(frame)
    plain = cells["row"].str.removesuffix("+LoRA") == "OPT-125M"
    cells["title"] = cells.task.map(others.TITLES) + np.where(plain, "", " (" + cells.model + ")")
    figure, printed = found.figures["llm"](), others.printed_cells()
    styles = {name: style.color.lower() for name, style in method_styles(list(FULL)).items()}
    styles |= {P5: OKABE_ITO[5].lower()}
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    for title, ax in named(figure).items():
        if not title:
            continue
        own = cells[cells.title == title]
        # Cells with LoRA lie a little below the others where there are both.
        adapted = cells["row"].str.endswith("+LoRA").any()
        expected, wide, papers = [], [], []
        for row in own.itertuples():
            aside = 0.15 * (1 if row.row.endswith("+LoRA") else -1) if adapted else 0.0
            y = names.index(row.series) + aside
            expected.append((row.accuracy, y))
            wide.append((row.accuracy, 4 * row.error))
            key = [row.row, row.task.removesuffix("-two-way"), row.series]
            of_cell = printed[(printed[["row", "task", "series"]] == key).all(axis=1)]
            papers += [(accuracy / 100, y) for accuracy in of_cell.accuracy]
        bars = [(each.lines[0].get_data(), each.lines[2][0].get_segments()[0]) for each in ax.containers]
        assert alike(sorted((float(x[0]), float(y[0])) for (x, y), _ in bars), sorted(expected)), title
        shown = [(float(ends[:, 0].mean()), float(ends[1, 0] - ends[0, 0])) for _, ends in bars]
        assert alike(sorted(shown), sorted(wide)), title
        of_panel = [line for line in ax.get_lines() if len(line.get_xdata()) == 2]
        lines = {float(line.get_xdata()[0]): line.get_linestyle() for line in of_panel}
        diamonds = [line.get_data() for line in ax.get_lines() if line.get_marker() == "D"]
        assert alike(sorted((float(x[0]), y[0]) for x, y in diamonds if np.isfinite(x[0])), sorted(papers)), title
        for each in ax.containers:
            y = float(each.lines[0].get_ydata()[0])
            looks = to_hex(each.lines[0].get_color()), each.lines[0].get_marker()
            assert looks == (styles[names[round(y)]], "s" if y > round(y) else "o"), title
        start = frame[(frame.task == own.task.iloc[0]) & (frame["row"] == own["row"].iloc[0]) & (frame["round"] == 0)]
        first = start.iloc[0]
        before = {first.test_accuracy: "-", first.calibrated_accuracy: "--", first.majority: ":"}
        assert lines == before, title


def test_the_figure_of_costs_shows_its_cells() -> None:
    found, frame = drawn("llm")
    cells = others.cells(frame)
    (ax,) = found.figures["llm-costs"]().axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("trained parameters d", "bytes a client and round")
    fedzo = frame[(frame.series == "FedZO") & (frame["round"] > 0)].groupby("row").last()
    d = fedzo.gradient_scalars / (4 * fedzo["round"])
    own = cells[(cells.bytes > 0) & (cells.series != "FedAvg")]
    expected = sorted((d[r.row], r.bytes / r.round) for r in own.itertuples())
    papers = [
        (
            PARAMETERS.get(r.row, LORA_PARAMETERS),
            (1e6 if r.ours else 1e12) * r.printed / ROUNDS[r.row][others.PRINTED[r.task]],
        )
        for r in others.printed_cells().dropna(subset="printed").itertuples()
        if r.series != "FedAvg"
    ]
    for marker, hollow, points in (("o", False, expected), ("D", True, sorted(papers))):
        spots = [line for line in ax.get_lines() if line.get_marker() == marker]
        assert {line.get_markerfacecolor() == "white" for line in spots} == {hollow}
        assert alike(sorted(tuple(float(np.squeeze(each)) for each in line.get_data()) for line in spots), points)
    formulas = [np.column_stack(line.get_data()) for line in ax.get_lines() if line.get_linestyle() == "--"]
    for points, (constant, slope) in zip(formulas, [(0.0, 2.0), (60.0, 0.0), (120.0, 0.0)], strict=True):
        assert alike(points[:, 1], constant + slope * points[:, 0])
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


# --- the edge ---------------------------------------------------------------------------------------------------------


def test_the_figure_of_the_edge_shows_its_rows() -> None:
    found, frame = drawn("edge")
    runs = others.edge_runs(frame)
    figure = found.figures["edge"]()
    panels = named(figure)
    usual = runs[(runs.P == 20) & (runs.K == 1) & (runs.beta == 0.9)]
    # The point around which the knobs are turned: the batch at which the step was turned most.
    factors = usual[usual.estimator == "projection"].groupby("batch").factor.nunique()
    batch = factors[factors == factors.max()].index.max()
    base = {"estimator": "projection", "batch": batch, "factor": 1.0, "P": 20, "K": 1, "beta": 0.9}
    for label, points in labelled(panels["runs that diverge, by step size"]).items():
        if ", B = " not in label:
            continue
        estimator, _, batch = label.partition(", B = ")
        own = usual[(usual.estimator == estimator) & (usual.batch == int(batch))].groupby("factor").apart.mean()
        assert alike(points[:, 1], own.sort_index().astype(float)), label
        ratio = points[:, 0] / (0.01 * own.sort_index().index.to_numpy())
        assert alike(ratio, np.full(len(ratio), ratio[0])), label  # all moved aside by one factor
    shares = panels["by batch size, directions, local steps, momentum"]
    names = {"B": "batch", "P": "P", "K": "K", "β": "beta"}
    ticks = dict(zip(shares.get_xticks(), [text.get_text() for text in shares.get_xticklabels()], strict=True))
    shown = {ticks[x]: y for points in labelled(shares).values() for x, y in points}
    for text, share in shown.items():
        knob, _, value = text.partition(" = ")
        own = having(runs, {**base, names[knob]: float(value)})
        assert share == pytest.approx(own.apart.mean()), text
    along = frame.join(pd.DataFrame([others.measured(row) for _, row in frame.iterrows()], index=frame.index))
    along = having(along, {name: at for name, at in base.items() if name != "factor"}).sort_values("round")
    for title, column in WAYS.items():
        shown = along.dropna(subset=[column]).assign(
            steps=along["round"] * along.K, shown=along[column].clip(upper=20.0)
        )
        runs_of = shown.groupby(["factor", "seed"])
        assert same_lines(panels[title], [run[["steps", "shown"]].to_numpy() for _, run in runs_of]), title
        assert panels[title].get_xlabel() == "local steps"


WAYS = {
    "where the test loss turns …": "test_loss",
    "… T: noise over descent …": "push",
    "… S: stability used up": "load",
}
"""The column of each of the lower panels, by its title."""


# --- planted: each is drawn, and seen ---------------------------------------------------------------------------------


def swapped(column: str, one: str, other: str) -> Plant:
    return lambda frame: frame.replace({column: {one: other, other: one}})


STATED = ("Theorem 2, stated", "Theorem 2, corrected")


@pytest.mark.parametrize(
    ("stem", "planted", "told"),
    [
        # Two lines in each of two panels.
        ("fig3", swapped("series", "FedAvg", "FedCom 8 bit"), r"(?s)(FedAvg|FedCom 8 bit) .*\n.*\n.*\n"),
        ("fig3", lambda frame: frame.assign(train_loss=frame.test_loss), "FedAvg .*: no line .* has train_loss"),
        ("fig2", lambda frame: frame[frame.seed != 2], r"FedAvg K=10 \(curves\): no (line|band)"),
        ("hessian", swapped("name", "signed", "absolute"), "signed"),
        ("theory-dimension", swapped("series", *STATED), "by-d: Theorem 2, stated"),
    ],
)
def test_what_is_drawn_of_other_rows_is_noticed(stem: str, planted: Plant, told: str) -> None:
    part = stem.partition("-")[0]
    scale = recordings.largest(part).scale  # type: ignore[union-attr]
    figure, frame = made(part, scale, planted).figures[stem](), rows(part, scale)
    readers = {"hessian": wrong_spectra, "theory": wrong_bounds}
    found = readers[part](figure, frame) if part in readers else wrong_curves(figure, part)
    assert re.search(told, "\n".join(found))
