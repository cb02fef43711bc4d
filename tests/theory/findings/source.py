"""The paper's source: displays, statements, algorithm lines, tables, and its running text as plain words, by lines."""

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from decomfl_lab.storage.tables import table_beside

# Of the file whose lines the entries of the audit name.
PAPER_SHA256: Final = "deb93e569c88a9473c611d8ed2a9248873a57af285aa496d2504ce50531678be"

_DISPLAYS: Final = ("align", "equation", "gather", "multline", "eqnarray", "displaymath", "flalign", "alignat")
_STATEMENTS: Final = ("theorem", "lemma", "corollary", "assumption", "remark")
_TOKEN: Final = re.compile(
    r"\\(?P<edge>begin|end)\s*\{(?P<name>[a-z]+)\*?\}"
    r"|\\label\s*\{(?P<label>[^}]*)\}"
    r"|(?P<dollars>(?<!\\)\$\$)"
)
# A line of algorithmic: what opens it; ends of blocks and a \State without anything say nothing.
_STEP: Final = re.compile(
    r"\s*\\(State|For|ForAll|While|Repeat|Until|If|ElsIf|Procedure|Function|Require|Ensure)\b(.*)"
)
_COMMENT: Final = re.compile(r"(?<!\\)%.*")


@dataclass
class Item:
    """A part of the source that the audit has to speak about."""

    kind: str  # display, algorithm, algorithm line, table, or the name of a theorem-like environment
    line: int  # on which it begins, from 1
    labels: list[str] = field(default_factory=list)  # those of displays inside a theorem or lemma are the display's


@dataclass(frozen=True)
class TexSource:
    """A TeX file, enumerated."""

    sha256: str
    items: tuple[Item, ...]  # what it says, in the order of the file
    lines: tuple[str, ...]  # without comments


def parse(text: str) -> TexSource:
    r"""Enumerate a TeX text.

    Comments are no text. Labels belong to the innermost environment around them; labels of sections and figures are
    nobody's. Definitions of new environments and commands before ``\\begin{document}`` are passed over.
    """
    lines = tuple(_COMMENT.sub("", line) for line in text.splitlines())
    start = next((n for n, line in enumerate(lines) if r"\begin{document}" in line), -1) + 1
    items: list[Item] = []
    open_: list[tuple[str, Item | None]] = []
    dollars: Item | None = None
    for number, line in enumerate(lines[start:], start + 1):
        if open_ and open_[-1][0] == "algorithmic" and (step := _STEP.match(line)) and step[2].strip():
            items.append(Item("algorithm line", number))
        for token in _TOKEN.finditer(line):
            if token["dollars"]:
                dollars = Item("display", number) if dollars is None else None
                items += [dollars] if dollars else []
            elif token["label"]:
                owner = dollars or next((item for name, item in reversed(open_) if item or name == "figure"), None)
                if owner:
                    owner.labels.append(token["label"])
            elif token["edge"] == "begin":
                spoken_of = token["name"] in (*_DISPLAYS, *_STATEMENTS, "algorithm", "table")
                kind = "display" if token["name"] in _DISPLAYS else token["name"]
                item = Item(kind, number) if spoken_of else None
                items += [item] if item else []
                open_.append((token["name"], item))
            elif open_ and open_[-1][0] == token["name"]:
                open_.pop()
    return TexSource(hashlib.sha256(text.encode()).hexdigest(), tuple(items), lines)


_LETTERS: Final = dict(re.findall(r"(\w+):(\S+)", table_beside(__name__, "wording.toml")["letters"]))
_ARGUMENT: Final = r"\*?(?:\[[^\]]*\])?(?:\{[^{}]*\})?(?:\[[^\]]*\])?"
_DROPPED: Final = (
    r"\\begin\{list\}(?:\{[^{}]*\}){2}|\\(?:setlength|renewcommand)\\\w+\{[\w.]+\}|\\item\[[^\]]*\]"
    r"|\\(?:label|[vh]space|includegraphics|bibliography\w*|begin|end|resizebox)" + _ARGUMENT
)
_DISPLAYED: Final = (
    r"\$\$.*?\$\$|\\begin\{(algorithm\*?|tabular|align\*?|subequations|equation\*?|eqnarray\*?)\}.*?\\end\{\1\}"
)
_HEADING: Final = re.compile(r"(\\appendix|\\(?:sub)*section\*?\{)")
# A line's number stands before its first word, as a character of its own that no text has.
_FIRST_MARK: Final = 0xF0000
# What of a display is running text: notes of tables, and the marks of lines.
_KEPT: Final = re.compile(rf"\\tablefootnote\{{[^{{}}]*\}}|[{chr(_FIRST_MARK)}-{chr(_FIRST_MARK + 0xFFFF)}]")


@dataclass(frozen=True)
class Passage:
    """The words of a section, captions included, displays not."""

    place: str  # "Section 4.2" or "Appendix C.3.1"
    text: str
    lines: tuple[int, ...]  # the line of the source on which each letter of the text stands


def plain(text: str) -> str:
    """LaTeX as words: symbols as letters, citations as [key]; displays and labels left out, but for notes of tables."""
    text = re.sub(_DISPLAYED, lambda found: " ".join(_KEPT.findall(found[0])), text, flags=re.S)
    text = re.sub(_DROPPED, " ", text)
    text = re.sub(r"\\(?:table)?footnote\{", " {", text)
    text = re.sub(r"\\cite[pt]?\{([^{}]*)\}", r"[\1]", text)
    # Symbols as letters, other commands left out.
    text = re.sub(r"\\([A-Za-z]+)", lambda found: _LETTERS.get(found[1], ""), text)
    text = re.sub(r"\\%", "%", text)
    text = re.sub(r"\\[\W_]|[{}$~]", lambda found: " " if found[0] == "~" else "", text)
    return re.sub(r"\s+([,.;)])", r"\1", re.sub(r"\s+", " ", text)).strip()


def passages(source: TexSource) -> dict[str, Passage]:
    """The words of each section by its place, from the abstract on."""
    start = next((n for n, line in enumerate(source.lines) if r"\begin{abstract}" in line), len(source.lines))
    marked = [re.sub(r"^(\s*)(?=\S)", rf"\1{chr(_FIRST_MARK + n)}", line) for n, line in enumerate(source.lines, 1)]
    counts, kind, found = [0, 0, 0], "Section", {"Abstract": ""}
    first_lines, line = {"Abstract": start + 1}, start + 1
    for piece in _HEADING.split("\n".join(marked[start:])):
        if piece == r"\appendix":
            counts, kind = [0, 0, 0], "Appendix"
        elif piece.endswith("section{"):
            level = piece.count("sub")
            counts[level:] = [counts[level] + 1, *[0] * (2 - level)]
            first = chr(64 + counts[0]) if kind == "Appendix" else str(counts[0])
            place = f"{kind} {'.'.join([first, *map(str, filter(None, counts[1:]))])}"
            found[place], first_lines[place] = "", line
        elif not piece.endswith("section*{"):
            found[[*found][-1]] += piece
        line += piece.count("\n")
    # The words of each marked text, and the line of each letter.
    read: dict[str, Passage] = {}
    for place, text in found.items():
        line = first_lines[place]
        letters: list[str] = []
        lines: list[int] = []
        for letter in plain(text):
            if ord(letter) >= _FIRST_MARK:
                line = ord(letter) - _FIRST_MARK
                continue
            # A mark may have kept two blanks apart, or a blank from the stop that follows it.
            if letters and letters[-1] == " " and letter in " ,.;)":
                letters.pop()
                lines.pop()
            if letters or letter != " ":
                letters.append(letter)
                lines.append(line)
        read[place] = Passage(place, "".join(letters), tuple(lines))
    return read


def shared(one: str, other: str) -> bool:
    """Whether a part of one quotation is in the other; words that two have in one place are seen in the source."""
    return any(a in b or b in a for a in _parts(one) for b in _parts(other))


@cache
def _parts(quotation: str) -> list[str]:
    """The parts of a quotation that tell it from others, as words between blanks."""
    parts = [re.findall(r"[^\W_]+", part.lower()) for part in plain(quotation).split("…")]
    return [f" {' '.join(part)} " for part in parts if len(part) >= 4 or len(parts) == 1]


def spans(quotation: str, text: str) -> list[tuple[tuple[int, int], ...]]:
    """From where to where each part of the quotation stands, wherever all do, "…" for at most 120 letters."""
    pattern = ".{0,120}?".join(f"({re.escape(part.strip())})" for part in plain(quotation).split("…"))
    return [tuple(found.span(n + 1) for n in range(found.re.groups)) for found in re.finditer(pattern, text)]
