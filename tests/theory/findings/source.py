"""The paper's source, enumerated: every display, statement, algorithm line and table, with its line and labels."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final

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
