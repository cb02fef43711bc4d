"""Faults around somebody's own parts: what they make is right, and is spoiled on the way out or in.

The faults of ``faults`` are classes that take the place of the lab's. These are put around a client, a replica or a
server of anybody's, so that whoever wrote it sees which laws would notice the like in his code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from decomfl_lab.errors import InputError
from decomfl_lab.laws.contract import Implementation
from decomfl_lab.laws.edge import fitted
from decomfl_lab.protocol.messages import Plan, Reply
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.replicas.replica import Snapshot

__all__ = ["AROUND", "AroundFault", "around"]


@dataclass(frozen=True)
class AroundFault:
    """A fault that can be put around a part."""

    part: str  # the method of ``Implementation`` that makes the part
    caught_by: str  # the name of the law that is meant to catch it
    method: str  # the method of that part which is spoiled
    spoil: Callable[..., Any]  # what is called instead, with the right one, the part, and the arguments


AROUND: dict[str, AroundFault] = {}
"""The faults by name."""


def _fault(part: str, method: str, caught_by: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(spoil: Callable[..., Any]) -> Callable[..., Any]:
        AROUND[spoil.__name__.strip("_").replace("_", "-")] = AroundFault(part, caught_by, method, spoil)
        return spoil

    return register


def _nudged(snapshot: Snapshot) -> Snapshot:
    x = snapshot.x.clone()
    x[0] += 1
    return replace(snapshot, x=x)


@_fault("client", "handle", "revert-leaves-every-bit")
def _the_model_is_not_reverted(right: Callable[..., Any], client: Any, plan: Plan) -> Reply:
    reply: Reply = right(plan)
    if plan.K > 1:
        client.replica.restore(_nudged(client.replica.snapshot()))
    return reply


@_fault("client", "handle", "rebuilt-client-equals-server")
def _what_was_missed_is_skipped(right: Callable[..., Any], client: Any, plan: Plan) -> Reply:  # noqa: ARG001
    emptied = [replace(record, scalars=np.zeros_like(record.scalars)) for record in plan.records[:-1]]
    reply: Reply = right(replace(plan, records=(*emptied, *plan.records[-1:])))
    return reply


@_fault("client", "handle", "rebuilt-client-equals-server")
def _a_plan_that_lacks_records_is_answered(right: Callable[..., Any], client: Any, plan: Plan) -> Reply:
    try:
        reply: Reply = right(plan)
    except InputError:
        return Reply(client.id, plan.round, np.zeros((plan.K, plan.P), np.float32))
    return reply


@_fault("client", "handle", "runs-repeat-from-one-seed")
def _scalars_depend_on_chance(right: Callable[..., Any], client: Any, plan: Plan) -> Reply:  # noqa: ARG001
    reply: Reply = right(plan)
    return replace(reply, scalars=(reply.scalars * np.random.default_rng().uniform(0.5, 1.5)).astype(np.float32))


@_fault("replica", "catch_up", "a-gap-is-refused")
def _a_gap_is_skipped_over(right: Callable[..., Any], replica: Any, records: Iterable[RoundRecord]) -> None:
    records = list(records)
    try:
        right(records)
    except InputError:
        for record in records:
            replica.restore(replace(replica.snapshot(), round=record.round))
            right([record])


@_fault("replica", "catch_up", "history-in-pieces-equals-in-one-go")
def _a_record_that_is_known_is_applied_again(right: Any, replica: Any, records: Sequence[RoundRecord]) -> None:
    records = list(records)
    if records and records[0].round < replica.round:  # the first one once more, and then as it should be
        there = replica.round
        replica.restore(replace(replica.snapshot(), round=records[0].round))
        right(records[:1])
        replica.restore(replace(replica.snapshot(), round=there))
    right(records)


@_fault("server", "dense_model", "dense-pull-equals-replay")
def _another_model_is_handed_out(right: Callable[..., Any], server: Any) -> Snapshot:  # noqa: ARG001
    return _nudged(right())


@_fault("server", "aggregate", "reply-order-does-not-matter")
def _the_first_reply_is_taken(right: Callable[..., Any], server: Any, replies: Iterable[Reply]) -> Any:  # noqa: ARG001
    first, *others = replies
    return right([first, *(replace(own, scalars=first.scalars) for own in others)])


@_fault("server", "aggregate", "pruning-keeps-what-is-needed")
def _records_are_forgotten_too_early(right: Callable[..., Any], server: Any, replies: Iterable[Reply]) -> Any:
    record = right(replies)
    kept: Any = copy.copy(server.history)
    kept.prune(server.round)
    server.history = kept
    return record


@_fault("server", "aggregate", "bad-replies-are-refused")
def _a_bad_reply_is_left_out_in_silence(right: Callable[..., Any], server: Any, replies: Iterable[Reply]) -> Any:
    replies = list(replies)
    try:
        return right(replies)
    except InputError:
        good = [own for own in replies if own.round == server.round and np.isfinite(own.scalars).all()]
        return right(list({own.client: own for own in good}.values()))


class _Spoiled:
    """A part with one method that is another; whatever else it has is the part's."""

    def __init__(self, of: Any, fault: AroundFault) -> None:
        vars(self).update(_of=of, _fault=fault)

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._of, name)
        return partial(self._fault.spoil, own, self._of) if name == self._fault.method else own

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._of, name, value)


def around(target: Implementation) -> tuple[dict[str, Any], dict[str, str]]:
    """The target with each fault, by its name, and the faults that cannot be put there, with the reason."""
    planted: dict[str, Any] = {}
    left: dict[str, str] = {}
    for name, fault in AROUND.items():
        if fault.part not in target.replaced:
            left[name] = f"the {fault.part} is the lab's"
            continue
        spoiled: Any = copy.copy(target)
        make = getattr(fitted(target), fault.part)

        def part(*of: Any, make: Any = make, fault: AroundFault = fault, **named: Any) -> Any:
            return _Spoiled(make(*of, **named), fault)

        setattr(spoiled, fault.part, part)
        spoiled.caught_by = fault.caught_by
        planted[name] = spoiled
    return planted, left
