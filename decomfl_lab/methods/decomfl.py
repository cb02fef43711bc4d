"""In-process federations: server and clients driven round by round, every message through the wire codec."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.errors import DivergedError, InputError
from decomfl_lab.estimators.differences import central_curved
from decomfl_lab.estimators.second_differences import CurvatureLog
from decomfl_lab.methods.federation import Saved
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.client import Client, handle_all
from decomfl_lab.protocol.messages import Held, Plan
from decomfl_lab.protocol.policy import PullPolicy
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.protocol.wire import (
    Ledger,
    decode_held,
    decode_plan,
    decode_records,
    decode_reply,
    decode_run_seed,
    decode_vector,
    encode_records,
)
from decomfl_lab.records.record import History
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.replica import Replica, Snapshot, SyncReplica
from decomfl_lab.replicas.rules import Step

__all__ = ["DeComFLFederation"]

logger = logging.getLogger(__name__)


class DeComFLFederation:
    """DeComFL: scalars up, records down. The observer is the lab's own replica, outside the protocol."""

    def __init__(
        self,
        server: Server,
        clients: Sequence[Client],
        observer: Replica,
        *,
        policy: PullPolicy | None = None,
        ledger: Ledger | None = None,
        copies: bool = False,
    ) -> None:
        """A federation.

        Args:
            server: Plans and aggregates.
            clients: In the order of their numbers.
            observer: A replica at the server's round that follows every record.
            policy: With one, the server sends its model where that is cheaper than the records.
            ledger: None for a new one.
            copies: Give clients the observer's bits in the place of replaying the records that they are sent. By the
                laws of replay these are the same bits; M clients would make each direction M times.
        """
        if policy is not None and server.replica is None:
            raise InputError("pull must be never where the server keeps no model (server_model), got a policy")
        self.server = server
        self.clients = list(clients)
        self.observer = observer
        self.policy = policy
        self.copies = copies
        self.pulls = 0
        self.drift: float | None = None
        self.curvature: CurvatureLog | None = None
        if self.clients[0].estimator is central_curved:
            self.curvature = CurvatureLog(observer.x.numel(), server.distribution)
        self.ledger = Ledger(server.M) if ledger is None else ledger

    @property
    def round(self) -> int:
        """See ``Federation``."""
        return self.server.round

    @property
    def x(self) -> Tensor:
        """See ``Federation``."""
        return self.observer.x

    def plans(self, participants: Sequence[int] | None = None) -> Iterator[tuple[Client, Plan]]:
        """The participants (None: sampled ones), each with its plan as it arrives.

        On the way everything else that they and the server must tell each other is said: what a client holds, the
        run's seed, a model in the place of records that are gone or dearer.
        """
        chosen = self.server.sample() if participants is None else participants
        reports = None
        if self.server.tracking is Tracking.CLIENTS:
            reports = [decode_held(self.ledger.held(self.clients[i].report())) for i in chosen]
        for i, plan in self._planned(chosen, reports).items():
            if self.policy is not None and self._chooses_to_pull(i, plan):
                self._pull(i)
                plan = dataclasses.replace(plan, records=())
            yield self.clients[i], self._deliver(i, plan)

    def _planned(self, chosen: Sequence[int], reports: Sequence[Held] | None) -> dict[int, Plan]:
        """The plans; whoever is older than the history has pulled the model before, if the server has one."""
        if self.server.replica is not None:
            held = {at.client: at.round for at in reports} if reports else dict(enumerate(self.server.held))
            for i in chosen:
                if held[i] < self.server.history.start:
                    self._pull(i)
                    self.server.note_dense_pull(i)
            if reports is not None:
                reports = [
                    at if at.round >= self.server.history.start else Held(at.client, self.round) for at in reports
                ]
        return self.server.plan_round(chosen, reports)

    def _deliver(self, i: int, plan: Plan) -> Plan:
        """The plan as client i reads it; who reads seeds per run for the first time is told the run's seed before."""
        client = self.clients[i]
        if plan.seeding is Seeding.PER_RUN and client.run_seed is None:
            client.run_seed = decode_run_seed(self.ledger.run_seed(i, self.server.run_seed))
        arrived = decode_plan(self.ledger.plan(i, plan), client.run_seed)
        if self.copies:
            client.replica.restore(Snapshot(self.observer.round, self.observer.x, self.observer.state))
        elif isinstance(client.replica, SyncReplica):
            client.replica.catch_up(arrived.records)
            self._measure_drift(client.replica)
        return arrived

    def _measure_drift(self, rebuilt: Replica) -> None:
        distance = float((rebuilt.x - self.x).abs().max()) / (float(self.x.abs().max()) or 1.0)
        self.drift = max(self.drift or 0.0, distance)
        logger.debug("round %d: a rebuilt model is %.3g from the server's", self.round, distance)

    def _chooses_to_pull(self, i: int, plan: Plan) -> bool:
        assert self.policy is not None
        x = self.observer.x
        wide = 8 if x.dtype == torch.float64 else 4
        vectors = 1 + len(self.observer.rule.slots)
        choice = self.policy.choose(plan.records, d=x.numel(), vectors=vectors, bytes_per_element=wide)
        logger.debug("round %d, client %d: %s", plan.round, i, choice)
        return choice.pull

    def _pull(self, i: int) -> None:
        """Send the server's model and optimizer state to client i; a 16-bit number travels as the equal float32."""
        dense = self.server.dense_model()

        def sent(vector: Tensor) -> Tensor:
            wide = vector if vector.dtype == torch.float64 else vector.float()
            message = self.ledger.vector(i, self.round, wide.cpu().numpy(), upwards=False)
            return torch.from_numpy(decode_vector(message)[1]).to(vector.dtype)

        state = {slot: sent(vector) for slot, vector in dense.state.items()}
        self.clients[i].replica.restore(dataclasses.replace(dense, x=sent(dense.x), state=state))
        self.pulls += 1

    def advance(self) -> float:
        """See ``Federation``."""
        clients, plans = zip(*self.plans(), strict=True)
        replies = handle_all(clients, plans)
        for reply in replies:
            if not np.isfinite(reply.scalars).all():  # named here: the codec refuses to carry it on
                raise DivergedError(f"scalars of client {reply.client} in round {reply.round}")
        self.observer.apply(self.server.aggregate(decode_reply(self.ledger.reply(reply)) for reply in replies))
        if self.curvature is not None:
            self.curvature.add(np.stack([reply.curvature for reply in replies if reply.curvature is not None]))
        return float(np.mean([reply.loss for reply in replies]))

    def rebuilt(self) -> dict[int, str]:
        """{client: digest of its model, optimizer state included, brought up to date by the records it missed}.

        Each equals ``observer.digest()``: that is the contract. Nothing is sent and no client moves: copies do, one
        at a time. Clients older than the history are left out, who would pull the model.
        """
        digests = {}
        for i, lagging in enumerate(self._lagging()):
            if lagging.round >= self.server.history.start:
                copy = lagging.clone()
                copy.catch_up(self.server.history.since(lagging.round))
                digests[i] = copy.digest()
        return digests

    def _lagging(self) -> Sequence[Replica]:
        """What each client must bring back after a restart."""
        return [client.replica for client in self.clients]

    def save(self) -> Saved:
        """The slowest client's replica and the server's records: every other replica is a replay of those.

        Its size is one model, its optimizer state and the records, for any number of clients. Two exceptions: a
        replica that drifts is no replay of anything and is saved as it is; of a client older than the history,
        which will pull the model, only the round is saved.
        """
        start = self.server.history.start
        replicas = [*self._lagging(), self.observer]
        base = min((r for r in replicas if r.round >= start and not isinstance(r, SyncReplica)), key=lambda r: r.round)
        tensors = {"x": base.x, **{f"state.{slot}": v for slot, v in base.state.items()}}
        records = encode_records(self.server.history.since(start))
        tensors["records"] = torch.frombuffer(bytearray(records), dtype=torch.uint8)
        for i, replica in self._drifting():
            tensors[f"client.{i}.x"] = replica.x
        values = {
            "base": base.round,
            "first": start,
            "round": self.round,
            "held": self.server.held,
            "client_rounds": [replica.round for replica in self._lagging()],
            "steps_taken": [client.steps_taken for client in self.clients],
            "told": [client.run_seed is not None for client in self.clients],
            "taken": {str(i): [_to_json(step) for step in replica.taken] for i, replica in self._drifting()},
            "drift": self.drift,
            "pulls": self.pulls,
            "ledger": self.ledger.to_json(),
            "curvature": None if self.curvature is None else self.curvature.steps,
        }
        return tensors, values

    def load(self, saved: Saved) -> None:
        """See ``Federation``: one replica rolls from the base to the present and leaves copies on its way."""
        tensors, values = saved
        rolling = self.observer.clone()
        for slot in rolling.state:
            rolling.state[slot].copy_(tensors[f"state.{slot}"])
        rolling.x.copy_(tensors["x"])
        rolling.round = values["base"]
        records = decode_records(tensors["records"].numpy().tobytes(), self.server.run_seed)
        holders: list[tuple[int, Replica]] = [
            (r, client.replica) for r, client in zip(values["client_rounds"], self.clients, strict=True)
        ]
        holders.append((values["round"], self.observer))
        if self.server.replica is not None:
            holders.append((values["round"], self.server.replica))
        for r, replica in sorted(holders, key=lambda holder: holder[0]):
            rolling.catch_up(record for record in records if record.round < r)
            replica.restore(rolling.snapshot())
            replica.round = r
        self.server.history = History(records, start=values["first"])
        self.server.held = list(values["held"])
        self.pulls = values["pulls"]
        self.drift = values["drift"]
        if self.curvature is not None:
            self.curvature.steps = values["curvature"]
        for steps, told, client in zip(values["steps_taken"], values["told"], self.clients, strict=True):
            client.steps_taken = steps
            client.run_seed = self.server.run_seed if told else None
        for i, replica in self._drifting():
            replica.x.copy_(tensors[f"client.{i}.x"])
            replica.diverge(_from_json(step) for step in values["taken"][str(i)])
        self.ledger = Ledger.from_json(self.server.M, values["ledger"])

    def _drifting(self) -> list[tuple[int, SyncReplica]]:
        return [(i, c.replica) for i, c in enumerate(self.clients) if isinstance(c.replica, SyncReplica)]


def _to_json(step: Step) -> list[Any]:
    return [step.seed, step.scalars.tolist(), step.eta, step.distribution]


def _from_json(saved: list[Any]) -> Step:
    seed, scalars, eta, distribution = saved
    own = tuple(seed) if isinstance(seed, list) else seed
    return Step(own, np.array(scalars, dtype=np.float32), eta, Distribution(distribution))
