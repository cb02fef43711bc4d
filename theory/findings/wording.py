"""Whether `says` asserts what the quotation does: quantifiers, directions, reasons, names and numbers, word by word.

The words are compared by class: *every* is as strong as *all*, *falls* goes the way of *reduces*. What the quotation has
and `says` has not must be named in `tests`; what `says` adds must be in the quotation, in `tests`, or in the evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["CLASSES", "NAMES", "NUMBER", "OPPOSITES", "differences", "numbers", "untold"]

CLASSES: Final[Mapping[str, str]] = {
    "all": r"all|every|each|any|always|never|consistently|no matter|regardless|whatever|both",
    "only": r"only|unique|alone|just|merely|no others?|nothing else",
    "first": r"first (?:systematic|work|to|for)|the first (?=to)|state-of-the-art",
    "much": r"significantl?y?|substantiall?y?|dramatic(?:ally)?|enormous|tremendous|far|much|several orders|severe|many",
    "roughly": r"often|typically|usually|almost|nearly|around|about|approximat(?:ely|es?)|≈|slightly|little|quite",
    "the same": r"same|identical|exactly|equals?|=",
    "linear": r"linear(?:ly)?|proportion|∝|times",
    "quadratic": r"quadratic",
    "constant": r"constant|fixed|O\(1\)",
    "free of d": r"independent|independently|dimension-free|free of|does not depend|do not depend|whatever",
    "negligible": r"negligible|near-zero|vanish\w*",
    "not": r"not|no|cannot|without|insufficient|never|none|eliminat\w+",
    "reason": r"because|since|due to|therefore|thus|hence|as a result|consequently|by which|so that",
}
"""Words that make a statement stronger or weaker, by class: of a class that the quotation has `says` has a word too."""

OPPOSITES: Final[tuple[tuple[str, str], ...]] = (
    (
        r"more|higher|larger|greater|above|grows?|increas\w+|rises?|later|exceeds?|excels?",
        r"fewer|less|lower|smaller|below|falls?|decreas\w+|reduc\w+|earlier|save[ds]?|savings?",
    ),
    (r"faster|better|improve[ds]?|enhance", r"slower|worse|slow(?:ing|ness)|degrad\w+"),
    (r"uplink|up|uploading", r"downlink|down|pulling"),
    (r"O\(d\)", r"O\(1\)"),
    (r"server's|server", r"client's|clients?"),
)
"""Words of two directions: where the quotation has those of one alone, `says` does not have those of the other alone."""

NAMES: Final = (
    r"DeComFL|FedAvg|FedZO|FedCom|FedMeZO|MeZO|BAFFLE|Top-?k|SPSA|LoRA|MNIST|Fashion\S*|CIFAR10|SST-2|OPT-[\d.]+[BM]|GPT-J-6B|"
    r"CNN|SGD|Adam|Gaussian|Dirichlet|Hessian|Theorem \d|Corollary \d|Lemma \d|Algorithm \d|Table \d|Figure \d"
)
"""Methods, data, models and parts of the paper: what `says` names is named in the quotation, in `tests` or in evidence."""

NUMBER: Final = r"(?<![\w.,_^{/-])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w^{-])"
"""A number on its own, not an index of a symbol."""

_SYMBOL: Final = r"(?<![\w^_{])[dKPmMRκμηρ](?![\w'’])"
# Parts of the paper, and of this audit, whose numbers are names.
_POINTER: Final = r"(?:line|eq)-?[\d.]+|[Ll]ines? \d+|\b(?:Section|Appendix|Equation|Assumption|Figure) \(?[\w.]+\)?|⟦[^⟧]*⟧"


def numbers(text: str) -> set[str]:
    """The numbers of a text above 4, without commas between thousands; smaller ones are counts, as in *both of the 2*."""
    found = {each.replace(",", "") for each in re.findall(NUMBER, re.sub(_POINTER, "", text))}
    return found - set("01234")


def _has(words: str, text: str) -> bool:
    return bool(re.search(rf"(?<![\w-])(?:{words})(?![\w-])", text, re.IGNORECASE))


def differences(quote: str, says: str, tests: str = "") -> list[str]:
    """What the quotation and what `says` asserts do not have in common: classes of words, directions, names."""
    told = f"{says} {tests}"
    found = [f"{name!r} is not in it" for name, words in CLASSES.items() if _has(words, quote) and not _has(words, told)]
    for one, other in (*OPPOSITES, *((there, here) for here, there in OPPOSITES)):
        if _has(one, quote) and not _has(other, quote) and _has(other, says) and not _has(one, says):
            found.append("it has the other direction")
    named = f"{quote} {tests}".lower()
    return [*found, *(f"{name} is not in the quotation" for name in re.findall(NAMES, says) if name.lower() not in named)]


def untold(text: str, *sources: str) -> list[str]:
    """The numbers and symbols of a text that none of its sources has: the quotation, `tests`, what the evidence says."""
    told = " ".join(sources)
    symbols = set(re.findall(_SYMBOL, text)) - set(re.findall(_SYMBOL, told.replace("dimension", " d ")))
    return sorted(numbers(text) - numbers(told)) + sorted(symbols)
