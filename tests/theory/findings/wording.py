"""What of a text is typed: figures and signs of formulas that stand in no mark."""

import re
from collections.abc import Iterator
from typing import Any, Final

from decomfl_lab.storage.tables import table_beside
from theory.findings.data import CAUSES, RAW
from theory.findings.texts import MARK
from theory.notation.symbols import LETTERS

_NUMERALS: Final = "five|six|seven|eight|nine|ten|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred"
# Parts of the paper and of this audit, commands and files; models, data sets and types, of a closed list.
_POINTER: Final = (
    r"`[^`]*`|docs/\w+\.md|\b(?:line|eq|the|coro|lemma|assumption|ass)[-.][\w.-]*\w|[Ll]ines? \d+|"
    r"\b(?:Section|Appendix|Equation|Assumption|Figure|Table|Theorem|Algorithm|Lemma|Corollary|Remark)s?"
    r"(?: (?:and |to )?\(?[A-Z]?[\d.]*\d\)?)+"
)
_NAMES: Final = "OPT-1.3B OPT-125M float32 CIFAR10 SST-2 opt-0.3m"
_SYMBOLS: Final = table_beside(__name__, "wording.toml")["symbols"]
_KNOWN: Final = sorted(
    [f"{letter}{power}" for letter in (*LETTERS.values(), "L") for power in ("²", "")]
    + [*_SYMBOLS.split(), *_NAMES.split()],
    key=len,
    reverse=True,
)
_SETTING: Final = re.compile(r"\b[A-Za-zμκβ] ?= ?\d+")
_TYPED: Final = re.compile(r"[\d=≤≥<>≪≫≈+−·/^√ΣΠ½¼¾⁰¹²³⁴-⁹×∞→∈⪯⪰∫‖⟨⟩_{}%]+")


def typed(text: str, *quoted: str) -> list[str]:
    """The figures and signs of a text that are in no mark or name, and in no setting that what is quoted has too."""
    text = re.sub(_POINTER, " ", re.sub(rf"(?:\b[A-Za-zκ] = )?{MARK.pattern}", " ", text)).replace("(·; ", "(·;")
    for name in _KNOWN:
        text = re.sub(rf"(?<![\w^]){re.escape(name)}(?![\w^{{])", " ", text)
    text = _SETTING.sub(lambda found: found[0] if not any(found[0] in each for each in quoted) else " ", text)
    return _TYPED.findall(text) + re.findall(rf"\b(?:{_NUMERALS})\b", text)


def typed_in(raws: list[dict[str, Any]] = RAW) -> Iterator[str]:
    """What is typed in reasons and corrections of entries and causes."""
    for raw in raws:
        for name in ("why", "instead"):
            if "restates" not in raw and (found := typed(raw.get(name, ""), raw.get("quote", ""), raw.get("says", ""))):
                yield f"{raw['label']}: {name} has {' '.join(found)}: {raw[name]}"
    for name, cause in CAUSES.items():
        for field in ("title", "instead"):
            if found := typed(cause.get(field, "")):
                yield f"{name}: {field} has {' '.join(found)}: {cause[field]}"
