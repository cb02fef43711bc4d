"""A figure as an element of a page: text stays text, names are its own, and what it is stands beside it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Final
from xml.etree import ElementTree as ET

import matplotlib
from matplotlib.figure import Figure

from figures.style import rc

__all__ = ["Picture", "dark_greys", "picture"]

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
_EVEN: Final = 24
"""How far the three parts of a grey may lie apart, of 255."""
_DARK: Final = 0.9
"""The lightness in the dark of what is black in the light."""


@dataclass(frozen=True)
class Picture:
    """A figure for a page.

    Attributes:
        svg: The figure without its caption, as an ``svg`` element that HTML holds as it is.
        caption: The caption, as text on one line.
        width: The width in points, at which letters have their own sizes.
    """

    svg: str
    caption: str
    width: float


def picture(figure: Figure, name: str) -> Picture:
    """The figure as an ``svg`` element, whose ids are distinct from those of figures with another ``name``.

    A caption as ``figures.layout.page`` sets it is left out of the drawing. The label that is read out in place of the
    drawing is made of the figure's heading and those of its panels.
    """
    foot = figure.subfigs[1] if len(figure.subfigs) == 2 and figure.subfigs[1].texts else None
    width, height = figure.get_size_inches()
    buffer = io.BytesIO()
    with matplotlib.rc_context({**rc(), "svg.hashsalt": name, "path.simplify_threshold": 0.4}):
        if foot is not None:
            foot.set_visible(False)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        if foot is not None:
            foot.set_visible(True)
    below = 0.0 if foot is None else height * foot.bbox.height / figure.bbox.height
    root = ET.fromstring(buffer.getvalue())
    box = f"0 0 {_rounded(str(72 * width))} {_rounded(str(72 * (height - below)))}"
    head = f'<svg viewBox="{box}" role="img" aria-label="{escape(_label(figure))}" style="{_DEFAULTS}">'
    body = "".join(_markup(child, _referenced(root)) for child in root)
    caption = "" if foot is None else " ".join(text.get_text().replace("\n", " ") for text in foot.texts)
    return Picture(f"{head}{body}</svg>", caption, 72.0 * float(width))


def _label(figure: Figure) -> str:
    """The heading and the headings of the panels, each once."""
    headings = [each.get_suptitle() for each in (figure, *figure.subfigs)]
    panels = [ax.get_title(loc) for ax in figure.axes for loc in ("left", "center", "right")]
    said = [*dict.fromkeys(text.replace("\n", " ") for text in (*headings, *panels) if text)]
    return ". ".join(said) or "Figure"


def _referenced(root: ET.Element) -> set[str]:
    """The ids that something in the drawing refers to."""
    values = [value for each in root.iter() for value in each.attrib.values()]
    found = {value[1:] for value in values if value.startswith("#")}
    return found | {name for value in values for name in _REFERENCE.findall(value)}


def _markup(element: ET.Element, kept: set[str]) -> str:
    """The element as HTML writes it, without what paints nothing, groups that say nothing, and unused ids."""
    tag = element.tag.rpartition("}")[2]
    style = element.get("style", "")
    if tag in ("metadata", "style") or (tag == "path" and "fill: none" in style and "stroke:" not in style):
        return ""
    inside = (element.text or "").strip() if tag in ("text", "tspan") else ""
    inside = escape(inside) + "".join(_markup(child, kept) for child in element)
    attributes = dict(_attributes(element.attrib, kept))
    if tag in ("g", "defs", "text") and not inside:
        return ""
    if tag == "g" and not attributes:
        return inside
    told = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{told}>{inside}</{tag}>" if inside else f"<{tag}{told}/>"


def _attributes(given: Mapping[str, str], kept: set[str]) -> Iterator[tuple[str, str]]:
    """The attributes, with short numbers and without what is the same without them."""
    for long, value in given.items():
        name = long.rpartition("}")[2]
        if (name == "id" and value not in kept) or _UPRIGHT.match(value):
            continue
        if name in _PLACES:
            value = _LONG.sub(lambda found: _rounded(found[0]), value)
        if name == "d":
            value = _GAPS.sub(r"\1", value).strip()
        if name == "style":
            value = _COLOUR.sub(_variable, value.replace(": ", ":").replace("; ", ";"))
        yield name, value


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
