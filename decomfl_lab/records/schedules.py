"""Schedules: a value as a pure function of the round index, so that a replay can never read another one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Generic, TypeVar

from decomfl_lab.errors import is_number, require, require_int
from decomfl_lab.plugins import OwnFunction

Value = TypeVar("Value", int, float)


@dataclass(frozen=True)
class Schedule(Generic[Value]):
    """A piecewise constant function of the round: ``initial``, then from each round in ``changes`` its value."""

    initial: Value  # the value from round 0 on
    # {round: value from that round on}, rounds of at least 1.
    changes: Mapping[int, Value] = field(default_factory=dict)
    own: OwnFunction | None = None  # instead a function of the user's own, of the round and ``initial``

    def __post_init__(self) -> None:
        for r in self.changes:
            require_int("schedule round", r, 1)

    def __str__(self) -> str:
        return ", ".join([str(self.initial), *(f"from round {r} {v}" for r, v in sorted(self.changes.items()))])

    @property
    def largest(self) -> Value:
        """The largest value that it ever has."""
        return max(self(r) for r in (0, *self.changes))

    def __call__(self, r: int) -> Value:
        """The value in force in round r; InputError unless the user's own is a number above 0."""
        if self.own is not None:
            value: Any = self.own(r, self.initial)
            sound = is_number(value) and value > 0
            require(sound, f"{self.own.option} {self.own} at round {r}", "be a finite number above 0", value)
            return float(value)  # type: ignore[return-value]
        past = [change for change in self.changes if change <= r]
        return self.changes[max(past)] if past else self.initial


def growing(M: int, joined: Mapping[int, int]) -> Schedule[int]:
    """How many clients there are in a round: M in the end, of whom ``joined[r]`` came in round r.

    A client that came later has a higher number, so that in every round there are the clients 0..M_r − 1.
    """
    rounds = sorted(joined)
    first, *later = accumulate((joined[r] for r in rounds), initial=M - sum(joined.values()))
    return Schedule(first, dict(zip(rounds, later, strict=True)))
