"""BAFFLE: the model down, scalars up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic, model_bytes
from decomfl_lab.methods.scalars import LoggingDifferences, Updating
from decomfl_lab.protocol.server import Tracking

if TYPE_CHECKING:
    from decomfl_lab.federations.simulation import DeComFLFederation


@dataclass(frozen=True, kw_only=True)
class Baffle(LoggingDifferences, Updating):
    """The model down, scalars up; clients take no step.

        client:  g_{i,r,p} = (f_i(x_r + μ z_{r,p}) − f_i(x_r − μ z_{r,p})) / 2μ
        server:  x_{r+1} = rule(x_r, (1/m) Σ_i g_{i,r}, z_r)

    Clients hold nothing between rounds, so there is no lag to replay, and the server nothing of past rounds.

    Source: Feng, Bao, Pang and others, "Does federated learning really need backpropagation?" (BAFFLE), 2023:
    clients evaluate, the server updates.
    """

    name: ClassVar[str] = "baffle"

    def federation(self, setting: TrainingSetting) -> DeComFLFederation:
        from decomfl_lab.federations.simulation import DeComFLFederation
        from decomfl_lab.protocol.delivery import Delivery
        from decomfl_lab.replicas.replica import Replica

        model = Replica(self.start(setting.x), self.rule)
        server = self.server(setting, model, tracking=Tracking.CLIENTS, keep=1)
        clients, attack = self.clients(setting, model), self.attack_of(setting)
        return DeComFLFederation(Delivery(server, models=True), clients, model, forgetful=True, attack=attack)

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:
        """See ``Method.traffic``: R·q times a model and a plan down and scalars up."""
        measured, models = self.measured_traffic(cohort), cohort.R * cohort.q
        down = measured.down_bytes + models * model_bytes(d)
        return ExpectedTraffic(measured.up_bytes, measured.up_scalars, down, models * d)
