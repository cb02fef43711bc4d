"""The two kinds of history in a world: of sessions, by the code that ``serve`` and ``join`` run, and of deliveries.

*Sessions* are ``RemoteFederation`` with its deadline, quorum and restarts, ``Coordinator``, ``Delivery``, ``Server``,
the log's bytes, ``Host`` with its file, and the codec; carrier, clock and disk are the world's. At last the network
becomes quiet and everybody comes back. Then the run has to end within a bounded number of messages, and

- every client's digest is the server's, and the log, read from the disk, replays to it;
- each record is the mean of what exactly the clients that it names measure, each at the model of the round and at its
  next place in its data, so that no local step counts twice or is lost; they are a quorum of the sampled ones;
- nobody ever held a model of a round that is another than the log's, nor was told that it does; but whose bits changed
  is told so and healed before its reply counts, and whoever began from another x_0 is in no record;
- a server that follows the log alone knows what this one knows, and one whose disk is full is where its log is;
- no round waits longer than it may, or goes on sooner than all have answered who are there.

A server that has no quorum in time may refuse to go on, in words, while there are faults; it opens the round again, or
is started again.

*Deliveries* are the server, delivery, clients and codec of anybody's ``Implementation``, without a session: plans and
replies go out once, for any choice of participants, and who has lost something that the server cannot know may stay
away. Then

- a model has the bits of the server's model of its round, and records are those of their rounds;
- no record is gone that a client needs, but for a bounded history;
- a client that lost nothing never goes back, and is never refused the plan of the round under way;
- a record is the mean of those who answered in time; a late or doubled reply is refused, or changes nothing in it;
- what is refused leaves everything as it was; a server that crashed comes back as what it stored.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decomfl_lab.checkpoint import Saved
from decomfl_lab.errors import THEIRS, DivergedError, InputError, plural
from decomfl_lab.estimators.differences import central
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.laws.contract import AnyClient, Case, Implementation, Wavy, model_of
from decomfl_lab.laws.edge import fitted
from decomfl_lab.laws.register import LawBrokenError, bits, same
from decomfl_lab.laws.world import (
    LATE,
    MUCH_LATER,
    SIMPLEST,
    SOON,
    Choose,
    DeathError,
    Hosts,
    Log,
    Process,
    SmallFederation,
    World,
    case_of,
    content,
    file_of,
    listed,
    name_of,
)
from decomfl_lab.objectives.objective import Objective
from decomfl_lab.protocol.aggregation import weighed_mean
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.messages import Dense, Held, Message, Plan, Reply
from decomfl_lab.protocol.policy import PullPolicy
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.protocol.session import Coordinator, Frames, Host
from decomfl_lab.protocol.terms import Terms
from decomfl_lab.protocol.weights import Weights
from decomfl_lab.protocol.wire import decode, split_frame
from decomfl_lab.records.record import RoundRecord, ScalarArray
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Momentum

__all__ = ["Deliveries", "Parts", "Sessions", "Stand"]

RUN = bytes(range(16))
MOST_ENDS = 4
"""The server's deaths and refusals after which the network becomes quiet."""
PATIENCE = 60.0
"""Seconds that a round waits for a quorum."""
WAITS = 10.0
"""Seconds that a round without a session waits for replies."""
PROBED = np.array([1.0, 2.0, 4.0, 64.0], np.float32)
"""Scalars that tell who is in a mean: those of the clients 0, 1 and 2, and of a reply that must not be in it."""


class _Chain(Replica):
    """A replica whose x is a hash of all records that it applied, a byte an element."""

    def _apply_all(self, records: Sequence[RoundRecord]) -> None:
        chain = self.x.numpy().tobytes()
        for n, record in enumerate(records):
            if record.round != self.round + n:
                raise InputError(f"a replica at round {self.round + n} cannot apply the record of round {record.round}")
            chain = hashlib.blake2b(chain + record.scalars.tobytes(), digest_size=16).digest()
            chain = np.frombuffer(chain, np.uint8).astype(np.float32).tobytes()
        self.x = torch.frombuffer(bytearray(chain), dtype=torch.float32)
        self.round += len(records)

    def digest(self) -> str:
        """See ``Replica``: x is all that there is."""
        return hashlib.blake2b(self.x.numpy().data, digest_size=16).hexdigest()


class _Weighty(Wavy):
    """A loss of more examples, the larger its client's number."""

    @property
    def examples(self) -> int:
        return 2 + self.client


class _Hashing(Client):
    """A client whose scalars are a hash of all that they may depend on."""

    def handle(self, plan: Plan) -> Reply:
        self._catch_up(plan)
        place = f"{self.id} {plan.round} {self.steps_taken} {self.replica.digest()}".encode()
        found = hashlib.blake2b(place, digest_size=2 * plan.K * plan.P).digest()
        self.steps_taken += plan.K
        return Reply(self.id, plan.round, np.frombuffer(found, np.uint16).astype(np.float32).reshape(plan.K, plan.P))


class _Known:
    """A message with a hash, which records do not have, nor what is made of them."""

    __slots__ = "key", "message"

    def __init__(self, message: Any) -> None:
        self.message = message
        records = message if isinstance(message, tuple) else getattr(message, "records", ())
        if not records:
            self.key: Any = message
            return
        each = [(own.round, own.eta, own.distribution, own.seeds, own.scalars.tobytes()) for own in records]
        plan = () if records is message else (message.round, message.eta, message.P, message.distribution)
        self.key = plan, () if records is message else message.seeds, tuple(each)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and bool(self.key == other.key)


class Stand(Implementation):
    """The lab's server, and clients that hash where others rebuild and measure."""

    name = "hashes"

    def __init__(self) -> None:
        self._decoded = lru_cache(maxsize=1 << 16)(super().decode)
        encode = super().encode
        self._encoded = lru_cache(maxsize=1 << 16)(lambda known: encode(known.message))

    def decode(self, message: bytes, run_seed: int | None = None) -> Message:
        """See ``Implementation``; each message is read once."""
        return self._decoded(message, run_seed)

    def encode(self, message: Message) -> bytes:
        """See ``Implementation``; each message is made once."""
        return self._encoded(_Known(message))

    @cached_property
    def _first(self) -> _Chain:
        """The replica at x_0, which all settings share."""
        return _Chain(case_of(SIMPLEST).initial(), Momentum(0.5))

    def _replica(self, case: Case, *, per_tensor: bool = False) -> Any:  # noqa: ARG002
        return self._first.clone()

    def client(self, case: Case, i: int, objective: Objective | None = None) -> AnyClient:
        """A client that hashes."""
        own: Any = objective
        return _Hashing(i, self._replica(case), own, central, case.mu)


# Sessions -------------------------------------------------------------------------------------------------------------


class Sessions(World):
    """A federation whose server's processes have a log."""

    def __init__(
        self, own: Parts, setting: SmallFederation, choose: Choose, tell: Callable[[str], None] | None
    ) -> None:
        """Before its first second; arguments as ``World``."""
        ids = tuple(range(setting.clients))
        groups = [ids] if setting.processes == "one for all" else [(i,) for i in ids]
        fresh = {group: own.fresh(setting, group) for group in groups}
        super().__init__(setting, own.hosts, fresh, own.empty_log, choose, tell)
        self._own = own
        self._server: RemoteFederation | None = None
        self._saved: Saved | None = None
        self._began: float | None = None  # when the round under way did
        self._ends = 0

    def play(self) -> None:
        """See ``World``."""
        if self._tell:
            self._tell(str(self.setting))
        self._may_have_a_stranger()
        refused = False  # by a quiet network, as it may once, for what was still under way
        while True:
            if self._ends == MOST_ENDS:
                self._becomes_quiet()
            try:
                with Log.open(self._file) as log:  # type: ignore[arg-type]
                    self._server = federation = self._starts(log)
                    self._run(federation, log)
                break
            except DeathError:
                self._file.falls(self._chooses("disk", 3))
            except InputError as error:
                if refused or isinstance(error, DivergedError):
                    raise
                refused = self._quiet
                self._say(f"the server refuses to go on: {error}")
            self._ends += 1
            self.now += LATE
            self._say("the server is started again")
        self._check(federation)

    def _may_have_a_stranger(self) -> None:
        """Perhaps a process has another x_0, so that it begins anew for ever, until somebody mends it at last."""
        if which := self._chooses("stranger", 1 + len(self._processes)):
            process = self._processes[which - 1]
            process.fresh = process.state = self._hosts.rotten(process.fresh, start=True)
            process.wrong = process.strange = self._has_rotten = True
            self._say(f"the process of {listed(process.clients)} has another x_0")

    def _becomes_quiet(self) -> None:
        """See ``World``; whoever had another x_0 has the right one then."""
        for process in self._processes if not self._quiet else ():
            if process.strange:
                process.fresh = process.state = self._own.fresh(self.setting, process.clients)
                process.deaths, process.here, process.wrong, process.strange = process.deaths + 1, False, False, False
        super()._becomes_quiet()

    def close(self) -> None:
        """See ``Carrier``."""

    def _named(self, frame: bytes) -> str:
        return " + ".join(name_of(decode(each, self._own.run_seed)) for each in split_frame(frame)) or "nothing"

    def _took(self, i: int, frame: bytes) -> None:  # noqa: ARG002
        assert self._server is not None
        if not self._has_rotten:
            same("how often a client is told that its model is wrong", self._server.coordinator.healed, 0)

    def _waits(self, until: float) -> None:
        """LawBrokenError if the server waits for longer than it may, where a round has one exchange."""
        if self._began is None or self.setting.tracking is Tracking.CLIENTS:
            return
        assert self._server is not None
        limit, deadline = self._began + PATIENCE, self.setting.deadline
        if deadline is not None and len(self._server.coordinator.replies) >= self.setting.quorum:
            limit = max(self._began + deadline, self.now)
        if until > limit:
            raise LawBrokenError(f"the server waits until {until:g} s, where it may until {limit:g} s")

    def _ways(self, process: Process) -> int:  # noqa: ARG002
        return 2

    def _comes_back(self, process: Process, way: int) -> tuple[int, str]:
        if way:
            return self._hosts.reloaded(process.state, process.fresh), "what it has saved"
        process.wrong = process.strange
        return process.fresh, "x_0"

    def _server_state(self) -> Any:
        server, began = self._server, self._began
        known = None if server is None else content((vars(server.coordinator), server.observer.digest()))
        disk = self._file.getvalue(), self._file.synced, content(self._saved)
        return known, disk, began is not None and began - self.now, self._ends, self._has_rotten

    def _starts(self, log: RunLog) -> RemoteFederation:
        """A new process of the server, to which nothing is under way that was sent to the one before."""
        self._server = None
        self._queue = [event for event in self._queue if event[2] not in ("up", "hello")]
        heapq.heapify(self._queue)
        self._there.clear()
        for i in self._of if self.setting.presence == "known" else ():
            self._connects(i, (SOON, LATE, MUCH_LATER)[self._chooses("greeting", 3, i)])
        return RemoteFederation(
            self._own.delivery(self.setting),
            self._own.replica(self.setting),
            self,
            RUN,
            quorum=self.setting.quorum,
            deadline=self.setting.deadline,
            patience=PATIENCE,
            check_every=self.setting.check_every,
            clock=lambda: self.now,
            log=log,
        )

    def _run(self, federation: RemoteFederation, log: RunLog) -> None:
        """From the checkpoint and the log to the end of the run."""
        coordinator = federation.coordinator
        if self._saved is not None:
            federation.load(self._saved)
            federation.log_to(log)
        sent, counted = self._bytes, federation.ledger.bytes
        while (r := federation.round) <= self.setting.rounds:
            if r == self.setting.rounds:
                self._becomes_quiet()
            known = len(log) > r
            self._began = self.now
            try:
                federation.advance()
            except InputError as error:
                if isinstance(error.__cause__, OSError):  # a full disk ends the process
                    same("the round of the model of a server whose disk is full", federation.observer.round, len(log))
                    self._say(f"the server ends: {error}")
                    raise DeathError from error
                if isinstance(error, DivergedError) or not self._chooses("again", 2):
                    raise
                self._say(f"the server refuses to go on, and opens the round again: {error}")
                continue
            took, self._began = self.now - self._began, None
            if known:
                counted = federation.ledger.bytes
                self._say(f"round {r} is in the log")
                continue
            self._say(f"round {r} has a record of {listed(coordinator.replies)}")
            if took < (self.setting.deadline or PATIENCE) and self.setting.tracking is Tracking.SERVER:
                silent = coordinator.asked - coordinator.refused.keys() - coordinator.replies.keys()
                there = silent if self.setting.presence == "unknown" else silent & self._there
                same("who is there and is not waited for", there, set())
            both = federation.ledger.bytes - counted + coordinator.session.bytes
            same("the bytes that both ledgers count", both, self._bytes - sent)
            if self._quiet and self.setting.presence == "unknown":  # else those who have come by then will do
                silent = coordinator.asked - coordinator.refused.keys() - coordinator.replies.keys()
                same("who is asked in a quiet network and not heard", silent, set())
            self._dies(f"after round {r}")
            if self._chooses("checkpoint", 2):
                tensors, values = federation.save()
                self._saved = {name: x.clone() for name, x in tensors.items()}, json.loads(json.dumps(values))
                self._say(f"the server has a checkpoint of round {r + 1}")
                self._dies("after its checkpoint")
        right = dict.fromkeys(self._of, federation.observer.digest())
        for _ in range(3):  # again for those who had not come yet, or were refused for what was still under way
            digests = federation.rebuilt()
            if digests == right:
                return
        same("the digests of all clients at the end", digests, right)

    def _check(self, federation: RemoteFederation) -> None:
        """What the disk has is what the server has, and what clients held."""
        whole = self._file.getvalue()
        digests, steps = self._own.replayed(self.setting, whole)
        for r, digest in self._given.items():
            if r >= len(digests):
                raise LawBrokenError(f"a client held a model of round {r}, but the log has {len(digests) - 1} rounds")
            same(f"the model of round {r} that clients held", digest, digests[r])
        same("the last model", federation.observer.digest(), digests[-1])
        same("the local steps that the server counts", federation.coordinator.steps, steps)
        delivery = self._own.delivery(self.setting)
        follower = Coordinator(delivery, RUN)
        with Log.open(file_of(whole)) as log:
            for entry in log.entries():
                follower.repeat(entry.record, entry.sampled, entry.answered, entry.held, entry.examples)
        known, knows = ((own.told, own.pulls, own.server.held, own.ledger) for own in (delivery, federation.delivery))
        same("what a server knows that follows the log", knows, known)


# Deliveries -----------------------------------------------------------------------------------------------------------


class _Bare:
    """A client without a session: it answers a plan by a reply, and a question by what it holds."""

    def __init__(self, client: Any, implementation: Implementation) -> None:
        self.client, self.implementation = client, implementation
        self.refusal = ""

    @property
    def replica(self) -> Any:
        return self.client.replica

    def hello(self, i: int) -> bytes:
        return _packed([self.implementation.encode(Held(i, self.replica.round))])

    def handle(self, frames: Mapping[int, bytes]) -> dict[int, bytes]:
        """The reply, or nothing where the client refuses, and then it is what it was."""
        ((i, frame),) = frames.items()
        if not frame:
            return {i: self.hello(i)}
        t, was = self.replica.round, model_of(self.replica)
        try:
            plan = receive(self.client, _unpacked(frame), self.implementation.decode)
            reply = self.client.handle(plan)
        except InputError as error:
            self.refusal = str(error)
            same(f"round of client {i} after its refusal", self.replica.round, t)
            same(f"model of client {i} after its refusal", model_of(self.replica), was)
            return {i: b""}
        self.refusal = ""
        s = self.replica.round
        same(f"round of client {i} after the plan of round {plan.round}", s, plan.round)
        if s < t:
            raise LawBrokenError(f"client {i} went back from round {t} to round {s}")
        answer = Reply(i, s, np.full_like(reply.scalars, PROBED[i]))
        return {i: _packed([self.implementation.encode(answer)])}


def _packed(messages: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(each)) + each for each in messages)


def _unpacked(frame: bytes) -> list[bytes]:
    found = []
    while frame:
        (size,) = struct.unpack_from("<I", frame)
        found.append(frame[4 : 4 + size])
        frame = frame[4 + size :]
    return found


class Deliveries(World):
    """Rounds of a delivery, whose server's processes have their model and records, and what they know of clients."""

    fates = (
        ("there as it should", (SOON,)),
        ("late", (WAITS + 1.5 * SOON,)),  # behind the frame of the next round
        ("sent twice", (SOON, 3.5 * SOON)),
        ("lost", ()),
    )
    absences = (SOON / 2,)
    connected = False

    def __init__(
        self, own: Parts, setting: SmallFederation, choose: Choose, tell: Callable[[str], None] | None
    ) -> None:
        """Before its first second; arguments as ``World``."""
        fresh: dict[tuple[int, ...], int] = {(i,): own.bare(setting, i) for i in range(setting.clients)}
        super().__init__(setting, own.hosts, fresh, b"", choose, tell)
        self._own = own
        self._delivery: Any = own.bare_delivery(setting)
        self._stored: Any = self._knows()
        self._records: dict[int, bytes] = {}
        self._due: dict[int, bytes] = {}  # the plans of the round under way
        self._answers: list[tuple[int, Reply]] = []  # replies that have come, those of other rounds too

    def play(self) -> None:
        """See ``World``."""
        every = range(self.setting.clients)
        sets = [chosen for m in range(self.setting.clients, 0, -1) for chosen in itertools.combinations(every, m)]
        if self._tell:
            self._tell(str(self.setting))
        for _ in range(2 * self.setting.rounds + 1):  # as some of them have no record
            if self._delivery.server.round == self.setting.rounds:
                self._becomes_quiet()
            if self._delivery.server.round > self.setting.rounds:
                return
            try:
                self._round(sets[self._chooses("asked", len(sets))])
                self._stored = self._knows()
                self._dies("between two rounds")
            except DeathError:
                self._restarts()

    def _knows(self) -> tuple[Any, ...]:
        """What the server stores."""
        server = self._delivery.server
        start = server.history.start
        kept = self._own.implementation.encode(server.history.since(start)) if server.round > start else b""
        told = frozenset(self._delivery.told)
        return start, server.round, kept, tuple(server.held), told, model_of(server.replica), server.replica.snapshot()

    def _restarts(self) -> None:
        """From the stored model and records, and what the server remembers of its clients; the plans are gone."""
        start, _, kept, held, told, _, snapshot = self._stored
        self._delivery = self._own.bare_delivery(self.setting)
        server = self._delivery.server
        records: Any = self._own.implementation.decode(kept, server.run_seed) if kept else ()
        server.history, server.held = type(server.history)(records, start), list(held)
        server.replica.restore(snapshot)
        self._delivery.told, self._due = set(told), {}
        self._say("the server crashes and comes back")

    def _round(self, chosen: tuple[int, ...]) -> None:
        """A round for these clients, if one of them answers."""
        delivery, reports = self._delivery, dict[int, bytes]()
        r = delivery.server.round
        self._answers = [(i, reply) for i, reply in self._answers if reply.round == r - 1][-1:]  # that comes once more
        if delivery.wants_reports:

            def hears(i: int, frame: bytes, _: float) -> bytes | None:
                (message,) = _unpacked(frame)
                said = self._decoded(message)
                if not isinstance(said, Held) or i not in chosen:
                    return b""
                reports[i] = message
                process = self._of[i]
                knows = self._hosts.host(process.state).client.run_seed is not None
                process.lost = process.lost and not (knows and said.round <= self._hosts.holds[process.state][0])
                return None

            self._exchange(dict.fromkeys(chosen, b""), hears)
            chosen = tuple(sorted(reports))
        if not chosen:
            return
        sent = {i: list(messages) for i, messages in delivery.open(chosen, [reports[i] for i in chosen if reports])}
        same("the clients that get a plan", tuple(sent), chosen)
        for i, messages in sent.items():
            pulled = any(isinstance(self._decoded(each), Dense) for each in messages)
            if pulled and not (self.setting.keep or self.setting.pulls):
                raise LawBrokenError(f"client {i} is sent the model, though no record may be gone")
        self._due = {i: _packed(messages) for i, messages in sent.items()}
        self._say(f"the server opens round {r} for {listed(chosen)}")

        def takes(i: int, frame: bytes, _: float) -> bytes | None:
            (message,) = _unpacked(frame)
            said = self._decoded(message)
            if isinstance(said, Reply):
                self._answers.append((i, said))
                return None if said.round == r and i in self._due else b""
            return b""

        self._exchange(self._due, takes)
        self._closes(r)

    def _exchange(self, frames: Mapping[int, bytes], take: Any) -> None:
        self.exchange(Frames(frames, {}, lambda i: frames[i]), take, WAITS)

    def _closes(self, r: int) -> None:
        """The round ends with the replies that came, if there are any; one that is late or doubled changes nothing."""
        right = {i: reply for i, reply in self._answers if reply.round == r and i in self._due}
        late = [reply for _, reply in self._answers if reply.round < r]
        record = None
        for other in late[-1:] + list(right.values())[:1]:
            known = self._knows()[:-1]
            wrong = Reply(other.client, other.round, np.full_like(other.scalars, PROBED[3]))
            try:
                record = self._record([*right.values(), wrong])
            except InputError:
                same("what the server stores after it refused a reply", self._knows()[:-1], known)
            else:
                self._say(f"the server gets the reply {other.round} of client {other.client} late or again")
                same("whether a reply of the round is among those that closed it", bool(right), True)
                break
        if record is None and right:
            record = self._record(list(right.values()))
        if record is None:
            return
        mean = np.float32(sum(float(PROBED[i]) for i in right) / len(right))
        same("the scalars of the record", set(record.scalars.flat), {mean})
        self._say(f"round {r} has a record of {listed(right)}")
        self._due = {}
        self._check()

    def _record(self, replies: Sequence[Reply]) -> RoundRecord:
        record: RoundRecord = self._delivery.close([self._own.implementation.encode(reply) for reply in replies])
        return record

    def _check(self) -> None:
        """The server's model and records, and that it keeps what clients need."""
        server, keep = self._delivery.server, self.setting.keep
        history, r = server.history, server.round
        digest = self._own.digest(server.replica)
        same(f"the server's model of round {r}", digest, self._given.setdefault(r, digest))
        for record in history.since(history.start):
            whole = self._own.implementation.encode((record,))
            same(f"the record of round {record.round}", whole, self._records.setdefault(record.round, whole))
        rounds = [self._hosts.holds[own.state][0] for own in self._processes if not own.lost]
        asked = self.setting.tracking is Tracking.CLIENTS
        needed = 0 if asked else min(rounds, default=r)
        if history.start > (max(needed, r - keep) if keep else needed):
            raise LawBrokenError(f"the oldest record is of round {history.start}, round {needed} is needed")
        if keep and r - history.start > keep:
            raise LawBrokenError(f"{plural(r - history.start, 'record')} are kept, {keep} may be")

    def _decoded(self, message: bytes) -> Any:
        return self._own.implementation.decode(message, self._delivery.server.run_seed)

    def _named(self, frame: bytes) -> str:
        return " + ".join(name_of(self._decoded(each)) for each in _unpacked(frame)) or "nothing"

    def _took(self, i: int, frame: bytes) -> None:
        """See ``World``: nothing more has to be true."""

    def _waits(self, until: float) -> None:
        """See ``World``: a round waits as long as it takes."""

    def _back(self, process: Process) -> None:
        process.here = True  # and says nothing

    def _holds(self, i: int, frame: bytes) -> None:
        process = self._of[i]
        host = self._hosts.host(process.state)
        if frame and host.refusal and self._due.get(i) == frame and not process.lost:
            raise LawBrokenError(f"client {i}, which lost nothing, cannot take part: {host.refusal}")
        process.lost = process.lost and (host.refusal != "" or self._due.get(i) != frame)
        super()._holds(i, frame)

    def _ways(self, process: Process) -> int:
        if process.state not in process.past:
            process.past.append(process.state)
        return 1 + len(process.past)

    def _comes_back(self, process: Process, way: int) -> tuple[int, str]:
        state = process.past[-way] if way else process.fresh
        return state, f"the model of round {self._hosts.holds[state][0]}" if way else "nothing"

    def _server_state(self) -> Any:
        answers = tuple((i, reply.round) for i, reply in self._answers)
        return self._knows()[:-1], self._stored[:-1], self._delivery.pulls, tuple(self._due.items()), answers


class Parts:
    """Histories of one implementation, and what they share."""

    def __init__(self, implementation: Implementation | None = None, *, sessions: bool | None = None) -> None:
        """The parts of an implementation.

        Args:
            implementation: Whose servers and clients; the lab's with the clients of ``Stand`` for None.
            sessions: Whether histories are of sessions; None for those that can be.

        Raises:
            NotImplementedError: If sessions are asked for, and servers or clients are not the lab's.
        """
        self.implementation = Stand() if implementation is None else fitted(implementation)
        made = self.implementation.server(case_of(SIMPLEST)), self.implementation.client(case_of(SIMPLEST), 0)
        ours = all(map(isinstance, made, (Server, Client)))
        if sessions and not ours:
            raise NotImplementedError("sessions are the lab's, of its own server and clients")
        self.sessions = ours if sessions is None else sessions
        self.hosts = Hosts(self.digest)
        self.run_seed: int = self.implementation.server(case_of(SIMPLEST)).run_seed
        with tempfile.TemporaryDirectory() as folder:
            RunLog.create(path := Path(folder, "run.dcl"), {"run_seed": self.run_seed}).close()
            self.empty_log = path.read_bytes()
        self._fresh: dict[Any, int] = {}
        self._replayed: dict[Any, tuple[list[str], list[int]]] = {}
        self._measured: dict[Any, ScalarArray] = {}

    def world(self, setting: SmallFederation, choose: Choose, tell: Callable[[str], None] | None = None) -> World:
        """A history of sessions; where they are none of this implementation, of deliveries."""
        return (Sessions if self.sessions else Deliveries)(self, setting, choose, tell)

    @staticmethod
    def broken(world: World) -> str:
        """What is wrong with the history of this world; empty if nothing is."""
        try:
            world.play()
        except LawBrokenError as error:
            return str(error)
        except THEIRS as error:  # whatever a faulty part raises is a finding
            return f"{type(error).__name__}: {error}"
        return ""

    def digest(self, replica: Any) -> str:
        """The digest of a replica's model."""
        if isinstance(replica, Replica):
            return replica.digest()
        return hashlib.blake2b(repr(model_of(replica)).encode(), digest_size=16).hexdigest()

    def replica(self, setting: SmallFederation) -> Any:
        """A replica at x_0."""
        return self.implementation._replica(case_of(setting))

    def delivery(self, setting: SmallFederation) -> Delivery:
        """The server's side of sessions at round 0."""
        delivery = self.implementation.delivery(case_of(setting), with_model=setting.keep > 0)
        delivery.server.m, delivery.server.weights = setting.sampled, Weights(setting.weighting)
        return delivery

    def bare_delivery(self, setting: SmallFederation) -> Delivery:
        """A delivery at round 0, whose server has a model."""
        policy = PullPolicy(bandwidth=1e15, replay_ns=1e9) if setting.pulls else None
        return self.implementation.delivery(case_of(setting), policy)

    def client(self, setting: SmallFederation, i: int) -> Any:
        """Client i at x_0."""
        return self.implementation.client(case_of(setting), i, _Weighty(16, i))

    def fresh(self, setting: SmallFederation, ids: tuple[int, ...]) -> int:
        """The state of a new host of these clients."""
        key = setting.seeding, setting.weighting, ids
        if key not in self._fresh:
            clients = {i: self.client(setting, i) for i in ids}
            self._fresh[key] = self.hosts.entered(Host(clients, RUN, Terms.of(self.delivery(setting).server)))
        return self._fresh[key]

    def bare(self, setting: SmallFederation, i: int) -> int:
        """The state of a new client without a session."""
        key = setting, i
        if key not in self._fresh:
            self._fresh[key] = self.hosts.entered(_Bare(self.client(setting, i), self.implementation))
        return self._fresh[key]

    def replayed(self, setting: SmallFederation, whole: bytes) -> tuple[list[str], list[int]]:
        """The digests of all models of a log, and each client's local steps, if its records are what they have to be.

        Each is the mean of what those measure whom it names, at this model, in their next steps; they are a quorum.
        """
        key = setting.clients, setting.sampled, setting.quorum, whole
        if key not in self._replayed:
            replica, steps, server = self.replica(setting), [0] * setting.clients, self.delivery(setting).server
            digests = [replica.digest()]
            with Log.open(file_of(whole)) as log:
                for r, entry in enumerate(log.entries()):
                    who = entry.answered
                    places = ", ".join(f"{i} (local steps {steps[i]}, {steps[i] + 1})" for i in who)
                    what = f"the record of round {r}, the mean of what clients {places} measure"
                    chosen = set(who) <= set(entry.sampled) <= set(server.sampled(r))
                    if not chosen or len(set(who)) < max(setting.quorum, len(who)):
                        raise LawBrokenError(f"{what}: no quorum of {setting.quorum} of those sampled")
                    replies = [self._scalars(setting, i, steps[i], replica) for i in who]
                    weights = entry.examples or [1] * len(who)
                    same(what, bits(entry.record.scalars), bits(weighed_mean(replies, weights)))
                    for i in who:
                        steps[i] += entry.record.K
                    replica.catch_up([entry.record])
                    digests.append(replica.digest())
            self._replayed[key] = digests, steps
        return self._replayed[key]

    def _scalars(self, setting: SmallFederation, i: int, steps: int, replica: Any) -> ScalarArray:
        """What client i measures at this model in its local steps ``steps``, ``steps`` + 1, ..."""
        key = i, steps, replica.round, replica.digest()
        if key not in self._measured:
            terms, r = Terms.of(self.delivery(setting).server), replica.round
            assert terms.eta is not None
            client = self.client(setting, i)
            client.replica.restore(replica.snapshot())
            client.steps_taken = steps
            plan = Plan(r, terms.eta(r), terms.P(r), terms.distribution, terms.seeds(r))
            self._measured[key] = client.handle(plan).scalars
        return self._measured[key]
