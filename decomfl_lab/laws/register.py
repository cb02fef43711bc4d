"""What a law is, and the register of all laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from decomfl_lab.errors import InputError

__all__ = ["LAWS", "Law", "LawBrokenError", "bits", "law", "refused", "same"]


class LawBrokenError(AssertionError):
    """An implementation broke a law; the message says which values disagree."""


@dataclass(frozen=True)
class Law:
    """One law.

    Attributes:
        name: Name on the command line.
        says: What holds, in a line.
        parts: Parts of an implementation that it is about, see ``Implementation.offers``.
        inputs: What it quantifies over.
        check: A function of an implementation and of the inputs, LawBrokenError if they break the law.
    """

    name: str
    says: str
    parts: tuple[str, ...]
    inputs: SearchStrategy[tuple[Any, ...]]
    check: Callable[..., None]


LAWS: dict[str, Law] = {}
"""The laws by name, in the order in which ``verify`` tries them."""


def law(
    says: str, *inputs: SearchStrategy[Any], parts: tuple[str, ...] = ("federation",)
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a check as the law that ``says`` this about these parts, under its own name, for inputs drawn so."""

    def register(check: Callable[..., None]) -> Callable[..., None]:
        name = check.__name__.replace("_", "-")
        LAWS[name] = Law(name, says, parts, st.tuples(*inputs), check)
        return check

    return register


def same(what: str, found: object, wanted: object) -> None:
    """LawBrokenError unless the two are equal."""
    if found != wanted:
        raise LawBrokenError(f"{what}: {found} is not {wanted}")


def refused(otherwise: str, act: Callable[[], object]) -> None:
    """LawBrokenError that says ``otherwise`` unless this raises InputError."""
    try:
        act()
    except InputError:
        return
    raise LawBrokenError(otherwise)


def bits(array: np.ndarray[Any, Any] | Tensor) -> bytes:
    """The bytes of an array, row by row."""
    if isinstance(array, Tensor):
        array = array.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return array.tobytes()
