"""Wrong implementations that follow every record, and measure something else than they should."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from decomfl_lab.engines.base import Line, SampleLoss
from decomfl_lab.estimators.differences import ESTIMATORS
from decomfl_lab.laws.contract import Case, Wavy
from decomfl_lab.laws.faults.federation import Planted, planned, plant, sent, taken, then
from decomfl_lab.noise import derive_seed
from decomfl_lab.objectives.objective import Objective
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.messages import Plan, Reply
from decomfl_lab.protocol.server import Server
from decomfl_lab.records.seeds import Picks, StepSeed, draw_seeds, stream_of
from decomfl_lab.replicas.rules import Sgd, Step

# Along what, and where --------------------------------------------------------------------------------------------


def before(right: Any, client: Client, seed: StepSeed, plan: Plan) -> Any:
    """Measures along the directions of its last local step, which may be of an earlier round."""
    last = vars(client).get("last", seed)
    vars(client)["last"] = seed
    return right(last if type(last) is type(seed) else seed, plan)


def not_scaled(right: Any, client: Client, seed: StepSeed, plan: Plan) -> Line:
    """Measures along z, by differences, where the rule has s ⊙ z."""
    line: Line = right(seed, plan)
    if client.replica.rule.scaling and not client.estimator.wants_slopes:
        plain = client.replica.clone()
        plain.rule = Sgd()
        line = replace(line, replica=plain)
    return line


def after_the_step(right: Any, client: Client, seed: StepSeed, plan: Plan) -> Line:
    """Measures once, steps, and measures again what it sends."""
    line: Line = right(seed, plan)
    if not client.estimator.wants_slopes:
        points = client.estimator.points(plan.P, client.mu)
        losses = client.engine.losses(line, points, [client._sample])[0]
        estimate = client.estimator.combine(losses, np.empty(0), client.mu)
        ahead = client.replica.clone()
        ahead.step_(Step(seed, estimate.g, plan.eta, plan.distribution, last=False))
        line = replace(line, replica=ahead)
    return line


def at_remains(right: Any, client: Client, seed: StepSeed, plan: Plan) -> Any:
    """Holds the right model, and measures at a copy that keeps the local steps of its last round."""
    copy = client.replica.clone()
    for step in vars(client).get("kept", []):
        copy.step_(step)
    if len(client._taken) + 1 == plan.K:  # in the last local step all that are taken are there
        vars(client)["kept"] = list(client._taken)
    return replace(right(seed, plan), replica=copy)


# On which data ---------------------------------------------------------------------------------------------------


def one_lost(_: Any, client: Client) -> SampleLoss:
    """Counts one local step of every round from the second on twice."""
    rounds = vars(client).setdefault("rounds", set())
    rounds.add(client.replica.round)
    return client.objective, client.steps_taken + len(rounds) - 1


class _NextBatch:
    """A loss of which every second value is on the data of the next local step."""

    def __init__(self, loss: Any) -> None:
        self.loss, self.calls, self.value_and_gradient = loss, 0, loss.value_and_gradient

    def __call__(self, x: Tensor, step: int) -> float:
        self.calls += 1
        return float(self.loss(x, step + self.calls % 2))


class _OnOneBatch(Client):
    """A client that measures on the data of local step 0, whatever the step."""

    _sample = property(lambda self: (self.objective, 0))


# What is made of it, and of which round ---------------------------------------------------------------------------


def earlier(right: Any, client: Client, plan: Plan) -> Reply:
    """Sends once more what it sent when it last took part, if that fits."""
    reply: Reply = right(plan)
    earlier = vars(client).get("sent", reply.scalars)
    vars(client)["sent"] = reply.scalars
    return replace(reply, scalars=earlier) if earlier.shape == reply.scalars.shape else reply


def by_half(right: Any, _: Planted, case: Case, i: int, objective: Objective | None = None) -> Any:
    """Divides the central difference by μ instead of 2μ, and the forward difference by μ/2."""
    client = right(case, i, objective)
    if case.estimator in ("forward", "central"):
        estimator = ESTIMATORS[case.estimator]
        wrong = SimpleNamespace(points=estimator.points, wants_slopes=False)
        wrong.combine = lambda f, slopes, mu: estimator.combine(f, slopes, mu / 2)
        client.estimator = wrong
    return client


def of_another_run(right: Any, server: Server, *asked: Any) -> Any:
    """Sends the client with the largest number seeds of a run of its own."""
    plans = right(*asked)
    i, r = max(plans), server.round
    if len(plans) > 1 and not server.seeding.needs_run_seed:
        seeds = draw_seeds(server.seeding, server.run_seed ^ 1, r, server.K, server.P(r), server.pool)
        plans[i] = replace(plans[i], seeds=seeds)
    return plans


# All of them -----------------------------------------------------------------------------------------------------


_MEASURED = "replies-are-measurements"
_RECORDS = "records-are-of-their-rounds-replies"

plant({
    # Measures every local step along the directions of the first.
    "seed-of-the-first-step": (_MEASURED, Client, "_line", lambda right, _, __, plan: right(plan.seeds[0], plan)),
    "seed-of-the-step-before": (_MEASURED, Client, "_line", before),
    # Makes the seeds itself, of the round and the step, as any other run would.
    "seed-without-the-run": (_MEASURED, Client, "_line", lambda right, _, seed, plan: right(
        derive_seed(plan.round, list(plan.seeds).index(seed)) if isinstance(seed, int) else seed, plan
    )),
    # Measures the first direction of a local step P times: of the same seed, for every p.
    "one-direction-for-all": (_MEASURED, Client, "_line", lambda right, _, seed, plan: right(
        replace(seed, places=seed.places[:1] * plan.P) if isinstance(seed, Picks)
        else (stream_of(seed, 0)[0],) * plan.P, plan
    )),
    "directions-not-scaled": (_MEASURED, Client, "_line", not_scaled),
    # Follows the records with the private key, and measures without it.
    "measured-without-the-key": ("private-keys-hide-the-directions", Planted, "keyed_client", then(
        lambda _, client: vars(client).update(
            _line=lambda seed, plan: replace(Client._line(client, seed, plan), seed=seed)
        )
    )),
    # Measures where it was when it first took part, for ever.
    "measured-at-x-0": (_MEASURED, Client, "_line", lambda right, client, *at: replace(
        right(*at), replica=client.__dict__.setdefault("first", client.replica.clone())
    )),
    # Measures every local step at the x that the round began with.
    "measured-at-the-rounds-start": (_MEASURED, Client, "_line", lambda right, client, seed, plan: replace(
        right(seed, plan), replica=client.__dict__.setdefault(f"start {plan.round}", client.replica.clone())
    )),
    "measured-after-the-step": (_MEASURED, Client, "_line", after_the_step),
    "measured-at-the-reverts-remains": (_MEASURED, Client, "_line", at_remains),
    # Never counts its local steps on.
    "one-batch-for-ever": (_MEASURED, Client, "_sample", lambda _, client: (client.objective, 0)),
    # Counts its local steps from 0 in every round.
    "batches-begin-anew-every-round": (_MEASURED, Client, "_sample", lambda _, client: (
        client.objective, len(client._taken)
    )),
    # Counts a local step before it is measured.
    "a-batch-ahead": (_MEASURED, Client, "_sample", lambda _, client: (client.objective, client.steps_taken + 1)),
    "a-batch-lost-with-each-round": (_MEASURED, Client, "_sample", one_lost),
    # Draws new data for each of a difference's two values.
    "two-batches-in-one-difference": (_MEASURED, Client, "_sample", lambda _, client: (
        _NextBatch(client.objective), client.steps_taken
    )),
    # Measures on the data of client 0, whoever it is.
    "the-loss-of-client-0": (_MEASURED, Client, "_sample", lambda _, client: (
        Wavy(client.replica.d, 0), client.steps_taken
    )),
    # Sends −g.
    "sign-turned": (_MEASURED, Client, "handle", sent, lambda g, _: -g),
    # Sends −g of every local step but the first.
    "sign-turned-from-the-second-step-on": (_MEASURED, Client, "handle", sent, (
        lambda g, _: np.concatenate([g[:1], -g[1:]])
    )),
    # Sends zeros, or signs that are all 1, for every local step but the first.
    "nothing-from-the-second-step-on": (_MEASURED, Client, "handle", sent, (
        lambda g, _: np.concatenate([g[:1], np.full_like(g[1:], g.dtype == np.int8)])
    )),
    # Divides by P what the update divides by P.
    "divided-by-P-twice": (_MEASURED, Client, "handle", sent, (
        lambda g, plan: g if g.dtype == np.int8 else g / plan.P
    )),
    # Sends a local step's scalars in another order than that of their directions.
    "directions-in-reverse": (_MEASURED, Client, "handle", sent, lambda g, _: g[:, ::-1]),
    "scalars-of-an-earlier-round": (_MEASURED, Client, "handle", earlier),
    "divided-by-half": (_MEASURED, Planted, "client", by_half),
    # Measures at x + 2μz, and divides by 2μ too: the slope of a straight loss is right.
    "points-twice-as-far": (_MEASURED, Planted, "client", then(
        lambda _, client: setattr(client, "mu", 2 * client.mu)
    )),
    # Takes forward differences where central ones are asked for.
    "forward-for-central": (_MEASURED, Planted, "client", lambda right, _, case, *of: right(
        replace(case, estimator="forward") if case.estimator == "central" else case, *of
    )),
    # Lean clients that measure every local step along the directions of the first.
    "lean-at-the-directions-of-the-first-step": ("lean-replies-are-measurements", Planted, "lean_client", then(
        lambda _, client: vars(client).update(_line=lambda _, plan: Client._line(client, plan.seeds[0], plan))
    )),
    # Clients without revert that measure on the same data for ever.
    "synchronised-on-one-batch": ("synchronised-clients-drift-within-their-roundings", Planted, "sync_client", then(
        lambda _, client: setattr(client, "__class__", _OnOneBatch)
    )),
    # Divides by the number of clients that were asked, not of those that answered.
    "divided-by-all-that-were-sampled": (_RECORDS, Server, "aggregate", taken, (np.float32,), (
        lambda g, server, arrived: np.float32(len({own.client for own in arrived}) / max(len(server.planned), 1)) * g
    )),
    # Takes the scalars of the client with the smallest number for the mean.
    "first-reply-for-all": (_RECORDS, Server, "aggregate", taken, (np.float32, np.int8), (
        lambda _, __, arrived: min(arrived, key=lambda reply: reply.client).scalars
    )),
    # Plans every round with the seeds of round 0.
    "seeds-of-the-first-round": (_RECORDS, Server, "plan_round", planned, lambda server, plan: replace(
        plan, seeds=draw_seeds(server.seeding, server.run_seed, 0, server.K, server.P(server.round), server.pool)
    )),
    "one-clients-seeds-are-anothers": (_RECORDS, Server, "plan_round", of_another_run),
})  # fmt: skip
