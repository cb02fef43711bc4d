"""The main text and the appendices before the proofs: displays, and claims that can be checked."""

from __future__ import annotations

from typing import Final

from theory.audit.entry import Entry

__all__ = ["ENTRIES"]

ENTRIES: Final[tuple[Entry, ...]] = ()
