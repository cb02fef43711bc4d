"""The two kinds of history in a world: of sessions, by the code that ``serve`` and ``join`` run, and of deliveries.

With ``Stand`` a replica is a hash of the records that it applied, and what a client measures one of its number, round,
place in the data and model: whatever would give a real replica other bits gives these other ones. With
``Implementation`` these are real, and slower.
"""

import hashlib
import heapq
import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from decomfl_lab.errors import THEIRS, DivergedError, InputError, plural
from decomfl_lab.estimators.differences import central
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.laws.contract import AnyClient, Case, Implementation, model_of
from decomfl_lab.laws.edge import fitted
from decomfl_lab.laws.register import LawBrokenError, bits, same
from decomfl_lab.laws.worlds.world import (
    LATE,
    MUCH_LATER,
    SIMPLEST,
    SOON,
    Choose,
    DeathError,
    File,
    Log,
    Parts,
    Process,
    SmallFederation,
    World,
    case_of,
    content,
    digest_of,
    listed,
    rot,
)
from decomfl_lab.objectives.objective import Objective
from decomfl_lab.protocol.aggregation import Weights, weighed_mean
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.messages import Dense, Held, Plan, Reply
from decomfl_lab.protocol.server import PullPolicy, Server, Terms, Tracking
from decomfl_lab.protocol.session import Coordinator, Frames, Host
from decomfl_lab.protocol.wire import decode, split_frame
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Momentum
from decomfl_lab.storage.outside import Saved, SavedFederation

RUN = bytes(range(16))
MOST_ENDS = 4
"""The server's deaths and refusals after which the network becomes quiet."""
PATIENCE = 60.0
"""Seconds that a round waits for a quorum."""
WAITS = 10.0
"""Seconds that a round without a session waits for replies."""
PROBED = np.array([1.0, 2.0, 4.0, 64.0], np.float32)
"""Scalars that tell who is in a mean: those of the clients 0, 1 and 2, and of a reply that must not be in it."""
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


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


class _Hashing(Client):
    """A client whose scalars are a hash of all that they may depend on."""

    def handle(self, plan: Plan) -> Reply:
        self._catch_up(plan)
        place = f"{self.id} {plan.round} {self.steps_taken} {self.replica.digest()}".encode()
        found = hashlib.blake2b(place, digest_size=2 * plan.K * plan.P).digest()
        self.steps_taken += plan.K
        return Reply(self.id, plan.round, np.frombuffer(found, np.uint16).astype(np.float32).reshape(plan.K, plan.P))


class Stand(Implementation):
    """The lab's server, and clients that hash where others rebuild and measure; each message is read once."""

    name = "hashes"

    def __init__(self) -> None:
        self.decode = cache(super().decode)  # type: ignore[method-assign]
        self._first = _Chain(case_of(SIMPLEST).initial(), Momentum(0.5))  # the replica at x_0, which all settings share

    def _replica(self, case: Case, *, per_tensor: bool = False) -> Any:  # noqa: ARG002
        return self._first.clone()

    def client(self, case: Case, i: int, objective: Objective | None = None) -> AnyClient:
        """A client that hashes."""
        own: Any = objective
        return _Hashing(i, self._replica(case), own, central, case.mu)


# Sessions -------------------------------------------------------------------------------------------------------------


def _loads(host: Any, own: Parts, state: int) -> None:
    """A new host has what one in this state saved."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        own.host(state).save(Path(folder, "host"))
        host.load(Path(folder, "host"))


class Sessions(World):
    """``RemoteFederation``, ``Coordinator``, ``Delivery``, ``Server``, the log's bytes, ``Host`` with its file, codec.

    The run has to end within a bounded number of messages once the network is quiet. A server that has no quorum in
    time may refuse to go on, in words, while there are faults; it opens the round again, or is started again.
    """

    _server: Any = None  # the process under way
    _saved: Saved | None = None
    _began: float | None = None  # when the round under way did
    _ends = 0
    _ways = staticmethod(lambda _: 2)

    def _delivery(self) -> Delivery:
        """The server's side of sessions at round 0."""
        delivery = self._own.implementation.delivery(case_of(self.setting), with_model=self.setting.keep > 0)
        delivery.server.m, delivery.server.weights = self.setting.sampled, Weights(self.setting.weighting)
        return delivery

    def _host(self, ids: tuple[int, ...]) -> Any:
        return Host({i: self._client(i) for i in ids}, RUN, Terms.of(self._delivery().server))

    def play(self) -> None:
        """See ``World``."""
        # Perhaps a process has another x_0, so that it begins anew for ever, until somebody mends it at last.
        if which := self.chooses("stranger", 1 + len(self._processes)):
            process = self._processes[which - 1]
            process.fresh = process.state = self._own.after(process.fresh, rot, True)[0]
            process.wrong = process.strange = self._has_rotten = True
            self._say(f"the process of {listed(process.clients)} has another x_0")
        refused = False  # by a quiet network, as it may once, for what was still under way
        while True:
            if self._ends == MOST_ENDS:
                self._becomes_quiet()
            try:
                with Log.open(self._file) as log:  # type: ignore[arg-type]
                    # A new process of the server, to which nothing is under way that was sent to the one before.
                    self._server = None
                    self._queue = [event for event in self._queue if event[2] not in ("up", "hello")]
                    heapq.heapify(self._queue)
                    self._there.clear()
                    for i in self._of if self.setting.presence == "known" else ():
                        self._connects(i, (SOON, LATE, MUCH_LATER)[self.chooses("greeting", 3, i)])
                    self._server = federation = RemoteFederation(
                        self._delivery(),
                        self._own.implementation._replica(case_of(self.setting)),
                        self,
                        RUN,
                        quorum=self.setting.quorum,
                        deadline=self.setting.deadline,
                        patience=PATIENCE,
                        check_every=self.setting.check_every,
                        clock=lambda: self.now,
                        log=log,
                    )
                    self._run(federation, log)
                break
            except DeathError:
                self._file.falls(self.chooses("disk", 3))
            except InputError as error:
                if refused or isinstance(error, DivergedError):
                    raise
                refused = self._quiet
                self._say(f"the server refuses to go on: {error}")
            self._ends += 1
            self.now += LATE
            self._say("the server is started again")
        # What the disk has is what the server has, what clients held, and what a follower of the log knows.
        whole, setting = self._file.getvalue(), self.setting
        key = setting.clients, setting.sampled, setting.quorum, whole
        digests, steps = self._own.once(key, self._replayed, whole)
        for r, digest in self._given.items():
            if r >= len(digests):
                raise LawBrokenError(f"a client held a model of round {r}, but the log has {len(digests) - 1} rounds")
            same(f"the model of round {r} that clients held", digest, digests[r])
        same("the last model", federation.observer.digest(), digests[-1])
        same("the local steps that the server counts", federation.coordinator.steps, steps)
        delivery = self._delivery()
        follower = Coordinator(delivery, RUN)
        with Log.open(File(whole)) as log:  # type: ignore[arg-type]
            for entry in log.entries():
                follower.repeat(entry)
        known, knows = ((own.told, own.pulls, own.server.held, own.ledger) for own in (delivery, federation.delivery))
        same("what a server knows that follows the log", knows, known)

    def close(self) -> None:
        """See ``Carrier``."""

    def _messages(self, frame: bytes) -> list[Any]:
        return [decode(each, self._own.run_seed) for each in split_frame(frame)]

    def _takes(self, i: int, frame: bytes) -> None:  # noqa: ARG002
        """Nobody is told that its model is wrong, unless bits of one changed or somebody began from another x_0."""
        if not self._has_rotten:
            same("how often a client is told that its model is wrong", self._server.coordinator.healed, 0)

    def _waits(self, until: float) -> None:
        """A server waits no longer than it may, where a round has one exchange."""
        if self._began is None or self.setting.tracking is Tracking.CLIENTS:
            return
        limit, deadline = self._began + PATIENCE, self.setting.deadline
        if deadline is not None and len(self._server.coordinator.replies) >= self.setting.quorum:
            limit = max(self._began + deadline, self.now)
        if until > limit:
            raise LawBrokenError(f"the server waits until {until:g} s, where it may until {limit:g} s")

    def _comes_back(self, process: Process, way: int) -> tuple[int, str]:
        if way:
            return self._own.after(process.fresh, _loads, self._own, process.state)[0], "what it has saved"
        process.wrong = process.strange
        return process.fresh, "x_0"

    def _server_state(self) -> Any:
        server, began = self._server, self._began
        known = None if server is None else content((vars(server.coordinator), server.observer.digest()))
        disk = self._file.getvalue(), self._file.synced, content(self._saved)
        return known, disk, began is not None and began - self.now, self._ends, self._has_rotten

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
                if isinstance(error, DivergedError) or not self.chooses("again", 2):
                    raise
                self._say(f"the server refuses to go on, and opens the round again: {error}")
                continue
            took, self._began = self.now - self._began, None
            if known:
                counted = federation.ledger.bytes
                self._say(f"round {r} is in the log")
                continue
            self._say(f"round {r} has a record of {listed(coordinator.replies)}")
            silent = coordinator.asked - coordinator.refused.keys() - coordinator.replies.keys()
            if took < (self.setting.deadline or PATIENCE) and self.setting.tracking is Tracking.SERVER:
                there = silent if self.setting.presence == "unknown" else silent & self._there
                same("who is there and is not waited for", there, set())
            both = federation.ledger.bytes - counted + coordinator.session.bytes
            same("the bytes that both ledgers count", both, self._bytes - sent)
            if self._quiet and self.setting.presence == "unknown":  # else those who have come by then will do
                same("who is asked in a quiet network and not heard", silent, set())
            self.dies(f"after round {r}")
            if self.chooses("checkpoint", 2):
                tensors, values = federation.save()
                self._saved = (
                    {name: x.clone() for name, x in tensors.items()},
                    msgspec.json.decode(msgspec.json.encode(values), type=SavedFederation),
                )
                self._say(f"the server has a checkpoint of round {r + 1}")
                self.dies("after its checkpoint")
        right = dict.fromkeys(self._of, federation.observer.digest())
        for _ in range(3):  # again for those who had not come yet, or were refused for what was still under way
            digests = federation.rebuilt()
            if digests == right:
                return
        same("the digests of all clients at the end", digests, right)

    def _replayed(self, whole: bytes) -> tuple[list[str], list[int]]:
        """The digests of all models of a log, and each client's local steps, if its records are what they have to be.

        Each is the mean of what those measure whom it names, at this model, in their next steps, so that no step counts
        twice or is lost; they are a quorum of the sampled ones.
        """
        server, replica = self._delivery().server, self._own.implementation._replica(case_of(self.setting))
        digests, steps = [replica.digest()], [0] * self.setting.clients
        with Log.open(File(whole)) as log:  # type: ignore[arg-type]
            for r, entry in enumerate(log.entries()):
                who = entry.answered
                places = ", ".join(f"{i} (local steps {steps[i]}, {steps[i] + 1})" for i in who)
                what = f"the record of round {r}, the mean of what clients {places} measure"
                chosen = set(who) <= set(entry.sampled) <= set(server.sampled(r))
                if not chosen or len(set(who)) < max(self.setting.quorum, len(who)):
                    raise LawBrokenError(f"{what}: no quorum of {self.setting.quorum} of those sampled")
                replies = []
                for i in who:
                    key = i, steps[i], r, digests[-1]
                    replies.append(self._own.once(key, self._measured, i, steps[i], replica))
                    steps[i] += entry.record.K
                weights = entry.examples or [1] * len(who)
                same(what, bits(entry.record.scalars), bits(weighed_mean(replies, weights)))
                replica.catch_up([entry.record])
                digests.append(replica.digest())
        return digests, steps

    def _measured(self, i: int, steps: int, replica: Any) -> Any:
        """What client i measures at this model in its local steps ``steps``, ``steps`` + 1, ..."""
        terms, r = Terms.of(self._delivery().server), replica.round
        assert terms.eta is not None
        client = self._client(i)
        client.replica.restore(replica.snapshot())
        client.steps_taken = steps
        return client.handle(Plan(r, terms.eta(r), terms.P(r), terms.distribution, terms.seeds(r))).scalars


# Deliveries -----------------------------------------------------------------------------------------------------------


class _Bare:
    """A client without a session: it answers a plan by a reply, and a question by what it holds."""

    replica = property(lambda self: self.client.replica)

    def __init__(self, client: Any, implementation: Implementation) -> None:
        self.client, self.implementation, self.refusal = client, implementation, ""

    def hello(self, i: int) -> tuple[bytes, ...]:
        return (self.implementation.encode(Held(i, self.replica.round)),)

    def handle(self, frames: Mapping[int, tuple[bytes, ...]]) -> dict[int, tuple[bytes, ...]]:
        """The reply, or nothing where the client refuses, and then it is what it was."""
        ((i, frame),) = frames.items()
        if not frame:
            return {i: self.hello(i)}
        t, was = self.replica.round, model_of(self.replica)
        try:
            plan = receive(self.client, frame, self.implementation.decode)
            reply = self.client.handle(plan)
        except InputError as error:
            self.refusal = str(error)
            same(f"round of client {i} after its refusal", self.replica.round, t)
            same(f"model of client {i} after its refusal", model_of(self.replica), was)
            return {i: ()}
        self.refusal = ""
        s = self.replica.round
        same(f"round of client {i} after the plan of round {plan.round}", s, plan.round)
        if s < t:
            raise LawBrokenError(f"client {i} went back from round {t} to round {s}")
        answer = Reply(i, s, np.full_like(reply.scalars, PROBED[i]))
        return {i: (self.implementation.encode(answer),)}


class Deliveries(World):
    """Server, delivery, clients and codec of anybody's ``Implementation``, without a session.

    Plans and replies go out once, for any choice of participants, and who has lost something that the server cannot
    know may stay away. The server's processes have their model and records, and what they know of clients.
    """

    fates = (
        ("there as it should", (SOON,)),
        ("late", (WAITS + 1.5 * SOON,)),  # behind the frame of the next round
        ("sent twice", (SOON, 3.5 * SOON)),
        ("lost", ()),
    )
    absences = (SOON / 2,)
    _takes = _waits = staticmethod(lambda *_: None)

    def _new(self) -> Any:
        """The server's side at round 0."""
        policy = PullPolicy(bandwidth=1e15, replay_ns=1e9) if self.setting.pulls else None
        return self._own.implementation.delivery(case_of(self.setting), policy)

    def _host(self, ids: tuple[int, ...]) -> Any:
        return _Bare(self._client(*ids), self._own.implementation)

    def play(self) -> None:
        """See ``World``."""
        self._delivery = self._new()
        self._stored: Any = self._knows()
        self._records: dict[int, bytes] = {}
        self._due: dict[int, tuple[bytes, ...]] = {}  # the plans of the round under way
        self._answers: list[tuple[int, Reply]] = []  # replies that have come, those of other rounds too
        every = range(self.setting.clients)
        sets = [chosen for m in range(self.setting.clients, 0, -1) for chosen in itertools.combinations(every, m)]
        for opened in range(2 * self.setting.rounds + 1):  # as some of them have no record
            self._opened = opened  # what follows depends on how many are left
            if self._delivery.server.round == self.setting.rounds:
                self._becomes_quiet()
            if self._delivery.server.round > self.setting.rounds:
                return
            try:
                self._round(sets[self.chooses("asked", len(sets))])
                self._stored = self._knows()
                self.dies("between two rounds")
            except DeathError:
                # From the stored model and records, and what the server remembers of its clients; the plans are gone.
                start, _, kept, held, told, _, snapshot = self._stored
                self._delivery = self._new()
                server = self._delivery.server
                records: Any = self._own.implementation.decode(kept, server.run_seed) if kept else ()
                server.history, server.held = type(server.history)(records, start), list(held)
                server.replica.restore(snapshot)
                self._delivery.told, self._due = set(told), {}
                self._say("the server crashes and comes back")

    def _knows(self) -> tuple[Any, ...]:
        """What the server stores."""
        server = self._delivery.server
        start = server.history.start
        kept = self._own.implementation.encode(server.history.since(start)) if server.round > start else b""
        told = frozenset(self._delivery.told)
        return start, server.round, kept, tuple(server.held), told, model_of(server.replica), server.replica.snapshot()

    def _round(self, chosen: tuple[int, ...]) -> None:
        """A round for these clients, if one of them answers."""
        delivery, reports = self._delivery, dict[int, bytes]()
        r = delivery.server.round
        self._answers = [(i, reply) for i, reply in self._answers if reply.round == r - 1][-1:]  # that comes once more
        if delivery.wants_reports:

            def hears(i: int, frame: tuple[bytes], _: float) -> tuple[()] | None:
                (said,) = self._messages(frame)
                if not isinstance(said, Held) or i not in chosen:
                    return ()
                (reports[i],) = frame
                process = self._of[i]
                knows = self._own.host(process.state).client.run_seed is not None
                process.lost = process.lost and not (knows and said.round <= self._own.holds[process.state][0])
                return None

            self._exchange(dict.fromkeys(chosen, ()), hears)
            chosen = tuple(sorted(reports))
        if not chosen:
            return
        opened = delivery.open(chosen, [reports[i] for i in chosen if reports])
        self._due = {i: tuple(messages) for i, messages in opened}
        same("the clients that get a plan", tuple(self._due), chosen)
        for i, frame in self._due.items():
            pulled = any(isinstance(message, Dense) for message in self._messages(frame))
            if pulled and not (self.setting.keep or self.setting.pulls):
                raise LawBrokenError(f"client {i} is sent the model, though no record may be gone")
        self._say(f"the server opens round {r} for {listed(chosen)}")

        def takes(i: int, frame: tuple[bytes], _: float) -> tuple[()] | None:
            (said,) = self._messages(frame)
            if isinstance(said, Reply):
                self._answers.append((i, said))
                return None if said.round == r and i in self._due else ()
            return ()

        self._exchange(self._due, takes)
        # The round ends with the replies that came, if there are any; one that is late or doubled changes nothing.
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

    def _exchange(self, frames: Mapping[int, Any], take: Any) -> None:
        self.exchange(Frames(frames, {}, lambda i: frames[i]), take, WAITS)

    def _record(self, replies: Sequence[Reply]) -> Any:
        return self._delivery.close([self._own.implementation.encode(reply) for reply in replies])

    def _check(self) -> None:
        """The server's model and records, and that it keeps what clients need."""
        server, keep = self._delivery.server, self.setting.keep
        history, r = server.history, server.round
        digest = digest_of(server.replica)
        same(f"the server's model of round {r}", digest, self._given.setdefault(r, digest))
        for record in history.since(history.start):
            whole = self._own.implementation.encode((record,))
            same(f"the record of round {record.round}", whole, self._records.setdefault(record.round, whole))
        rounds = [self._own.holds[own.state][0] for own in self._processes if not own.lost]
        asked = self.setting.tracking is Tracking.CLIENTS
        needed = 0 if asked else min(rounds, default=r)
        if history.start > (max(needed, r - keep) if keep else needed):
            raise LawBrokenError(f"the oldest record is of round {history.start}, round {needed} is needed")
        if keep and r - history.start > keep:
            raise LawBrokenError(f"{plural(r - history.start, 'record')} are kept, {keep} may be")

    def _messages(self, frame: tuple[bytes, ...]) -> list[Any]:
        own = self._own.implementation
        return [own.decode(each, self._delivery.server.run_seed) for each in frame]

    def _holds(self, i: int, frame: tuple[bytes, ...]) -> None:
        process = self._of[i]
        host = self._own.host(process.state)
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
        return state, f"the model of round {self._own.holds[state][0]}" if way else "nothing"

    def _server_state(self) -> Any:
        answers = tuple((i, reply.round) for i, reply in self._answers)
        known = self._knows()[:-1], self._stored[:-1], self._delivery.pulls, tuple(self._due.items()), answers
        return self._opened, known


def parts_of(implementation: Implementation | None = None, *, sessions: bool | None = None) -> Parts:
    """What histories of an implementation share, for None of the lab's with the clients of ``Stand``.

    They are of sessions or, where that is false, of deliveries alone; for None of sessions wherever they can be.
    NotImplementedError if sessions are asked for, and servers or clients are not the lab's.
    """
    implementation = Stand() if implementation is None else fitted(implementation)
    made = implementation.server(case_of(SIMPLEST)), implementation.client(case_of(SIMPLEST), 0)
    ours = all(map(isinstance, made, (Server, Client)))
    if sessions and not ours:
        raise NotImplementedError("sessions are the lab's, of its own server and clients")
    return Parts(implementation, sessions=ours if sessions is None else sessions)


def broken(parts: Parts, setting: SmallFederation, choose: Choose, tell: Callable[[str], None] | None = None) -> str:
    """What is wrong with the history of these decisions; empty if nothing is."""
    if tell:
        tell(str(setting))
    try:
        (Sessions if parts.sessions else Deliveries)(parts, setting, choose, tell).play()
    except LawBrokenError as error:
        return str(error)
    except THEIRS as error:  # whatever a faulty part raises is a finding
        return f"{type(error).__name__}: {error}"
    return ""
