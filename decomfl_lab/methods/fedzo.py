"""FedZO: K local zeroth-order steps along own directions; models both ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decomfl_lab.errors import DivergedError
from decomfl_lab.federations.averaging import FedAvgFederation
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic, models_both_ways
from decomfl_lab.methods.scalars import Differences, Perturbing
from decomfl_lab.methods.shared_options import DEFAULT_RULE, RULE, require_rule, weighting_option
from decomfl_lab.noise import Distribution, derive_seed
from decomfl_lab.options import option
from decomfl_lab.protocol.messages import Plan
from decomfl_lab.replicas.rules import Step, UpdateRule

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.engines.base import Engine
    from decomfl_lab.estimators.resolution import Resolution
    from decomfl_lab.objectives.objective import Objective

_OWN_DIRECTIONS = 7


@dataclass(frozen=True, kw_only=True)
class Walking(Perturbing):
    """Options of methods whose clients walk along directions of their own; their models are averaged."""

    local_steps: int = option(1, "The number K of local steps a round.", symbol="K", ge=1)
    rule: UpdateRule = option(DEFAULT_RULE, codec=RULE)
    weighting: str = weighting_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rule(self.rule)

    def client(self, setting: TrainingSetting, i: int) -> FedZOClient:
        """Client i."""
        return FedZOClient(i, setting.objectives[i], self, seed=setting.seed, engine=setting.engine)

    def federation(self, setting: TrainingSetting) -> FedAvgFederation:
        clients = [self.client(setting, i) for i in range(setting.M)]
        return FedAvgFederation(setting, clients, K=self.local_steps, eta=self.eta, weighting=self.weighting)

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:
        """See ``Method.traffic``: R·q times a model each way."""
        return models_both_ways(cohort, d, weighting=self.weighting)


@dataclass(frozen=True, kw_only=True)
class FedZO(Walking, Differences):
    """K local zeroth-order steps along own directions; models both ways.

        client:  x_{i,r}^{k+1} = rule(x_{i,r}^k, g_{i,r}^k, z_{i,r}^k),   z of seeds that no other client has
        server:  x_{r+1} = (1/m) Σ_i x_{i,r}^{K+1}, or Σ_i n_i x_{i,r}^{K+1} / Σ_i n_i

    Source: Fang, Yu, Jiang, Shi, Jones and Zhou, "Communication-efficient stochastic zeroth-order optimization
    for federated learning" (FedZO), IEEE TSP 2022, Algorithm 1.
    """

    name: ClassVar[str] = "fedzo"


@dataclass(frozen=True, kw_only=True)
class FedZOProjection(Walking):
    """FedZO with scalars ⟨∇f, z⟩ by one backward pass a step.

        g_{i,r,p}^k = ⟨∇f_i(x; ξ), z_{i,r,p}^k⟩,   the limit of both differences as μ → 0

    Source: FedZO's, with the gradient projection of DeComFL's appendix.
    """

    name: ClassVar[str] = "fedzo-projection"
    gradients: ClassVar[bool] = True


class FedZOClient:
    """K local zeroth-order steps, each along P directions of the client's own.

        x ← rule(x, g, z),   g_p = estimator(f_i(· ; ξ), x, z_p),   z of seeds that no other client has

    The optimizer's state begins anew each round.
    """

    resolution: Resolution | None = None  # see ``Client``

    def __init__(self, client_id: int, objective: Objective, method: Walking, *, seed: int, engine: Engine) -> None:
        self.id, self.objective, self.method = client_id, objective, method
        self.seed, self.engine = seed, engine
        self.steps_taken = 0

    def train(self, x: Tensor, eta: float, K: int) -> tuple[Tensor, float]:
        """See ``Trainer``."""
        from decomfl_lab.protocol.client import Client
        from decomfl_lab.replicas.replica import Replica

        method, distribution = self.method, Distribution(self.method.distribution)
        replica = Replica(x, method.rule)
        walker = Client(self.id, replica, self.objective, method.measured_by(), method.mu, engine=self.engine)
        walker.steps_taken, walker.resolution = self.steps_taken, self.resolution
        steps = range(self.steps_taken, self.steps_taken + K)
        seeds = tuple(derive_seed(self.seed, _OWN_DIRECTIONS, self.id, step) for step in steps)
        plan = Plan(0, eta, method.perturbations, distribution, seeds)
        scalars, loss, _ = walker.local_update(plan)
        walker.release()
        if not np.isfinite(scalars).all():
            raise DivergedError(f"scalars of client {self.id}")
        replica.step_(Step(seeds[-1], scalars[-1], eta, distribution))  # local_update leaves the last to us
        self.steps_taken = walker.steps_taken
        return replica.x, loss
