"""In-process federations: server and clients driven round by round, every message through the wire codec."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from decomfl_lab.errors import DivergedError, plural, require
from decomfl_lab.estimators.differences import central_curved
from decomfl_lab.estimators.resolution import Resolution
from decomfl_lab.estimators.second_differences import CurvatureLog
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.attacks import Attack
from decomfl_lab.protocol.client import Client, handle_all
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.log import LogEntry, RunLog
from decomfl_lab.protocol.messages import Held, Plan, Reply
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.protocol.wire import encode, read
from decomfl_lab.records.record import History, RoundRecord, unsound
from decomfl_lab.replicas.replica import Replica, Snapshot
from decomfl_lab.replicas.rules import Step
from decomfl_lab.storage.outside import Saved, SavedFederation

logger = logging.getLogger(__name__)


class DeComFLFederation:
    """DeComFL: scalars up, records down. The observer is the lab's own replica, outside the protocol."""

    attack: Attack | None = None  # what some of the clients send in place of what they measured; None where nobody lies
    log: RunLog | None = None  # the log that every closed round is written to; None for none
    # whether rounds that the log has are taken from it, and not computed again, so that each is on the disk before the
    # next one begins
    follows: ClassVar[bool] = False
    remote: ClassVar[bool] = False  # whether clients are in other processes
    digest_next = False  # whether the log gets the model's digest with the next round

    def __init__(
        self,
        server: Server | Delivery,
        clients: Sequence[Client],
        observer: Replica,
        *,
        copies: bool = False,
        forgetful: bool = False,
        attack: Attack | None = None,
    ) -> None:
        """A federation.

        Args:
            server: It plans and aggregates; a ``Delivery`` of one's own may do so otherwise.
            clients: The clients, in the order of their numbers.
            observer: A replica at the server's round that follows every record.
            copies: Whether clients get the observer's vectors instead of replaying the records that they are sent.
                By the laws of replay these are the same bits; M clients would make each direction M times.
            forgetful: Whether nothing is kept of a client's model between its rounds; with copies one is kept for all,
                of the oldest round that there is a record of, from which the records give every client's.
            attack: What some of the clients send in place of what they measured; None where nobody lies.
        """
        self.delivery = server if isinstance(server, Delivery) else Delivery(server)
        self.clients = list(clients)
        self.observer = observer
        self.attack = attack
        self.copies = copies
        self.forgetful = forgetful or copies
        self.drift: float | None = None
        self.curvature: CurvatureLog | None = None
        if self.clients[0].estimator is central_curved:
            scaled = observer.rule.scaling is not None
            self.curvature = CurvatureLog(observer.d, self.server.distribution, whitened=scaled)
        # With copies no client has vectors: a replica at the oldest round stands for all of them in save and rebuilt.
        self.base = self.clients[0].replica.clone() if copies else None
        if self.forgetful:
            for client in self.clients:
                client.replica.forget()

    @property
    def by_records(self) -> Self:
        """See ``Federation``."""
        return self

    def watch(self, resolution: Resolution) -> None:
        """See ``Federation``."""
        for client in self.clients:
            client.resolution = resolution

    @property
    def server(self) -> Server:
        """The server."""
        return self.delivery.server

    @property
    def ledger(self) -> Ledger:
        """See ``Federation``."""
        return self.delivery.ledger

    @property
    def pulls(self) -> int:
        """See ``Federation``."""
        return self.delivery.pulls

    @property
    def round(self) -> int:
        """See ``Federation``."""
        return self.server.round

    @property
    def x(self) -> Tensor:
        """See ``Federation``."""
        return self.observer.x

    def _plans(self, chosen: Sequence[int], held: Sequence[Held]) -> Iterator[tuple[Client, Plan]]:
        """The sampled clients, each with the plan that it received, at the model of the round."""
        reports = [self.ledger.sent(report.client, report, upwards=True) for report in held]
        for i, messages in self.delivery.open(chosen, reports):
            client = self.clients[i]
            plan = receive(client, messages)
            if self.copies:
                client.replica.restore(self.observer.snapshot())
            else:  # ``handle`` would do this too; here the rebuilt model can be measured and shared before it moves
                client.replica.catch_up(plan.records)
                if client.replica.drifts:
                    rebuilt = client.replica
                    distance = float((rebuilt.x - self.x).abs().max()) / (float(self.x.abs().max()) or 1.0)
                    self.drift = max(self.drift or 0.0, distance)
                    logger.debug("round %d: a rebuilt model is %.3g from the server's", self.round, distance)
                client.replica.share(self.observer)
            yield client, plan

    def advance(self) -> float:
        """See ``Federation``."""
        chosen, tracking = self.server.sample(), self.delivery.wants_reports
        held = [self.clients[i].report() for i in chosen] if tracking else []
        clients, plans = zip(*self._plans(chosen, held), strict=True)
        replies = self.replies(clients, plans)
        weights = self.server.weights
        examples = [client.examples() for client in clients if weights.lacks(client.id)]
        self.delivery.hear(self.ledger.sent(message.client, message, upwards=True) for message in examples)
        answered = tuple(reply.client for reply in replies)
        reported = tuple(report.round for report in held) if tracking else None

        def write(record: RoundRecord) -> None:
            self._write(LogEntry(record, chosen, answered, reported, examples=weights.of(answered)))

        sent = (self.ledger.sent(message.client, message, upwards=True) for message in replies)
        self._closed(clients, lambda: self.delivery.close(sent), write)
        self._sign()
        if self.curvature is not None:
            self.curvature.add(np.stack([reply.curvature for reply in replies if reply.curvature is not None]))
        return float(np.average([reply.loss for reply in replies], weights=weights.of(answered)))

    def replies(self, clients: Sequence[Client], plans: Sequence[Plan]) -> list[Reply]:
        """What the clients send: what they measure, or a lie.

        Raises:
            DivergedError: If a client measures no finite number.
        """
        measured = handle_all(clients, plans)
        for reply in measured:
            if unsound(reply.scalars).size:  # named here: the codec refuses to carry it on
                raise DivergedError(f"scalars of client {reply.client}")
        return measured if self.attack is None else self.attack(measured)

    def repeat(self, entry: LogEntry) -> None:
        """Be a round further by its entry in a log: what was sent is counted, and nothing is measured.

        InputError if the entry is of another round, or cannot be of this federation.
        """
        entry.require_sound(self.server.M)
        held = [Held(*report) for report in zip(entry.sampled, entry.held or (), strict=False)]
        clients = [client for client, _ in self._plans(entry.sampled, held)]
        for i in entry.answered:
            self.clients[i].steps_taken += entry.record.K
        self._closed(clients, lambda: self.delivery.repeat(entry))

    def _closed(
        self,
        clients: Iterable[Client],
        close: Callable[[], RoundRecord],
        write: Callable[[RoundRecord], None] = lambda _: None,
    ) -> None:
        """Apply the record of the round that these clients took part in to what follows records here, once written."""
        if self.forgetful:
            for client in clients:
                client.replica.forget()
        history = self.server.history
        known = () if self.base is None else history.since(history.start)  # closing may prune what base lacks
        record = close()
        write(record)
        self.observer.catch_up([record])
        if self.base is not None:
            self.base.catch_up(record for record in known if record.round < history.start)

    def log_to(self, log: RunLog | None) -> None:
        """Write every closed round to the log from now on; for None to none."""
        self.log = log

    def _write(self, entry: LogEntry) -> None:
        """Log the round, before x moves: there is no model without the record that made it."""
        if self.log is not None:
            self.log.append(entry, sync=self.follows)

    def _sign(self) -> None:
        """Have the digest of the model in the log's last entry, where it is wanted."""
        if self.log is not None and self.digest_next:
            self.log.sign(self.observer.digest(), sync=self.follows)

    def rebuilt(self) -> dict[int, str]:
        """{client: digest of its model, optimizer state included, brought up to date by the records it missed}.

        Each equals ``observer.digest()``: that is the contract. Nothing is sent and no client moves: copies do, one
        at a time, and one for all clients that share their vectors; with copies one for all, which passes the model
        of each on its way. Clients older than the history are left out, who would pull the model, and all where
        nobody lags.
        """
        digests: dict[int, str] = {}
        known: dict[tuple[int, int], str] = {}
        for i, client in enumerate(self.clients):
            lagging = self.base if client.replica.forgotten else client.replica
            if lagging is None or client.replica.round < self.server.history.start:
                continue
            same = id(lagging.x), lagging.round
            if same not in known:
                copy = lagging.clone()
                copy.catch_up(self.server.history.since(lagging.round))
                known[same] = copy.digest()
            digests[i] = known[same]
        return digests

    def save(self) -> Saved:
        """The slowest client's replica and the server's records: every other replica is a replay of those.

        Its size is one model, its optimizer state and the records, for any number of clients. Two exceptions: a
        replica that drifts is no replay of anything and is saved as it is; of a client older than the history,
        which will pull the model, only the round is saved.
        """
        start = self.server.history.start
        replicas = [client.replica for client in self.clients]
        plain = [r for r in replicas if not (r.round < start or r.forgotten or r.drifts)]
        base = self.base or min([*plain, self.observer], key=lambda replica: replica.round)
        tensors = {"x": base.x, **{f"state.{slot}": v for slot, v in base.state.items()}}
        records = encode(self.server.history.since(start))
        tensors["records"] = torch.frombuffer(bytearray(records), dtype=torch.uint8)
        taken: dict[str, list[Any]] = {}
        for i, replica in enumerate(replicas):
            if not replica.drifts:
                continue
            tensors[f"client.{i}.x"] = replica.x.clone()
            taken[str(i)] = [(step.seed, step.scalars.tolist(), step.eta, step.distribution) for step in replica.taken]
        rounds, steps = self._held_and_taken()
        return tensors, SavedFederation(
            base=base.round,
            first=start,
            round=self.round,
            held=self.server.held,
            examples=sorted(self.server.weights.examples.items()),
            client_rounds=rounds,
            steps_taken=steps,
            told=[i in self.delivery.told for i in range(self.server.M)],
            taken=taken,
            drift=self.drift,
            pulls=self.pulls,
            ledger=self.ledger.save(),
            curvature=None if self.curvature is None else [(a, b, c) for a, b, c in self.curvature.steps],
        )

    def _held_and_taken(self) -> tuple[list[int], list[int]]:
        """The round that each client holds, and the local steps that it has taken."""
        return [client.replica.round for client in self.clients], [client.steps_taken for client in self.clients]

    def load(self, saved: Saved) -> None:
        """See ``Federation``: one replica rolls from the base to the present and leaves copies on its way."""
        tensors, values = saved
        base, told = values.base, values.told or []
        rule = "have had its clients in this process"
        require(base is not None, "saved run", rule, "one with clients elsewhere")
        assert base is not None
        # The base is one replica that starts at the oldest round; all others are copies of it on its way.
        rolling = self.observer.clone()
        state = {slot: tensors[f"state.{slot}"] for slot in rolling.state}
        rolling.restore(Snapshot(base, tensors["x"], state))
        records = read(tuple, tensors["records"].numpy().tobytes(), self.server.run_seed)
        holders: list[tuple[int, Replica]] = [
            (r, client.replica) for r, client in zip(values.client_rounds, self.clients, strict=True)
        ]
        holders.append((values.round, self.observer))
        if self.server.replica is not None:
            holders.append((values.round, self.server.replica))
        if self.base is not None:
            holders.append((base, self.base))
        # In the order of their rounds, so that the records are applied once.
        for r, replica in sorted(holders, key=lambda holder: holder[0]):
            if not replica.forgotten or replica is self.server.replica:  # a server of sums has no x and follows
                rolling.catch_up(record for record in records if record.round < r)
                replica.restore(rolling.snapshot())
            replica.round = r
        self.server.history = History(records, start=values.first)
        tracks = self.server.tracking is Tracking.SERVER
        require(bool(values.held) == tracks, "held", f"be there{'' if tracks else ' not'}", values.held)
        require(len(told) == self.server.M, "length of told", f"be {self.server.M}", len(told))
        self.server.held = list(values.held)
        self.server.weights.examples = dict(values.examples)
        self.delivery.pulls = values.pulls
        self.delivery.told = {i for i, is_told in enumerate(told) if is_told}
        self.drift = values.drift
        if self.curvature is not None:
            self.curvature.steps = [[*map(float, row)] for row in values.curvature or ()]
        for steps, is_told, client in zip(values.steps, told, self.clients, strict=True):
            client.steps_taken = steps
            client.run_seed = self.server.run_seed if is_told else None
        # Replicas that drift are no replay of anything: each has its own x, and the steps it has not taken back.
        for i, replica in enumerate(client.replica for client in self.clients):
            if not replica.drifts:
                continue
            replica.restore(Snapshot(replica.round, tensors[f"client.{i}.x"], {}))
            taken = []
            for seed, scalars, eta, distribution in values.taken[str(i)]:
                step_seed = tuple(seed) if isinstance(seed, list) else seed
                taken.append(Step(step_seed, np.array(scalars, dtype=np.float32), eta, Distribution(distribution)))
            replica.diverge(taken)
        self.delivery.ledger = Ledger.load(values.counts)

    def with_newcomers(
        self, saved: Saved, start: Snapshot, x0: str | None, before: Callable[[int], Sequence[RoundRecord] | None]
    ) -> Saved:
        """``SavedFederation.padded``, with what those that join need: x_0, and the records from round 0 on.

        Where such records are gone, or more than the server may keep, it sends a model in their place, as to any
        client.

        Args:
            saved: What was saved without those that join, who are in this federation.
            start: The model that is given as that of x_0.
            x0: The digest of x_0; None where nobody has noted it, and the records say whether ``start`` is right.
            before: It gives the records before a round; None where they are gone and the server has a model.

        Raises:
            InputError: If the records, or the model at x_0, are not to be had.
        """
        tensors, values = saved[0], saved[1].padded(self.server.M)
        joining = range(saved[1].clients, self.server.M)
        # The round of the first record that was saved; the round of the model that rebuilding begins from.
        first, base, keep = values.first, values.base, self.server.keep
        too_many = keep > 0 and values.round > keep
        if not too_many and (earlier := before(first) if first else ()) is not None:
            later: tuple[RoundRecord, ...] = read(tuple, tensors["records"].numpy().tobytes(), self.server.run_seed)
            records = (*earlier, *later)
            # Forgetful clients without a base are sent the model whenever they take part: nothing is moved.
            forgetful = self.forgetful and self.base is None
            # Who joins begins at x_0. The saved base may be later, so it is moved back there; that the given model is
            # x_0 is shown by its digest, or by the records that lead from it to the base.
            if base and not forgetful:
                rolling = self.observer.clone()
                state = {slot: tensors[f"state.{slot}"] for slot in rolling.state}
                rolling.restore(Snapshot(base, tensors["x"], state))
                at_base = rolling.digest()
                rolling.restore(start)
                if x0 is None:  # the way from x_0 to the saved model is as good a proof
                    rolling.catch_up(record for record in records if record.round < base)
                who = plural(len(joining), "client")
                rule = f"have its weights of then (x_0), as {who} more begin there"
                require(rolling.digest() == (at_base if x0 is None else x0), "model", rule, "other weights")
                tensors = tensors | {"x": start.x, **{f"state.{slot}": vector for slot, vector in start.state.items()}}
                base = 0
            values = replace(values, first=0, base=base)
            tensors = tensors | {"records": torch.frombuffer(bytearray(encode(records)), dtype=torch.uint8)}
        for i in joining:
            if self.clients and self.clients[i].replica.drifts:
                tensors = tensors | {f"client.{i}.x": start.x}
                values = replace(values, taken={**values.taken, str(i): []})
        return tensors, values
