"""Faults planted in the findings, one at a time: in words, statuses, causes and evidence.

A fault is *noticed* if the findings can no longer be read; if what is said is not what is quoted; if words or figures
are not the source's; if a number is in no evidence; if a piece of evidence no longer plays its role; or if who
has the recorded runs objects. That a text is another than before counts for nothing.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import product
from random import Random
from typing import Any
from unittest import mock

from decomfl_lab.errors import InputError
from tests.cases import rows_of
from tests.theory.findings.borne_out import untold
from tests.theory.findings.coverage import inconsistent, stale, unquoted
from tests.theory.findings.source import TexSource
from tests.theory.findings.wording import typed_in
from theory import bounds
from theory.findings.data import CAUSES, RAW
from theory.findings.decorators import placed
from theory.findings.finding import FALSE, ROLES, TRUE, Entry, EntryResult, Evidence, Role, gather
from theory.findings.registry import ENTRIES
from theory.notation import printed

OWN = "theory.findings"
EXCHANGED: Mapping[Role, Role] = {"refutes": "supports", "supports": "refutes"}
SPOKEN = {(each.label, each.role) for each in placed()}
# Kinds of faults in words, which need the paper's source, or the recorded runs, to be noticed.
WORDS = ("quotation", "wording", "dropped", "run")

Get = Callable[[str], Any]
Plant = Callable[[Get], None]
Judge = Callable[[Sequence[Entry]], Sequence[str]]


@dataclass(frozen=True)
class Mutation:
    """A fault to plant: the entry, where words of one are changed. `plant` is given an import of the findings anew."""

    name: str
    kind: str
    plant: Plant
    label: str = ""


def _raw(get: Get, label: str) -> dict[str, Any]:
    return next(entry for entry in get("data").RAW if entry["label"] == label)


def given(label: str, **values: Any) -> Plant:
    """Plants other values in the entry of that label."""
    return lambda get: _raw(get, label).update(values)


def _placed(changed: Callable[[Any], bool], name: str, value: Any) -> Plant:
    """Plants another role or cause in the pieces of evidence that are to be changed."""
    return lambda get: [setattr(each, name, value) for each in get("decorators").placed() if changed(each)]


def _entries() -> Iterator[Mutation]:
    """Statuses, roles, and lines of algorithms."""
    for entry in RAW:
        label = entry["label"]
        if "status" in entry:
            status = FALSE[0] if entry["status"] in TRUE else TRUE[0]
            exchanged = given(label, status=status, why=entry.get("why", "?"))
            yield Mutation(f"{label}: true and false exchanged", "status", exchanged)
        for role, other in EXCHANGED.items():
            if (label, role) in SPOKEN and "code" not in entry:  # a line's code has a fault of its own, below
                plant = _placed(lambda each, own=(label, role): (each.label, each.role) == own, "role", other)
                yield Mutation(f"{label}: what {role} it has the other role", "role", plant)
        if "code" in entry:
            mended = given(label, **{"printed" if "printed" in entry else "plant": entry["code"]})
            yield Mutation(f"{label}: run as mended where it is run as printed or with a fault", "evidence", mended)


def _reworded(text: str, most: int) -> list[tuple[str, str]]:
    """The text with one word or number changed, and what was changed; at most so many, drawn by the text."""
    found = []
    swaps = rows_of(__file__)["swaps"].split()
    for word, other in zip(swaps[::2], swaps[1::2], strict=True):
        changed = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", other.strip("-"), text, count=1)
        found.append((changed, f"{other} for {word}"))
    for number in re.findall(r"(?<![\w.^_{-])\d[\d,.]*\d|(?<![\w.^_{-])[5-9](?![\w.])", text)[:1]:
        found.append((text.replace(number, f"{number}7", 1), f"{number}7 for {number}"))
    return Random(text).sample(found := [each for each in found if each[0] != text], min(most, len(found)))


def _prose() -> Iterator[Mutation]:
    """Words of quotations and of what they assert, entries left out."""
    for entry in RAW:
        label, quote = entry["label"], entry.get("quote", "")
        fields = [("quote", "quotation", 1), ("says", "wording", 3)] if quote else []
        for name, kind, most in fields:
            for text, what in _reworded(entry.get(name, ""), most):
                yield Mutation(f"{label}, {name}: {what}", kind, given(label, **{name: text}), label)
        for run, role in entry.get("runs", {}).items():
            turned = given(label, runs={**entry["runs"], run: EXCHANGED.get(role, "supports")})
            yield Mutation(f"{label}: {run}, which is {role}, has another role", "run", turned, label)
        if quote:
            yield Mutation(
                f"{label}: left out", "dropped", lambda get, own=label: get("data").RAW.remove(_raw(get, own)), label
            )


def _causes() -> Iterator[Mutation]:
    """What a cause is shown by, given to another cause of another nature."""
    natures = {name: raw["nature"] for name, raw in CAUSES.items()}
    for name in CAUSES:
        other = next(each for each, nature in natures.items() if nature != natures[name])
        plant = _placed(lambda each, name=name: each.cause == name, "cause", other)
        yield Mutation(f"what shows {name} is given to {other}", "cause", plant)


def _instruments() -> Iterator[Mutation]:
    """Moments, expectations and arithmetic that evidence is made of."""

    def attribute(module: str, name: str, value: Callable[[Any], Any]) -> Plant:
        def plant(get: Get) -> None:
            setattr(get(module), name, value(getattr(get(module), name)))

        return plant

    factors: dict[tuple[str, str], Callable[[Any], Any]] = {
        ("evidence.designs", "_gaussian"): lambda old: lambda d: replace(old(d), scale=4),
        ("evidence.designs", "_pairs"): lambda old: lambda d, size: old(d, size)[1:],
        ("evidence.smoothing", "norm_moment"): lambda old: lambda d, power: 1.01 * old(d, power),
        ("evidence.algorithms", "ETA"): lambda old: -old,
        ("evidence.algorithms", "SAMPLED"): lambda _: ((1, 2),) * 4,
        ("evidence.claims", "_ROUNDS"): lambda _: 2,
        ("evidence.covariance", "printed_covariance"): lambda old: lambda *a, **k: 2 * old(*a, **k),
        ("instruments", "search"): lambda old: lambda ratio, axes, **k: replace(old(ratio, axes, **k), ratio=2.0),
    }
    for (module, name), value in factors.items():
        yield Mutation(f"{module}.{name} is another", "evidence", attribute(module, name, value))


MUTATIONS = (*_prose(), *_entries(), *_causes(), *_instruments())


@contextmanager
def _anew() -> Iterator[Get]:
    """The findings imported anew, and afterwards the ones from before, with everything that a fault may change."""
    kept = {name: module for name, module in sys.modules.items() if name.startswith(OWN)}
    with ExitStack() as stack:
        for table in (bounds.STATEMENTS, printed.LORA, *printed.RESULTS.values()):
            stack.enter_context(mock.patch.dict(table))
        for name in kept:
            del sys.modules[name]
        try:
            yield lambda name: import_module(f"{OWN}.{name}")
        finally:
            for name in [name for name in sys.modules if name.startswith(OWN)]:
                del sys.modules[name]
            for name, module in kept.items():
                sys.modules[name] = module
                package, _, own = name.rpartition(".")
                setattr(sys.modules[package], own, module)


def _symbols(text: str) -> set[str]:
    """The symbols of a text that stand for sizes, as words of their own; *dimension* is d."""
    return set(re.findall(r"(?<![\w^_{])(?:[dKPmMRκμηρ]|O\(\w+\))(?![\w'’])", re.sub(r"dimension\w*", " d ", text)))


def _hearsay(registry: Any, result: EntryResult) -> bool:
    """Whether something said has a number or symbol that neither quotation nor evidence has."""
    entry = result.entry
    if entry.restates:
        return False
    raw = next(each for each in registry.RAW if each["label"] == entry.label)
    told = [entry.quote, entry.tests, *(evidence.says for _, evidence in result.evidence)]
    prose = entry.kind in ("claim", "remark", "caption")
    says = raw.get("says", "")
    odd = (prose or entry.kind == "table") and untold(says, *told)
    return bool(odd or (prose and _symbols(says) - _symbols(" ".join(told))))


def noticed(mutation: Mutation, source: TexSource | None = None, judge: Judge | None = None) -> str:
    """What notices the fault: "data", "source", "typed", "numbers", "runs" or the name of a check; "" if nothing does.

    Faults in words need the source, and a judge: what who has the recorded runs objects to the entries.
    """
    with _anew() as get:
        mutation.plant(get)
        try:
            registry = get("registry")
        except InputError:
            return "data"
        if inconsistent(registry.ENTRIES):
            return "data"
        if mutation.kind in WORDS:
            own = [entry for entry in registry.ENTRIES if entry.label == mutation.label]
            if stale(source, own, (), registry.RAW) or (not own and unquoted(source, registry.ENTRIES)):
                return "source"
            if any(typed_in([raw for raw in registry.RAW if raw["label"] == mutation.label])):
                return "typed"
            if any(_hearsay(registry, EntryResult(entry, _found(mutation.label))) for entry in own):
                return "numbers"
            return "runs" * bool(judge(registry.ENTRIES))
        checks: dict[tuple[Any, Role], None] = {}  # each once, in the order of the paper
        for entry, role in product(registry.ENTRIES, ROLES):
            checks |= dict.fromkeys((check, role) for check in entry.checks(role))
        for check, role in sorted(checks, key=lambda each: _order(mutation, each[0].name)):
            found = None
            with suppress(Exception):  # a fault may stop a check
                found = check.gather()
            if found is None or not found.plays(role):
                return str(check.name)
    return ""


@cache
def _found(label: str) -> tuple[tuple[Role, Evidence], ...]:
    """The evidence on an entry as it is, which no change of words touches."""
    (result,) = gather([entry for entry in ENTRIES if entry.label == label])
    return result.evidence


def _order(mutation: Mutation, check: str) -> tuple[int, int]:
    """Checks that speak of what is changed come first, those that search come last."""
    module, name = check.split("(")[0].split(".")
    words = {word for word in re.findall(r"[\w.-]+", mutation.name) if len(word) > 3}
    related = sum(word in check for word in words) + (name in mutation.name) + (module == f"{mutation.kind}s")
    slow = ("implied", "quadratics", "waves", "mended_rate", "without_dimension", "fixed_step", "speedup", "reproduced")
    return -related, sum(word in check for word in slow)
