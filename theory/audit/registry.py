"""All entries of the audit, in the order of the paper; their evidence; what of a source they leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from decomfl_lab.errors import require
from theory.audit import algorithms, claims, gaussian, main_text, smoothing, tables, theorem_one, theorem_two
from theory.audit.entry import Entry, Evidence, Result, gather
from theory.audit.source import Source

__all__ = ["ENTRIES", "collect", "missing", "run", "stale"]

# What the item of the source is called in an entry, where the names differ.
_KINDS: Final = {"display": "equation", "algorithm": "algorithm line"}
# Statements of running text: they may stand on any line.
_PROSE: Final = ("claim", "remark")


def collect(*groups: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries of several modules by line.

    Raises:
        InputError: If two have one label, also as a further label, or an unlabelled one does not name its line.
    """
    entries = sorted((entry for group in groups for entry in group), key=lambda entry: entry.line)
    seen: set[str] = set()
    for entry in entries:
        for label in (entry.label, *entry.labels):
            require(label not in seen, "label of an entry", "be distinct", label)
            seen.add(label)
            named = label.removeprefix("line-").split(".")[0]
            unlabelled = label.startswith("line-")
            require(not unlabelled or named == str(entry.line), "label of an entry", f"name line {entry.line}", label)
    return tuple(entries)


ENTRIES: Final = collect(
    main_text.ENTRIES,
    claims.ENTRIES,
    algorithms.ENTRIES,
    tables.ENTRIES,
    smoothing.ENTRIES,
    theorem_one.ENTRIES,
    theorem_two.ENTRIES,
    gaussian.ENTRIES,
)
"""All of the paper."""


def run(entries: Sequence[Entry] = ENTRIES, on_result: Callable[[int, Result], None] | None = None) -> list[Result]:
    """Gather the evidence for every entry now; checks that several entries share are run once.

    Args:
        entries: Entries to gather evidence for.
        on_result: Function that is told, after each, how many are done and the latest.
    """
    results = []
    known: dict[Callable[[], Evidence], Evidence] = {}
    for done, entry in enumerate(entries, 1):
        results.append(gather(entry, known))
        if on_result:
            on_result(done, results[-1])
    return results


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
