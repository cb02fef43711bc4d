"""In-process federations: server and clients driven round by round, every message through the wire codec."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.client import Client, handle_all
from decomfl_lab.errors import DivergedError, InputError, require
from decomfl_lab.fedavg import DenseUplink, FedAvgServer, FedZOClient, Trainer, Uplink
from decomfl_lab.messages import Held, Plan
from decomfl_lab.noise import Distribution
from decomfl_lab.policy import PullPolicy
from decomfl_lab.records import History
from decomfl_lab.replica import Replica, Snapshot, SyncReplica
from decomfl_lab.rules import Step
from decomfl_lab.schedules import Schedule
from decomfl_lab.second_differences import CurvatureLog
from decomfl_lab.seeds import Seeding
from decomfl_lab.server import Server, Tracking
from decomfl_lab.wire import (
    Ledger,
    decode_held,
    decode_plan,
    decode_records,
    decode_reply,
    decode_run_seed,
    decode_vector,
    encode_records,
)
from decomfl_lab.zo import central_curved

__all__ = ["BaffleFederation", "DeComFLFederation", "FedAvgFederation", "Federation", "MezoFederation"]

logger = logging.getLogger(__name__)

Saved = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and JSON-able values: what a checkpoint holds."""


class Federation(Protocol):
    """A federation in this process: advance it by rounds, read its model, save it, bring it back."""

    ledger: Ledger
    pulls: int
    """Rebuilds that were replaced by sending the model (a policy's choice, or the records were gone)."""
    drift: float | None
    """The largest ‖x_i − x‖∞ / ‖x‖∞ of a client's rebuilt model so far, where replicas drift; else None."""
    curvature: CurvatureLog | None
    """What second differences of the loss say, where clients measure them; whoever reads it empties it."""

    @property
    def round(self) -> int:
        """Rounds completed."""
        ...

    @property
    def x(self) -> Tensor:
        """The global model x_r, shape (d,)."""
        ...

    def advance(self) -> float:
        """Run one round; returns the training loss, averaged over the sampled clients' local steps."""
        ...

    def save(self) -> Saved:
        """Everything that the next rounds depend on."""
        ...

    def load(self, saved: Saved) -> None:
        """Inverse of ``save``, bit for bit."""
        ...


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


class BaffleFederation(DeComFLFederation):
    """BAFFLE: the model down, scalars up. Clients hold nothing between rounds, so there is no lag to replay.

    Source: Feng, Bao, Pang and others, "Does federated learning really need backpropagation?" (BAFFLE), 2023:
    clients evaluate, the server updates.
    """

    def __init__(self, server: Server, clients: Sequence[Client], observer: Replica) -> None:
        super().__init__(server, clients, observer)
        require(server.K == 1, "local steps K", "be 1 for baffle, whose clients take no step", server.K)

    def _lagging(self) -> Sequence[Replica]:
        return [self.observer] * len(self.clients)  # whatever they hold is overwritten when they are next sampled

    def plans(self, participants: Sequence[int] | None = None) -> Iterator[tuple[Client, Plan]]:
        """See ``DeComFLFederation.plans``."""
        for i in range(self.server.M):
            self.server.note_dense_pull(i)  # no one will ask for a record
        dense = self.observer.snapshot()
        for i, plan in self.server.plan_round(participants).items():
            client = self.clients[i]
            message = self.ledger.vector(i, self.round, dense.x.cpu().numpy(), upwards=False)
            arrived = torch.from_numpy(decode_vector(message)[1])
            client.replica.restore(dataclasses.replace(dense, x=arrived))  # its state is of no use to it
            yield client, self._deliver(i, dataclasses.replace(plan, records=()))


class MezoFederation:
    """MeZO: one agent with all the data, K steps a round, and nothing to communicate.

    Source: Malladi et al., "Fine-tuning language models with just forward passes", NeurIPS 2023, Algorithm 1 (the
    perturbed points are formed beside x instead of in place, so x does not drift).
    """

    def __init__(self, agent: FedZOClient, x: Tensor, *, K: int, eta: Schedule[float]) -> None:
        self.agent = agent
        self._x = x.detach().clone()
        self.K, self.eta = K, eta
        self._round = 0
        self.pulls = 0
        self.drift: float | None = None
        self.curvature: CurvatureLog | None = None
        self.ledger = Ledger(1)

    @property
    def round(self) -> int:
        """See ``Federation``."""
        return self._round

    @property
    def x(self) -> Tensor:
        """See ``Federation``."""
        return self._x

    def advance(self) -> float:
        """See ``Federation``."""
        self._x, loss = self.agent.train(self._x, self.eta(self._round), self.K)
        self._round += 1
        return loss

    def save(self) -> Saved:
        """See ``Federation``."""
        return {"x": self._x}, {"round": self._round, "steps_taken": self.agent.steps_taken}

    def load(self, saved: Saved) -> None:
        """See ``Federation``."""
        tensors, values = saved
        self._x.copy_(tensors["x"])
        self._round = values["round"]
        self.agent.steps_taken = values["steps_taken"]


class FedAvgFederation:
    """Models down, models up: FedAvg, FedCom, FedAvg + Top-k, FedZO, by what trains and how it is sent."""

    def __init__(self, server: FedAvgServer, clients: Sequence[Trainer], uplink: Uplink | None = None) -> None:
        self.server = server
        self.clients = list(clients)
        self.uplink = DenseUplink() if uplink is None else uplink
        self.pulls = 0
        self.drift: float | None = None
        self.curvature: CurvatureLog | None = None
        self.ledger = Ledger(server.M)

    @property
    def round(self) -> int:
        """See ``Federation``."""
        return self.server.round

    @property
    def x(self) -> Tensor:
        """See ``Federation``."""
        return self.server.x

    def advance(self) -> float:
        """See ``Federation``."""
        models, losses = {}, []
        for i in self.server.plan_round():
            message = self.ledger.vector(i, self.round, self.server.x.cpu().numpy(), upwards=False)
            down = decode_vector(message)[1]
            start = torch.from_numpy(down.copy()).to(self.server.x.device)
            own, loss = self.clients[i].train(start, self.server.eta(self.round), self.server.K)
            if not torch.isfinite(own).all():
                raise DivergedError(f"model of client {i} in round {self.round}")
            models[i] = self.uplink.send(self.ledger, i, self.round, down, own.cpu().numpy())
            losses.append(loss)
        self.server.aggregate(models)
        return float(np.mean(losses))

    def save(self) -> Saved:
        """See ``Federation``."""
        values = {
            "round": self.round,
            "steps_taken": [client.steps_taken for client in self.clients],
            "ledger": self.ledger.to_json(),
        }
        return {"x": self.server.x}, values

    def load(self, saved: Saved) -> None:
        """See ``Federation``."""
        tensors, values = saved
        self.server.x.copy_(tensors["x"])
        self.server.round = values["round"]
        for steps, client in zip(values["steps_taken"], self.clients, strict=True):
            client.steps_taken = steps
        self.ledger = Ledger.from_json(self.server.M, values["ledger"])
