"""BAFFLE: the model down, scalars up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from decomfl_lab.errors import require
from decomfl_lab.methods.decomfl import DeComFLFederation
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Plan
from decomfl_lab.protocol.server import Server
from decomfl_lab.protocol.wire import (
    decode_vector,
)
from decomfl_lab.replicas.replica import Replica

__all__ = ["BaffleFederation"]


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
