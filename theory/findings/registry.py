"""All findings, in the order of the paper, made of the data; what of a source they leave out."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

from decomfl_lab.errors import InputError, require
from theory.findings.data import ALGORITHMS, RAW
from theory.findings.data import CAUSES as RAW_CAUSES
from theory.findings.finding import ROLES, Cause, Check, Entry, Evidence, Role
from theory.findings.source import Source
from theory.findings.texts import bounds_in, filled

__all__ = ["CAUSES", "ENTRIES", "check", "collect", "hangs", "missing", "stale"]

# What the item of the source is called in an entry, where the names differ.
_KINDS: Final = {"display": "equation", "algorithm": "algorithm line"}
# Statements of running text: they may stand on any line.
_PROSE: Final = ("claim", "remark")


def check(name: str) -> Check:
    """The check that the data name ``module.function(arguments)``, of ``theory.findings.evidence``.

    Arguments are literals, or names of the module's own.

    Raises:
        InputError: If the name is no such call.
    """
    try:
        call = ast.parse(name, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        assert isinstance(call.func.value, ast.Name)
    except (SyntaxError, AssertionError):
        raise InputError(f"check must be written module.function(arguments), got {name!r}") from None
    return Check(name, partial(_run, call.func.value.id, call.func.attr, call.args, call.keywords))


def _run(module: str, function: str, args: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> Evidence:
    """Import the evidence only when it is gathered, which keeps a list of the entries cheap."""
    own = import_module(f"theory.findings.evidence.{module}")

    def value(node: ast.expr) -> Any:
        return getattr(own, node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)

    run: Callable[..., Evidence] = getattr(own, function)
    return run(*map(value, args), **{str(each.arg): value(each.value) for each in keywords})


def _roles(raw: Mapping[str, Any]) -> dict[Role, tuple[str, ...]]:
    """The names of an entry's checks by role; a line of an algorithm is run as its code says."""
    if "code" in raw:
        label = raw["label"]
        if "printed" not in raw:
            return {"supports": (f"algorithms.runs({label!r})",)}
        return {
            "refutes": (f"algorithms.to_the_letter({label!r})",),
            "mends": (f"algorithms.mended({ALGORITHMS[label]!r})",),
        }
    return {role: tuple(raw[role]) for role in ROLES if role in raw}


_NAMED: Final = ("label", "line", "place", "kind", "status", "why", "carries", "restates")
_WRITTEN: Final = ("code", "printed", "plant", "depth", "labels", "says", "instead", *ROLES)


def _entry(raw: Mapping[str, Any]) -> Entry:
    label = raw["label"]
    whole = {**_BY_LABEL[raw["restates"]], "labels": [], **raw} if "restates" in raw else raw
    unknown = sorted(set(whole) - set(_NAMED) - set(_WRITTEN))
    require(not unknown, f"fields of {label}", "be those of an entry", unknown)
    roles = _roles(whole)
    return Entry(
        **{key: whole[key] for key in _NAMED if key in whole},
        says=filled(whole["says"]),
        instead=filled(whole.get("instead", "")),
        labels=tuple(whole.get("labels", ())),
        bounds=tuple(bounds_in(whole["says"]) + bounds_in(whole.get("instead", ""))),
        evidence={role: tuple(map(check, names)) for role, names in roles.items()},
        causes=tuple(dict.fromkeys(SHOWN[name] for name in roles.get("refutes", ()) if name in SHOWN)),
    )


def collect(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries by line, checked together.

    Raises:
        InputError: If two have one label, also as a further label; an unlabelled one does not name its line; or one
            carries or restates an entry that is not there, or is right.
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
    return tuple(entries)


CAUSES: Final[Mapping[str, Cause]] = {
    name: Cause(name=name, **{**raw, "shown_by": tuple(raw["shown_by"]), "so": filled(raw.get("so", ""))})
    for name, raw in RAW_CAUSES.items()
}
"""Why statements are not as they should be, by name."""

SHOWN: Final[Mapping[str, Cause]] = {name: cause for cause in CAUSES.values() for name in cause.shown_by}
"""The cause that a refuting check shows."""

_BY_LABEL: Final = {raw["label"]: raw for raw in RAW}
ENTRIES: Final = collect([_entry(raw) for raw in RAW])
"""All of the paper."""


def hangs(cause: Cause, entries: Sequence[Entry]) -> list[Entry]:
    """The entries that a cause spoils: by evidence of their own, or because they carry one that it spoils."""
    spoiled = [entry for entry in entries if cause in entry.causes]
    labels = {entry.label for entry in spoiled}
    while more := [entry for entry in entries if entry.carries in labels and entry.label not in labels]:
        spoiled += more
        labels |= {entry.label for entry in more}
    return sorted(spoiled, key=lambda entry: entry.line)


def missing(source: Source, entries: Sequence[Entry] = ENTRIES) -> list[str]:
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


def stale(source: Source, entries: Sequence[Entry] = ENTRIES) -> list[str]:
    """Entries that speak of nothing in the source: no such item on their line, or a label that it does not have."""
    labels = {(item.line, _KINDS.get(item.kind, item.kind)): set(item.labels) for item in source.items}
    wrong = []
    for entry in entries:
        own = labels.get((entry.line, entry.kind))
        if own is None and entry.kind in _PROSE:
            own = set() if 0 < entry.line <= len(source.lines) and source.lines[entry.line - 1].strip() else None
        if own is None:
            wrong.append(f"{entry.label}: line {entry.line} has no {entry.kind}")
            continue
        named = {label for label in (entry.label, *entry.labels) if not label.startswith("line-")}
        wrong += [f"{entry.label}: line {entry.line} has no label {label}" for label in sorted(named - own)]
    return wrong
