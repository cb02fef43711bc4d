"""Curves: what is drawn is the mean of what was measured. Panels: a page shows what the figure shows, and no more."""

import io
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from figures.comparison import by_communication, comparison
from figures.curves import mean_and_band
from figures.layout import legend_below, page
from figures.panels import dark_greys, picture
from figures.style import series_styles
from tests.cases import refuses

ROUNDS = (20, 40)
K1, K4, FEDAVG = "DeComFL K=1 P=20", "DeComFL K=4 P=20", "FedAvg K=10"
STD = 0.07**0.5  # of three numbers of which two lie 0.2 and 0.1 below their mean, and one 0.3 above
STYLES = series_styles([K1, K4]) | series_styles([FEDAVG], baseline=True)


def run(series: str, seed: int, accuracies: tuple[float, ...], **changes: Any) -> pd.DataFrame:
    rounds = np.array(ROUNDS[: len(accuracies)])
    columns = {
        "series": series,
        "seed": seed,
        "round": rounds,
        "test_accuracy": accuracies,
        "wire_scalars": 100.0 * rounds + seed,
        "table1_scalars": 200.0 * rounds,
        "plotted_scalars": 300.0 * rounds,
    }
    return pd.DataFrame(columns | changes)


def frame() -> pd.DataFrame:
    """Three seeds of K=1, two of K=4, and one of FedAvg."""
    return pd.concat(
        [
            run(K4, 0, (0.5, 0.7)),
            run(K4, 1, (0.6, 0.9)),
            run(K1, 0, (0.1, 0.4)),
            run(K1, 1, (0.2, 0.5)),
            run(K1, 5, (0.6, 0.9)),
            run(FEDAVG, 0, (0.9, 0.95)),
        ],
        ignore_index=True,
    )


def drawn(count: Any = "wire", *, frame: pd.DataFrame = frame(), **changes: Any) -> Figure:  # noqa: B008 (not changed)
    return comparison([by_communication(frame, count, **changes)], STYLES, title="Title", caption="Scale: smoke.")


@pytest.mark.parametrize(
    ("runs", "mean", "low", "high"),
    [
        ([(0.1, 0.4), (0.2, 0.5), (0.6, 0.9)], [0.3, 0.6], [0.3 - STD, 0.6 - STD], [0.3 + STD, 0.6 + STD]),
        ([(0.5, 0.7), (0.6, 0.9)], [0.55, 0.8], [0.5, 0.7], [0.6, 0.9]),
        ([(0.9, 0.95)], [0.9, 0.95], [0.9, 0.95], [0.9, 0.95]),
        ([(0.1, 0.4), (0.3,)], [0.2], [0.1], [0.3]),
    ],
    ids=["one standard deviation of three seeds", "least to most of two", "none of one", "rounds that all have"],
)
def test_a_band_is_that_of_its_seeds(
    runs: list[tuple[float, ...]], mean: list[float], low: list[float], high: list[float]
) -> None:
    band = mean_and_band(pd.concat([run(K1, seed, own) for seed, own in enumerate(runs)]), "round")
    found = [[*band[name]] for name in ("round", "y", "low", "high")]
    assert found == [pytest.approx(own) for own in (ROUNDS[: len(mean)], mean, low, high)]


@pytest.mark.parametrize("change", [{}, {"yscale": "logit", "ylimits": (0.05, 0.99)}, {"title": "A panel"}])
def test_figures_render_without_a_warning_and_without_pyplot(change: dict[str, Any]) -> None:
    before = dict(matplotlib.rcParams)
    figure = drawn(**change)
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=50)
    assert image.getvalue().startswith(b"\x89PNG")
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].get_ylim() == change.get("ylimits", figure.axes[0].get_ylim())


def words(figure: Figure) -> str:
    return " ".join(text.get_text() for part in figure.subfigs for text in part.texts).replace("\n", " ")


def test_the_caption_is_in_the_figure_and_says_when_points_are_lost() -> None:
    zero = frame().assign(plotted_scalars=lambda f: f["plotted_scalars"].where(f["series"] != FEDAVG, 0.0))
    assert "Scale: smoke." in words(drawn(frame=zero))
    assert "outside the logarithmic axis" in words(drawn("plotted", frame=zero))
    assert "outside the logarithmic axis" in words(drawn("plotted", reference=zero))
    assert "outside" not in words(drawn("table1", frame=zero))


def test_a_heading_that_is_longer_than_its_figure_is_wide_is_set_in_lines() -> None:
    said = "What a client sends and gets in a round, against what is trained"
    with page(5.8, 4.0, {"title": said}) as (figure, plots):
        plots.subplots()
        renderer = FigureCanvasAgg(figure).get_renderer()
        (heading,) = plots.findobj(lambda artist: isinstance(artist, Text) and artist.get_text().startswith("What"))
        assert heading.get_text().replace("\n", " ") == said
        assert heading.get_window_extent(renderer).x1 < figure.bbox.x1


@refuses(
    (lambda: drawn("bytes"), "count must be one of wire, table1, plotted, got 'bytes'"),
    (lambda: drawn(frame=frame().assign(series="MeZO")), r"series of panel .* must be among .*, got \['MeZO'\]"),
    (lambda: drawn(frame=pd.concat([frame(), frame()])), "seed 0 round 20 again"),
)
def test_bad_input_is_refused_by_name(attempt: Callable[[], Any]) -> None:
    attempt()


def curve(x: list[float], y: list[float]) -> Figure:
    words = {"title": "Heading & more", "caption": "First sentence."}
    with page(6.0, 3.0, words, ["Second one. " * 20]) as (figure, plots):
        ax = plots.subplots()
        ax.plot(x, y, color="#d55e00", gid="curve")
        ax.set(title="Panel", xlabel="rounds", xscale="log")
    return figure


def only(figure: Figure, name: str = "one") -> str:
    """The drawing of the only panel."""
    (svg,) = picture(figure, name).svgs
    return svg


def test_the_points_of_a_curve_are_where_the_figure_has_them() -> None:
    x, y = [1.0, 30.0, 200.0, 5000.0], [0.5, -3.0, 7.0, 2.0]
    figure = curve(x, y)
    drawn = re.search(r'<path d="M([^"z]*)"[^>]*#d55e00', only(figure))
    assert drawn is not None
    found = np.array([float(n) for n in re.split("[ L]", drawn[1])]).reshape(-1, 2)
    (line,) = figure.axes[0].lines
    at = line.get_transform().transform(np.column_stack([x, y])) * 72 / figure.dpi
    top = 72 * float(figure.get_size_inches()[1])
    np.testing.assert_allclose(found, np.column_stack([at[:, 0], top - at[:, 1]]), atol=0.06)


def test_text_stays_text_and_the_caption_stands_beside_the_drawing() -> None:
    found = picture(curve([1.0, 2.0], [1.0, 2.0]), "one")
    (svg,) = found.svgs
    assert found.label == "Heading & more. Panel"
    assert ">rounds</text>" in svg
    assert "sentence" not in svg
    assert "Heading" not in svg
    assert found.caption.startswith("First sentence. Second one. Second one.")
    ((panel,),) = found.rows
    assert panel.width == pytest.approx(432.0, abs=20)


def test_every_panel_stands_alone_with_the_ticks_and_labels_that_it_shares_and_the_legend_is_entries() -> None:
    with page(8.0, 6.0, {}) as (figure, plots):
        axes = plots.subplots(2, 2, sharex=True, sharey=True)
        for n, ax in enumerate(axes.flat):
            ax.plot([0, 1], [0, 7], label=f"line {n}", color=f"C{n}")
            ax.set(title=f"panel {n}", xlabel="rounds", ylabel="loss")
            ax.label_outer()
        legend_below(plots, axes.flat, columns=2)
    found = picture(figure, "one")
    panels = [panel.svg for row in found.rows for panel in row]
    assert [len(row) for row in found.rows] == [2, 2]
    for n, svg in enumerate(panels):
        assert [f"panel {k}" in svg for k in range(4)] == [k == n for k in range(4)]
        assert all(f">{text}</text>" in svg for text in ("rounds", "loss"))
        _, top, width, height = map(float, ET.fromstring(svg).attrib["viewBox"].split())
        assert 200 < width < 300
        assert height > 150
        written = re.search(r'translate\([\d.]+ ([\d.]+)\)"[^>]*>rounds<|y="([\d.]+)"[^>]*>rounds<', svg)
        assert written is not None
        assert 0 < top + height - float(written[1] or written[2]) < 8  # nothing is left free below the lowest text
    assert [f">line {n}</text>" in each.svg for n, each in enumerate(found.legend)] == [True] * 4
    assert all(each.width < 120 for each in found.legend)


def test_figures_of_one_page_share_no_id_and_name_only_what_they_have() -> None:
    first, second = (only(curve([1.0, 20.0], [1.0, 2.0]), name) for name in ("one", "two"))
    ids, others = (set(re.findall(r'id="([^"]+)"', svg)) for svg in (first, second))
    assert ids
    assert not ids & others
    named = set(re.findall(r"url\(#([^)]+)\)", first)) | set(re.findall(r'href="#([^"]+)"', first))
    assert named == ids
    assert only(curve([1.0, 20.0], [1.0, 2.0])) == first


def test_only_greys_turn_in_the_dark() -> None:
    svg = (
        '<path style="fill:var(--grey-000000,#000000)"/><path style="fill:#0072b2;stroke:var(--grey-ffffff,#ffffff)"/>'
    )
    assert dark_greys([svg, svg]) == {"--grey-000000": "#e6e6e6", "--grey-ffffff": "#000000"}
