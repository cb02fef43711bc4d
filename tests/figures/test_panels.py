"""A figure on a page shows what the figure shows, and lets alone what else is on the page."""

import re
from xml.etree import ElementTree as ET

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from figures.layout import legend_below, page
from figures.panels import dark_greys, picture
from figures.style import rc


def curve(x: list[float], y: list[float]) -> Figure:
    with matplotlib.rc_context(rc()):
        figure, plots = page(6.0, 3.0, title="Heading & more", caption=["First sentence.", "Second one. " * 20])
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
    with matplotlib.rc_context(rc()):
        figure, plots = page(8.0, 6.0, title="", caption=[])
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
