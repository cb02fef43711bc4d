"""The numbers of a text, and whether they are those of what it rests on."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["numbers", "untold"]

_NUMBER: Final = r"(?<![\w.,_^{/-])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w^{]|-\d)"
# Parts of the paper and of this audit, whose numbers are names; and what is filled in from elsewhere.
_POINTER: Final = (
    r"(?:line|eq)-?[\d.]+|[Ll]ines? \d+|\b(?:Section|Appendix|Equation|Assumption|Figure) \(?[\w.]+\)?|⟦[^⟧]*⟧"
)


_TENS: Final = "ten twenty thirty forty fifty sixty seventy eighty ninety hundred".split()  # noqa: SIM905
_WORDS: Final = {"five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"} | {
    word: str(10 * n) for n, word in enumerate(_TENS, 1)
}


def numbers(text: str) -> set[str]:
    """The numbers of a text above 4, in figures; smaller ones are counts, and in all formulas."""
    text = re.sub(rf"\b(?:{'|'.join(_WORDS)})\b", lambda word: _WORDS[word[0]], re.sub(_POINTER, "", text))
    found = {each.replace(",", "") for each in re.findall(_NUMBER, text)}
    return {each for each in found if each not in "01234"}


def untold(text: str, *sources: str) -> list[str]:
    """The numbers of a text that none of its sources has, rounded to as many digits."""
    known = [float(each) for source in sources for each in numbers(source)]
    found = []
    for each in sorted(numbers(text)):
        digits = max(1, len(each.partition("e")[0].replace(".", "").lstrip("0")))
        if not any(float(f"{value:.{digits}g}") == float(each) for value in known):
            found.append(each)
    return found
