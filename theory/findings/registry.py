"""All findings, in the order of the paper, made of ``theory.findings.data`` and the evidence placed beside them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

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


def _named(there: Sequence[Placed]) -> Iterator[Placed]:
    """What entries name of the evidence that stands elsewhere, by its name, "…" for arguments that are left out.

    An entry has a list of names for each role; what refutes is named below its cause.
    """
    checks = {each.check.name: each.check for each in there}
    for raw in RAW:
        names_by_role: dict[tuple[Role, str], Sequence[str]] = {
            (role, ""): raw.get(role, ()) for role in ROLES if role != "refutes"
        }
        names_by_role |= {("refutes", cause): names for cause, names in raw.get("refutes", {}).items()}
        for (role, cause), names in names_by_role.items():
            for name in names:
                first, _, last = name.partition("…")
                begin = first if last else f"{first}("
                fitting = [
                    check
                    for known, check in checks.items()
                    if known == name or (known.startswith(begin) and known.endswith(last))
                ]
                require(len(fitting) == 1, f"{role} of {raw['label']}", "name one piece of evidence", name)
                yield Placed(raw["label"], role, fitting[0], cause)


def _causes(there: Sequence[Placed]) -> Iterator[Cause]:
    """Each cause with the check that shows it best."""
    for name, raw in RAW_CAUSES.items():
        witnesses = {each.check.name: each.check for each in there if each.cause == name and each.witness}
        require(len(witnesses) == 1, f"cause {name}", "have one witness", list(witnesses))
        (witness,) = witnesses.values()
        # Numbers in what is true instead are of the witness, or of any check on a statement that the cause spoils.
        spoiled = {each.label for each in there if each.cause == name}
        checks = [witness, *(each.check for each in there if each.cause == name or each.label in spoiled)]
        yield Cause(name=name, **{**raw, "instead": later(raw.get("instead", ""), checks, name)}, witness=witness)


def _entries(there: Sequence[Placed]) -> Iterator[Entry]:
    """Each entry with the evidence on it."""
    by_label = {raw["label"]: raw for raw in RAW}
    speaking: dict[str, list[Placed]] = defaultdict(list)
    for each in there:
        require(each.label in by_label, f"label of {each.check.name}", "be one of the entries", each.label)
        again = by_label[each.label].get("restates", "")
        require(not again, f"label of {each.check.name}", f"be {again}, which that entry restates", each.label)
        require(each.cause in CAUSES or not each.cause, f"cause of {each.check.name}", "be known", each.cause)
        speaking[each.label].append(each)
    for raw in RAW:
        label, restated = raw["label"], raw.get("restates", "")
        whole = raw
        # What says again what another entry says has that one's words and evidence.
        if restated:
            require(restated in by_label, f"entry that {label} restates", "be one of the entries", restated)
            require("restates" not in by_label[restated], f"entry that {label} restates", "restate no other", restated)
            own_fields = sorted(set(raw) - _RESTATING)
            require(not own_fields, f"fields of {label}", f"be left to {restated}, which it restates", own_fields)
            whole = {**by_label[restated], "labels": [], "quote": "", **raw}
        unknown = sorted(set(whole) - set(_NAMED) - set(_WRITTEN))
        require(not unknown, f"fields of {label}", "be those of an entry", unknown)
        # Where no formula is needed to say what is asserted, the quotation says it.
        says = whole.get("says") or by_label[restated or label].get("quote", "")
        require(bool(says), f"says of {label}", "be given, or a quotation", says)
        placed_on = list(speaking[restated or label])
        # The causes because of which they refute: the one that the entry names, then the gravest.
        shown = {each.cause for each in placed_on if each.role == "refutes"}
        first = whole.get("cause", "")
        causes = sorted(
            (cause for cause in CAUSES.values() if cause.name in shown),
            key=lambda cause: (cause.name != first, _GRAVEST.index(cause.nature)),
        )
        names = [cause.name for cause in causes]
        placed_on.sort(key=lambda each: names.index(each.cause) if each.cause in names else 0)
        checks = [each.check for each in placed_on]
        by_role: dict[Role, list[EvidenceCheck]] = defaultdict(list)
        for each in placed_on:
            by_role[each.role].append(each.check)
        instead = later(whole.get("instead", ""), checks, label)
        # Where only a cause is at fault, what is true instead is said with the cause, when it is read.
        if causes and not instead:
            instead = partial(getattr, causes[0], "instead")
        yield Entry(
            **{key: whole[key] for key in _NAMED if key in whole},
            says=fill(says, FORMULAS),
            why=later(whole.get("why", ""), checks, label),
            instead=instead,
            labels=tuple(whole.get("labels", ())),
            bounds=tuple(bounds_in(says) + bounds_in(whole.get("instead", ""))),
            evidence={role: tuple(by_role[role]) for role in ROLES if role in by_role},
            causes=tuple(causes),
            runs=dict(whole.get("runs", {})),
        )


_PLACED: Final = [*placed(), *_named(placed())]
CAUSES: Final[Mapping[str, Cause]] = {cause.name: cause for cause in _causes(_PLACED)}
"""Why statements are not as they should be, by name."""

ENTRIES: Final = tuple(sorted(_entries(_PLACED), key=lambda entry: entry.line))
"""All of the paper."""


def affected(cause: Cause, entries: Sequence[Entry]) -> list[Entry]:
    """The entries that a cause spoils: by evidence of their own, or because they carry one that it spoils."""
    spoiled = [entry for entry in entries if cause in entry.causes]
    labels = {entry.label for entry in spoiled}
    while more := [entry for entry in entries if entry.carries in labels and entry.label not in labels]:
        spoiled += more
        labels |= {entry.label for entry in more}
    return sorted(spoiled, key=lambda entry: entry.line)
