"""The findings by label, gathered anew."""

from theory.findings.finding import Entry, EntryResult, gather
from theory.findings.registry import ENTRIES

BY_LABEL = {label: entry for entry in ENTRIES for label in (entry.label, *entry.labels)}


def entry(label: str) -> Entry:
    return BY_LABEL[label]


def result(label: str) -> EntryResult:
    return gather([BY_LABEL[label]])[0]


def confirmed(label: str) -> bool:
    return result(label).confirmed
