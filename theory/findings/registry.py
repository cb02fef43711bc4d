"""All findings, in the order of the paper, made of the data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from decomfl_lab.errors import require
from theory.findings.data import CAUSES as RAW_CAUSES
from theory.findings.data import RAW
from theory.findings.decorators import Placed, placed
from theory.findings.finding import ROLES, Cause, Entry, EvidenceCheck, Nature, Role
from theory.findings.texts import FORMULAS, bounds_in, fill, later

_NAMED: Final = ("label", "line", "place", "kind", "status", "carries", "restates", "quote", "tests")
_WRITTEN: Final = (*ROLES, "cause", "code", "printed", "plant", "labels", "says", "why", "instead", "runs")
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
    of_own = [each.check for each in own]
    return Entry(
        **{key: whole[key] for key in _NAMED if key in whole},
        says=fill(says, FORMULAS),
        why=later(whole.get("why", ""), of_own, label),
        # Where only a cause is at fault, what is true instead is said with the cause.
        instead=later(whole.get("instead", ""), of_own, label) or (lambda: causes[0].instead if causes else ""),
        labels=tuple(whole.get("labels", ())),
        bounds=tuple(bounds_in(says) + bounds_in(whole.get("instead", ""))),
        evidence={role: found for role, found in checks.items() if found},
        causes=causes,
        runs=dict(whole.get("runs", {})),
    )


def _named(there: Sequence[Placed]) -> Iterator[Placed]:
    """What entries name of the evidence that stands elsewhere, by its name, "…" for arguments that are left out.

    An entry has a list of names for each role; what refutes is named below its cause.
    """
    checks = {each.check.name: each.check for each in there}
    for raw in RAW:
        own: dict[tuple[Role, str], Sequence[str]] = {
            (role, ""): raw.get(role, ()) for role in ROLES if role != "refutes"
        }
        own |= {("refutes", cause): names for cause, names in raw.get("refutes", {}).items()}
        for (role, cause), names in own.items():
            for name in names:
                first, _, last = name.partition("…")
                found = [
                    check
                    for each, check in checks.items()
                    if each == name or (each.startswith(first if last else f"{first}(") and each.endswith(last))
                ]
                require(len(found) == 1, f"{role} of {raw['label']}", "name one piece of evidence", name)
                yield Placed(raw["label"], role, found[0], cause)


def _witness(cause: str) -> EvidenceCheck:
    """The check that shows a cause best."""
    shown = {each.check.name: each.check for each in _PLACED if each.cause == cause and each.witness}
    require(len(shown) == 1, f"cause {cause}", "have one witness", list(shown))
    return next(iter(shown.values()))


def _instead(cause: str, raw: Mapping[str, Any]) -> Any:
    """What is true instead; numbers are of the witness, or of any check on a statement that the cause spoils."""
    labels = {each.label for each in _PLACED if each.cause == cause}
    checks = [each.check for each in _PLACED if each.cause == cause or each.label in labels]
    return later(raw.get("instead", ""), [_witness(cause), *checks], cause)


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


_PLACED: Final = [*placed(), *_named(placed())]
CAUSES: Final[Mapping[str, Cause]] = {
    name: Cause(name=name, **{**raw, "instead": _instead(name, raw)}, witness=_witness(name))
    for name, raw in RAW_CAUSES.items()
}
"""Why statements are not as they should be, by name."""

_BY_LABEL: Final = {raw["label"]: raw for raw in RAW}
_SPEAKING: Final = _by_label(_PLACED)
ENTRIES: Final = tuple(sorted(map(_entry, RAW), key=lambda entry: entry.line))
"""All of the paper."""


def affected(cause: Cause, entries: Sequence[Entry]) -> list[Entry]:
    """The entries that a cause spoils: by evidence of their own, or because they carry one that it spoils."""
    spoiled = [entry for entry in entries if cause in entry.causes]
    labels = {entry.label for entry in spoiled}
    while more := [entry for entry in entries if entry.carries in labels and entry.label not in labels]:
        spoiled += more
        labels |= {entry.label for entry in more}
    return sorted(spoiled, key=lambda entry: entry.line)
