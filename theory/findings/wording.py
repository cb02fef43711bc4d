"""Whether `says` asserts what the quotation does: its quantifiers, directions, reasons, names and numbers, word by word.

The words are compared by class: *every* is as strong as *all*, *falls* goes the way of *reduces*. What the quotation has
and `says` has not must be named in `tests`; what `says` adds must be in the quotation, in `tests`, or in the evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from theory.findings.finding import Entry

__all__ = ["CLASSES", "NAMES", "NUMBER", "OPPOSITES", "differences", "numbers"]

CLASSES: Final[Mapping[str, str]] = {
    "all": r"all|every|each|any|always|never|consistently|no matter|regardless|whatever|both",
    "only": r"only|unique|alone|just|merely|no others?|nothing else",
    "first": r"first|state-of-the-art",
    "much": r"significantl?y?|substantiall?y?|dramatic(?:ally)?|enormous|tremendous|far|much|several orders|severe|many",
    "roughly": r"often|typically|usually|almost|nearly|around|about|approximat\w+|≈|slightly|little|quite",
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


def numbers(text: str) -> set[str]:
    """The numbers of a text, without commas between thousands."""
    return {found.replace(",", "") for found in re.findall(NUMBER, text)}


def _has(words: str, text: str) -> bool:
    return bool(re.search(rf"(?<![\w-])(?:{words})(?![\w-])", text, re.IGNORECASE))


def differences(entry: Entry, evidence: str = "") -> list[str]:
    """What `says` and the quotation do not have in common, one line for each class of words, name or number.

    Args:
        entry: An entry with a quotation.
        evidence: What its evidence says, if it was gathered: numbers and names may come from there.
    """
    quote, says, tests = entry.quote, entry.says, entry.tests
    found = [f"{name} is in the quotation alone" for name, words in CLASSES.items() if _has(words, quote) and not _has(words, f"{says} {tests}")]
    for one, other in OPPOSITES:
        for here, there in ((one, other), (other, one)):
            if _has(here, quote) and not _has(there, quote) and _has(there, says) and not _has(here, says):
                found.append(f"another direction: {there} for {here}")
    around = f"{quote} {tests} {evidence}"
    found += [f"{name} is in says alone" for name in re.findall(NAMES, says) if name.lower() not in around.lower()]
    found += [f"{number} is in says alone" for number in sorted(numbers(says) - numbers(around))]
    return [f"{entry.label}: {each}" for each in found]
