"""A history in a world: what the server does to the end of the run, and what must be true then.

With ``Stand`` a replica is a hash of the records that it applied, and what a client measures one of its number, round,
place in the data and model: whatever would give a real replica other bits gives these other ones. With
``Implementation`` these are real, and slower.
"""

import hashlib
import heapq
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import torch

from decomfl_lab.errors import THEIRS, DivergedError, InputError
from decomfl_lab.estimators.differences import central
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.laws.contract import AnyClient, Case, Implementation
from decomfl_lab.laws.edge import fitted
from decomfl_lab.laws.register import LawBrokenError, bits, same
from decomfl_lab.laws.worlds.world import (
    LATE,
    MUCH_LATER,
    PATIENCE,
    RUN,
    SIMPLEST,
    SOON,
    Choose,
    DeathError,
    File,
    Log,
    Parts,
    SmallFederation,
    World,
    case_of,
    listed,
    rot,
)
from decomfl_lab.objectives.objective import Objective
from decomfl_lab.protocol.aggregation import weighed_mean
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.messages import Plan, Reply
from decomfl_lab.protocol.server import Server, Terms, Tracking
from decomfl_lab.protocol.session import Coordinator
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Momentum
from decomfl_lab.storage.outside import SavedFederation

MOST_ENDS = 4
"""The server's deaths and refusals after which the network becomes quiet."""


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


class History(World):
    """From the server's first process to the end of the run.

    The run has to end within a bounded number of messages once the network is quiet. A server that has no quorum in
    time may refuse to go on, in words, while there are faults; it opens the round again, or is started again.
    """

    def play(self) -> None:
        """To the end; LawBrokenError, or whatever is raised, where something is wrong."""
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


def parts_of(implementation: Implementation | None = None) -> Parts:
    """What histories of an implementation share, for None of the lab's with the clients of ``Stand``.

    NotImplementedError if servers or clients are not the lab's.
    """
    implementation = Stand() if implementation is None else fitted(implementation)
    made = implementation.server(case_of(SIMPLEST)), implementation.client(case_of(SIMPLEST), 0)
    if not all(map(isinstance, made, (Server, Client))):
        raise NotImplementedError("sessions are the lab's, of its own server and clients")
    return Parts(implementation)


def broken(parts: Parts, setting: SmallFederation, choose: Choose, tell: Callable[[str], None] | None = None) -> str:
    """What is wrong with the history of these decisions; empty if nothing is."""
    if tell:
        tell(str(setting))
    try:
        History(parts, setting, choose, tell).play()
    except LawBrokenError as error:
        return str(error)
    except THEIRS as error:  # whatever a faulty part raises is a finding
        return f"{type(error).__name__}: {error}"
    return ""
