"""DeComFL: scalars up, missed records down; clients rebuild."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, Self

from decomfl_lab.errors import require
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic, model_bytes
from decomfl_lab.methods.scalars import LoggingDifferences, Scalars, Updating
from decomfl_lab.methods.shared_options import HELP
from decomfl_lab.noise import derive_seed
from decomfl_lab.options import option
from decomfl_lab.protocol.server import PullPolicy, Tracking
from decomfl_lab.protocol.wire import record_bytes, require_sendable
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.rules import Group
from decomfl_lab.storage.outside import TensorGroup

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.federations.simulation import DeComFLFederation
    from decomfl_lab.replicas.replica import Replica

_PRIVATE_KEY = 11
"""Where the clients' key derives from the run's seed, so that runs repeat; in the field only clients know it."""


_CARRIED = {"revert": "snapshot", "tracking": "server", "history": 0, "private_seeds": False, "log_kappa": False}
"""What clients must have who are in other processes: a model that is a replay of records which the server tracks, and
no second differences, which are not sent."""
_BARE = {**_CARRIED, "rebuild": "copy", "server_model": False, "pull": "never"}
"""What a simulation needs least for: none of it changes the model's way, but for the rounding of revert sync."""


@dataclass(frozen=True, kw_only=True)
class Lagging(Scalars):
    """Options of methods whose clients keep their model between rounds, and so lag and catch up by records."""

    local_steps: int = option(1, "The number K of local steps a round.", symbol="K", ge=1)
    tracking: str = option("server", HELP["tracking"], choices=tuple(Tracking))
    private_seeds: bool = option(False, HELP["private_seeds"])
    rebuild: str = option("replay", HELP["rebuild"], "engine", choices=("replay", "copy"))

    def __post_init__(self) -> None:
        super().__post_init__()
        require_sendable(self.local_steps, self.P.largest)

    @property
    def replays(self) -> bool:
        return self.rebuild == "replay" and not self.drifts

    def replaying(self) -> Self:
        return replace(self, rebuild="replay")

    def require_carried(self, by: object) -> None:
        plain = self.plain()
        for name, value in _CARRIED.items():
            require(plain.get(name, value) == value, name, f"be {value!r} with federation {by}", plain.get(name))

    def bare(self) -> Self:
        return self.but({name: value for name, value in _BARE.items() if name in self.options()})

    @property
    def K(self) -> int:
        return self.local_steps

    @property
    @abstractmethod
    def kept(self) -> int:
        """The most records that the server keeps; 0 for all that a client still needs."""

    @abstractmethod
    def _followed(self, x: Tensor) -> Replica | None:
        """What the server has of the model at round 0, if anything."""

    def _policy(self) -> PullPolicy | None:
        """When the server sends what it has of the model instead of records; None for only where it must."""
        return None

    def federation(self, setting: TrainingSetting) -> DeComFLFederation:
        from decomfl_lab.federations.simulation import DeComFLFederation
        from decomfl_lab.protocol.delivery import Delivery
        from decomfl_lab.replicas.registry import make_replica

        x = self.start(setting.x)
        key = derive_seed(setting.seed, _PRIVATE_KEY) if self.private_seeds else None
        server = self.server(setting, self._followed(x), tracking=Tracking(self.tracking), keep=self.kept)
        observer = make_replica(x, self.rule, private_key=key)
        # Clients that correct their model afterwards drift; the observer follows the records to the bit all the same.
        start = observer
        if self.drifts:
            start = make_replica(x, self.rule, corrected=True, private_key=key)
        delivery, copies = Delivery(server, policy=self._policy()), self.rebuild == "copy"
        clients, attack = self.clients(setting, start), self.attack_of(setting)
        return DeComFLFederation(delivery, clients, observer, copies=copies, attack=attack)


@dataclass(frozen=True, kw_only=True)
class _ByRecords(Updating, Lagging):
    """What both kinds of DeComFL share: a client that missed rounds gets their records, or the model."""

    history: int = option(0, HELP["history"], ge=0)
    server_model: bool = option(False, HELP["server_model"])
    pull: str = option("never", HELP["pull"], choices=("never", "auto"))
    bandwidth: float = option(12.5e6, HELP["bandwidth"], gt=0)
    replay_ns: float = option(1.0, HELP["replay_ns"], gt=0)
    revert: str = option("snapshot", HELP["revert"], choices=("snapshot", "sync"))

    def __post_init__(self) -> None:
        super().__post_init__()
        blind = not (self.private_seeds and self.keeps_model)
        needs_z = "be off where the server keeps a model (server_model, pull auto, history): it cannot form z"
        require(blind, "private_seeds", needs_z, self.private_seeds)
        corrected = "be snapshot unless the rule is plain SGD in 32 bits (momentum 0, weight_decay 0, no grid)"
        require(self.rule.correctable or self.revert == "snapshot", "revert", corrected, self.revert)
        exact = self.rebuild == "replay" or self.revert == "snapshot"
        require(exact, "rebuild", "be replay with revert sync, where replicas drift", self.rebuild)

    @property
    def drifts(self) -> bool:
        return self.revert == "sync"

    @property
    def kept(self) -> int:
        return self.history

    @property
    def keeps_model(self) -> bool:
        """Whether the server keeps a model: because it was told to, or to send it instead of records."""
        return self.server_model or self.pull == "auto" or self.history > 0

    def _followed(self, x: Tensor) -> Replica | None:
        from decomfl_lab.replicas.registry import make_replica

        return make_replica(x, self.rule) if self.keeps_model else None

    def _policy(self) -> PullPolicy | None:
        return PullPolicy(self.bandwidth, self.replay_ns) if self.pull == "auto" else None

    def traffic(self, cohort: Cohort, d: int) -> ExpectedTraffic:
        """See ``Method.traffic``; lag is included.

        R·q times a plan down and scalars up (and what the client holds, if it tracks that itself); the run's seed once,
        with probability 1 − (1 − q)^R, if no record carries seeds; and records. Record j goes to a client that takes
        part in round j + n, n = 1..R−1−j, and was last there in round j or before (or never): with probability
        q(1 − q)^{n−1}. With a history of N records, n ≤ N, and whoever is more than N rounds behind in round j + n > N,
        probability (1 − q)^N, gets the model instead of it. Together, with a = min(N, R − 1 − j),

            P(record j is sent) = 1 − (1 − q)^a − q(1 − q)^N · max(0, a − max(0, N − j)),
            E[models sent] = q(1 − q)^N · max(0, R − 1 − N),

        and without a bound N = ∞, where only the first two terms of the first line are left, a = R − 1 − j. A model
        comes with the rule's state vectors.

        Raises:
            InputError: For pull auto, whose choices follow costs and not chance alone.

        Source: [DeComFL, Algorithms 3 and 4, Table 1].
        """
        require(self.pull == "never", "pull", "be never for a closed form", self.pull)
        measured = self.measured_traffic(cohort, reports=self.tracking == Tracking.CLIENTS)
        R, q = cohort.R, cohort.q
        N, seeding = self.history or R, Seeding(self.seeds)
        bytes_, scalars = measured.down_bytes, 0.0
        size = cache(partial(record_bytes, seeding, self.K, dtype=self.dtype))
        for j, P in enumerate(map(self.P, range(R))):
            a = min(N, R - 1 - j)
            sent = 1 - (1 - q) ** a - q * (1 - q) ** N * max(0, a - max(0, N - j))
            bytes_ += sent * size(P)
            scalars += sent * self.K * P
        models = (1 + len(self.rule.slots)) * q * (1 - q) ** N * max(0, R - 1 - N)
        return ExpectedTraffic(
            measured.up_bytes, measured.up_scalars, bytes_ + models * model_bytes(d), scalars + models * d
        )


@dataclass(frozen=True, kw_only=True)
class DeComFL(LoggingDifferences, _ByRecords):
    """Scalars up, missed records down; clients rebuild.

        client:  g_{i,r,p}^k = (f_i(x + μ z_{r,p}^k) − f_i(x − μ z_{r,p}^k)) / 2μ,   x ← rule(x, g, z),   k = 1..K
        server:  g_{r,p}^k = (1/m) Σ_i g_{i,r,p}^k, or Σ_i n_i g_{i,r,p}^k / Σ_i n_i, or another aggregation
        all:     x_{r+1} = rule(x_r, g_r, z_r),   z regenerated from seeds

    Source: [DeComFL, Algorithms 3 and 4].
    """

    name: ClassVar[str] = "decomfl"


@dataclass(frozen=True, kw_only=True)
class DeComFLProjection(_ByRecords):
    """DeComFL with scalars ⟨∇f, z⟩ by one backward pass.

        g_{i,r,p}^k = ⟨∇f_i(x; ξ), z_{r,p}^k⟩,   the limit of both differences as μ → 0

    Source: [DeComFL, appendix, gradient projection].
    """

    name: ClassVar[str] = "decomfl-projection"
    gradients: ClassVar[bool] = True


def groups_of(method: DeComFL, groups: Iterable[TensorGroup]) -> list[Group]:
    """How an optimizer's groups of parameters move: all by the method's rule, each with its own weight decay."""
    rules = [(group, method.but({"weight_decay": group.weight_decay}).rule) for group in groups]
    return [Group(group.tensors, rule, group.factor) for group, rule in rules]
