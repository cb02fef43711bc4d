"""BAFFLE: the model down, scalars up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from decomfl_lab.federations.in_process import DeComFLFederation
from decomfl_lab.methods.method import Setting
from decomfl_lab.methods.scalars import LoggingDifferences, Scalars
from decomfl_lab.methods.traffic import Cohort, Traffic, model_bytes
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.messages import Held
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.replicas.replica import Replica, Snapshot

__all__ = ["Baffle"]


@dataclass(frozen=True, kw_only=True)
class Baffle(LoggingDifferences, Scalars):
    """The model down, scalars up; clients take no step.

        client:  g_{i,r,p} = (f_i(x_r + μ z_{r,p}) − f_i(x_r − μ z_{r,p})) / 2μ
        server:  x_{r+1} = rule(x_r, (1/m) Σ_i g_{i,r}, z_r)

    Clients hold nothing between rounds, so there is no lag to replay, and the server nothing of past rounds.

    Source: Feng, Bao, Pang and others, "Does federated learning really need backpropagation?" (BAFFLE), 2023:
    clients evaluate, the server updates.
    """

    name: ClassVar[str] = "baffle"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log_kappa:
            self.check_kappa(self.estimator)

    def federation(self, setting: Setting) -> DeComFLFederation:
        """See ``Method.federation``."""
        model = Replica(self.start(setting.x), self.rule)
        server = self.server(setting, model, tracking=Tracking.CLIENTS, keep=1)
        clients = self.clients(setting, model, self.measured_by(), self.mu, lean=self.lean)
        return DeComFLFederation(_ModelsDown(server), clients, model, forgetful=True)

    def traffic(self, cohort: Cohort, d: int) -> Traffic:
        """See ``Method.traffic``: R·q times a model and a plan down and scalars up."""
        measured, models = self.measured_traffic(cohort), cohort.R * cohort.q
        down = measured.down_bytes + models * model_bytes(d)
        return Traffic(measured.up_bytes, measured.up_scalars, down, models * d)


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
