"""In-process federations: server and clients driven round by round, every message through the wire codec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.client import Client
from decomfl_lab.errors import InputError
from decomfl_lab.fedavg import FedAvgClient, FedAvgServer
from decomfl_lab.records import History
from decomfl_lab.replica import Replica
from decomfl_lab.server import Server
from decomfl_lab.wire import Ledger, decode_plan, decode_records, decode_reply, decode_vector, encode_records

__all__ = ["DeComFLFederation", "FedAvgFederation", "Federation"]

Saved = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and JSON-able values: what a checkpoint holds."""


class Federation(Protocol):
    """A federation in this process: advance it by rounds, read its model, save it, bring it back."""

    ledger: Ledger

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

    def __init__(self, server: Server, clients: Sequence[Client], observer: Replica) -> None:
        self.server = server
        self.clients = list(clients)
        self.observer = observer
        self.ledger = Ledger(server.M)

    @property
    def round(self) -> int:
        """See ``Federation``."""
        return self.server.round

    @property
    def x(self) -> Tensor:
        """See ``Federation``."""
        return self.observer.x

    def advance(self) -> float:
        """See ``Federation``."""
        replies, losses = [], []
        for i, plan in self.server.plan_round().items():
            reply = self.clients[i].handle(decode_plan(self.ledger.plan(i, plan)))
            losses.append(reply.loss)
            replies.append(reply)
        for reply in replies:
            if not np.isfinite(reply.scalars).all():  # named here: the codec refuses to carry it on
                raise InputError(
                    f"scalars of client {reply.client} in round {reply.round} must be finite: training diverged "
                    "(a smaller learning rate may help)"
                )
        self.observer.apply(self.server.aggregate(decode_reply(self.ledger.reply(reply)) for reply in replies))
        return float(np.mean(losses))

    def save(self) -> Saved:
        """The slowest client's replica and the records since: every other replica is a replay of those.

        Its size is one model, its optimizer state and the records, for any number of clients.
        """
        slowest = min((client.replica for client in self.clients), key=lambda replica: replica.round)
        tensors = {"x": slowest.x, **{f"state.{slot}": v for slot, v in slowest.state.items()}}
        records = encode_records(self.server.history.since(slowest.round))
        tensors["records"] = torch.frombuffer(bytearray(records), dtype=torch.uint8)
        values = {
            "base": slowest.round,
            "round": self.round,
            "held": self.server.held,
            "client_rounds": [client.replica.round for client in self.clients],
            "steps_taken": [client.steps_taken for client in self.clients],
            "ledger": self.ledger.to_json(),
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
        records = decode_records(tensors["records"].numpy().tobytes())
        holders: list[tuple[int, Replica]] = [
            (r, client.replica) for r, client in zip(values["client_rounds"], self.clients, strict=True)
        ]
        holders.append((values["round"], self.observer))
        if self.server.replica is not None:
            holders.append((values["round"], self.server.replica))
        for r, replica in sorted(holders, key=lambda holder: holder[0]):
            rolling.catch_up(record for record in records if record.round < r)
            replica.restore(rolling.snapshot())
        self.server.history = History(records, start=values["base"])
        self.server.held = list(values["held"])
        for steps, client in zip(values["steps_taken"], self.clients, strict=True):
            client.steps_taken = steps
        self.ledger = Ledger.from_json(self.server.M, values["ledger"])


class FedAvgFederation:
    """FedAvg: models down, models up."""

    def __init__(self, server: FedAvgServer, clients: Sequence[FedAvgClient]) -> None:
        self.server = server
        self.clients = list(clients)
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
            down = self.ledger.vector(i, self.round, self.server.x.numpy(), upwards=False)
            start = torch.from_numpy(decode_vector(down)[1])
            own, loss = self.clients[i].train(start, self.server.eta, self.server.K)
            if not torch.isfinite(own).all():
                raise InputError(
                    f"model of client {i} in round {self.round} must be finite: training diverged "
                    "(a smaller learning rate may help)"
                )
            models[i] = decode_vector(self.ledger.vector(i, self.round, own.numpy(), upwards=True))[1]
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
