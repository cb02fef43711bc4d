"""Whether `says` asserts what the quotation does: quantifiers, directions, reasons, names, numbers, word by word.

Words are compared by class: *every* is as strong as *all*, *falls* goes the way of *reduces*. What is tested may be
weaker or stronger than the quotation; then `tests` says so, in words of the class that is missing.
"""

import re
from collections.abc import Mapping
from typing import Final

CLASSES: Final[Mapping[str, str]] = {
    "all": r"all|every|each|any|always|never|consistently|no matter|regardless|whatever|both",
    "only": r"only|unique|alone|just|merely|no others?|nothing else",
    "first": r"first (?:systematic|work|to|for)|state-of-the-art",
    "much": r"(?:significant|substantial|severe)(?:ly)?|dramatic(?:ally)?|enormous|tremendous|far|much|several orders",
    "roughly": r"often|typically|usually|almost|nearly|around|approximat(?:ely|es?)|≈|slightly|little|quite",
    "the same": r"same|identical|exactly|equals?|=",
    "linear": r"linear(?:ly)?|proportion|∝|times",
    "quadratic": r"quadratic",
    "constant": r"constant|fixed|O\(1\)",
    "free of d": r"independent|independently|dimension-free|free of|does not depend|do not depend|whatever",
    "negligible": r"negligible|near-zero|vanish\w*",
    "not": r"not|no|cannot|without|insufficient|never|none|eliminat\w+",
    "reason": r"because|since|due to|therefore|thus|hence|as a result|consequently",
}
"""Words that make a statement stronger or weaker: where the quotation has one of a class, `says` has one too."""

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
"""Words of two directions: `says` has those of the quotation, and of both in its order, but for the last."""

NAMES: Final = (
    r"DeComFL|FedAvg|FedZO|FedCom|FedMeZO|MeZO|BAFFLE|Top-?k|SPSA|LoRA|MNIST|Fashion\S*|CIFAR10|SST-2|OPT-[\d.]+[BM]|"
    r"GPT-J-6B|CNN|SGD|Adam|Gaussian|Dirichlet|Hessian|Theorem \d|Corollary \d|Lemma \d|Algorithm \d|Table \d|Figure \d"
)
"""Methods, data, models and parts of the paper: what `says` names is in the quotation, or in `tests`."""


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
    bare = re.sub(r"(?![dKPmMR]+\b)\b[A-Za-z]{2,}", " ", text)
    return list(dict.fromkeys(re.findall("[dKPmMRκμη]", bare)))


def _terms(text: str) -> set[str]:
    """Products such as 2RKP and symbols with an index such as C_r, whatever brackets they are in."""
    return set(re.findall(r"\d*[dmMKPR]{2,}(?!\w)|[A-Za-z]_\w(?:, ?\w)*", re.sub(r"[{}]|(?<=,) ", "", text)))


def _has(words: str, text: str) -> bool:
    return bool(re.search(rf"(?<![\w-])(?:{words})(?![\w-])", text, re.IGNORECASE))
