"""A federation whose clients are elsewhere: in other processes, or on other machines."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import numpy as np
from msgspec.structs import replace

from decomfl_lab.errors import DivergedError, InputError, require, require_finite_positive, require_int
from decomfl_lab.estimators.differences import ScalarEstimate
from decomfl_lab.estimators.resolution import Resolution
from decomfl_lab.federations.carrier import Carrier
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.log import ArchivedHistory, LogEntry, RunLog
from decomfl_lab.protocol.server import Terms
from decomfl_lab.protocol.session import Coordinator, Frames, Host
from decomfl_lab.protocol.wire import read
from decomfl_lab.records.record import History
from decomfl_lab.replicas.replica import Replica, Snapshot
from decomfl_lab.storage.outside import Saved, SavedFederation

logger = logging.getLogger(__name__)


def host_of(federation: DeComFLFederation, run: bytes, ids: Iterable[int] | None = None) -> Host:
    """The host of these clients (None for all) of a federation at round 0, of which nothing else is used."""
    chosen = range(len(federation.clients)) if ids is None else ids
    return Host({i: federation.clients[i] for i in chosen}, run, Terms.of(federation.server))


class RemoteFederation(DeComFLFederation):
    """DeComFL with clients elsewhere; here are the server, and a replica that follows its records."""

    # a client as those elsewhere are, which knows how scalars are measured and who watches; None for none
    like: Client | None = None
    follows: ClassVar[bool] = True
    remote: ClassVar[bool] = True

    def __init__(
        self,
        delivery: Delivery,
        observer: Replica,
        carrier: Carrier,
        run: bytes,
        *,
        quorum: int | None = None,
        deadline: float | None = None,
        patience: float = 300.0,
        check_every: int = 10,
        clock: Callable[[], float] = time.monotonic,
        log: RunLog | None = None,
    ) -> None:
        """A federation.

        Args:
            delivery: The server's side, at round 0.
            observer: A replica at round 0 that follows every record.
            carrier: Who carries the frames.
            run: The run's identity, 16 bytes.
            quorum: The replies that a round needs at least; None for more than half of the sampled clients.
            deadline: Seconds after which a round goes on with the replies that came, if these are a quorum, or else as
                soon as they are; None for ``patience``.
            patience: Seconds that a round waits for a quorum; where clients track their rounds, first for that many
                to say what they hold, and then for their replies.
            check_every: Rounds between two in which clients prove that their model is the server's.
            clock: Seconds since some moment, as deadline and patience count them.
            log: See ``log_to``.

        Raises:
            InputError: If a value is out of range.
        """
        m, least = delivery.server.m, delivery.server.aggregation.least
        # the replies that a round needs at least
        self.quorum = max(m // 2 + 1, least) if quorum is None else require_int("quorum", quorum, least, m)
        self.deadline = None if deadline is None else require_finite_positive("deadline", deadline)
        self.patience = require_finite_positive("patience", patience)
        require(observer.private_key is None, "private_seeds", "be off where the server keeps a model", True)
        self.delivery, self.observer, self.carrier = delivery, observer, carrier
        self._clock = clock
        self.clients, self.copies, self.forgetful, self.base = [], False, False, None
        self.drift = self.curvature = None
        self.log_to(log)
        # the server's side of the session
        self.coordinator = Coordinator(delivery, run, digest=observer.digest, check_every=check_every)

    @classmethod
    def of(cls, federation: DeComFLFederation, carrier: Carrier, run: bytes, **options: Any) -> Self:
        """The same at round 0 with its clients behind a carrier; options as above."""
        made = cls(federation.delivery, federation.observer, carrier, run, **options)
        made.like = federation.clients[0]
        return made

    def watch(self, resolution: Resolution) -> None:
        """See ``Federation``."""
        if self.like is not None:
            self.like.resolution = resolution

    def log_to(self, log: RunLog | None) -> None:
        """See ``DeComFLFederation.log_to``; the log may be ahead, and for None it is one that nobody keeps."""
        server, r = self.server, self.observer.round
        if log is None:
            log = RunLog.create(None, {"run_seed": server.run_seed})
            for entry in self.log.entries(0, r) if self.log is not None else ():
                log.append(entry)
        self.log = log
        first = max(r - server.keep, 0)
        server.history = History(log.records(first, r), first) if server.keep else ArchivedHistory(log, end=r)

    def advance(self) -> float:
        """Be a round further: by the log, where that is ahead, else by the clients.

        Returns:
            The mean training loss of those that answered, NaN where nobody knows it.

        Raises:
            InputError: If there is no quorum.
        """
        coordinator = self.coordinator
        if self.log is not None and len(self.log) > self.round:
            entry = self.log.entry(self.round)
            coordinator.repeat(entry)
            self.observer.catch_up([entry.record])
            if entry.digest is None and len(self.log) == self.round:  # a kill may have come between the two writes
                self._sign()
            return float("nan")
        chosen = self.server.sample()
        if self.delivery.wants_reports:
            self._exchange(coordinator.ask(chosen), lambda: coordinator.heard)
        frames = coordinator.open(chosen)
        self._exchange(frames, lambda: len(coordinator.replies))
        asked, answered = tuple(sorted(coordinator.asked)), tuple(sorted(coordinator.replies))
        # Whoever watches is shown the differences that came; slopes and signs have no rounding that could be seen.
        like = self.like
        if like is not None and like.resolution is not None:
            came = [reply for reply in coordinator.replies.values() if reply.scalars.dtype == np.float32]
            estimates = [ScalarEstimate(reply.scalars, reply.loss) for reply in came]
            like.resolution.see(like.estimator, like.mu, estimates)
        losses = [coordinator.replies[i].loss for i in answered]
        weights = self.server.weights.of(answered)
        record = coordinator.close()
        self._write(LogEntry(record, asked, answered, coordinator.held, examples=weights))
        self.observer.catch_up([record])
        self._sign()
        return float(np.average(losses, weights=weights))

    def _exchange(self, frames: Frames, count: Callable[[], int]) -> None:
        """Exchange frames until a quorum has answered, and everybody who was asked or the deadline is over.

        Who is silent is asked again with the same frame; who is away is asked once it has come, if there is time.
        """
        coordinator, began = self.coordinator, self._clock()
        quorum = min(self.quorum, len(self.server.sampled(self.round)))  # fewer may be there than are sampled later
        done: set[int] = set()

        def taking(i: int, answer: bytes, loss: float) -> bytes | None:
            more = coordinator.take(i, answer, loss)
            done.update([i] if more is None else [])
            return more

        def enough() -> bool:
            late = self.deadline is not None and self._clock() >= began + self.deadline
            return late and count() >= quorum

        while True:
            silent = frames.without(done, enough)
            left = began + self.patience - self._clock()
            if left <= 0 and count() >= quorum:
                break
            reachable = count() + len(silent) >= quorum
            if not reachable and coordinator.diverged:
                raise DivergedError("scalars of the clients")
            if not reachable or left <= 0:
                reasons = "; ".join(f"client {i}: {why}" for i, why in sorted(coordinator.refused.items()))
                rule = f"be reached in {self.patience:g} s" if reachable else "be reached"
                got = f"{count()} of {len(frames)} replies in round {self.round}"
                raise InputError(f"quorum of {quorum} must {rule}, got {got}{reasons and ' (' + reasons + ')'}")
            # Once the deadline is over without a quorum, who is silent is asked again, as often as a round may take.
            span = self.deadline or self.patience
            due = began + span - self._clock()
            self.carrier.exchange(silent, taking, min(due if due > 0 else span, left))
            if count() >= quorum and (self.deadline is not None or done >= frames.sent):
                break

    def rebuilt(self) -> dict[int, str]:
        """{client: digest of its model}, brought up to date and said by the client itself; those that answer."""
        frames = self.coordinator.finish()
        self.carrier.exchange(frames, self.coordinator.take, self.deadline or self.patience)
        return dict(self.coordinator.digests)

    def save(self) -> Saved:
        """The server's model and what it remembers; what clients hold is rebuilt from records."""
        server = self.server
        tensors = {"x": self.observer.x, **{f"state.{slot}": v for slot, v in self.observer.state.items()}}
        return tensors, SavedFederation(
            round=self.round,
            held=server.held,
            examples=sorted(server.weights.examples.items()),
            steps_taken=self.coordinator.steps,
            told=sorted(self.delivery.told),
            pulls=self.pulls,
            ledger=self.ledger.save(),
        )

    def load(self, saved: Saved) -> None:
        """See ``Federation``; the records come from the run's log."""
        tensors, values = saved[0], saved[1].padded(self.server.M)
        elsewhere = values.told is not None and values.base is None
        require(elsewhere, "saved run", "have had its clients elsewhere", "another")
        state = {slot: tensors[f"state.{slot}"] for slot in self.observer.state}
        self.observer.restore(Snapshot(values.round, tensors["x"], state))
        if self.server.replica is not None:
            self.server.replica.restore(self.observer.snapshot())
        self.server.held = list(values.held)
        self.server.weights.examples = dict(values.examples)
        self.coordinator.steps = list(values.steps)
        self.delivery.told = set(values.told or ())
        self.delivery.pulls = values.pulls
        self.delivery.ledger = Ledger.load(values.counts)


class CarriedFederation(RemoteFederation):
    """A simulation whose clients are elsewhere (``carrier.Elsewhere``), where each of them begins at x_0.

    It is saved as one in this process is, from x_0 and with all records, so that it can go on in either.
    """

    follows: ClassVar[bool] = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.base = self.observer.clone()

    def save(self) -> Saved:
        return DeComFLFederation.save(self)

    def _held_and_taken(self) -> tuple[list[int], list[int]]:
        return self.server.held, self.coordinator.steps

    def load(self, saved: Saved) -> None:
        """See ``Federation``; InputError if the first records, which a client made at x_0 needs, are gone."""
        tensors, values = saved
        server, first = self.server, values.first
        rule = "have its records from round 0 on, as those whose clients were elsewhere, to go on there"
        require(first == 0, "saved run", rule, f"records from round {first} on")
        assert self.base is not None
        same = self.base.x.equal(tensors["x"])
        rule = "be the one at x_0, from which clients elsewhere begin, to go on with a saved run there"
        require(same, "model", rule, "another")
        replica = self.base.clone()
        server.weights.examples = dict(values.examples)
        log = RunLog.create(None, {"run_seed": server.run_seed})
        for record in read(tuple, tensors["records"].numpy().tobytes(), server.run_seed):
            replica.catch_up([record])
            chosen = server.sampled(record.round)  # of whom all answered
            log.append(LogEntry(record, chosen, chosen, examples=server.weights.of(chosen)))
        state = {f"state.{slot}": vector for slot, vector in replica.state.items()}
        told: list[bool | int] = [i for i, is_told in enumerate(values.told or ()) if is_told]
        super().load(({"x": replica.x, **state}, replace(values, told=told, base=None)))
        self.log_to(log)
