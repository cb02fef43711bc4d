"""Whether `says` asserts what the quotation does: quantifiers, directions, reasons, names, numbers, word by word.

Words are compared by class: *every* is as strong as *all*, *falls* goes the way of *reduces*. What is tested may be
weaker or stronger than the quotation; then `tests` says so, in words of the class that is missing.
"""

import re
from collections.abc import Mapping
from typing import Final

from tests.tables import rows_of

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
