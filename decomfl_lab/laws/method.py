"""The parts that a method makes, for the laws: its server, clients and replicas, and what it says that clients send."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from decomfl_lab.engines.base import Serial
from decomfl_lab.errors import InputError, require
from decomfl_lab.estimators.differences import Estimator
from decomfl_lab.federations.setting import TrainingSetting
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.laws.contract import Case, Implementation, RefusedError, Wavy
from decomfl_lab.laws.register import LAWS
from decomfl_lab.laws.strategies import RULES
from decomfl_lab.methods.decomfl import Lagging
from decomfl_lab.methods.method import Method
from decomfl_lab.methods.registry import name_of
from decomfl_lab.objectives.objective import Objective, Perturbable
from decomfl_lab.protocol.aggregation import Aggregation, OwnRule
from decomfl_lab.records.record import ScalarArray
from decomfl_lab.replicas.pool_sums import PooledSgd

_CHOICES = ("rule", "estimator", "distribution", "seeds", "tracking", "pool", "pool_exponent")
"""Options that stay as they are where they are not the class's defaults; else the cases draw them too."""

_PARTS = {
    "aggregate": "aggregation",
    "keyed_client": "private_seeds",
    "lean_client": "lean",
    "sync_client": "revert",
    "weighing_server": "weighting",
}
"""Parts that not every method has, and the options that say so."""


def _estimator_of(method: Lagging) -> str:
    """The name of a case's estimator whose losses, or slopes, the method makes its scalars of."""
    if method.measured_by().wants_slopes:
        return "projection"
    forward = getattr(method, "estimator", "central") == "forward"
    return f"{'forward' if forward else 'central'}{'-sign' if method.dtype is np.int8 else ''}"


class _OfMethod(Implementation):
    """The server, clients and replicas that a method makes.

    Cases are of the method with their η, P, K, μ and number of records kept. Of rule, estimator, distribution, seeds
    and tracking they have any that the method has as options, but for those that are not its class's defaults: these
    stay as they are. Nobody lies, the server takes the mean of the clients, and clients replay and revert, except where
    a law is about something else.
    """

    def __init__(self, method: Lagging) -> None:
        self.method = method.averaged().replaying()
        self.name = name_of(method).rpartition(":")[2]
        self.simplest = {"rule": self.method.rule, "estimator": _estimator_of(self.method)}
        default = type(method)()
        self.names = {field.name for field in fields(method)}
        self.kept = {name for name in _CHOICES if getattr(method, name, None) != getattr(default, name, None)}
        self.rule = method.aggregation if isinstance(method.aggregation, OwnRule) else None
        if self.rule is None:  # the lab's rules have their laws without it
            self.names.discard("aggregation")
        if not any(method.rule in kind for kind in RULES):  # a rule of its own, which no case would have
            self.kept.add("rule")

    @property
    def replaced(self) -> frozenset[str]:
        """See ``Implementation.replaced``: the parts that it has the options for."""
        return super().replaced - {part for part, option in _PARTS.items() if option not in self.names}

    @property
    def skips(self) -> Mapping[str, str]:  # type: ignore[override]
        """A law without a case asks for what the method does not have."""
        return dict.fromkeys(LAWS, f"{self.name} has no such option, or keeps what it was given")

    def _with(self, case: Case, **more: Any) -> Lagging:
        """The method with a case's options, and more; RefusedError where it has no such, or refuses them."""
        options: dict[str, Any] = {
            "lr": case.eta.initial,
            "lr_schedule": case.eta.changes,
            "perturbations": case.P.initial,
            "perturbation_schedule": case.P.changes,
            "local_steps": case.K,
            "mu": case.mu,
            "estimator": case.estimator.removesuffix("-sign"),
            "distribution": case.distribution.value,
            "rule": case.rule,
            "seeds": case.seeding.value,
            "tracking": case.tracking.value,
            "history": case.keep,
            "weighting": "clients",
            "revert": "snapshot",
            "private_seeds": False,
            "server_model": False,
            "pull": "never",
        }
        if isinstance(case.rule, PooledSgd):
            options |= {"pool": case.rule.size, "pool_exponent": case.rule.exponent}
        values = {name: value for name, value in options.items() if name in self.names - self.kept}
        try:
            made = replace(self.method, **values | more)
        except InputError as error:
            raise RefusedError(f"{self.name} refuses the case: {error}") from error
        ours = made.K, made.P, made.eta, made.rule, _estimator_of(made), made.distribution, made.seeds, made.tracking
        of_case = case.K, case.P, case.eta, case.rule, case.estimator, case.distribution, case.seeding, case.tracking
        if ours != of_case:
            raise RefusedError(f"{self.name} is another method than the case asks for: {ours} is not {of_case}")
        return made

    def _federation(self, case: Case, i: int = 0, objective: Objective | None = None, **more: Any) -> Any:
        """The method's federation at round 0, where client i has this loss."""
        losses: list[Any] = [Wavy(case.d, n) for n in range(case.M)]
        losses[i] = losses[i] if objective is None else objective
        setting = TrainingSetting(case.initial(), losses, sampled=1, seed=case.seed, engine=Serial())
        return self._with(case, **more).federation(setting)

    def supports(self, case: Case) -> bool:
        """See ``Implementation.supports``: whether the method has these options."""
        try:
            self._with(case)
        except RefusedError:
            return False
        return True

    def measured_by(self, case: Case) -> Estimator:
        """See ``Implementation.measured_by``: what the method says, whatever its clients have."""
        return self._with(case).measured_by()

    def aggregate(self, rule: Aggregation, replies: Sequence[ScalarArray]) -> ScalarArray:
        """See ``Implementation.aggregate``: by the user's own rule, of numbers whose sums are below the largest."""
        if rule is not self.rule:
            raise NotImplementedError(f"{self.rule} is none of the lab's rules")
        if replies[0].dtype != rule.dtype or len(replies) < rule.least or np.abs(replies).max() > 2.0**100:
            raise RefusedError(f"{rule} takes {rule.least} replies and more, of float32 numbers up to 2^100")
        return super().aggregate(rule, replies)

    def replica(self, case: Case, *, per_tensor: bool = False) -> Any:
        """See ``Implementation.replica``: the federation's own, outside the protocol."""
        observer = self._federation(case).observer
        observer.sizes = case.sizes if per_tensor else observer.sizes
        return observer

    def client(self, case: Case, i: int, objective: Objective | None = None, **more: Any) -> Any:
        """See ``Implementation.client``; ``more`` are options of the method."""
        return self._federation(case, i, objective, **more).clients[i]

    def keyed_client(self, case: Case, i: int, key: int) -> Any:
        client = self.client(case, i, private_seeds=True)
        client.replica.private_key = key
        return client

    def lean_client(self, case: Case, i: int, objective: Perturbable) -> Any:
        return self.client(case, i, objective, lean=True)

    def sync_client(self, case: Case, i: int) -> Any:
        return self.client(case, i, revert="sync")

    def server(self, case: Case, *, with_model: bool = True, **more: Any) -> Any:
        """See ``Implementation.server``; ``more`` are options of the method."""
        federation = self._federation(case, **more)
        server = federation.server
        if with_model:
            server.replica = federation.observer
        elif not case.rule.pool:  # whose sums the server has in any case
            server.replica = None
        server.keep = case.keep
        return server

    def weighing_server(self, case: Case) -> Any:
        return self.server(case, weighting="examples")


def of_method(method: Method | type[Method]) -> Implementation:
    """What a method makes, to be put to the laws: ``laws.verify(laws.of_method(MyMethod(c=1.0)))``.

    Every scalar that is sent is compared with what the method's ``measured_by`` makes of the losses, and local steps
    have to be taken by the scalars that are sent.

    Args:
        method: The method, or its class for the method with defaults.

    Raises:
        InputError: If it is no method whose clients send scalars and keep their model between rounds.
    """
    made_method: Any = method() if isinstance(method, type) else method
    require(isinstance(made_method, Method), "method", "be a decomfl_lab.methods.method.Method", made_method)
    rule = "send scalars, and have clients that keep their model between rounds and replay what they missed"
    name = name_of(made_method).rpartition(":")[2]
    require(isinstance(made_method, Lagging), "method", rule, name)
    implementation = _OfMethod(made_method)
    made = implementation.method.federation(TrainingSetting(torch.zeros(3), [Wavy(3, 0)], 1, 0, Serial()))
    require(isinstance(made, DeComFLFederation) and not made.delivery.models, "method", rule, name)
    return implementation
