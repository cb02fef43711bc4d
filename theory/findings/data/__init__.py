"""The statements of the paper and the causes of what is wrong with them, as data: read here, once."""

import textwrap
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

from decomfl_lab.errors import require

__all__ = ["ALGORITHMS", "CAUSES", "LINES", "MENDED", "PLACES", "PRINTED", "PROGRAMS", "RAW", "UNJUDGED"]


def _whole(label: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The entry with what follows from its label, its number and its other words.

    Its number is that of a table which begins on its line. Without one it is running text where it quotes words, else a
    display. Where it says no status it is a proof gap if it carries another's fault, true as meant if it is an
    algorithm, or a line of one, that is printed otherwise than it should be, and else true by proof.
    """
    line = entry.get("line") or int(label.removeprefix("line-").partition(".")[0])
    number = entry.get("number", _TABLES.get(line, ""))
    section = next(place for first, place in reversed(PLACES) if first <= line)
    if section.startswith("Algorithm"):
        kind = "algorithm line"
        place = f"{section}, source line {line}" if label.startswith("line-") else section
    elif number:
        kind, place = number.partition(" ")[0].lower(), f"{number}, {section}"
        kind = "caption" if kind == "figure" else kind
    else:
        kind, place = ("claim", section) if "quote" in entry else ("equation", f"{section}, display without a number")
    implied = {} if "restates" in entry else {"status": "proof gap" if "carries" in entry else "true by proof"}
    if "printed" in entry:
        implied = {
            "status": "false to the letter, true as meant",
            "cause": "algorithm-slips",
            "instead": f"⟦line {label}⟧",
        }
    elif place == section and kind == "algorithm line":
        why = f"⟦slips {place}⟧ slips in it stop a literal run; mended, it does what it should"
        implied = {"status": "false to the letter, true as meant", "why": why, "instead": f"⟦lines {place}⟧"}
    fields = {name: value for name, value in entry.items() if name != "number"}
    for name in {"printed", "plant"} & entry.keys():
        # Some words of the line's code that are others, or other code in its place.
        if isinstance(entry[name], list):
            words, others = entry[name]
            code = textwrap.dedent(entry["code"])
            require(code.count(words) == 1, f"what {label} changes in its code", "stand there once", words)
            fields[name] = code.replace(words, others)
    return {"label": label, "line": line, "kind": kind, "place": place, **implied, **fields}


_FILES: Final = {
    each.name.removesuffix(".toml"): tomllib.loads(each.read_text(encoding="utf-8"))
    for each in sorted(files(__name__).iterdir(), key=lambda each: each.name)
    if each.name.endswith(".toml")
}
PLACES: Final[list[tuple[int, str]]] = sorted((int(line), place) for line, place in _FILES["places"]["place"].items())
"""The line on which each section begins, and each algorithm, and the section that goes on after it."""


def _written() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every entry with its label; what is said, or printed, again elsewhere is an entry of its own.

    One that is judged ``as`` another has that one's status, cause, reason and correction, where it has none of its own.
    """
    entries = [pair for each in _FILES.values() for pair in each.get("entry", {}).items()]
    by_label = dict(entries)
    for label, entry in entries:
        other = _entry(by_label, entry["as"], f"as of {label}") if "as" in entry else {}
        judged = {name: other[name] for name in ("status", "carries", "cause", "why", "instead") if name in other}
        yield label, {name: value for name, value in {**judged, **entry}.items() if name not in ("again", "as")}
        for again, quote in entry.get("again", {}).items():
            yield again, {"restates": label, **({"quote": quote} if quote else {})}
    for label, first in _FILES["algorithms"]["same"].items():
        yield label, _entry(by_label, first, f"what {label} is the same as")


def _entry(entries: dict[str, dict[str, Any]], label: str, what: str) -> dict[str, Any]:
    require(label in entries, what, "be the label of an entry", label)
    return entries[label]


_WRITTEN: Final = list(_written())
_TABLES: Final = {
    entry["line"]: entry["number"] for _, entry in _WRITTEN if "line" in entry and "Table" in entry.get("number", "")
}
RAW: Final[list[dict[str, Any]]] = sorted(
    (_whole(label, entry) for label, entry in _WRITTEN),
    # its line, and its number among those of the line
    key=lambda each: (
        each["line"], int(each["label"].partition(".")[2] or 1) if each["label"].startswith("line-") else 0,
    ),
)  # fmt: skip
"""Every entry as it is written, with its place, in the order of the paper."""

MENDED: Final[dict[str, dict[str, Any]]] = _FILES["mended"]["mended"]
"""Mended displays by label: left side and terms, the letters of what has no symbol, the relation where it is not ≤."""

PRINTED: Final[dict[str, dict[str, str]]] = _FILES["printed"]["printed"]
"""The displays of Theorem 1's proof as printed, by label: their terms, each a formula."""

UNJUDGED: Final[list[dict[str, Any]]] = [each for file in _FILES.values() for each in file.get("unjudged", ())]
"""Sentences of running text that assert nothing about the paper's own subject: quotes, and why nothing is said."""

CAUSES: Final[dict[str, dict[str, Any]]] = {
    name: {"nature": nature, **raw} for nature, own in _FILES["causes"]["cause"].items() for name, raw in own.items()
}
"""Every cause as it is written, by name: errors first, as their file has them, then imprecisions, then misprints."""

LINES: Final[dict[str, dict[str, Any]]] = {entry["label"]: entry for entry in RAW if "code" in entry}
"""The entries that are lines of an algorithm, by label."""

PROGRAMS: Final[dict[str, Any]] = _FILES["algorithms"]
"""Listings of lines by label, and the programs made of them."""
for _label, _line in LINES.items():
    if _line["kind"] == "algorithm line":
        PROGRAMS["listings"].setdefault(_line["place"].partition(",")[0], []).append(_label)

ALGORITHMS: Final[dict[str, str]] = {}
"""The name of the program whose own listing has the line first, by label."""
for _program in reversed(PROGRAMS["programs"]):
    ALGORITHMS.update({label: _program for label in PROGRAMS["listings"][_program] if isinstance(label, str)})
