"""The arithmetic of the tables: bytes, rounds, accuracies as multiples of 1/n."""

from __future__ import annotations

from typing import Final

from theory.audit.entry import Entry

__all__ = ["ENTRIES"]

ENTRIES: Final[tuple[Entry, ...]] = ()
