"""What the methods have in common whose clients send scalars and whose model follows records."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from decomfl_lab.errors import require, require_choice, require_int
from decomfl_lab.estimators.differences import ESTIMATORS, Estimator, central_curved
from decomfl_lab.estimators.second_differences import require_moment_distribution
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.methods.expected_traffic import Cohort, ExpectedTraffic, examples_bytes
from decomfl_lab.methods.method import Method
from decomfl_lab.methods.shared_options import (
    AGGREGATION,
    DEFAULT_RULE,
    HELP,
    REPLICA_RULE,
    require_rule,
    weighting_option,
)
from decomfl_lab.noise import Distribution, require_distribution
from decomfl_lab.options import option
from decomfl_lab.plugins import is_named
from decomfl_lab.protocol.aggregation import Aggregation, Mean, OwnRule, Weighting, Weights
from decomfl_lab.protocol.attacks import ATTACKS, VOTES, Attack
from decomfl_lab.protocol.messages import Kind
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.protocol.wire import PLAN_BYTES, scalar_bytes
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import POOL, Seeding
from decomfl_lab.replicas.rules import UpdateRule

if TYPE_CHECKING:
    from torch import Tensor

    from decomfl_lab.protocol.client import Client
    from decomfl_lab.replicas.replica import Replica

NOBODY = "none"
"""The attack where nobody lies."""


@dataclass(frozen=True, kw_only=True)
class Perturbing(Method):
    """Options of methods that measure along random directions: slopes, unless they are ``Differences``."""

    # no fields, and so no options, but where ``Differences`` make them some; μ is of no use to slopes
    estimator, mu, lean = "projection", 1.0, False

    perturbations: int = option(20, "The number P of directions a local step.", symbol="P", ge=1)
    distribution: str = option("gaussian", f"The distribution of the directions z: {', '.join(Distribution)}.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_distribution(self.distribution)

    def measured_by(self) -> Estimator:
        """The estimator, which makes the scalars that a client sends, and steps by, of its losses or slopes."""
        return ESTIMATORS[self.estimator]


@dataclass(frozen=True, kw_only=True)
class Differences(Perturbing):
    """Options of methods whose scalars are finite differences."""

    mu: float = option(1e-4, HELP["mu"], symbol="μ", gt=0)
    estimator: str = option("central", HELP["estimator"], choices=("forward", "central"))


@dataclass(frozen=True, kw_only=True)
class Scalars(Perturbing):
    """Options of methods whose clients send scalars, with server and clients of them."""

    # what the scalars are: float32 numbers, or int8 signs
    dtype: ClassVar[type[np.float32] | type[np.int8]] = np.float32

    @property
    @abstractmethod
    def rule(self) -> UpdateRule:
        """How a model follows records."""

    @property
    @abstractmethod
    def seeds(self) -> str:
        """How many seeds a plan or a record carries, of ``Seeding``."""

    perturbation_schedule: Mapping[int, int] = option({}, HELP["perturbation_schedule"], of=int, ge=1)
    aggregation: Aggregation = option(Mean(), codec=AGGREGATION)
    weighting: str = weighting_option()
    attack: str = option(
        NOBODY,
        HELP["attack"].format(nobody=NOBODY, attacks=", ".join(ATTACKS)),
        rare=True,
        choices=(NOBODY, *ATTACKS),
        own="(own, honest, z)",
    )
    attackers: int = option(0, HELP["attackers"], rare=True)
    attack_scale: float = option(0.0, HELP["attack_scale"], rare=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.aggregation
        if type(given).__module__ != Aggregation.__module__:
            is_function = callable(given) and not isinstance(given, type)
            rule = "be a rule, as lab.Mean() or lab.Median(), or a function of (replies)"
            require(is_function or is_named(given), "aggregation", rule, given)
            object.__setattr__(self, "aggregation", OwnRule(given))
        rule = f"be one of {np.dtype(self.dtype)} scalars for {self.name}"
        require(self.aggregation.dtype is self.dtype, "aggregation", rule, self.aggregation)
        weighable = self.weighting == Weighting.CLIENTS or isinstance(self.aggregation, Mean)
        rule = f"be {Weighting.CLIENTS} with aggregation {self.aggregation}, which has no weights; only the mean has"
        require(weighable, "weighting", rule, str(self.weighting))
        if self.attack == NOBODY:
            for name, default in (("attackers", 0), ("attack_scale", 0.0)):
                rule = f"be left out with attack {NOBODY}"
                require(getattr(self, name) == default, name, rule, getattr(self, name))
        else:
            Attack(self.attack, self.attackers, 0, self.attack_scale)  # its options are in range
            if self.dtype is np.int8 and self.attack in ATTACKS:
                require_choice(f"attack on the signs of {self.name}", self.attack, (NOBODY, *VOTES))

    def attack_of(self, setting: TrainingSetting) -> Attack | None:
        """The attack in a run; None where nobody lies; InputError where it needs more clients than take part."""
        if self.attack == NOBODY:
            return None
        made = Attack(self.attack, self.attackers, setting.seed, self.attack_scale)
        rule = f"be at least {made.least} with attack {self.attack} by {self.attackers} of them"
        require(setting.sampled >= made.least, "sampled clients m", rule, setting.sampled)
        return made

    @property
    def K(self) -> int:
        """Local steps."""
        return 1

    def averaged(self) -> Self:
        """See ``Method.averaged``; nobody lies then."""
        honest = replace(self, attack=NOBODY, attackers=0, attack_scale=0.0)
        return replace(honest, aggregation=Mean()) if "aggregation" in self.options() else honest

    def bare(self) -> Self:
        """The same method without what changes only how clients get to x, or what the server keeps for them."""
        return self

    @property
    def P(self) -> Schedule[int]:
        """P over the rounds."""
        return Schedule(self.perturbations, self.perturbation_schedule)

    def start(self, x: Tensor) -> Tensor:
        """x_0 as replicas keep it: on the grid, or in 16 bits."""
        return self.rule.begin(x)

    def server(
        self,
        setting: TrainingSetting,
        replica: Replica | None,
        *,
        tracking: Tracking = Tracking.SERVER,
        keep: int = 0,
    ) -> Server:
        """The server at round 0."""
        return Server(
            M=setting.M,
            m=setting.sampled,
            K=self.K,
            P=self.P,
            eta=self.eta,
            seed=setting.seed,
            distribution=Distribution(self.distribution),
            replica=replica,
            seeding=Seeding(self.seeds),
            tracking=tracking,
            keep=keep,
            pool=self.rule.pool or POOL,
            aggregation=self.aggregation,
            weights=Weights(Weighting(self.weighting)),
            present=setting.present,
        )

    def clients(self, setting: TrainingSetting, start: Replica) -> list[Client]:
        """The clients at round 0, who share x_0."""
        from decomfl_lab.protocol.client import Client

        estimator = self.measured_by()
        return [
            Client(i, start.clone(), objective, estimator, self.mu, lean=self.lean, engine=setting.engine)
            for i, objective in enumerate(setting.objectives)
        ]

    def measured_traffic(self, cohort: Cohort, *, reports: bool = False) -> ExpectedTraffic:
        """R·q times a plan down and scalars up (and what the client holds, if it says so).

        Perhaps once the run's seed down, and once the number of examples up.
        """
        seeding, q, K = Seeding(self.seeds), cohort.q, self.K
        rounds = Counter(map(self.P, range(cohort.R)))  # by their P
        up = q * sum(n * (Kind.REPLY.bytes() + scalar_bytes(K * P, self.dtype)) for P, n in rounds.items())
        up += q * cohort.R * Kind.HELD.bytes() * reports + examples_bytes(cohort, self.weighting)
        down = q * sum(n * (PLAN_BYTES + seeding.bytes(K, P)) for P, n in rounds.items())
        if seeding.needs_run_seed:
            down += cohort.ever * Kind.SEED.bytes()
        return ExpectedTraffic(up, q * sum(n * K * P for P, n in rounds.items()), down, 0.0)


@dataclass(frozen=True, kw_only=True)
class Updating(Scalars):
    """Options of those of them whose model takes the steps of a rule, along directions of any seeds."""

    rule: UpdateRule = option(DEFAULT_RULE, codec=REPLICA_RULE)
    seeds: str = option(
        "per-step", HELP["seeds"].format(seedings=", ".join(Seeding), pool=POOL), choices=tuple(Seeding)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rule(self.rule)


@dataclass(frozen=True, kw_only=True)
class LoggingDifferences(Differences, Scalars):
    """Options of those of them whose scalars are differences."""

    tunable: ClassVar[bool] = True

    lr: float = option(0.001, HELP["lr"], "optimizer", symbol="η", gt=0)
    perturbations: int = option(20, HELP["perturbations"], symbol="P", ge=1)
    lean: bool = option(False, HELP["lean"], "engine")
    log_kappa: bool = option(False, HELP["log_kappa"], "output")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log_kappa:  # where second differences say something of κ
            rule = "be clients with log_kappa, which measures the mean of the clients' losses"
            require(self.weighting == Weighting.CLIENTS, "weighting", rule, self.weighting)
            require_choice("estimator for log_kappa", self.estimator, ("central",))
            require_moment_distribution("distribution for log_kappa", Distribution(self.distribution))
            for number in (self.perturbations, *self.perturbation_schedule.values()):
                require_int("perturbations P for log_kappa", number, 3)

    def require_compute(self, compute: str) -> None:
        super().require_compute(compute)
        if compute == "bfloat16":
            for name, on in (("lean", self.lean), ("log_kappa", self.log_kappa)):
                require(not on, name, "be off where losses are computed in bfloat16", on)

    def rehearsal(self, lr: float, P: int) -> Self:
        """See ``Method.rehearsal``: central differences, the mean of the clients' scalars, and κ logged.

        Where a simulation needs no more than that, M clients have one model.
        """
        rule = f"be a number for {self.name}, whose scalars show no curvature"
        require("log_kappa" in self.options(), "lr", rule, "auto")
        for name in ("lr_schedule", "perturbation_schedule"):
            require(not getattr(self, name), name, "be empty with lr auto", getattr(self, name))
        require_int("perturbations P with lr auto", P, 3)
        require_moment_distribution("distribution with lr auto", Distribution(self.distribution))
        rule = "be clients with lr auto, which measures the curvature of the mean of the clients' losses"
        require(self.weighting == Weighting.CLIENTS, "weighting", rule, self.weighting)
        return replace(self.averaged().bare(), lr=lr, perturbations=P, log_kappa=True, estimator="central")

    def measured_by(self) -> Estimator:
        """The estimator, with second differences where κ is logged."""
        return central_curved if self.log_kappa else super().measured_by()
