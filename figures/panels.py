"""A figure as elements of a page: a drawing for each panel, so that a narrow page can set them one below the other."""

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import Final
from xml.etree import ElementTree as ET

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.offsetbox import DrawingArea, HPacker, OffsetBox
from matplotlib.transforms import Bbox

from figures.style import rc

_LONG: Final = re.compile(r"-?\d+\.\d{2,}")
_GAPS: Final = re.compile(r"\s*([A-Za-z])\s*")
_UPRIGHT: Final = re.compile(r"^rotate\(-0 [^)]*\)$")
_REFERENCE: Final = re.compile(r"url\(#([^)]+)\)")
_COLOUR: Final = re.compile(r"#([0-9a-f]{6})\b")
_GREY: Final = re.compile(r"var\(--grey-([0-9a-f]{6})")
_PLACES: Final = ("d", "x", "y", "transform", "width", "height", "viewBox")
"""Attributes whose numbers are places on the page, of which a tenth of a point is enough."""
_DEFAULTS: Final = "fill:var(--grey-000000,#000000);stroke-linejoin:round"
"""What matplotlib leaves out of the style of an element."""
_EVEN: Final = 24  # how far the three parts of a grey may lie apart, of 255
_DARK: Final = 0.9  # the lightness in the dark of what is black in the light


_OUTSIDE: Final = 40.0  # pixels around a figure in which labels may stand that the figure itself does not show
_MARGIN: Final = 2.0  # points left free around a drawing, so that no line is cut in half


@dataclass(frozen=True)
class Drawing:
    """A panel of a figure, or an entry of its legend."""

    svg: str  # the drawing as an ``svg`` element that HTML holds as it is
    width: float  # the width in points, at which letters have their own sizes


@dataclass(frozen=True)
class Picture:
    """A figure for a page, without its heading."""

    label: str  # what is read out instead of the drawings: the heading and those of the panels
    rows: list[list[Drawing]]  # the panels, row by row from above, each from left to right
    legend: list[Drawing]  # the entries of the legend below the panels; none if there is no such legend
    caption: str  # the caption, as text on one line

    @property
    def svgs(self) -> list[str]:
        """All drawings."""
        return [each.svg for row in (*self.rows, self.legend) for each in row]


def picture(figure: Figure, name: str) -> Picture:
    """The figure as drawings whose ids are distinct from those of figures with another ``name``.

    Each panel is one of its own, with the ticks and axis labels that it shares with others in the figure. A caption as
    ``figures.layout.page`` sets it is not drawn but stands beside the drawings.
    """
    foot = figure.subfigs[1] if len(figure.subfigs) == 2 and figure.subfigs[1].texts else None
    parts: dict[str, Bbox] = {}
    # Else it would be laid out once more where it is drawn, and panels would not be where they were found.
    fixed = rc() | {"figure.autolayout": False, "figure.constrained_layout.use": False}
    with matplotlib.rc_context({**fixed, "svg.hashsalt": name, "path.simplify_threshold": 0.4}):
        renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
        legends = [legend for each in (figure, *figure.subfigs) for legend in each.legends]
        if figure.get_layout_engine() is None:  # a file of it was drawn: all but legends have their places
            for legend in legends:
                legend.draw(renderer)
        else:
            figure.draw_without_rendering()
            figure.set_layout_engine(None)
        for ax in figure.axes:
            # Show the ticks and labels of the axes that a panel shares, which a figure shows at its edges alone.
            beside_x, beside_y = (
                [other for other in shared.get_siblings(ax) if other is not ax]
                for shared in (ax.get_shared_x_axes(), ax.get_shared_y_axes())
            )
            # A figure may have emptied the labels of its inner panels.
            if beside_x:
                ax.tick_params(axis="x", labelbottom=True)
                ax.set_xlabel(next(filter(None, (each.get_xlabel() for each in (ax, *beside_x))), ""))
            if beside_y:
                ax.tick_params(axis="y", labelleft=True)
                ax.set_ylabel(next(filter(None, (each.get_ylabel() for each in (ax, *beside_y))), ""))
        # An artist far outside its axes, as one at 0 on a logarithmic axis, has no place in the figure.
        paper = Bbox.from_bounds(0, 0, renderer.width, renderer.height).padded(_OUTSIDE)
        numbers = {ax: f"panel-{n}" for n, ax in enumerate(figure.axes)}
        for ax, part in numbers.items():
            ax.set_gid(part)
            parts[part] = Bbox.intersection(ax.get_tightbbox(renderer) or ax.bbox, paper) or ax.bbox
        rows = [[numbers[ax] for ax in row] for row in _rows(figure.axes, renderer)]
        entries: list[str] = []
        for box in (box for legend in legends for box in _entries(legend)):
            entries.append(f"entry-{len(entries)}")
            for artist in (artist for part in box.get_children() for artist in part.get_children()):
                artist.set_gid(entries[-1])
            parts[entries[-1]] = box.get_window_extent(renderer)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())
    # The elements of each part, which several artists may have.
    groups: dict[str, list[ET.Element]] = {part: [] for part in parts}
    for element in root.iter():
        if element.get("id") in groups:
            groups[str(element.get("id"))].append(element)
    # The ids that something in the drawing refers to.
    values = [value for each in root.iter() for value in each.attrib.values()]
    shared = {value[1:] for value in values if value.startswith("#")}
    shared |= {name for value in values for name in _REFERENCE.findall(value)}
    height = 72 * float(figure.get_size_inches()[1])
    scale = 72 / figure.dpi
    # Clip paths, and markers that several parts share, stand beside the parts: the first one gets them.
    inside = {element for outer in chain.from_iterable(groups.values()) for element in outer.iter()}
    groups[next(iter(parts))] += [each for each in root.iter() if each.tag.endswith("}defs") and each not in inside]
    # The elements of each part, cut out at its place in pixels of a figure whose height is in points.
    drawn = {}
    for part, place in parts.items():
        left, right = place.x0 * scale - _MARGIN, place.x1 * scale + _MARGIN
        top, bottom = height - place.y1 * scale - _MARGIN, height - place.y0 * scale + _MARGIN
        view = " ".join(_rounded(str(number)) for number in (left, top, right - left, bottom - top))
        body = "".join(_markup(element, shared) for element in groups[part])
        drawn[part] = Drawing(f'<svg viewBox="{view}" style="{_DEFAULTS}">{body}</svg>', right - left)
    caption = "" if foot is None else " ".join(text.get_text().replace("\n", " ") for text in foot.texts)
    # The heading and the headings of the panels, each once.
    headings = [each.get_suptitle() for each in (figure, *figure.subfigs)]
    panels = [ax.get_title(loc) for ax in figure.axes for loc in ("left", "center", "right")]
    texts = [*dict.fromkeys(text.replace("\n", " ") for text in (*headings, *panels) if text)]
    label = ". ".join(texts) or "Figure"
    return Picture(label, [[drawn[part] for part in row] for row in rows], [drawn[e] for e in entries], caption)


def _rows(axes: list[Axes], renderer: RendererAgg) -> list[list[Axes]]:
    """The panels row by row: those stand in one row whose middles its first one spans."""
    places = {ax: ax.get_window_extent(renderer) for ax in axes}
    rows: list[list[Axes]] = []
    for ax, box in sorted(places.items(), key=lambda each: -each[1].y1):
        first = places[rows[-1][0]] if rows else None
        if first is not None and first.y0 < (box.y0 + box.y1) / 2 < first.y1:
            rows[-1].append(ax)
        else:
            rows.append([ax])
    return [sorted(row, key=lambda ax: places[ax].x0) for row in rows]


def _entries(box: Artist) -> Iterator[HPacker]:
    """The boxes of a legend that hold a handle and its text."""
    for part in box.get_children():
        if isinstance(part, HPacker) and any(isinstance(each, DrawingArea) for each in part.get_children()):
            yield part
        elif isinstance(part, OffsetBox):
            yield from _entries(part)


def _markup(element: ET.Element, kept: set[str]) -> str:
    """The element as HTML writes it, without what paints nothing, groups that say nothing, and unused ids."""
    tag = element.tag.rpartition("}")[2]
    style = element.get("style", "")
    if tag in ("metadata", "style") or (tag == "path" and "fill: none" in style and "stroke:" not in style):
        return ""
    inside = (element.text or "").strip() if tag in ("text", "tspan") else ""
    inside = escape(inside) + "".join(_markup(child, kept) for child in element)
    # The attributes, with short numbers and without what is the same without them.
    attributes = {}
    for long, value in element.attrib.items():
        name = long.rpartition("}")[2]
        if (name == "id" and value not in kept) or _UPRIGHT.match(value):
            continue
        if name in _PLACES:
            value = _LONG.sub(lambda found: _rounded(found[0]), value)
        if name == "d":
            value = _GAPS.sub(r"\1", value).strip()
        if name == "style":
            value = _COLOUR.sub(_variable, value.replace(": ", ":").replace("; ", ";"))
        attributes[name] = value
    if tag in ("g", "defs", "text") and not inside:
        return ""
    if tag == "g" and not attributes:
        return inside
    written = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>"


def _variable(colour: re.Match[str]) -> str:
    """A grey as a variable of the page, which is as it was drawn where the page does not set it; others as they are."""
    parts = bytes.fromhex(colour[1])
    return f"var(--grey-{colour[1]},{colour[0]})" if max(parts) - min(parts) < _EVEN else colour[0]


def dark_greys(svgs: Iterable[str]) -> dict[str, str]:
    """The variables of the greys in these drawings, as {name: colour} of a dark page: black becomes light."""
    greys = sorted({grey for svg in svgs for grey in _GREY.findall(svg)})
    turned = (bytes(round(_DARK * (255 - part)) for part in bytes.fromhex(grey)) for grey in greys)
    return {f"--grey-{grey}": f"#{colour.hex()}" for grey, colour in zip(greys, turned, strict=True)}


def _rounded(number: str) -> str:
    short = f"{float(number):.1f}".removesuffix(".0")
    return "0" if short == "-0" else short
