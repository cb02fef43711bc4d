"""All findings, in the order of the paper, made of the data; what of a source they leave out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from decomfl_lab.errors import InputError, require
from theory.findings.data import CAUSES as RAW_CAUSES
from theory.findings.data import RAW, UNJUDGED
from theory.findings.finding import ROLES, Cause, Entry, EvidenceCheck, Nature, Role
from theory.findings.placed import Placed, placed
from theory.findings.prose import Passage, lettered, passages, shared, spans
from theory.findings.source import TexSource
from theory.findings.texts import bounds_in, filled
from theory.findings.wording import differences

__all__ = ["CAUSES", "ENTRIES", "affected", "collect", "missing", "stale", "unquoted"]

# What the item of the source is called in an entry, where the names differ.
_KINDS: Final = {"display": "equation", "algorithm": "algorithm line"}
# Statements of running text: they may stand on any line.
_PROSE: Final = ("claim", "remark", "caption")
# Where every sentence is quoted by an entry, or listed as one that asserts nothing; the others are mathematics.
_JUDGED: Final = re.compile("Abstract|Section")
# Appendices of which every sentence with a number or a comparison is.
_COUNTED: Final = re.compile("Appendix [ABC]")
_TOLD: Final = re.compile(
    r"\d|larger|smaller|faster|slow|higher|lower|reduc|sav|better|excel|same|identical|independent|constant|fewer|more "
    r"|less|comparab|converge|stable|sensitiv|majority|substantial|significant|negligib|billion|minimiz|peak"
)


_NAMED: Final = ("label", "line", "place", "kind", "status", "why", "carries", "restates", "quote", "tests")
_WRITTEN: Final = ("cause", "code", "printed", "plant", "labels", "says", "instead", "runs")
# All that an entry has of its own that says again what another says.
_RESTATING: Final = {"label", "line", "place", "kind", "labels", "quote", "restates"}
_GRAVEST: Final[tuple[Nature, ...]] = ("error", "imprecision", "misprint")


def _entry(raw: Mapping[str, Any]) -> Entry:
    label, other = raw["label"], raw.get("restates", "")
    if other:
        require(other in _BY_LABEL, f"entry that {label} restates", "be one of the entries", other)
        require("restates" not in _BY_LABEL[other], f"entry that {label} restates", "restate no other", other)
        own_fields = sorted(set(raw) - _RESTATING)
        require(not own_fields, f"fields of {label}", f"be left to {other}, which it restates", own_fields)
    whole = {**_BY_LABEL[raw["restates"]], "labels": [], "quote": "", **raw} if "restates" in raw else raw
    unknown = sorted(set(whole) - set(_NAMED) - set(_WRITTEN))
    require(not unknown, f"fields of {label}", "be those of an entry", unknown)
    # Where no formula is needed to say what is asserted, the quotation says it.
    says = whole.get("says") or _BY_LABEL[other or label].get("quote", "")
    require(bool(says), f"says of {label}", "be given, or a quotation", says)
    # What says again what another entry says has that one's evidence.
    own = _SPEAKING.get(raw.get("restates", label), [])
    # The causes because of which they refute: the one that the entry names, then the gravest.
    named = {each.cause for each in own if each.role == "refutes" and each.cause}
    shown = [cause for cause in CAUSES.values() if cause.name in named]
    first = whole.get("cause", "")
    causes = tuple(sorted(shown, key=lambda cause: (cause.name != first, _GRAVEST.index(cause.nature))))
    names = [cause.name for cause in causes]
    own.sort(
        key=lambda each: names.index(each.cause) if each.cause in names else 0
    )  # refutations in the order of their causes
    checks: dict[Role, tuple[EvidenceCheck, ...]] = {
        role: tuple(each.check for each in own if each.role == role) for role in ROLES
    }
    return Entry(
        **{key: whole[key] for key in _NAMED if key in whole},
        says=filled(says),
        instead=filled(whole.get("instead", "")),
        labels=tuple(whole.get("labels", ())),
        bounds=tuple(bounds_in(says) + bounds_in(whole.get("instead", ""))),
        evidence={role: found for role, found in checks.items() if found},
        causes=causes,
        runs=dict(whole.get("runs", {})),
    )


def _witness(cause: str) -> EvidenceCheck:
    """The check that shows a cause best."""
    shown = {each.check.name: each.check for each in _PLACED if each.cause == cause and each.witness}
    require(len(shown) == 1, f"cause {cause}", "have one witness", list(shown))
    return next(iter(shown.values()))


def _by_label(placed: Sequence[Placed]) -> dict[str, list[Placed]]:
    """{label: what speaks on it}.

    Raises:
        InputError: If a label is none of an entry, or of one that restates another, or a cause is not known.
    """
    found: dict[str, list[Placed]] = {}
    for each in placed:
        require(each.label in _BY_LABEL, f"label of {each.check.name}", "be one of the entries", each.label)
        again = _BY_LABEL[each.label].get("restates", "")
        require(not again, f"label of {each.check.name}", f"be {again}, which that entry restates", each.label)
        require(each.cause in CAUSES or not each.cause, f"cause of {each.check.name}", "be known", each.cause)
        found.setdefault(each.label, []).append(each)
    return found


def collect(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries by line, checked together.

    Raises:
        InputError: If two have one label, also as a further label; an unlabelled one does not name its line; one
            carries or restates an entry that is not there, or is right; two quote the same words, and neither restates
            the other; or what an entry says and tests lacks a quantifier, direction, reason or name of its quotation.
    """
    by_label: dict[str, Entry] = {}
    entries = sorted(entries, key=lambda entry: entry.line)
    for entry in entries:
        for label in (entry.label, *entry.labels):
            require(label not in by_label, "label of an entry", "be distinct", label)
            by_label[label] = entry
            named = label.removeprefix("line-").split(".")[0]
            unlabelled = label.startswith("line-")
            require(not unlabelled or named == str(entry.line), "label of an entry", f"name line {entry.line}", label)
    for entry in entries:
        for other in filter(None, (entry.carries, entry.restates)):
            require(other in by_label, f"entry that {entry.label} points to", "be one of the entries", other)
        wrong = not entry.carries or not by_label[entry.carries].as_printed
        require(wrong, f"carries of {entry.label}", "name an entry that is not correct", entry.carries)
    for entry in entries:
        names = not entry.restates  # who says it first has the names
        apart = differences(entry.quote, entry.says, entry.tests, names=names) if entry.quote else []
        require(
            not apart,
            f"says of {entry.label}",
            "assert what its quotation does, or `tests` tell by how much less",
            apart,
        )
    # Whose quotations have words of the paper in common, though neither entry restates the other.
    quoted = [(each.label, each.restates or each.label, each.quote, each.line) for each in entries if each.quote]
    quoted += [("the unjudged", "the unjudged", quote, -9) for each in UNJUDGED for quote in each["quotes"]]
    for (told, what, words, line), (again, said, others, at) in combinations(quoted, 2):
        if what != said and shared(words, others, near=abs(line - at) <= 1):
            raise InputError(f"quote of {again} must share no words with that of {told}, or the entry restate it")
    return tuple(entries)


_PLACED: Final = placed()
CAUSES: Final[Mapping[str, Cause]] = {
    name: Cause(name=name, **{**raw, "instead": filled(raw.get("instead", ""))}, witness=_witness(name))
    for name, raw in RAW_CAUSES.items()
}
"""Why statements are not as they should be, by name."""

_BY_LABEL: Final = {raw["label"]: raw for raw in RAW}
_SPEAKING: Final = _by_label(_PLACED)
ENTRIES: Final = collect([_entry(raw) for raw in RAW])
"""All of the paper."""


def affected(cause: Cause, entries: Sequence[Entry]) -> list[Entry]:
    """The entries that a cause spoils: by evidence of their own, or because they carry one that it spoils."""
    spoiled = [entry for entry in entries if cause in entry.causes]
    labels = {entry.label for entry in spoiled}
    while more := [entry for entry in entries if entry.carries in labels and entry.label not in labels]:
        spoiled += more
        labels |= {entry.label for entry in more}
    return sorted(spoiled, key=lambda entry: entry.line)


def missing(source: TexSource, entries: Sequence[Entry] = ENTRIES) -> list[str]:
    """What of the source has no entry: ``line 238: display eq.zo-grad``, for a line or for a label of it."""
    said: dict[tuple[int, str], set[str]] = {}
    for entry in entries:
        said.setdefault((entry.line, entry.kind), set()).update((entry.label, *entry.labels))
    gaps = []
    for item in source.items:
        found = said.get((item.line, _KINDS.get(item.kind, item.kind)))
        gaps += [
            f"line {item.line}: {item.kind} {label}".rstrip()
            for label in item.labels or ("",)
            if found is None or (label and label not in found)
        ]
    return gaps


def unquoted(source: TexSource, entries: Sequence[Entry] = ENTRIES) -> list[str]:
    """Sentences of which no entry quotes a part, and no list of the unjudged.

    All of the abstract, Sections and captions count, and those of Appendices A to C with a number or a comparison;
    the proofs are judged display by display.
    """
    listed = [quote for each in UNJUDGED for quote in each["quotes"]]
    gaps = []
    for passage in passages(source).values():
        quoted = [part for quote in listed for parts in spans(quote, passage.text) for part in parts]
        quoted += [part for entry in entries for parts in _spans(entry, passage) for part in parts]
        gaps += [
            f"line {each.line}: {passage.place}: {each.text}"
            for each in passage.sentences()
            if (
                _JUDGED.match(passage.place)
                or r"\caption" in source.lines[each.line - 1]
                or (_COUNTED.match(passage.place) and _TOLD.search(each.text))
            )
            and not any(start < each.end and each.start < end for start, end in quoted)
        ]
    return gaps


def _spans(entry: Entry, passage: Passage) -> list[tuple[tuple[int, int], ...]]:
    """Where its words stand in a passage: on its own line, or beginning or ending there; of a theorem anywhere."""
    found = spans(entry.quote, passage.text) if entry.quote else []
    there = [parts for parts in found if passage.lines[parts[0][0]] <= entry.line <= passage.lines[parts[-1][1] - 1]]
    return there if entry.kind in ("claim", "caption") else found


def stale(
    source: TexSource, entries: Sequence[Entry] = ENTRIES, unjudged: Sequence[Mapping[str, Any]] = UNJUDGED
) -> list[str]:
    """What speaks of nothing in the source: no such item on the entry's line, or a label or words that it lacks."""
    labels = {(item.line, _KINDS.get(item.kind, item.kind)): set(item.labels) for item in source.items}
    told = list(passages(source).values())
    wrong = [
        f"unjudged: the source does not have the words {quote!r}"
        for each in unjudged
        for quote in each["quotes"]
        if not any(spans(quote, passage.text) for passage in told)
    ]
    for passage in told:
        # Parts of quotations that stand on the same words, though neither entry restates the other.
        taken = [(*part, entry) for entry in entries for parts in _spans(entry, passage) for part in parts]
        for (start, end, entry), (first, last, again) in combinations(taken, 2):
            if start < last and first < end and (entry.restates or entry.label) != (again.restates or again.label):
                wrong.append(f"{again.label}: shares words of the source with {entry.label}, which neither restates")
    for entry in entries:
        if entry.quote and not any(_spans(entry, passage) for passage in told):
            found = [passage.lines[parts[0][0]] for passage in told for parts in spans(entry.quote, passage.text)]
            wrong.append(f"{entry.label}: line {entry.line} does not have the words {entry.quote!r}, lines {found} do")
        own = labels.get((entry.line, entry.kind))
        if own is None and entry.kind in _PROSE:
            own = set() if 0 < entry.line <= len(source.lines) and source.lines[entry.line - 1].strip() else None
        if own is None:
            wrong.append(f"{entry.label}: line {entry.line} has no {entry.kind}")
            continue
        if entry.kind == "equation" and not entry.restates:
            says, display = _BY_LABEL.get(entry.label, {}).get("says", ""), _display(source, entry.line)
            strange = [*(_signs(says) - Counter(_SIGNS.findall(display)))]
            # What stands without a sign between, as in TeX: 18KL^2.
            products = _PRODUCT.findall(_NO_FORMULA.sub("", says).translate(_POWERS))
            strange += [each for each in products if each not in re.sub(r"[\s{}\\;,!&|]", "", display)]
            wrong += [f"{entry.label}: the display on line {entry.line} has no such {each}" for each in strange]
        named = {label for label in (entry.label, *entry.labels) if not label.startswith("line-")}
        wrong += [f"{entry.label}: line {entry.line} has no label {label}" for label in sorted(named - own)]
    return wrong


_SMALL: Final = str.maketrans(
    {**dict(zip("⁰¹²³⁴⁵⁶", map(str, range(7)), strict=True)), "½": "1 2", "¼": "1 4", "¾": "3 4"}
)
_NO_FORMULA: Final = re.compile(
    r"⟦[^⟧]*⟧|\b(?:line|eq|lemma)[-.][\w.]+|1\(A|(?:Theorem|Algorithm|Table) \d|\b(?![dKPmMRLGDH]+\b)[A-Za-z]{2,}\b"
)
_POWERS: Final = str.maketrans({sign: f"^{n}" for n, sign in enumerate("⁰¹²³⁴⁵⁶")})
_PRODUCT: Final = re.compile(r"(?<![A-Za-z_^{])[0-9dKPmMRLGHμηκσφ](?:[0-9dKPmMRLGHμηκσφ]|\^\d)+(?![A-Za-z_{])")
_SIGNS: Final = re.compile("[0-9dKPmMRLGDHμησκβ]")


def _signs(formula: str) -> Counter[str]:
    """The figures and letters of a formula in plain text, and how often; an indicator 1(A) and words have none."""
    return Counter(_SIGNS.findall(_NO_FORMULA.sub("", formula).translate(_SMALL)))


def _display(source: TexSource, line: int) -> str:
    """The display that begins on a line of the source, with the line before it and the one after, its letters plain."""
    ends = (n for n in range(line, len(source.lines)) if re.search(r"\\end\{|\$\$\s*$", source.lines[n]))
    return lettered("\n".join(source.lines[line - 2 : next(ends, line) + 2]))
