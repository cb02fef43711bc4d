"""Whether `says` asserts what the quotation does: quantifiers, directions, reasons, names, numbers, word by word.

Words are compared by class: *every* is as strong as *all*, *falls* goes the way of *reduces*. What is tested may be
weaker or stronger than the quotation; then `tests` says so, in words of the class that is missing.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from decomfl_lab.tables import table_beside
from tests.cases import rows_of
from tests.theory.findings.borne_out import NUMERALS
from theory.findings.data import CAUSES, RAW
from theory.findings.texts import MARK
from theory.notation.symbols import LETTERS

_WORDS: Final = rows_of(__file__)
CLASSES: Final[Mapping[str, str]] = _WORDS["classes"]
OPPOSITES: Final[list[list[str]]] = _WORDS["opposites"]
NAMES: Final[str] = _WORDS["names"]


def differences(quote: str, says: str, tests: str = "", *, names: bool = True) -> list[str]:
    """What `says` and `tests` do not share with the quotation: a class of words, the direction, and if asked names."""
    told = f"{says} {tests}"
    found = [f"no {name!r}" for name, words in CLASSES.items() if _has(words, quote) and not _has(words, told)]
    for pair in OPPOSITES:
        # Which of the two directions the words of each text go, in their order.
        either = re.compile(rf"(?<![\w-])(?:(?P<one>{pair[0]})|{pair[1]})(?![\w-])", re.IGNORECASE)
        there, here = ([0 if each["one"] else 1 for each in either.finditer(text)] for text in (quote, says))
        turned = len({*there}) == len({*here}) == 2 and there[0] != here[0] and pair != OPPOSITES[-1]
        if turned or (here and len({*there}) == 1 and there[0] not in here):
            found.append("the other direction")
    if names:
        known, terms = f"{quote} {tests}".lower(), _terms(f"{quote} {tests}")
        found += [name for name in re.findall(NAMES, says) if name.lower() not in known]
        own, theirs = _order(says), _order(quote)
        found += ["another order of symbols"] * ([*filter(theirs.count, own)] != [*filter(own.count, theirs)])
        begun = {each.lstrip("0123456789")[0] for each in terms}
        found += sorted(each for each in _terms(says) - terms if each.lstrip("0123456789")[0] in begun)
    return found


def _order(text: str) -> list[str]:
    """The symbols of a text in the order in which they first stand there, alone or in a product."""
    bare = re.sub(r"\[[^]]*\d{4}[^]]*\]|(?![dKPmMR]+\b)\b[A-Za-z]{2,}", " ", text)  # neither [keys] nor words
    return list(dict.fromkeys(re.findall("[dKPmMRκμη]", bare)))


def _terms(text: str) -> set[str]:
    """Products such as 2RKP and symbols with an index such as C_r, whatever brackets they are in."""
    return set(re.findall(r"\d*[dmMKPR]{2,}(?!\w)|[A-Za-z]_\w(?:, ?\w)*", re.sub(r"[{}]|(?<=,) ", "", text)))


def _has(words: str, text: str) -> bool:
    return bool(re.search(rf"(?<![\w-])(?:{words})(?![\w-])", text, re.IGNORECASE))


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
    return _TYPED.findall(text) + re.findall(rf"\b(?:{'|'.join(NUMERALS)})\b", text)


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
