"""Delivery: which messages a round consists of, who reads them and in which order, without transport.

    server side                                         client side
    chosen = server.sample()
    (if delivery.wants_reports)                         report = ledger.sent(i, client.report(), upwards=True)
    delivery.open(chosen, reports) → (i, messages)      plan = receive(client, messages)
    (if server.weights.lacks(i)) delivery.hear(said)    said = ledger.sent(i, client.examples(), upwards=True)
                                                        reply = ledger.sent(i, client.handle(plan), upwards=True)
    record = delivery.close(replies)

Whoever carries the messages (a simulator, the laws, a network) calls these and nothing else.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.log import LogEntry
from decomfl_lab.protocol.messages import Dense, Examples, Held, Kind, Plan, Reply, RunSeed
from decomfl_lab.protocol.server import PullPolicy, Server, Tracking
from decomfl_lab.protocol.wire import Codec, decode, read, record_bytes, vector_of
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import pooled
from decomfl_lab.replicas.replica import Replica, Snapshot


class Delivery:
    """The server's side of a federation: what goes to whom, and what becomes of what comes back."""

    def __init__(
        self,
        server: Server,
        *,
        policy: PullPolicy | None = None,
        ledger: Ledger | None = None,
        decode: Codec = decode,
        models: bool = False,
    ) -> None:
        """A delivery; with a policy, or for ``models``, the server keeps a model."""
        # it plans and aggregates; another with the same history may take its place between two rounds
        self.server = server
        # it has the server send its model where that is there sooner than the records; None for never
        self.policy = policy
        self.ledger = Ledger(server.M) if ledger is None else ledger  # it encodes what is sent, and counts it
        self.decode = decode  # it reads what arrives
        # whether every participant reads the model of the round, without the optimizer's state, and a plan without
        # records; else clients keep theirs between rounds, are sent the records that they missed, and can be in other
        # processes, as only scalars travel
        self.models = models
        self.told: set[int] = set()  # the clients that know the run's seed, for they have answered a plan
        self.pulls = 0  # how often the model was sent instead of records

    @property
    def wants_reports(self) -> bool:
        """Whether participants must say what they hold before a round is opened."""
        return self.server.tracking is Tracking.CLIENTS and not self.models

    def open(self, chosen: Sequence[int], reports: Iterable[bytes] = ()) -> Iterator[tuple[int, list[bytes]]]:
        """What each participant must read, in that order: perhaps a model, perhaps the run's seed, and the plan.

        ``reports`` are what each of the chosen clients holds, as it arrived, where clients track their own rounds.
        InputError as ``Server.plan_round``.
        """
        server = self.server
        if self.models:
            for i, plan in server.plan_round(chosen, [Held(i, server.round) for i in chosen]).items():
                yield i, [*self.model(i, self.ledger), *self._planned(i, plan)]
            return
        # What each participant holds: as it reports, or as the server has it tracked.
        held = [read(Held, report, decode=self.decode) for report in reports] if self.wants_reports else None
        rounds = dict(enumerate(server.held))
        if held is not None:
            rounds = {report.client: report.round for report in held}
        # Whose records are gone: they get the model, and are planned as holding this round.
        pulling = {i for i in chosen if self._is_gone(rounds.get(i, server.round))}
        if held is not None:
            held = [Held(at.client, server.round) if at.client in pulling else at for at in held]
        before = list(server.held)  # a model may be lost on its way: it counts once the client answers
        server.held = [server.round if i in pulling else r for i, r in enumerate(before)]
        try:
            plans = server.plan_round(chosen, held)
        finally:
            server.held = before
        for i, plan in plans.items():
            yield i, self._messages(i, plan, pulls=i in pulling)

    def invite(self, i: int, r: int) -> list[bytes]:
        """What client i, which is taken to hold round r, must read of the round under way, as ``open`` has it.

        Raises:
            InputError: See ``Server.plan``.
        """
        gone = self._is_gone(r)
        return self._messages(i, self.server.plan(i, self.server.round if gone else r), pulls=gone)

    def _is_gone(self, r: int) -> bool:
        """Whether who holds round r needs the server's model, as records that it lacks are gone."""
        return r < self.server.history.start and self.server.replica is not None

    def _messages(self, i: int, plan: Plan, *, pulls: bool) -> list[bytes]:
        """A plan, after the model where that takes the place of its records."""
        replaced = not pulls and self._sums_are_shorter(plan.records)
        if not (pulls or replaced or self.policy is None) and _sums_of(self.server.replica) is None:
            dense = self.server.dense_model()
            size = 8 if dense.x.dtype == torch.float64 else 4
            vectors = 1 + len(dense.state)
            replaced = self.policy.pulls(plan.records, d=dense.x.numel(), vectors=vectors, bytes_per_element=size)
        if replaced:
            pulls, plan = True, dataclasses.replace(plan, records=())
        self.pulls += pulls
        return [*(self.model(i, self.ledger) if pulls else ()), *self._planned(i, plan)]

    def catch_up(self, i: int, r: int, end: int, ledger: Ledger) -> list[bytes]:
        """What brings client i from round r to round ``end`` at least; arguments and errors as ``bring_up``.

        Nothing where the records of that round are gone, too: ``invite`` sends the model then.
        """
        if r >= end or self._is_gone(end):
            return []
        if self._is_gone(r):
            return list(self.model(i, ledger))
        return [ledger.sent(i, self.server.history.since(r)[: end - r], upwards=False)]

    def bring_up(self, i: int, r: int, ledger: Ledger) -> list[bytes]:
        """What brings client i, which holds round r, to the server's round, with its plan again if it has one.

        The ledger encodes and counts it. InputError if it lacks records that are gone, and the server keeps no model.
        """
        server = self.server
        require_int(f"round that client {i} reports", r, 0, server.round)
        pulls = self._is_gone(r) or self._sums_are_shorter(server.history.since(r))
        r = server.round if pulls else r
        first = list(self.model(i, ledger)) if pulls else []
        if i in server.planned:
            return [*first, ledger.sent(i, server.plan(i, r), upwards=False)]
        records = server.history.since(r)
        return first + ([ledger.sent(i, records, upwards=False)] if records else [])

    def _planned(self, i: int, plan: Plan) -> Iterator[bytes]:
        """The plan; where it carries no seeds, before it the seed that they derive from, until the client answers."""
        if plan.seeding.needs_run_seed and i not in self.told:
            yield self.ledger.sent(i, RunSeed(self.server.run_seed), upwards=False)
        yield self.ledger.sent(i, plan, upwards=False)

    def _sums_are_shorter(self, records: Sequence[RoundRecord]) -> bool:
        """Whether the sums of a pool take fewer bytes than these records, whose place they can take."""
        if (sums := _sums_of(self.server.replica)) is None:
            return False
        sizes = (record_bytes(record.seeding, record.K, record.P, record.scalars.dtype) for record in records)
        return Kind.POOL.bytes(sums.S) < sum(sizes)

    def model(self, i: int, ledger: Ledger) -> Iterator[bytes]:
        """The server's optimizer state and model, x last, a 16-bit number as the equal float32; or sums of a pool."""
        if (sums := _sums_of(self.server.replica)) is not None:
            yield ledger.sent(i, sums, upwards=False)
            return
        dense = self.server.dense_model()
        for vector in (*(() if self.models else dense.state.values()), dense.x):
            wide = vector if vector.dtype == torch.float64 else vector.float()
            yield ledger.sent(i, Dense(self.server.round, wide.cpu().numpy()), upwards=False)

    def close(self, replies: Iterable[bytes]) -> RoundRecord:
        """The round's record, from the replies that arrived; InputError as ``Server.aggregate`` has it."""
        answers = [read(Reply, reply, decode=self.decode) for reply in replies]
        record = self.server.aggregate(answers)
        self.told.update(answer.client for answer in answers)
        return record

    def hear(self, messages: Iterable[bytes]) -> None:
        """Note how many examples clients say that they have, as it arrived; InputError as ``Server.note_examples``."""
        for message in messages:
            examples = read(Examples, message, decode=self.decode)
            self.server.note_examples(examples.client, examples.n)

    def repeat(self, entry: LogEntry) -> RoundRecord:
        """Be where ``close`` was when it made the record of a round that a log has; InputError as ``store``."""
        record, answered = entry.record, entry.answered
        for i, n in zip(answered, entry.examples or (), strict=False):
            if i not in self.told:
                self.ledger.sent(i, Examples(i, n), upwards=True)
            self.server.note_examples(i, n)
        for i in answered:
            self.ledger.sent(i, Reply(i, record.round, record.scalars), upwards=True)
        self.server.store(record, answered)
        self.told.update(answered)
        return record


def _sums_of(replica: Replica | None) -> PoolSums | None:
    """What stands for all records, where a replica follows them as sums of a pool; None elsewhere."""
    return getattr(replica, "sums", None)  # which a replica of another implementation need not have


def receive(client: Client, messages: Iterable[bytes], decode: Codec = decode) -> Plan:
    """What a client does with the messages of a round: a model takes the place of its own, a seed is kept.

    Returns:
        The plan, to be handled.

    Raises:
        InputError: If there is no plan, a message is damaged, or a model is not of the plan's round, is older than the
            client's own, or has other elements; the client is left as it was.
    """
    plan: Plan | None = None
    vectors: list[Dense] = []
    sums: PoolSums | None = None
    run_seed = client.run_seed
    for message in messages:
        match decode(message, run_seed):
            case RunSeed(seed):
                run_seed = seed
            case Dense() as vector:
                vectors.append(vector)
            case PoolSums() as sums:
                pass
            case Plan() as read:
                plan = read
            case other:
                raise InputError(f"messages to client {client.id} must be its own, got a {type(other).__name__}")
    if plan is None:
        raise InputError(f"messages to client {client.id} must end with a plan, got none")
    if vectors:
        take_model(client, plan.round, vectors)
    if sums is not None:
        require(sums.round == plan.round, "round of a pool's sums", f"be {plan.round}", sums.round)
        client.replica.take(sums, pooled(plan.seeds).pool, plan.distribution)
    client.run_seed = run_seed
    return plan


def take_model(client: Client, r: int, vectors: Sequence[Dense]) -> None:
    """Restore the model of round r that came, x last; an optimizer's state that did not come with it begins anew.

    InputError if it is older than the client's own, or of another round, size or kind.
    """
    of_sums = _sums_of(client.replica) is not None
    require(not of_sums, f"model to client {client.id}", "come as the sums of a pool, to its rule", "vectors")
    least = client.replica.round
    require(r >= least, f"round of the model sent to client {client.id}", f"be at least its own, {least}", r)
    before = client.replica.snapshot()
    d, dtype, whole = before.x.numel(), before.x.dtype, 1 + len(before.state)
    require(len(vectors) in (1, whole), f"vectors of the model to client {client.id}", f"be 1 or {whole}", len(vectors))
    wide = np.float64 if dtype == torch.float64 else np.float32
    arrived = [torch.from_numpy(vector_of(vector, r, d, wide)).to(dtype) for vector in vectors]
    finite = all(bool(torch.isfinite(vector).all()) for vector in arrived)  # a float32 may be too large for 16 bits
    require(finite, f"model to client {client.id}", f"be finite in {dtype}", "other numbers")
    *state, x = arrived
    state = state or [torch.full_like(x, client.replica.rule.start(slot)) for slot in before.state]
    client.replica.restore(Snapshot(r, x, dict(zip(before.state, state, strict=True))))
