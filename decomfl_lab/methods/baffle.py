"""BAFFLE: the model down, scalars up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from decomfl_lab.errors import require
from decomfl_lab.methods.decomfl import DeComFLFederation
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.messages import Held
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.replicas.replica import Snapshot

__all__ = ["BaffleFederation"]


class BaffleFederation(DeComFLFederation):
    """BAFFLE: the model down, scalars up. Clients hold nothing between rounds, so there is no lag to replay.

    Source: Feng, Bao, Pang and others, "Does federated learning really need backpropagation?" (BAFFLE), 2023:
    clients evaluate, the server updates.
    """

    def __init__(self, server: Server, clients: Sequence[Client]) -> None:
        """A federation whose server keeps the model, and of its clients and of past rounds nothing."""
        require(server.K == 1, "local steps K", "be 1 for baffle, whose clients take no step", server.K)
        require(server.tracking is Tracking.CLIENTS, "tracking", "be by clients for baffle", server.tracking)
        assert server.replica is not None
        super().__init__(_ModelsDown(server), clients, server.replica, forgetful=True)


class _ModelsDown(Delivery):
    """Every participant reads the model of the round, without the optimizer's state, and a plan without records."""

    wants_reports = False

    def open(self, chosen: Sequence[int], reports: Iterable[bytes] = ()) -> Iterator[tuple[int, list[bytes]]]:  # noqa: ARG002
        """See ``Delivery.open``."""
        everybody_is_there = [Held(i, self.server.round) for i in chosen]
        for i, plan in self.server.plan_round(chosen, everybody_is_there).items():
            yield i, [*self.model(i), *self._planned(i, plan)]

    def _sent(self, dense: Snapshot) -> Iterator[Tensor]:
        yield dense.x
