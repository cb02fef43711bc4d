"""Reverting: how a client whose replica took local steps holds the model of a whole round again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from decomfl_lab.replicas.replica import Replica, SyncReplica
from decomfl_lab.replicas.rules import GridSgd, Step

__all__ = ["Revert", "by_arithmetic", "by_correction", "by_snapshot", "revert_of"]


class Revert(Protocol):
    """A way to undo the local steps of a round."""

    def __call__(self, replica: Replica, taken: Sequence[Step], K: int) -> AbstractContextManager[None]:
        """A context in which the replica takes local steps; whatever happens there, it is reverted at the end.

        Args:
            replica: The replica, at a whole round when the context is entered.
            taken: The local steps that the replica has taken, filled while the context is open.
            K: The number of local steps of the round, of which K − 1 are taken: the last would only be reverted.
        """


@contextmanager
def by_snapshot(replica: Replica, taken: Sequence[Step], K: int) -> Iterator[None]:  # noqa: ARG001
    """Keep x and the optimizer's state, and put them back: for every rule, at the memory of a second model."""
    before = replica.snapshot() if K > 1 else None  # for K = 1 nothing moves
    try:
        yield
    finally:
        if before is not None:
            replica.restore(before)


@contextmanager
def by_arithmetic(replica: Replica, taken: Sequence[Step], K: int) -> Iterator[None]:  # noqa: ARG001
    """Take the steps back in reverse order, which is exact on a grid (``GridSgd``): no second model."""
    try:
        yield
    finally:
        for step in reversed(taken):
            replica.step_back_(step)


@contextmanager
def by_correction(replica: Replica, taken: Sequence[Step], K: int) -> Iterator[None]:  # noqa: ARG001
    """Leave the steps in a ``SyncReplica``, which corrects them when the record of the round comes.

    Source: [DeComFL, eq. (sync)].
    """
    assert isinstance(replica, SyncReplica)
    try:
        yield
    finally:
        replica.diverge(taken)


def revert_of(replica: Replica) -> Revert:
    """The way back that needs the least memory."""
    if isinstance(replica, SyncReplica):
        return by_correction
    return by_arithmetic if isinstance(replica.rule, GridSgd) else by_snapshot
