"""The paper's source as sentences by section, for the tests that count claims against it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

LETTERS = {"alg": "DeComFL", "cO": "O", "kappa": "κ", "eta": "η", "mu": "μ", "alpha": "α", "beta": "β", "phi": "φ"}
LETTERS |= {"epsilon": "ε", "times": "×", "approx": "≈", "ll": "≪", "in": "∈", "sqrt": "√", "nabla": "∇", "x": "x"}
_ARGUMENT = r"\*?(?:\[[^\]]*\])?(?:\{[^{}]*\})?(?:\[[^\]]*\])?"
_DROPPED = r"\\(?:cite[pt]?|label|[vh]space|includegraphics|url|bibliography\w*|begin|end|resizebox)" + _ARGUMENT
_DISPLAYED = r"\\begin\{(algorithm\*?|tabular|align\*?|subequations|equation\*?)\}.*?\\end\{\1\}"
TOLD = re.compile(
    r"\d|larger|smaller|faster|slow|higher|lower|reduc|sav|better|excel|same|identical|independent|constant|fewer|more "
    r"|less|comparab|converge|stable|sensitiv|majority|substantial|significant|negligib|billion|minimiz|peak"
)
"""A sentence with a number or a comparison."""
COUNTED = ("Abstract", "Section 1", "Section 4.2", "Section 5", "Appendix A", "Appendix B.1", "Appendix B.2")
COUNTED += ("Appendix B.5", "Appendix C.1", "Appendix C.2", "Appendix C.3.1", "Appendix C.3.2")
"""Where every such sentence has to be quoted; the others are mathematics, which the audit goes through."""


def plain(text: str) -> str:
    """LaTeX as words: displays, citations and labels left out, symbols as letters."""
    text = re.sub(_DISPLAYED, " ", text, flags=re.S)
    text = re.sub(_DROPPED, " ", text)
    text = re.sub(r"\\([A-Za-z]+)", lambda found: LETTERS.get(found[1], ""), text)
    text = re.sub(r"\\%", "%", text)
    text = re.sub(r"\\[\W_]|[{}$~]", lambda found: " " if found[0] == "~" else "", text)
    return re.sub(r"\s+([,.;)])", r"\1", re.sub(r"\s+", " ", text)).strip()


def _uncommented(path: Path) -> str:
    source = re.sub(r"(?<!\\)%.*", "", path.read_text(encoding="utf-8"))
    return source[source.index(r"\begin{abstract}") : source.index(r"\section{Theoretical Proof}")]


def places(path: Path) -> dict[str, str]:
    """The words of each section by its number, as "Section 4.2" or "Appendix C.3.1"."""
    counts, kind = [0, 0, 0], "Section"
    found = {"Abstract": ""}
    for piece in re.split(r"(\\appendix|\\(?:sub)*section\{)", _uncommented(path)):
        if piece == r"\appendix":
            counts, kind = [0, 0, 0], "Appendix"
        elif piece.endswith("section{"):
            level = piece.count("sub")
            counts[level:] = [counts[level] + 1, *[0] * (2 - level)]
            first = chr(64 + counts[0]) if kind == "Appendix" else str(counts[0])
            found[f"{kind} {'.'.join([first, *map(str, filter(None, counts[1:]))])}"] = ""
        else:
            found[[*found][-1]] += plain(piece)
    return found


def captions(path: Path) -> list[str]:
    """The caption of every figure and table, or "" where one has none."""
    floats = re.findall(r"\\begin\{((?:wrap)?(?:figure|table)\*?)\}(.*?)\\end\{\1\}", _uncommented(path), flags=re.S)
    told = [re.search(r"\\caption\{((?:[^{}]|\{[^{}]*\})*)\}", body) for _, body in floats]
    return [plain(each[1]) if each else "" for each in told]


def sentences(text: str) -> list[str]:
    """The sentences of a section's words."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z\"(])", text)


def span(quotation: str, text: str) -> tuple[int, int] | None:
    """From where to where the quotation stands in the text, "…" for at most 120 letters; None if it does not."""
    pattern = ".{0,120}?".join(re.escape(part.strip()) for part in quotation.split("…"))
    found = re.search(pattern, text)
    return None if found is None else found.span()


def unquoted(told: Mapping[str, str], quotations: Iterable[str]) -> list[str]:
    """The sentences with a number or a comparison, where they count, of which no quotation has a part."""
    missing = []
    quoted = list(quotations)
    for place in COUNTED:
        spans = [found for each in quoted if (found := span(each, told[place])) is not None]
        at = 0
        for sentence in sentences(told[place]):
            at = told[place].index(sentence, at)
            if TOLD.search(sentence) and not any(start < at + len(sentence) and at < end for start, end in spans):
                missing.append(f"{place}: {sentence}")
    return missing
