"""The findings against the paper's source: what they leave out, what speaks of nothing, what is not as printed."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from decomfl_lab.storage.tables import table_beside
from tests.theory.findings.source import Passage, TexSource, passages, shared, spans
from theory.findings.data import UNJUDGED
from theory.findings.finding import TRUE, Entry
from theory.notation.printed import EXAMPLES, LORA, RATES, RESULTS, ROUNDS, Cell

AS_PRINTED: Final = (*TRUE, "not decided", "not checkable")  # statuses with which the print may stand

# What the item of the source is called in an entry, where the names differ.
_KINDS: Final = {"display": "equation", "algorithm": "algorithm line"}
# Statements of running text: they may stand on any line.
_PROSE: Final = ("claim", "remark", "caption")
# Words that assert nothing between words that are judged.
_JOINING: Final = frozenset(table_beside(__name__, "wording.toml")["joining"].split())
_WORD: Final = re.compile(r"[^\s,.;:!?()\[\]{}\"'“”—–-]+")


def inconsistent(entries: Sequence[Entry]) -> list[str]:
    """What is wrong with the entries together.

    Two have one label, also as a further label; an unlabelled one does not name its line; one carries or restates an
    entry that is not there, or is right; or two quote the same words, and neither restates the other.
    """
    by_label: dict[str, Entry] = {}
    wrong = []
    for entry in entries:
        for label in (entry.label, *entry.labels):
            named = label.removeprefix("line-").split(".")[0]
            if label in by_label or (label.startswith("line-") and named != str(entry.line)):
                wrong.append(f"{label}: the label is not its own, or not of line {entry.line}")
            by_label[label] = entry
    for entry in entries:
        wrong += [
            f"{entry.label}: it points to {other}, which is no entry"
            for other in filter(None, (entry.carries, entry.restates))
            if other not in by_label
        ]
        if entry.carries in by_label and by_label[entry.carries].status in AS_PRINTED:
            wrong.append(f"{entry.label}: it carries {entry.carries}, which is true")
    # Whose quotations have words of the paper in common, though neither entry restates the other.
    quoted = [(each.label, each.restates or each.label, each.quote, each.line) for each in entries if each.quote]
    quoted += [("the unjudged", "the unjudged", quote, -9) for each in UNJUDGED for quote in each["quotes"]]
    wrong += [
        f"{again}: its quotation shares words with that of {told}, which neither restates"
        for (told, what, words, line), (again, said, others, at) in combinations(quoted, 2)
        if what != said and shared(words, others)
    ]
    return wrong


def missing(source: TexSource, entries: Sequence[Entry]) -> list[str]:
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


def unquoted(source: TexSource, entries: Sequence[Entry]) -> list[str]:
    """Words of the paper's text that stand in no part of a quotation, of an entry on its place or of the unjudged.

    Titles, captions, footnotes, citations and references count; only words that join others may be left between.
    """
    listed = [quote for each in UNJUDGED for quote in each["quotes"]]
    gaps = []
    for passage in passages(source).values():
        quoted = [part for quote in listed for parts in spans(quote, passage.text) for part in parts]
        quoted += [part for entry in entries for parts in _spans(entry, passage) for part in parts]
        left = passage.text
        for start, end in quoted:
            left = left[:start] + "\0" * (end - start) + left[end:]
        for gap in re.finditer(r"[^\0]+", left):
            words = [each for each in _WORD.finditer(gap[0]) if each[0].lower() not in _JOINING]
            if words:
                line = passage.lines[gap.start() + words[0].start()]
                gaps.append(f"line {line}: {passage.place}: {gap[0].strip(' .,;:')}")
    return gaps


def _spans(entry: Entry, passage: Passage) -> list[tuple[tuple[int, int], ...]]:
    """Where its words stand in a passage: on its own line, or beginning or ending there; of a theorem anywhere."""
    found = spans(entry.quote, passage.text) if entry.quote else []
    there = [parts for parts in found if passage.lines[parts[0][0]] <= entry.line <= passage.lines[parts[-1][1] - 1]]
    return there if entry.kind in ("claim", "caption") else found


def stale(
    source: TexSource,
    entries: Sequence[Entry],
    unjudged: Sequence[Mapping[str, Any]] = UNJUDGED,
) -> list[str]:
    """What speaks of nothing in the source: no such item on the entry's line, or a label or words that it lacks."""
    labels = {(item.line, _KINDS.get(item.kind, item.kind)): set(item.labels) for item in source.items}
    told = list(passages(source).values())
    wrong = []
    for quote in (quote for each in unjudged for quote in each["quotes"]):
        times = sum(len(spans(quote, passage.text)) for passage in told)
        # A few words could cover others that they were not meant for.
        if times != 1 and (not times or len(quote.split()) < 4):
            wrong.append(f"unjudged: the source has the words {quote!r} {times} times")
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
        named = {label for label in (entry.label, *entry.labels) if not label.startswith("line-")}
        wrong += [f"{entry.label}: line {entry.line} has no label {label}" for label in sorted(named - own)]
    return wrong


def mistranscribed(source: TexSource) -> list[str]:
    """What of ``notation.printed`` the source has otherwise: Table 2, the table of LoRA, rounds and learning rates."""
    names = "|".join(EXAMPLES)
    results = "\n".join(source.lines[581:607])
    rows = [_numbers(part).removesuffix(" 1.3") for part in re.split(names, results)[1:]]  # the second model's name
    lora = [_numbers(line) for line in source.lines[919:937] if re.match(rf"\s*({names}) &", line)]
    settings = source.lines[887:908]
    rounds = [
        [round(1000 * float(k)) for k in re.findall(r"([\d.]+)k", line)] for line in settings if "Comm. rounds" in line
    ]
    rates = [[float(rate) for rate in re.findall(r"\de-\d", line)] for line in settings if "Learning rate" in line]
    # What it is, how the source has it, how it was transcribed.
    compared: list[tuple[str, object, object]] = [
        ("Table 2", rows, [_printed(cells) for model in RESULTS.values() for cells in model.values()]),
        ("the table of LoRA", lora, [_printed(cells) for cells in LORA.values()]),
        ("rounds", rounds, [list(each.values()) for each in ROUNDS.values()]),
        ("learning rates", rates, [list(each.values()) for each in RATES.values()]),
    ]
    return [f"{what} in the source: {found}, transcribed: {kept}" for what, found, kept in compared if found != kept]


def _printed(cells: Sequence[Cell]) -> str:
    """As in the source, without what stands between the numbers."""
    return " ".join(f"{c.accuracy:.2f}" + ("" if c.cost is None else f" {c.cost:.2f}") for c in cells)


def _numbers(line: str) -> str:
    return " ".join(re.findall(r"\d+\.\d+", line))
