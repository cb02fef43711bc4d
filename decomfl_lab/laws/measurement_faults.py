"""Wrong implementations that follow every record, and measure something else than they should."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from torch import Tensor

from decomfl_lab.engines.base import Line, SampleLoss
from decomfl_lab.estimators.differences import ESTIMATORS
from decomfl_lab.laws.contract import AnyClient, Case, Implementation, Wavy
from decomfl_lab.laws.faults import Planted, fault
from decomfl_lab.noise import derive_seed
from decomfl_lab.objectives.objective import Objective, Perturbable
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Plan, Reply
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import Picks, StepSeed, draw_seeds, stream_of
from decomfl_lab.replicas.replica import Replica
from decomfl_lab.replicas.rules import Sgd, Step

__all__: list[str] = []

_MEASURED = "replies-are-measurements"
_RECORDS = "records-are-of-their-rounds-replies"


# Along what ------------------------------------------------------------------------------------------------------


@fault(_MEASURED, Client, "_line")
def seed_of_the_first_step(self: Client, seed: StepSeed, plan: Plan) -> Line:
    """Measures every local step along the directions of the first."""
    del seed
    return Client._line(self, plan.seeds[0], plan)


@fault(_MEASURED, Client, "_line")
def seed_of_the_step_before(self: Client, seed: StepSeed, plan: Plan) -> Line:
    """Measures along the directions of its last local step, which may be of an earlier round."""
    last = vars(self).get("last", seed)
    vars(self)["last"] = seed
    return Client._line(self, last if type(last) is type(seed) else seed, plan)


@fault(_MEASURED, Client, "_line")
def seed_without_the_run(self: Client, seed: StepSeed, plan: Plan) -> Line:
    """Makes the seeds itself, of the round and the step, as any other run would."""
    own = derive_seed(plan.round, list(plan.seeds).index(seed))
    return Client._line(self, own if isinstance(seed, int) else seed, plan)


@fault(_MEASURED, Client, "_line")
def one_direction_for_all(self: Client, seed: StepSeed, plan: Plan) -> Line:
    """Measures the first direction of a local step P times."""
    if isinstance(seed, Picks):
        return Client._line(self, replace(seed, places=seed.places[:1] * plan.P), plan)
    return Client._line(self, (stream_of(seed, 0)[0],) * plan.P, plan)  # direction 0 of the same seed, for every p


@fault(_MEASURED, Client, "_line")
def directions_not_scaled(self: Client, seed: StepSeed, plan: Plan) -> Line:
    """Measures along z, by differences, where the rule has s ⊙ z."""
    line = Client._line(self, seed, plan)
    if self.replica.rule.scaling and not self.estimator.wants_slopes:
        plain = self.replica.clone()
        plain.rule = Sgd()
        line = replace(line, replica=plain)
    return line


@fault("private-keys-hide-the-directions", Planted, "keyed_client")
def measured_without_the_key(self: Planted, case: Case, i: int, key: int) -> AnyClient:
    """Follows the records with the private key, and measures without it."""
    client: Any = Implementation.keyed_client(self, case, i, key)
    client._line = lambda seed, plan: replace(Client._line(client, seed, plan), seed=seed)
    return cast("AnyClient", client)


# Where -----------------------------------------------------------------------------------------------------------


def _elsewhere(self: Client, seed: StepSeed, plan: Plan, replica: Replica) -> Line:
    return replace(Client._line(self, seed, plan), replica=replica)


@fault(_MEASURED, Client, "_line")
def measured_at_x_0(self: Client, seed: StepSeed, plan: Plan) -> Line:
    """Measures where it was when it first took part, for ever."""
    first = vars(self).setdefault("first", self.replica.clone())
    return _elsewhere(self, seed, plan, first)


@fault(_MEASURED, Client, "_line")
def measured_at_the_rounds_start(self: Client, seed: StepSeed, plan: Plan) -> Line:
    """Measures every local step at the x that the round began with."""
    if not self._taken:
        vars(self)["start"] = self.replica.clone()
    return _elsewhere(self, seed, plan, vars(self)["start"])


@fault(_MEASURED, Client, "_line")
def measured_after_the_step(self: Client, seed: StepSeed, plan: Plan) -> Line:
    """Measures once, steps, and measures again what it sends."""
    line = Client._line(self, seed, plan)
    if not self.estimator.wants_slopes:
        points = self.estimator.points(plan.P, self.mu)
        found = self.estimator.combine(self.engine.losses(line, points, [self._sample])[0], np.empty(0), self.mu)
        ahead = self.replica.clone()
        ahead.step_(Step(seed, found.g, plan.eta, plan.distribution, last=False))
        line = replace(line, replica=ahead)
    return line


@fault(_MEASURED, Client, "_line")
def measured_at_the_reverts_remains(self: Client, seed: StepSeed, plan: Plan) -> Line:
    """Holds the right model, and measures at a copy that keeps the local steps of its last round."""
    copy = self.replica.clone()
    for step in vars(self).get("kept", []):
        copy.step_(step)
    if len(self._taken) + 1 == plan.K:  # in the last local step all that are taken are there
        vars(self)["kept"] = list(self._taken)
    return _elsewhere(self, seed, plan, copy)


# On which data ---------------------------------------------------------------------------------------------------


@fault(_MEASURED, Client, "_sample")
def one_batch_for_ever(self: Client) -> SampleLoss:
    """Never counts its local steps on."""
    return self.objective, 0


@fault(_MEASURED, Client, "_sample")
def batches_begin_anew_every_round(self: Client) -> SampleLoss:
    """Counts its local steps from 0 in every round."""
    return self.objective, len(self._taken)


@fault(_MEASURED, Client, "_sample")
def a_batch_ahead(self: Client) -> SampleLoss:
    """Counts a local step before it is measured."""
    return self.objective, self.steps_taken + 1


@fault(_MEASURED, Client, "_sample")
def a_batch_lost_with_each_round(self: Client) -> SampleLoss:
    """Counts one local step of every round from the second on twice."""
    rounds = vars(self).setdefault("rounds", set())
    rounds.add(self.replica.round)
    return self.objective, self.steps_taken + len(rounds) - 1


class _NextBatch:
    """A loss of which every second value is on the data of the next local step."""

    def __init__(self, loss: Any) -> None:
        self.loss, self.calls, self.value_and_gradient = loss, 0, loss.value_and_gradient

    def __call__(self, x: Tensor, step: int) -> float:
        self.calls += 1
        return float(self.loss(x, step + self.calls % 2))


@fault(_MEASURED, Client, "_sample")
def two_batches_in_one_difference(self: Client) -> SampleLoss:
    """Draws new data for each of a difference's two values."""
    return cast("Any", _NextBatch(self.objective)), self.steps_taken


@fault(_MEASURED, Client, "_sample")
def the_loss_of_client_0(self: Client) -> SampleLoss:
    """Measures on the data of client 0, whoever it is."""
    return Wavy(self.replica.d, 0), self.steps_taken


# What is made of it ----------------------------------------------------------------------------------------------


def _sent(self: Client, plan: Plan, change: Any) -> Reply:
    """The reply with its scalars changed, which its local steps were taken by as they are."""
    reply = Client.handle(self, plan)
    return replace(reply, scalars=change(reply.scalars).astype(reply.scalars.dtype))


@fault(_MEASURED, Client, "handle")
def sign_turned(self: Client, plan: Plan) -> Reply:
    """Sends −g."""
    return _sent(self, plan, lambda g: -g)


@fault(_MEASURED, Client, "handle")
def sign_turned_from_the_second_step_on(self: Client, plan: Plan) -> Reply:
    """Sends −g of every local step but the first."""
    return _sent(self, plan, lambda g: np.concatenate([g[:1], -g[1:]]))


@fault(_MEASURED, Client, "handle")
def nothing_from_the_second_step_on(self: Client, plan: Plan) -> Reply:
    """Sends zeros, or signs that are all 1, for every local step but the first."""
    return _sent(self, plan, lambda g: np.concatenate([g[:1], np.full_like(g[1:], g.dtype == np.int8)]))


@fault(_MEASURED, Client, "handle")
def divided_by_P_twice(self: Client, plan: Plan) -> Reply:
    """Divides by P what the update divides by P."""
    return _sent(self, plan, lambda g: g if g.dtype == np.int8 else g / plan.P)


@fault(_MEASURED, Client, "handle")
def directions_in_reverse(self: Client, plan: Plan) -> Reply:
    """Sends a local step's scalars in another order than that of their directions."""
    return _sent(self, plan, lambda g: g[:, ::-1])


@fault(_MEASURED, Client, "handle")
def scalars_of_an_earlier_round(self: Client, plan: Plan) -> Reply:
    """Sends once more what it sent when it last took part, if that fits."""
    reply = Client.handle(self, plan)
    earlier = vars(self).get("sent", reply.scalars)
    vars(self)["sent"] = reply.scalars
    return replace(reply, scalars=earlier) if earlier.shape == reply.scalars.shape else reply


def _estimating(self: Planted, case: Case, i: int, objective: Objective | None, **wrong: Any) -> AnyClient:
    """A client whose estimator is another, where it is a difference."""
    client: Any = Implementation.client(self, case, i, objective)
    if case.estimator in ("forward", "central"):
        right = ESTIMATORS[case.estimator]
        client.estimator = SimpleNamespace(**{"points": right.points, "combine": right.combine, **wrong})
        client.estimator.wants_slopes = False
    return cast("AnyClient", client)


@fault(_MEASURED, Planted, "client")
def divided_by_half(self: Planted, case: Case, i: int, objective: Objective | None = None) -> AnyClient:
    """Divides the central difference by μ instead of 2μ, and the forward difference by μ/2."""
    right = ESTIMATORS[case.estimator].combine
    return _estimating(self, case, i, objective, combine=lambda values, slopes, mu: right(values, slopes, mu / 2))


@fault(_MEASURED, Planted, "client")
def points_twice_as_far(self: Planted, case: Case, i: int, objective: Objective | None = None) -> AnyClient:
    """Measures at x + 2μz, and divides by 2μ too: the slope of a straight loss is right."""
    client: Any = Implementation.client(self, case, i, objective)
    client.mu *= 2
    return cast("AnyClient", client)


@fault(_MEASURED, Planted, "client")
def forward_for_central(self: Planted, case: Case, i: int, objective: Objective | None = None) -> AnyClient:
    """Takes forward differences where central ones are asked for."""
    forward = replace(case, estimator="forward") if case.estimator == "central" else case
    return Implementation.client(self, forward, i, objective)


@fault("lean-replies-are-measurements", Planted, "lean_client")
def lean_at_the_directions_of_the_first_step(self: Planted, case: Case, i: int, objective: Perturbable) -> AnyClient:
    """Lean clients that measure every local step along the directions of the first."""
    client: Any = Implementation.lean_client(self, case, i, objective)
    client._line = lambda _, plan: Client._line(client, plan.seeds[0], plan)
    return cast("AnyClient", client)


class _Stuck:
    """A loss on the data of local step 0, whatever the step."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def __call__(self, x: Tensor, step: int) -> float:  # noqa: ARG002
        return float(self.loss(x, 0))

    def value_and_gradient(self, x: Tensor, step: int) -> Any:  # noqa: ARG002
        return self.loss.value_and_gradient(x, 0)


@fault("synchronised-clients-drift-within-their-roundings", Planted, "sync_client")
def synchronised_on_one_batch(self: Planted, case: Case, i: int) -> AnyClient:
    """Clients without revert that measure on the same data for ever."""
    client: Any = Implementation.sync_client(self, case, i)
    client.objective = _Stuck(client.objective)
    return cast("AnyClient", client)


# Records ---------------------------------------------------------------------------------------------------------


@fault(_RECORDS, Server, "aggregate")
def divided_by_all_that_were_sampled(self: Server, replies: Iterable[Reply]) -> RoundRecord:
    """Divides by the number of clients that were asked, not of those that answered."""
    arrived = list(replies)
    if arrived and arrived[0].scalars.dtype != np.int8:
        share = np.float32(len({reply.client for reply in arrived}) / max(len(self.planned), 1))
        arrived = [replace(reply, scalars=reply.scalars * share) for reply in arrived]
    return Server.aggregate(self, arrived)


@fault(_RECORDS, Server, "aggregate")
def first_reply_for_all(self: Server, replies: Iterable[Reply]) -> RoundRecord:
    """Takes the scalars of the client with the smallest number for the mean."""
    arrived = sorted(replies, key=lambda reply: reply.client)
    return Server.aggregate(self, [replace(reply, scalars=arrived[0].scalars) for reply in arrived])


@fault(_RECORDS, Server, "plan_round")
def seeds_of_the_first_round(self: Server, *asked: Any) -> dict[int, Plan]:
    """Plans every round with the seeds of round 0."""
    plans = Server.plan_round(self, *asked)
    seeds = draw_seeds(self.seeding, self.run_seed, 0, self.K, self.P(self.round), self.pool)
    self._planned = {i: replace(plan, seeds=seeds) for i, plan in plans.items()}
    return dict(self._planned)


@fault(_RECORDS, Server, "plan_round")
def one_clients_seeds_are_anothers(self: Server, participants: Sequence[int] | None = None, *asked: Any) -> Any:
    """Sends the client with the largest number seeds of a run of its own."""
    plans = Server.plan_round(self, participants, *asked)
    i = max(plans)
    if len(plans) > 1 and not self.seeding.needs_run_seed:
        seeds = draw_seeds(self.seeding, self.run_seed ^ 1, self.round, self.K, self.P(self.round), self.pool)
        plans[i] = replace(plans[i], seeds=seeds)
    return plans
