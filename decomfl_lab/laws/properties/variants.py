"""The laws of the protocol's variants: which are the same to the bit, and by how much the others may differ."""

import operator
import re
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate, product
from typing import Any, cast

import numpy as np
import torch
from hypothesis import assume
from hypothesis import strategies as st

from decomfl_lab.errors import InputError
from decomfl_lab.laws import strategies as draw_from
from decomfl_lab.laws.contract import (
    AnyWeighingServer,
    Case,
    Implementation,
    Participation,
    Played,
    Wavy,
    bytes_missed,
    play,
    sums_or,
    variant,
)
from decomfl_lab.laws.properties.measurement import MeasurementWatch
from decomfl_lab.laws.register import LawBrokenError, bits, law, refused, same
from decomfl_lab.noise import derive_seed
from decomfl_lab.protocol.aggregation import MOST_EXAMPLES
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.messages import Held, Reply
from decomfl_lab.protocol.server import PullPolicy, Tracking
from decomfl_lab.records.seeds import Seeding, stream_of
from decomfl_lab.replicas.rules import Sgd


def _same_scalars(what: str, played: Played, reference: Played) -> None:
    for record, expected in zip(played.records, reference.records, strict=True):
        same(f"scalars of round {record.round} {what}", bits(record.scalars), bits(expected.scalars))


# Seeds -------------------------------------------------------------------------------------------------------


@law(draw_from.cases(max_rounds=4))
def fewer_seeds_give_the_same_models(implementation: Implementation, case: Case) -> None:
    """seeds sent per step, per round and per run give the same directions and the same models."""
    per_step = play(implementation, variant(implementation, case, seeding=Seeding.PER_STEP))
    for seeding in (Seeding.PER_ROUND, Seeding.PER_RUN):
        played = play(implementation, variant(implementation, case, seeding=seeding))
        for a, b in zip(played.records, per_step.records, strict=True):
            same(f"step seeds of round {a.round} {seeding}", list(a.seeds), list(b.seeds))
        _same_scalars(seeding, played, per_step)
        same(f"the server's model {seeding}", played.server_model, per_step.server_model)
        for i in range(case.M):
            same(f"model of client {i} {seeding}", played.model_after(i), per_step.server_model)


@law(draw_from.cases(max_rounds=2), parts=("server",), stream=True)
def each_direction_can_have_its_seed(implementation: Implementation, case: Case) -> None:
    """seeds sent per direction derive from the step's, K·P different ones."""
    per_direction = play(implementation, variant(implementation, case, seeding=Seeding.PER_DIRECTION))
    per_step = play(implementation, variant(implementation, case, seeding=Seeding.PER_STEP))
    for record, step_record in zip(per_direction.records, per_step.records, strict=True):
        derived = [[derive_seed(stream_of(seed, 0)[0], p) for p in range(record.P)] for seed in step_record.seeds]
        streams = [[stream_of(seed, p) for p in range(record.P)] for seed in record.seeds]
        same(f"streams of round {record.round}", streams, [[(seed, 0) for seed in step] for step in derived])
        same("different seeds", len({seed for step in derived for seed in step}), record.K * record.P)


# Who remembers what ------------------------------------------------------------------------------------------


@law(draw_from.cases())
def clients_can_track_their_round(implementation: Implementation, case: Case) -> None:
    """clients that track their own round get the same records, exactly those they lack, from a server without state."""
    tracked = play(implementation, variant(implementation, case, tracking=Tracking.SERVER))
    case = variant(implementation, case, tracking=Tracking.CLIENTS)
    played = play(implementation, case)
    _same_scalars("with clients that track", played, tracked)
    same("the server's model", played.server_model, tracked.server_model)
    same("what the server holds of its clients", played.server.held, [])
    now = played.server.round
    for i, client in enumerate(played.clients):
        plan = played.plan_for(i)  # sums of a pool may have come before it, instead of records
        lacks = list(range(client.replica.round, now))
        same(f"rounds sent to client {i}", [record.round for record in plan.records], lacks)
        for kind, reports in {"silent": [], "ahead": [Held(i, now + 1)]}.items():
            planned = f"client {i}, which is {kind} of its round, was planned"
            refused(planned, partial(played.server.plan_round, [i], reports))


@law(draw_from.cases(), st.integers(1, 4))
def a_bounded_history_is_enough(implementation: Implementation, case: Case, keep: int) -> None:
    """a server that keeps N records keeps no more; older clients pull the model or are refused, none is wrong."""
    unbounded = play(implementation, variant(implementation, case, keep=0))
    case = variant(implementation, case, keep=keep)
    played = play(implementation, case, rounds=())
    for round_ in case.rounds:
        played.play_round(round_)
        if len(played.server.history) > keep:
            raise LawBrokenError(f"{len(played.server.history)} records are kept, {keep} may be")
    _same_scalars("with a bounded history", played, unbounded)
    modelless = implementation.server(case, with_model=False)
    modelless.history, modelless.held = played.server.history, list(played.server.held)
    oldest = played.server.history.start
    for i, client in enumerate(played.clients):
        holds = client.replica.round if case.tracking is Tracking.CLIENTS else modelless.held[i]
        reports = [client.report()] if case.tracking is Tracking.CLIENTS else None
        try:
            modelless.plan_round([i], reports)
        except InputError as error:
            same(f"client {i} of round {holds} is refused ({error})", holds < oldest, True)
            unnamed = {i, holds, oldest} - set(map(int, re.findall(r"\d+", str(error))))
            same(f"what is not named of client, its round and the oldest record by {error!r}", unnamed, set())
        else:
            same(f"client {i} of round {holds} is served from {oldest}", holds >= oldest, True)
        same(f"model of client {i}", played.model_after(i), unbounded.server_model)


@law(draw_from.cases(), st.integers(2, 9), st.integers(-3, 6))
def pulling_or_replaying_is_a_matter_of_cost(
    implementation: Implementation, case: Case, log_bandwidth: int, log_ns: int
) -> None:
    """whether a policy sends records or the model, the bits are the same, and it sends what is there sooner."""
    replaying = play(implementation, case)
    policy = PullPolicy(bandwidth=10.0**log_bandwidth, replay_ns=10.0**log_ns)
    played = play(implementation, case, policy=policy)
    _same_scalars("under a policy", played, replaying)
    same("the server's model", played.server_model, replaying.server_model)

    vectors = 1 + len(case.rule.slots)
    itemsize = 8 if case.dtype == torch.float64 else 4
    pull_seconds = vectors * (12 + 13 + itemsize * case.d) / policy.bandwidth
    held, scalars = [0] * case.M, [0] * case.M
    for r, round_ in enumerate(case.rounds):
        for i in round_.clients:
            pairs = sum(case.K * case.P(q) for q in range(held[i], r))
            replay_bytes = 12 + 4 + bytes_missed(case, held[i], r) if held[i] < r else 0
            replay_seconds = replay_bytes / policy.bandwidth + pairs * case.d * policy.replay_ns * 1e-9
            if case.rule.pool:  # whose sums come instead of more bytes of records, whatever the policy
                scalars[i] += sums_or(case, held[i], r)[0]
            else:
                scalars[i] += vectors * case.d if pull_seconds < replay_seconds else pairs
            if case.tracking is Tracking.CLIENTS or i not in round_.lost:
                held[i] = r
    same("scalars and model elements down", [t.scalars for t in played.ledger.down], scalars)


# Weights -----------------------------------------------------------------------------------------------------


def _weighed(implementation: Implementation, case: Case) -> tuple[Case, Played, AnyWeighingServer]:
    """The case with scalars that have a mean, its clients, and a server that weighs them by their examples."""
    case = variant(implementation, case, estimator="central") if case.signs else case
    server = implementation.weighing_server(case)
    delivery = Delivery(cast("Any", server), ledger=implementation.ledger(case), decode=implementation.decode)
    return case, Played(delivery, [implementation.client(case, i) for i in range(case.M)]), server


def _arrived(played: Played, round_: Participation) -> list[Reply]:
    """The replies of a round that arrive."""
    replies = [client.handle(plan) for client, plan in played.plans(round_.clients)]
    return [reply for reply in replies if reply.client not in round_.lost]


@law(draw_from.cases(), draw_from.examples, parts=("weighing_server",), stream=True)
def records_are_weighed_by_examples(implementation: Implementation, case: Case, examples: tuple[int, ...]) -> None:
    """a server that weighs clients by their examples records Σ n_i g_i / Σ n_i of the replies that arrived, of an exact
    sum; it refuses numbers of examples that are none, or others than before, and replies of who has said none.
    """
    case, played, server = _weighed(implementation, case)
    has_told: set[int] = set()

    def refuses(i: int, *numbers: int) -> None:
        for n in numbers:
            refused(f"{n} examples of client {i} of {case.M} were accepted", partial(server.note_examples, i, n))

    refuses(case.M, 1)
    for r, round_ in enumerate(case.rounds):
        arrived = _arrived(played, round_)
        for i in (reply.client for reply in arrived):
            if i not in has_told:
                otherwise = f"a reply of client {i}, which had not said how many examples it has, was accepted"
                refused(otherwise, partial(server.aggregate, arrived))
            refuses(i, 0, -1, MOST_EXAMPLES + 1)
            server.note_examples(i, examples[i])
            refuses(i, examples[i] + 1, examples[i] - 1)
            has_told.add(i)
        record = server.aggregate(arrived)
        weights = [examples[reply.client] for reply in arrived]
        wanted = np.empty_like(record.scalars)
        for place in np.ndindex(wanted.shape):  # fractions are exact, and rounded once where they are made a float
            scalars = [Fraction(float(reply.scalars[place])) for reply in arrived]
            wanted[place] = float(sum(map(operator.mul, weights, scalars))) / sum(weights)
        same(f"scalars of round {r}, of clients with {weights} examples", bits(record.scalars), bits(wanted))


@law(draw_from.cases(), draw_from.few, parts=("weighing_server",))
def a_client_counts_as_its_examples(implementation: Implementation, case: Case, few: tuple[int, ...]) -> None:
    """a client of n examples counts as n clients of one example with its scalars, to the bit."""
    case, played, server = _weighed(implementation, case)
    ends = list(accumulate(few[: case.M], initial=0))
    unweighed = implementation.weighing_server(variant(implementation, case, M=ends[-1]))
    for i, n in enumerate(few[: case.M]):
        server.note_examples(i, n)
    for i in range(ends[-1]):
        unweighed.note_examples(i, 1)
    for r, round_ in enumerate(case.rounds):
        arrived = _arrived(played, round_)
        copies = [replace(reply, client=i) for reply in arrived for i in range(*ends[reply.client : reply.client + 2])]
        held = [Held(reply.client, 0) for reply in copies] if case.tracking is Tracking.CLIENTS else None
        unweighed.plan_round([reply.client for reply in copies], held)
        weighed = server.aggregate(arrived).scalars
        same(f"scalars of round {r}", bits(weighed), bits(unweighed.aggregate(copies).scalars))


# Clients with less memory ------------------------------------------------------------------------------------


@law(draw_from.cases(), parts=("sync_client",), stream=True)
def synchronised_clients_drift_within_their_roundings(implementation: Implementation, case: Case) -> None:
    """clients that synchronise without revert (eq. sync) measure where they are, and drift by less than their roundings
    add up to.

    Count of roundings times unit roundoff times the largest number.

    Let x be the server's model and y a client's, u the unit roundoff (2⁻²⁴ or 2⁻⁵³), and X at least every |x_j|,
    |y_j| and |c z_j| that occurs. In real arithmetic both end at the same point (eq. sync), and sums carry an error
    on as it is, so ‖y − x‖∞ is at most the sum of the errors made on the way:

    - a term x ← fl(x + fl(c z)) makes two, each of at most uX: the product's and the sum's;
    - a corrected step makes one more, of its coefficient δ = c − c_i: at most uX for float32. Float64 adds what
      float32 cut off as a second term (two more errors) and leaves 2⁻⁴⁸|δ| behind, that is 32 uX.

    Server and client apply R·K·P terms each, 4 R K P errors; each of n rounds a client took part in adds its K − 1
    steps taken, 2 (K − 1) P errors, and the corrections' own, (K − 1) P for float32 and 34 (K − 1) P for float64
    (a correction's term itself stands instead of the record's). Errors of errors make X larger by less than 1 %.
    """
    dtype = torch.float64 if case.dtype == torch.float64 else torch.float32
    case = variant(implementation, case, rule=Sgd(), dtype=dtype)
    clients = [implementation.sync_client(case, i) for i in range(case.M)]
    measured = MeasurementWatch(case, measured_by=implementation.measured_by(case))
    played = Played(implementation.delivery(case), clients)
    length = [0.0] * case.M  # Σ |c| of all that client i applies and of all that the server does
    taken, spread = [0] * case.M, 0.0
    for round_ in case.rounds:
        replies: dict[int, Reply] = {}
        for client, plan in played.plans(round_.clients):
            # Its x is that of the records only up to rounding, so it is asked for it.
            client.replica.catch_up(plan.records)
            measured.model.vectors["x"] = client.replica.snapshot().x.cpu().numpy()
            replies[client.id] = client.handle(plan)
            measured.replied(client, plan, replies[client.id])
        record = played.server.aggregate(reply for i, reply in replies.items() if i not in round_.lost)
        played.records.append(record)
        for i, reply in replies.items():
            sent = np.abs(reply.scalars.astype(np.float64))  # (K, P), as the record's
            mean = np.abs(record.scalars.astype(np.float64))
            length[i] += record.eta / record.P * float((2 * sent + mean).sum())
            taken[i] += (record.K - 1) * record.P
            difference = np.abs(reply.scalars.astype(np.float64) - record.scalars)[: record.K - 1]
            spread = max(spread, record.eta / record.P * float(difference.max(initial=0.0)))
    terms = sum(record.scalars.size for record in played.records)
    common = sum(record.eta / record.P * float(np.abs(record.scalars).sum()) for record in played.records)
    largest_z = 0.0  # of any element of any direction
    for record in played.records:
        for seed, p in product(record.seeds, range(record.P)):
            z = implementation.direction(*stream_of(seed, p), case.d, case.distribution)
            largest_z = max(largest_z, float(np.abs(z).max()))
    x = played.server.dense_model().x.double()
    u, extra = (2.0**-24, 1) if dtype == torch.float32 else (2.0**-53, 34)
    drifts = []
    for i, client in enumerate(clients):
        played.bring_up(i)
        largest = float(case.initial().abs().max()) + largest_z * (common + length[i])
        bound = 1.01 * (4 * terms + (2 + extra) * taken[i]) * u * largest
        drifts.append(float((client.replica.snapshot().x.double() - x).abs().max()))
        if not drifts[-1] <= bound:
            raise LawBrokenError(f"client {i} is {drifts[-1]:.3g} from the server, its roundings allow {bound:.3g}")
    # 64 coordinates whose local step was another than the record's by far more than a rounding.
    if case.d >= 64 and dtype == torch.float32 and spread > 1e-4:
        same("some client drifts", max(drifts) > 0, True)


@law(draw_from.cases(max_rounds=4), parts=("lean_client",), stream=True)
def lean_replies_are_measurements(implementation: Implementation, case: Case) -> None:
    """every scalar of a lean client's reply is a measurement, as those of others are."""
    assume(case.rule.scaling is None)  # lean clients refuse others
    clients = [implementation.lean_client(case, i, Wavy(case.d, i)) for i in range(case.M)]
    watch = MeasurementWatch(case, measured_by=implementation.measured_by(case))
    play(implementation, case, clients=clients, watch=watch)


@law(draw_from.cases(max_rounds=4), parts=("lean_client",))
def lean_clients_are_like_others(implementation: Implementation, case: Case) -> None:
    """lean clients, who form x + μz a layer at a time, answer and hold the same bits."""
    assume(case.rule.scaling is None)  # lean clients refuse others
    plain, lean = (
        play(implementation, case, clients=[make_client(case, i, Wavy(case.d, i)) for i in range(case.M)])
        for make_client in (implementation.client, implementation.lean_client)
    )
    _same_scalars("of lean clients", lean, plain)
    for i in range(case.M):
        same(f"model of lean client {i}", lean.model_after(i), plain.server_model)
