"""What a law is, and the register of all laws."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from numpy.typing import NDArray
from torch import Tensor

from decomfl_lab.errors import InputError


class LawBrokenError(AssertionError):
    """An implementation broke a law; the message says which values disagree."""


@dataclass(frozen=True)
class Law:
    """One law."""

    name: str  # name on the command line
    says: str  # what holds, in a line
    # The methods of ``Implementation`` that it is about; none where it is about whichever it calls.
    parts: tuple[str, ...]
    inputs: SearchStrategy[tuple[Any, ...]]  # what it quantifies over
    # A function of an implementation and of the inputs, LawBrokenError if they break the law.
    check: Callable[..., None]
    # Whether it compares with the lab's noise and arithmetic, so that it says nothing of whoever has others.
    stream: bool = False


LAWS: dict[str, Law] = {}
"""The laws by name, in the order in which ``verify`` tries them."""


def law(
    *inputs: SearchStrategy[Any], parts: tuple[str, ...] = (), stream: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a check as a law about these parts, for inputs drawn so: its name is the law's, its docstring says it.

    Only the docstring's first paragraph does, with what follows for readers. Whether it compares with the lab's
    ``stream`` is said in ``Law``.
    """

    def register(check: Callable[..., None]) -> Callable[..., None]:
        name = check.__name__.replace("_", "-")
        says, _, _ = (inspect.getdoc(check) or "").partition("\n\n")
        LAWS[name] = Law(name, " ".join(says.split()).removesuffix("."), parts, st.tuples(*inputs), check, stream)
        return check

    return register


class Bits(bytes):
    """The bytes of an array, and the numbers that they stand for."""

    numbers: NDArray[Any]

    def beside(self, wanted: "Bits") -> str:
        """Where the numbers are others than those that are wanted."""
        found, right = self.numbers, wanted.numbers
        if len(self) != len(wanted):
            return f"{found.size} numbers of {found.dtype} are there, not {right.size} of {right.dtype}"
        size = len(self) // found.size
        wrong = [j for j in range(found.size) if self[j * size : (j + 1) * size] != wanted[j * size : (j + 1) * size]]
        j = wrong[0]
        return f"{len(wrong)} of {found.size} numbers are wrong, first number {j}: {found[j]} is not {right[j]}"


class Model(tuple[tuple[str, Bits], ...]):
    """x and the optimizer's state, by their names."""

    __slots__ = ()

    def beside(self, wanted: "Model") -> str:
        """Which vector differs, and where."""
        if [name for name, _ in self] != [name for name, _ in wanted]:
            return f"{', '.join(dict(self))} are there, not {', '.join(dict(wanted))}"
        return next(f"of {name}, {a.beside(b)}" for (name, a), (_, b) in zip(self, wanted, strict=True) if a != b)


def same(what: str, found: object, wanted: object) -> None:
    """LawBrokenError, which says where they differ, unless the two are equal."""
    if found != wanted:
        alike = isinstance(found, Bits | Model) and type(found) is type(wanted)
        differ = cast("Any", found).beside(wanted) if alike else f"{found} is not {wanted}"
        raise LawBrokenError(f"{what}: {differ}")


def refused(otherwise: str, act: Callable[[], object]) -> None:
    """LawBrokenError that says ``otherwise`` unless this raises InputError."""
    try:
        act()
    except InputError:
        return
    raise LawBrokenError(otherwise)


def bits(array: NDArray[Any] | Tensor) -> Bits:
    """The bytes of an array, row by row."""
    if isinstance(array, Tensor):
        host = array.cpu().contiguous().reshape(-1)
        found = Bits(host.view(torch.uint8).numpy().tobytes())
        found.numbers = (host.float() if host.dtype in (torch.bfloat16, torch.float16) else host).numpy()
    else:
        found = Bits(array.tobytes())
        found.numbers = array.reshape(-1)
    return found
