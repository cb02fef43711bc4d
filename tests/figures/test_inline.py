"""A figure on a page shows what the figure shows, and lets alone what else is on the page."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from figures.inline import dark_greys, picture
from figures.layout import page
from figures.style import rc


def curve(x: list[float], y: list[float]) -> Figure:
    with matplotlib.rc_context(rc()):
        figure, plots = page(6.0, 3.0, title="Heading & more", caption=["First sentence.", "Second one. " * 20])
        ax = plots.subplots()
        ax.plot(x, y, color="#d55e00", gid="curve")
        ax.set(title="Panel", xlabel="rounds", xscale="log")
    return figure


def test_the_points_of_a_curve_are_where_the_figure_has_them() -> None:
    x, y = [1.0, 30.0, 200.0, 5000.0], [0.5, -3.0, 7.0, 2.0]
    figure = curve(x, y)
    drawn = re.search(r'<path d="M([^"z]*)"[^>]*#d55e00', picture(figure, "one").svg)
    assert drawn is not None
    found = np.array([float(n) for n in re.split("[ L]", drawn[1])]).reshape(-1, 2)
    (line,) = figure.axes[0].lines
    at = line.get_transform().transform(np.column_stack([x, y])) * 72 / figure.dpi
    top = 72 * float(figure.get_size_inches()[1])
    np.testing.assert_allclose(found, np.column_stack([at[:, 0], top - at[:, 1]]), atol=0.06)


def test_text_stays_text_and_the_caption_stands_beside_the_drawing() -> None:
    found = picture(curve([1.0, 2.0], [1.0, 2.0]), "one")
    assert ET.fromstring(found.svg).get("aria-label") == "Heading & more. Panel"
    assert ">rounds</text>" in found.svg
    assert "sentence" not in found.svg
    assert found.caption.startswith("First sentence. Second one. Second one.")
    assert found.width == pytest.approx(432.0)


def test_figures_of_one_page_share_no_id_and_name_only_what_they_have() -> None:
    first, second = (picture(curve([1.0, 20.0], [1.0, 2.0]), name).svg for name in ("one", "two"))
    ids, others = (set(re.findall(r'id="([^"]+)"', svg)) for svg in (first, second))
    assert ids
    assert not ids & others
    named = set(re.findall(r"url\(#([^)]+)\)", first)) | set(re.findall(r'href="#([^"]+)"', first))
    assert named == ids
    assert picture(curve([1.0, 20.0], [1.0, 2.0]), "one").svg == first


def test_only_greys_turn_in_the_dark() -> None:
    svg = (
        '<path style="fill:var(--grey-000000,#000000)"/><path style="fill:#0072b2;stroke:var(--grey-ffffff,#ffffff)"/>'
    )
    assert dark_greys([svg, svg]) == {"--grey-000000": "#e6e6e6", "--grey-ffffff": "#000000"}
