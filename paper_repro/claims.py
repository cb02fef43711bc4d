"""What the paper claims, and what was measured: one row, one verdict."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Final, Literal, get_args

from decomfl_lab.errors import InputError, require
from decomfl_lab.files import write_atomically

__all__ = ["VERDICTS", "Claim", "Verdict", "claims_json", "require_distinct_ids", "write_claims"]

Verdict = Literal["holds", "does not hold", "depends on how it is counted", "not tested at this scale"]

VERDICTS: Final[tuple[str, ...]] = get_args(Verdict)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of the paper with the verdict of the runs made here.

    Attributes:
        id: Short name, unique in a report; letters, digits, ".", "_" and "-".
        claim: The statement, in the paper's words shortened.
        source: The place in the paper, as "Figure 2, Section 5".
        verdict: One of `VERDICTS`.
        measured: Name -> number behind the verdict; None for a level that was never reached.
        scale: The scale at which it was measured, as "default (reduced): 300 rounds, 3 seeds".
    """

    id: str
    claim: str
    source: str
    verdict: Verdict
    measured: Mapping[str, float | int | None]
    scale: str

    def __post_init__(self) -> None:
        """Check the fields, and turn numbers of other libraries into Python's own."""
        is_id = isinstance(self.id, str) and _ID.fullmatch(self.id) is not None
        require(is_id, "claim id", "be letters, digits, '.', '_' or '-'", self.id)
        for name in ("claim", "source", "scale"):
            value = getattr(self, name)
            is_text = isinstance(value, str) and bool(value.strip())
            require(is_text, f"{name} of claim {self.id}", "be text", value)
        rule = "be one of " + ", ".join(repr(verdict) for verdict in VERDICTS)
        require(self.verdict in VERDICTS, f"verdict of claim {self.id}", rule, self.verdict)
        measured = {str(name): _number(self.id, str(name), value) for name, value in self.measured.items()}
        object.__setattr__(self, "measured", measured)


def claims_json(claims: Sequence[Claim]) -> str:
    """Return the claims as a JSON list with one object for each, keys in the order of `Claim`'s fields.

    Args:
        claims: The rows, in the order of the report.

    Raises:
        InputError: If two claims share an id.
    """
    require_distinct_ids("claims", [claim.id for claim in claims])
    rows = [asdict(claim) for claim in claims]
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_claims(path: str | os.PathLike[str], claims: Sequence[Claim]) -> None:
    """Write the claims to a JSON file: the whole new file, or the old one untouched.

    Args:
        path: The file to write; its folder must exist.
        claims: The rows, in the order of the report.

    Raises:
        InputError: If two claims share an id, or the file cannot be written.
    """
    write_atomically(path, claims_json(claims))


def require_distinct_ids(name: str, ids: Sequence[str]) -> None:
    """Raise InputError if one of the ids called ``name`` occurs twice."""
    repeated = sorted({each for each in ids if ids.count(each) > 1})
    require(not repeated, f"ids of {name}", "be distinct", repeated)


def _number(claim: str, name: str, value: object) -> float | int | None:
    """Return ``value`` as an int, a finite float, a bool or None, else raise InputError."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    raise InputError(f"measured {name!r} of claim {claim} must be a finite number or None, got {value!r}")
