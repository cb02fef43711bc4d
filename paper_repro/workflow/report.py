"""The HTML report: verdicts, figures and settings on one page that needs no other file."""

import base64
import os
import re
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import jinja2
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from decomfl_lab.errors import require
from decomfl_lab.storage.tables import table_beside
from figures.panels import dark_greys, picture
from paper_repro.workflow.verdicts.answer import TONES, AnswerLine
from paper_repro.workflow.verdicts.claim_table import (
    PARTS,
    SCALE_NAMES,
    UNTESTED,
    VERDICTS,
    ClaimOutcome,
    claim,
    otherwise,
)

RECORDED: Final = "recorded"
"""The word instead of a scale, for a page whose parts were all recorded, each at its own scale."""
_TEMPLATES = Path(__file__).parent / "templates"
_TEXTS: Final[dict[str, Any]] = table_beside(__name__, "report.toml")
_BADGES: Final = {scale: _TEXTS["badges"][scale] for scale in (*SCALE_NAMES, RECORDED)}
_STYLES = (("yes", "✓"), ("no", "✗"), ("depends", "±"), ("untested", "–"), ("untested", "?"), ("untested", "?"))
_VERDICT_STYLE = dict(zip(VERDICTS, _STYLES, strict=True))
_COUNTED_AS: Final = {"yes": "hold", "no": "do not", "depends": "depend on the counting", "untested": "undecided"}
"""What is said of the claims of a tone where they are counted."""
_NOTHING = "–"
# A word of the glossary, whole: "wire" and not the end of "rewire", nor the beginning of "wire-count".
_WORD: Final = re.compile(rf"(?<![\w-])({'|'.join(_TEXTS['words'])})(?![\w-])")
_COUNTED: Final = re.compile(r"(.+?): [\d,]+ (?:train|examples)\b")
"""A piece of what is said of data that begins with the name of a data set."""
_SPLITS: Final = {"dirichlet-total": "Dir(α·p), α = 1", "dirichlet": "Dir(α·1), α = 1", "iid": "i.i.d."}
_NUMBERS: Final = 14  # how many numbers of a claim are told
_SUBJECT: Final = 40  # a longer subject of a claim about several is told without the question that they share


def settings(part: str, told: dict[str, Any]) -> pd.DataFrame:
    """What was run of a part, beside what the paper and its logs have: the rows of ``report.toml`` with ``Sizes.told``.

    A split is written by ``_SPLITS``.
    """
    texts = _TEXTS[part]
    split = {"split": _SPLITS[told["split"]]} if "split" in told else {}
    values = ChainMap[str, Any](split, told)
    rows = [[text.format_map(values) for text in row] for row in texts["settings"]]
    return pd.DataFrame(rows, columns=texts["columns"])


def amount(count: float) -> str:
    """Bytes for a reader: "24.5 kB"."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def caption(stem: str, **here: Any) -> str:
    """The text under the figure of a file's stem, with the values; of the sizes of a scale its name alone."""
    here["scale"] = str(here.get("scale", "")).partition(":")[0]
    return " ".join(_without_folder(_TEXTS["captions"][stem].format(**here)).split())


def notes(part: str, **here: Any) -> list[str]:
    """The notes of a part, with the values."""
    return [text.format(**here) for text in _TEXTS[part]["notes"]]


def printed(table: str) -> dict[str, SimpleNamespace]:
    """The rows, or columns, of a table of the paper's, by what they are of."""
    return {name: SimpleNamespace(**row) for name, row in _TEXTS["printed"][table].items()}


@dataclass(frozen=True, kw_only=True)
class Folded:
    """A statement of which the page shows one line, and the rest when it is clicked."""

    label: str  # its place in the paper, short
    verdict: str  # the word or three on its badge
    tone: str  # the colour of the badge: yes, no, depends or untested
    says: str  # the statement
    body: Sequence[tuple[str, str]]  # (heading, text) of what the click shows; empty texts are left out
    formulas: Mapping[str, str] = field(default_factory=dict)  # heading -> MathML, below the body


@dataclass(frozen=True, kw_only=True)
class Section:
    """One figure or table of the report."""

    id: str  # the part; an anchor in the page: a letter, then letters, digits, "_" and "-"; unique in a report
    title: str = ""  # heading, as "Figure 2: accuracy by communication"; by default that of the part of this id
    # the figure, or what draws it; None for a section that is a table only
    figure: Figure | Callable[[], Figure] | None = None
    # one row for each setting, with what was run here beside what the paper and its logs used
    settings: pd.DataFrame = field(default_factory=pd.DataFrame)
    notes: Sequence[str] = ()  # paragraphs of plain text: how scalars were counted, what was left out
    table: pd.DataFrame | None = None  # the numbers behind the figure; None for none
    # name -> text for this section: number of runs, seeds, time taken
    facts: Mapping[str, str] = field(default_factory=dict)
    # heading -> figure: further figures, below the first
    more_figures: Mapping[str, Figure | Callable[[], Figure]] = field(default_factory=dict)
    formulas: Mapping[str, str] = field(default_factory=dict)  # heading -> MathML of what the section is about
    folded: Sequence[Folded] = ()  # statements with their verdicts, counted and listed
    scale: str = ""  # the scale of its runs, in a word
    command: str = ""  # the command that makes it again
    provenance: Mapping[str, str] = field(default_factory=dict)  # name -> text: what made the runs

    def __post_init__(self) -> None:
        """Title it as the part of its id is, unless it has a title of its own."""
        if not self.title:
            object.__setattr__(self, "title", PARTS[self.id].title)


def render_report(
    sections: Sequence[Section | Mapping[str, Any]],
    *,
    facts: Mapping[str, str],
    claims: Sequence[ClaimOutcome],
    answer: Sequence[AnswerLine] = (),
    live: str = "",
) -> str:
    """Return the report as one HTML page, with style, figures, tables as CSV and the script that sorts them inside.

    Args:
        sections: Figures and tables, in the order of the page; sections, or what ``page_section`` makes of them.
        facts: Name -> text for the head of the page. "scale" is required and must be "smoke", "default",
            "full" or "recorded"; it becomes the badge. The others (data, seeds, time, versions, device) are listed as
            given.
        claims: The verdicts, each shown in the section of its part, in the order given.
        answer: Whether the paper is right, in lines; the page opens with those that one of its sections is about.
        live: What has been checked live, in a sentence; sections then have a "live", a ``live_runs.Overlay``.
    """
    scale = facts["scale"]
    ready = [page_section(section) if isinstance(section, Section) else section for section in sections]
    ids = [section["id"] for section in ready]
    # StrictUndefined: a name that the template misspells ends in an error, not in a gap on the page.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["explained"] = _explained
    # Of a section the facts that the page does not list for all.
    shown = []
    for section in ready:
        own_facts = {name: text for name, text in section["facts"].items() if facts.get(name) != text}
        shown.append({**section, **_judged(section, claims), "facts": own_facts})
    # All drawings, those of live runs included; None of a section that is a table only.
    with_live = [*ready, *(section["live"].section for section in ready if section["live"])]
    pictures = [drawing for section in with_live for drawing in (section["picture"], *section["more"].values())]
    page = environment.get_template("report.html.j2").render(
        scale=scale,
        scale_note=_BADGES[scale],
        scales=Counter(section["scale"] for section in ready if section["scale"]),
        data=_data_sets(facts),
        facts={name: text for name, text in facts.items() if name != "scale"},
        live=live,
        tally_of_all=_tally(claims),
        answer=[line for line in answer if line.part in ids],
        tones=TONES,
        titles={section["id"]: section["title"].partition(":")[0] for section in ready},
        pictured={section["id"] for section in ready if section["picture"]},
        sections=shown,
        dark=dark_greys(svg for drawing in filter(None, pictures) for svg in drawing["svgs"]),
        words={**_TEXTS["words"], **_TEXTS["symbols"]},
        seen=set,  # the template makes one a section: a word is linked at its first place in each
    )
    return _without_folder(page)


def closing(page: Path, claims: Sequence[ClaimOutcome], facts: Mapping[str, str], minutes: float, *, live: bool) -> str:
    """The line with which a command ends: the page, how many claims have which verdict, the minutes and the data."""
    counts = Counter(_VERDICT_STYLE[outcome.verdict][0] for outcome in claims)
    verdicts = ", ".join(f"{counts[tone]} {words}" for tone, words in _COUNTED_AS.items())
    data = ", ".join(_data_sets(facts))
    if facts["scale"] == RECORDED:
        here = "DECOMFL_DATA" if os.environ.get("DECOMFL_DATA") else "the data that come with the package"
        data = f"recorded runs, checked on {here}" if live else "recorded runs"
    details = [f"{minutes:.1f} min", data, *(f"changed: {facts[name]}" for name in ("changed",) if name in facts)]
    return f"{page}: {verdicts} ({'; '.join(filter(None, details))})"


def _data_sets(facts: Mapping[str, str]) -> list[str]:
    """The names of the data sets among what is said of the data."""
    return [match[1] for piece in facts.get("data", "").split("; ") if (match := _COUNTED.match(piece))]


def _without_folder(text: str) -> str:
    """The text without the words that data were in the folder of whoever ran it, which say nothing to others."""
    return text.replace(", from DECOMFL_DATA", "")


def require_own_page(page: Path) -> None:
    """Raise InputError where there is such a file already, and it is no page of ``render_report``."""
    if page.exists():
        with page.open("rb") as file:
            is_own = b"<title>decomfl-lab" in file.read(1000)
        require(is_own, "out", "be a folder without a report.html that is something else's", str(page))


def _tally(claims: Sequence[ClaimOutcome]) -> list[tuple[str, str, str, int]]:
    """Every verdict with its style and sign, and how many claims have it."""
    counts = Counter(str(each.verdict) for each in claims)
    return [(verdict, *style, counts[verdict]) for verdict, style in _VERDICT_STYLE.items()]


def _judged(section: Mapping[str, Any], claims: Sequence[ClaimOutcome]) -> dict[str, Any]:
    """What the template wants of a section's claims, with class, sign and texts."""
    outcomes = [outcome for outcome in claims if claim(outcome.id).part == section["id"]]
    # Most claims of a part are judged at one scale; only those that are not repeat theirs.
    common = Counter(outcome.scale for outcome in outcomes).most_common(1)
    shared = common[0][0] if common else ""
    shown = []
    for outcome in outcomes:
        measured = [(name, _text(value, none="never")) for name, value in outcome.measured.items()]
        row, (css, sign) = outcome.row(), _VERDICT_STYLE[outcome.verdict]
        row |= {"claim": outcome.subject} if len(outcome.subject) > _SUBJECT else {}
        row |= {"scale": "" if outcome.scale == shared else outcome.scale, "css": css, "sign": sign}
        row |= {"measured": dict(measured[:_NUMBERS]), "more": max(0, len(measured) - _NUMBERS)}
        shown.append(row | {"otherwise": otherwise(outcome)})
    return {
        "verdicts": [row for row in _tally(outcomes) if row[-1]],
        "claims": [row for row in shown if row["verdict"] != UNTESTED],
        "untested": [row for row in shown if row["verdict"] == UNTESTED],
        "judged_at": shared,
    }


def _explained(text: str, seen: set[str]) -> Markup:
    """The text with a link to the glossary at the first of each of its words that is not in ``seen``, where it goes."""

    def link(match: re.Match[str]) -> str:
        word = match[0]
        if word in seen:
            return word
        seen.add(word)
        # The word needs no escape: it is one of the glossary.
        return f'<a class="word" href="#word-{word}" title="{escape(_TEXTS["words"][word])}">{word}</a>'

    return Markup(_WORD.sub(link, str(escape(text))))


def page_section(section: Section) -> dict[str, Any]:
    """Return a section as the template wants it, ready for JSON: figures as SVG, tables as texts and as CSV."""
    # Every picture has a name of its own: ids inside an SVG must be unique on the page.
    more = enumerate(section.more_figures.items(), 1)
    return {
        "id": section.id,
        "title": section.title,
        "scale": section.scale,
        "command": section.command,
        "live": None,
        "picture": _picture(section.figure, section.id),
        "more": {heading: _picture(figure, f"{section.id}-{number}") for number, (heading, figure) in more},
        "tally": Counter((each.verdict, each.tone) for each in section.folded).most_common(),
        "folded": [
            {**vars(each), "body": [(heading, text) for heading, text in each.body if text]} for each in section.folded
        ],
        "settings": None if section.settings.empty else _table(section.settings),
        "notes": list(section.notes),
        "formulas": {**section.formulas, **_TEXTS["formulas"].get(section.id, {})},
        "table": None if section.table is None or section.table.empty else _table(section.table),
        "facts": {**section.facts, **section.provenance},
    }


def _picture(figure: Figure | Callable[[], Figure] | None, name: str) -> dict[str, Any] | None:
    """The drawings of a figure, and the widths that a page needs to set them as the figure does."""
    if figure is None:
        return None
    drawn = picture(figure if isinstance(figure, Figure) else figure(), name)
    return {**asdict(drawn), "svgs": drawn.svgs, "width": max(sum(panel.width for panel in row) for row in drawn.rows)}


def _table(frame: pd.DataFrame) -> dict[str, Any]:
    """Return header, rows of texts, which columns hold numbers (to be set flush right), and the whole as CSV in base64.

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
        "csv": base64.b64encode(shown.to_csv(index=False).encode()).decode("ascii"),
    }


def _text(value: object, none: str = _NOTHING) -> str:
    """Return a value for a reader: thousands apart, four digits of a fraction, a dash for nothing."""
    # NaN alone differs from itself; pd.NA and pd.NaT may not be compared so.
    if value is None or value is pd.NA or value is pd.NaT or value != value:
        return none
    if isinstance(value, bool):  # before integers, of which Python has it be one
        return "yes" if value else "no"
    if pd.api.types.is_integer(value):
        return f"{value:,}"
    if pd.api.types.is_float(value):
        number = float(value)
        if 1e3 <= abs(number) < 1e9:
            return f"{number:,.0f}"
        return f"{number:.4g}"
    return str(value)
