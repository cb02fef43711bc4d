"""Faults planted in the findings by rule, one at a time: in statuses, roles, causes and lines of algorithms.

A fault is *noticed* if the findings can no longer be read, or if a piece of evidence no longer plays its role. That a
text is another than before counts for nothing here; `read.toml` has the digest of every text.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any
from unittest import mock

from decomfl_lab.errors import InputError
from tests.theory.findings.coverage import inconsistent
from theory import bounds
from theory.findings.data import CAUSES, RAW
from theory.findings.decorators import placed
from theory.findings.finding import FALSE, ROLES, TRUE, Role
from theory.notation import printed

OWN = "theory.findings"
EXCHANGED: Mapping[Role, Role] = {"refutes": "supports", "supports": "refutes"}

Get = Callable[[str], Any]
Plant = Callable[[Get], None]


@dataclass(frozen=True)
class Mutation:
    """A fault to plant. `plant` is given an import of the findings anew."""

    name: str
    kind: str
    plant: Plant


def given(label: str, **values: Any) -> Plant:
    """Plants other values in the entry of that label."""
    return lambda get: next(raw for raw in get("data").RAW if raw["label"] == label).update(values)


def _placed(changed: Callable[[Any], bool], name: str, value: Any) -> Plant:
    """Plants another role or cause in the pieces of evidence that are to be changed."""
    return lambda get: [setattr(each, name, value) for each in get("decorators").placed() if changed(each)]


def mutations() -> Iterator[Mutation]:
    """The faults of every entry and of every cause."""
    spoken = {(each.label, each.role) for each in placed()}
    for entry in RAW:
        label = entry["label"]
        if "status" in entry:
            status = FALSE[0] if entry["status"] in TRUE else TRUE[0]
            exchanged = given(label, status=status, why=entry.get("why", "?"))
            yield Mutation(f"{label}: true and false exchanged", "status", exchanged)
        for role, other in EXCHANGED.items():
            if (label, role) in spoken and "code" not in entry:  # a line's code has a fault of its own, below
                plant = _placed(lambda each, own=(label, role): (each.label, each.role) == own, "role", other)
                yield Mutation(f"{label}: what {role} it has the other role", "role", plant)
        if "code" in entry:
            mended = given(label, **{"printed" if "printed" in entry else "plant": entry["code"]})
            yield Mutation(f"{label}: run as mended where it is run as printed or with a fault", "line", mended)
    # What a cause is shown by is given to another cause of another nature.
    natures = {name: raw["nature"] for name, raw in CAUSES.items()}
    for name in CAUSES:
        other = next(each for each, nature in natures.items() if nature != natures[name])
        plant = _placed(lambda each, name=name: each.cause == name, "cause", other)
        yield Mutation(f"what shows {name} is given to {other}", "cause", plant)


@contextmanager
def anew() -> Iterator[Get]:
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


def noticed(mutation: Mutation) -> bool:
    """Whether the data can no longer be read, or a check no longer plays its role."""

    def order(check: str) -> tuple[int, bool]:
        """Checks that speak of what is changed come first, those that search come last."""
        words = {word for word in re.findall(r"[\w.-]+", mutation.name) if len(word) > 3}
        slow = ("implied", "quadratics", "waves", "mended_rate", "without_dimension", "fixed_step", "reproduced")
        return -sum(word in check for word in words), any(word in check for word in slow)

    with anew() as get:
        mutation.plant(get)
        try:
            entries = get("registry").ENTRIES
        except InputError:
            return True
        if inconsistent(entries):
            return True
        checks: dict[tuple[Any, Role], None] = {}  # each once, in the order of the paper
        for entry, role in product(entries, ROLES):
            checks |= dict.fromkeys((check, role) for check in entry.checks(role))
        for check, role in sorted(checks, key=lambda each: order(each[0].name)):
            found = None
            with suppress(Exception):  # a fault may stop a check
                found = check.gather()
            if found is None or not found.plays(role):
                return True
    return False
