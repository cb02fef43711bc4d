"""The HTML report: verdicts, figures and settings on one page that needs no other file."""

from __future__ import annotations

import base64
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jinja2
import pandas as pd

from decomfl_lab.errors import InputError, require, require_choice
from paper_repro.claims import PARTS, SCALES, VERDICTS, Outcome, require_distinct_ids

__all__ = ["RECORDED", "Folded", "Section", "notes", "page_section", "render_report", "settings"]

RECORDED: Final = "recorded"
"""The word in place of a scale, for a page whose parts were all recorded, each at its own scale."""
_NOTES: Final = (
    "A check that everything runs. Nothing here is the paper's experiment.",
    "A reduced run: smaller than the paper's experiments in data, rounds or seeds.",
    "Run with the settings listed beside the paper's.",
    "Nothing here was computed now: every section says when, by which code and at which scale its rows were.",
)
_BADGES: Final = dict(zip((*SCALES, RECORDED), _NOTES, strict=True))

_TEMPLATES = Path(__file__).parent / "templates"
_TEXTS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("report.toml").read_text(encoding="utf-8"))
_PNG = b"\x89PNG\r\n\x1a\n"
_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_VERDICT_STYLE = dict(zip(VERDICTS, (("yes", "✓"), ("no", "✗"), ("depends", "±"), ("untested", "–")), strict=True))
_NOTHING = "–"


def settings(part: str, **here: Any) -> pd.DataFrame:
    """What was run of a part, beside what the paper and its logs have: the rows of ``report.toml`` with the values."""
    texts = _TEXTS[part]
    rows = [[text.format(**here) for text in row] for row in texts["settings"]]
    return pd.DataFrame(rows, columns=texts["columns"])


def notes(part: str, **here: Any) -> list[str]:
    """The notes of a part, with the values."""
    return [text.format(**here) for text in _TEXTS[part]["notes"]]


@dataclass(frozen=True, kw_only=True)
class Folded:
    """A statement of which the page shows one line, and the rest when it is clicked.

    Attributes:
        label: Its place in the paper, short.
        verdict: The word or three on its badge.
        tone: The colour of the badge: yes, no, depends or untested.
        says: The statement.
        body: (heading, text) of what the click shows; empty texts are left out.
    """

    label: str
    verdict: str
    tone: str
    says: str
    body: Sequence[tuple[str, str]]

    def __post_init__(self) -> None:
        require_choice(f"tone of {self.label}", self.tone, [css for css, _ in _VERDICT_STYLE.values()])


@dataclass(frozen=True, kw_only=True)
class Section:
    """One figure or table of the report.

    Attributes:
        id: Anchor in the page: a letter, then letters, digits, "_" and "-"; unique in a report.
        title: Heading, as "Figure 2: accuracy by communication"; by default that of the part of this id.
        figure_png: The figure as PNG; None for a section that is a table only.
        settings: One row for each setting, with what was run here beside what the paper and its logs used.
        notes: Paragraphs of plain text: how scalars were counted, what was left out.
        table: The numbers behind the figure; None for none.
        facts: Name -> text for this section: number of runs, seeds, time taken.
        more_figures: Heading -> PNG: further figures, below the first.
        folded: Statements with their verdicts, counted and listed.
    """

    id: str
    title: str = ""
    figure_png: bytes | None = None
    settings: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: Sequence[str] = ()
    table: pd.DataFrame | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    more_figures: Mapping[str, bytes] = field(default_factory=dict)
    folded: Sequence[Folded] = ()

    def __post_init__(self) -> None:
        """Check what a page cannot show."""
        require(_ID.fullmatch(self.id) is not None, "section id", "be usable as an anchor", self.id)
        if not self.title and self.id in PARTS:
            object.__setattr__(self, "title", PARTS[self.id].title)
        require(bool(self.title.strip()), f"title of section {self.id}", "be text", self.title)
        pictures = {} if self.figure_png is None else {"figure_png": self.figure_png}
        for name, png in {**pictures, **self.more_figures}.items():
            head = png[: len(_PNG)]
            require(head == _PNG, f"{name} of section {self.id}", "be a PNG image", head)
        if isinstance(self.notes, str):
            raise InputError(f"notes of section {self.id} must be a list of paragraphs, got one string")


def render_report(
    sections: Sequence[Section | Mapping[str, Any]], *, facts: Mapping[str, str], claims: Sequence[Outcome]
) -> str:
    """Return the report as one HTML page, with style and figures inside and no script.

    Args:
        sections: Figures and tables, in the order of the page; sections, or what ``page_section`` makes of them.
        facts: Name -> text for the head of the page. "scale" is required and must be "smoke", "default",
            "full" or "recorded"; it becomes the badge. The others (data, seeds, time, versions, device) are listed as
            given.
        claims: The verdicts, in the order of the table.

    Raises:
        InputError: If "scale" is missing or unknown, or two sections or two claims share an id.
    """
    scale = facts.get("scale")
    require(scale in _BADGES, "facts['scale']", f"be one of {', '.join(_BADGES)}", scale)
    ready = [page_section(section) if isinstance(section, Section) else section for section in sections]
    require_distinct_ids("sections", [section["id"] for section in ready])
    require_distinct_ids("claims", [claim.id for claim in claims])
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        scale=scale,
        scale_note=_BADGES[str(scale)],
        facts={name: text for name, text in facts.items() if name != "scale"},
        tally=[
            (verdict, *_VERDICT_STYLE[verdict], number)
            for verdict in VERDICTS
            if (number := sum(claim.verdict == verdict for claim in claims))
        ],
        claims=[_claim(claim) for claim in claims],
        sections=ready,
    )


def _claim(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as the template wants it: class, sign and texts."""
    css, sign = _VERDICT_STYLE[outcome.verdict]
    measured = {name: _text(value, none="never") for name, value in outcome.measured.items()}
    return {**outcome.row(), "css": css, "sign": sign, "measured": measured}


def page_section(section: Section) -> dict[str, Any]:
    """Return a section as the template wants it, ready for JSON: image in base64, tables as texts."""
    png = section.figure_png
    return {
        "id": section.id,
        "title": section.title,
        "image": None if png is None else _image(png),
        "more": {heading: _image(each) for heading, each in section.more_figures.items()},
        "tally": Counter((each.verdict, each.tone) for each in section.folded).most_common(),
        "folded": [
            {**vars(each), "body": [(heading, text) for heading, text in each.body if text]} for each in section.folded
        ],
        "settings": None if section.settings.empty else _table(section.settings),
        "notes": list(section.notes),
        "table": None if section.table is None or section.table.empty else _table(section.table),
        "facts": dict(section.facts),
    }


def _image(png: bytes) -> str:
    return base64.b64encode(png).decode("ascii")


def _table(frame: pd.DataFrame) -> dict[str, Any]:
    """Return header, rows of texts, and which columns hold numbers (to be set flush right).

    A named index becomes the first column; an unnamed one is left out.
    """
    shown = frame.reset_index() if frame.index.name is not None else frame
    numeric = [pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_bool_dtype(dtype) for dtype in shown.dtypes]
    return {
        "header": [(str(name), right) for name, right in zip(shown.columns, numeric, strict=True)],
        "rows": [
            [(_text(value), right) for value, right in zip(row, numeric, strict=True)]
            for row in shown.itertuples(index=False, name=None)
        ],
    }


def _text(value: object, none: str = _NOTHING) -> str:
    """Return a value for a reader: thousands apart, four digits of a fraction, a dash for nothing."""
    if value is None or value is pd.NA or value is pd.NaT or value != value:
        return none
    if isinstance(value, bool):
        return "yes" if value else "no"
    if pd.api.types.is_integer(value):
        return f"{value:,}"
    if pd.api.types.is_float(value):
        number = float(value)
        if 1e3 <= abs(number) < 1e9:
            return f"{number:,.0f}"
        return f"{number:.4g}"
    return str(value)
