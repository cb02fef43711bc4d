"""Faults around somebody's own parts: what they make is right, and is spoiled on the way out or in.

The faults of ``faults`` are classes that take the place of the lab's. These are put around a client, a replica or a
server of anybody's, so that whoever wrote it sees which laws would notice the like in his code.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from decomfl_lab.errors import InputError
from decomfl_lab.laws.contract import Implementation
from decomfl_lab.laws.edge import fitted
from decomfl_lab.laws.faults import Wrong
from decomfl_lab.protocol.messages import Plan, Reply
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.replicas.replica import Snapshot


@dataclass(frozen=True)
class AroundFault:
    """A fault that can be put around a part."""

    part: str  # the method of ``Implementation`` that makes the part
    caught_by: str  # the name of the law that is meant to catch it
    method: str  # the method of that part which is spoiled
    spoil: Wrong  # what is called instead


def _nudged(snapshot: Snapshot) -> Snapshot:
    x = snapshot.x.clone()
    x[0] += 1
    return replace(snapshot, x=x)


def not_reverted(right: Any, client: Any, plan: Plan) -> Any:
    reply = right(plan)
    if plan.K > 1:
        client.replica.restore(_nudged(client.replica.snapshot()))
    return reply


def skipped(right: Any, _: Any, plan: Plan) -> Any:
    emptied = [replace(record, scalars=np.zeros_like(record.scalars)) for record in plan.records[:-1]]
    return right(replace(plan, records=(*emptied, *plan.records[-1:])))


def answered(right: Any, client: Any, plan: Plan) -> Any:
    try:
        return right(plan)
    except InputError:
        return Reply(client.id, plan.round, np.zeros((plan.K, plan.P), np.float32))


def by_chance(right: Any, _: Any, plan: Plan) -> Reply:
    reply: Reply = right(plan)
    return replace(reply, scalars=(reply.scalars * np.random.default_rng().uniform(0.5, 1.5)).astype(np.float32))


def over_a_gap(right: Any, replica: Any, records: Iterable[RoundRecord]) -> None:
    records = list(records)
    try:
        right(records)
    except InputError:
        for record in records:
            replica.restore(replace(replica.snapshot(), round=record.round))
            right([record])


def again(right: Any, replica: Any, records: Iterable[RoundRecord]) -> None:
    records = list(records)
    if records and records[0].round < replica.round:  # the first one once more, and then as it should be
        there = replica.round
        replica.restore(replace(replica.snapshot(), round=records[0].round))
        right(records[:1])
        replica.restore(replace(replica.snapshot(), round=there))
    right(records)


def first_reply(right: Any, _: Any, replies: Iterable[Reply]) -> Any:
    first, *others = replies
    return right([first, *(replace(own, scalars=first.scalars) for own in others)])


def forgotten(right: Any, server: Any, replies: Iterable[Reply]) -> Any:
    record = right(replies)
    kept: Any = copy.copy(server.history)
    kept.prune(server.round)
    server.history = kept
    return record


def left_out(right: Any, server: Any, replies: Iterable[Reply]) -> Any:
    replies = list(replies)
    try:
        return right(replies)
    except InputError:
        good = [own for own in replies if own.round == server.round and np.isfinite(own.scalars).all()]
        return right(list({own.client: own for own in good}.values()))


_REBUILT = "rebuilt-client-equals-server"

AROUND = {
    "the-model-is-not-reverted": AroundFault("client", "revert-leaves-every-bit", "handle", not_reverted),
    "what-was-missed-is-skipped": AroundFault("client", _REBUILT, "handle", skipped),
    "a-plan-that-lacks-records-is-answered": AroundFault("client", _REBUILT, "handle", answered),
    "scalars-depend-on-chance": AroundFault("client", "runs-repeat-from-one-seed", "handle", by_chance),
    "a-gap-is-skipped-over": AroundFault("replica", "a-gap-is-refused", "catch_up", over_a_gap),
    "a-record-that-is-known-is-applied-again": AroundFault(
        "replica", "history-in-pieces-equals-in-one-go", "catch_up", again
    ),
    "another-model-is-handed-out": AroundFault(
        "server", "dense-pull-equals-replay", "dense_model", lambda right, _: _nudged(right())
    ),
    "the-first-reply-is-taken": AroundFault("server", "reply-order-does-not-matter", "aggregate", first_reply),
    "records-are-forgotten-too-early": AroundFault("server", "pruning-keeps-what-is-needed", "aggregate", forgotten),
    "a-bad-reply-is-left-out-in-silence": AroundFault("server", "bad-replies-are-refused", "aggregate", left_out),
}
"""The faults by name."""


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
