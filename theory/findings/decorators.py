"""On which statements evidence speaks: said over the function that finds it, or below it for each set of arguments.

@refutes("eq.hh", "line-1209", cause="mini-batch")
def one_batch() -> Evidence: ...

supports("line-1354")(equal, (a + b) ** 2, a**2 + 2 * a * b + b**2, "what both sides are")

Where what it is given is numbers and words, in a row of its name in a table beside the modules:

[[claims.speedup]]
mends = ["line-135"]
refutes.local-steps = ["line-477.5"]
given = ["m", 1, 16]
holds = true
"""

import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import Any, ParamSpec

from decomfl_lab.storage.tables import table_beside
from theory.findings import evidence
from theory.findings.finding import ROLES, Evidence, EvidenceCheck, Role

Q = ParamSpec("Q")


@dataclass
class Placed:
    """A check beside one of the statements that it speaks on."""

    label: str  # the label of the statement's entry
    role: Role  # how it speaks on it
    check: EvidenceCheck  # the check
    cause: str = ""  # the name of the cause because of which it refutes; "" in other roles
    witness: bool = False  # whether it is the check that shows the cause best


_PLACED: list[Placed] = []


@dataclass(frozen=True)
class _Speaks:
    """A decorator; with arguments after the function, the call with them is the check."""

    role: Role
    labels: tuple[str, ...]
    cause: str = ""
    witness: bool = False
    module: str = ""  # that of the check, where a table places it

    def __call__(self, find: Callable[Q, Evidence], *args: Q.args, **kwargs: Q.kwargs) -> Callable[Q, Evidence]:
        shown = [_told(value) for value in args] + [f"{name}={_told(value)}" for name, value in kwargs.items()]
        # Of the module that places it, whosever instrument it is. Checks of one name are one check, which is run once.
        module = self.module or sys._getframe(1).f_globals["__name__"].rpartition(".")[2]
        name = f"{module}.{find.__name__}({', '.join(shown)})"
        check = EvidenceCheck(name, partial(self._found, find, *args, **kwargs))
        _PLACED.extend(Placed(label, self.role, check, self.cause, self.witness) for label in self.labels)
        return find

    def _found(self, find: Callable[Q, Evidence], *args: Q.args, **kwargs: Q.kwargs) -> Evidence:
        """What is found; where it does not itself tell whether it speaks against the statement, the role does."""
        evidence = find(*args, **kwargs)
        return replace(evidence, against=self.role == "refutes") if evidence.against is None else evidence


def refutes(*labels: str, cause: str, witness: bool = False) -> _Speaks:
    """What is found speaks against these statements, because of the cause; the witness shows a cause best."""
    return _Speaks("refutes", labels, cause, witness)


def supports(*labels: str) -> _Speaks:
    """What is found speaks for these statements, or for the conclusion of a step that is false."""
    return _Speaks("supports", labels)


def mends(*labels: str) -> _Speaks:
    """What is found speaks for what is true instead of these statements."""
    return _Speaks("mends", labels)


def context(*labels: str) -> _Speaks:
    """What is found is all that can be said of these statements, which nothing can decide."""
    return _Speaks("context", labels)


@cache
def placed() -> list[Placed]:
    """What the modules of ``theory.findings.evidence`` say, and the tables beside them, module by module."""
    modules = {
        each.name: import_module(f"{evidence.__name__}.{each.name}") for each in pkgutil.iter_modules(evidence.__path__)
    }
    for table in ("formulas.toml", "given.toml"):
        for module, checks in table_beside(modules["formulas"].__name__, table).items():
            for name, rows in checks.items():
                for row in rows:
                    _place(module, getattr(modules[module], name), row)
    # A module is read when another asks for it: the order must not depend on who was first.
    _PLACED.sort(key=lambda each: each.check.name.partition(".")[0])
    return _PLACED


def _place(module: str, find: Callable[..., Evidence], row: dict[str, Any]) -> None:
    """Place a check as a row says: with each role the labels, for what refutes below its cause, and what is given."""
    refuted = row.pop("refutes", {})
    roles: list[tuple[Role, str, list[str]]] = [("refutes", cause, labels) for cause, labels in refuted.items()]
    roles += [(role, "", row.pop(role)) for role in ROLES if role in row]
    witness = row.pop("witness", "")  # the cause that it shows best
    arguments = [tuple(each) if isinstance(each, list) else each for each in row.pop("given", ())]
    for role, cause, labels in roles:
        _Speaks(role, tuple(labels), cause, bool(cause) and cause == witness, module)(find, *arguments, **row)


def _told(value: object) -> str:
    """An argument as the name of its check has it."""
    return str(getattr(value, "__name__", repr(value)))
