"""The picture of a device's ratios: its bars are the numbers."""

from __future__ import annotations

from benchmarks.device import RatioRow, ratio_bars


def rows(*ratios: float) -> list[RatioRow]:
    own = {"device": "cuda (a GPU)", "seconds": 0.2}
    return [
        RatioRow(what="rebuild, d = 28,938", how="10 gaussian", ratio=ratios[0], of_limit=0.4, **own),
        RatioRow(what="round of cnn-mnist", how="in place, central", ratio=ratios[1], of_limit=0.3, **own),
        RatioRow(what="round of cnn-mnist", how="batched, central", ratio=ratios[2], of_limit=None, **own),
    ]


def test_a_bar_is_a_ratio_and_the_usual_way_is_the_line_at_one() -> None:
    figure = ratio_bars(rows(6.0, 1.0, 20.0))
    (ax,) = figure.axes
    assert [bar.get_width() for bar in ax.patches] == [6.0, 20.0]  # type: ignore[attr-defined]
    assert ax.lines[0].get_xdata()[0] == 1.0  # type: ignore[index]
    assert [text.get_text() for text in ax.texts] == ["6.0×  (0.2 s, 40% of the limit)", "20.0×  (0.2 s)"]
    assert ax.get_title(loc="left") == "cuda (a GPU)"
