"""The laws of a federation. Each is a function of an implementation and drawn inputs; see ``law``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from decomfl_lab.engines.base import wide_dtype
from decomfl_lab.errors import InputError
from decomfl_lab.laws import strategies as draw_from
from decomfl_lab.laws.contract import Case, Implementation, Participation, Played, model_of, play, sums_or, variant
from decomfl_lab.laws.properties.measurement import MeasurementWatch, WrittenOut
from decomfl_lab.laws.register import LawBrokenError, bits, law, refused, same
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.messages import Message, Reply, RunSeed
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.records.record import History
from decomfl_lab.replicas.rules import Momentum, Sgd


@law(draw_from.cases())
def rebuilt_client_equals_server(implementation: Implementation, case: Case) -> None:
    """a client that rebuilds after any lag holds the server's bits: x and optimizer state; it refuses a plan that lacks
    a record.
    """
    played = play(implementation, case)
    for i in range(case.M):
        rounds = ", ".join(str(r) for r, round_ in enumerate(case.rounds) if i in round_.clients) or "none"
        plan = played.plan_for(i)
        if plan.records:
            otherwise = f"client {i} answered a plan of round {plan.round} without the record of round {plan.round - 1}"
            refused(otherwise, partial(played.clients[i].handle, replace(plan, records=plan.records[:-1])))
        same(f"model of client {i}, which took part in rounds {rounds}", played.model_after(i), played.server_model)


@law(draw_from.cases(), stream=True)
def replay_equals_the_written_out_recursion(implementation: Implementation, case: Case) -> None:
    """replay is the paper's recursion, written out in numpy with the reference stream."""
    played = play(implementation, case)
    model = WrittenOut(case, backend="numpy")
    for r, record in enumerate(played.records):
        same(f"K and P of round {r}", record.scalars.shape, (case.K, case.P(r)))
        same(f"distribution of round {r}", record.distribution, case.distribution)
        model.apply(record, case.eta(r))
    for i, client in enumerate(played.clients):
        played.bring_up(i)
        held = client.replica.snapshot()
        for name, vector in {"x": held.x, **held.state}.items():
            wide = vector if name == "sums" else vector.to(wide_dtype(vector))
            same(f"{name} of client {i}", bits(wide), bits(model.vectors[name]))


@law(draw_from.cases(), parts=("server",))
def reply_order_does_not_matter(implementation: Implementation, case: Case) -> None:
    """the order in which replies arrive does not matter."""
    one, other = (play(implementation, case, backwards=backwards) for backwards in (False, True))
    for r, (a, b) in enumerate(zip(one.records, other.records, strict=True)):
        same(f"scalars of round {r}", bits(a.scalars), bits(b.scalars))


@law(draw_from.cases(), parts=("server",))
def pruning_keeps_what_is_needed(implementation: Implementation, case: Case) -> None:
    """pruning keeps every record that some client still needs, and no older one."""
    played = play(implementation, case, rounds=())
    for round_ in case.rounds:
        played.play_round(round_)
        untracked = case.tracking is Tracking.CLIENTS  # the server does not know what is needed
        oldest = 0 if untracked else min(played.server.held)
        same(f"oldest round kept after round {played.server.round - 1}", played.server.history.start, oldest)
    for i, client in enumerate(played.clients):
        try:
            records = played.plan_for(i).records
        except InputError as error:
            raise LawBrokenError(f"client {i} at round {client.replica.round}: {error}") from None
        rounds = {record.round for record in records}
        needed = set(range(client.replica.round, played.server.round))
        same(f"records missing for client {i}", needed - rounds, set())


@law(draw_from.cases())
def revert_leaves_every_bit(implementation: Implementation, case: Case) -> None:
    """local updates followed by the revert leave every bit of x and of the optimizer state."""
    played = play(implementation, case, rounds=())
    for round_ in case.rounds:
        replies: list[Reply] = []
        for client, plan in played.plans(round_.clients):
            client.replica.catch_up(plan.records)
            before = model_of(client.replica)
            replies.append(client.handle(plan))
            what = f"in round {plan.round}, model of client {client.id} after local updates and revert"
            same(what, model_of(client.replica), before)
        played.server.aggregate(reply for reply in replies if reply.client not in round_.lost)


@law(draw_from.cases())
def dense_pull_equals_replay(implementation: Implementation, case: Case) -> None:
    """pulling the server's model gives the same bits as replaying the records."""
    played = play(implementation, case)
    for i in range(case.M):
        pulling = implementation.client(case, i)
        pulling.replica.restore(played.server.dense_model())
        same(f"model of client {i} after a pull", model_of(pulling.replica), played.model_after(i))
        played.server.note_dense_pull(i)
        same(f"records sent to client {i} after a pull", played.plan_for(i).records, ())


@law(draw_from.cases())
def clients_may_share_what_is_equal(implementation: Implementation, case: Case) -> None:
    """clients that are given one snapshot of the model, instead of equal ones of their own, answer and hold the same
    bits, and nobody's steps reach another.
    """
    apart, sharing = play(implementation, case), play(implementation, case, rounds=())
    for round_ in case.rounds:
        for i in round_.clients:
            sharing.bring_up(i)
            sharing.clients[i].replica.restore(sharing.server.dense_model())
        sharing.play_round(round_)
    same("records", sharing.records, apart.records)
    for i in range(case.M):
        same(f"model of client {i}", sharing.model_after(i), apart.model_after(i))
    same("model of the server", sharing.server_model, apart.server_model)


@law(draw_from.cases(), st.integers(0, 7), parts=("replica",))
def history_in_pieces_equals_in_one_go(implementation: Implementation, case: Case, cut: int) -> None:
    """applying a history in one go equals applying it in pieces at any cut."""
    records = play(implementation, case).records
    whole, pieces = implementation.replica(case), implementation.replica(case)
    whole.catch_up(records)
    pieces.catch_up(records[:cut])
    pieces.catch_up(records[: cut + 1])  # a record known already is no harm
    pieces.catch_up(records)
    same("model in pieces", model_of(pieces), model_of(whole))


@law(draw_from.cases(), parts=("replica",))
def whole_vector_equals_per_tensor(implementation: Implementation, case: Case) -> None:
    """updates of the whole vector and tensor by tensor have the same bits."""
    records = play(implementation, case).records
    whole, per_tensor = implementation.replica(case), implementation.replica(case, per_tensor=True)
    whole.catch_up(records)
    per_tensor.catch_up(records)
    same("model tensor by tensor", model_of(per_tensor), model_of(whole))


@law(draw_from.cases(), parts=("replica",))
def a_gap_is_refused(implementation: Implementation, case: Case) -> None:
    """records of a round other than the next are refused, never skipped over."""
    records = play(implementation, case).records
    replica = implementation.replica(case)
    for record in records[1:]:
        before = model_of(replica)
        otherwise = f"a replica at round {replica.round} took the record of round {record.round}"
        refused(otherwise, partial(replica.catch_up, [record]))
        same("model after a refused record", model_of(replica), before)


@law(draw_from.cases())
def ledger_counts_what_is_sent(implementation: Implementation, case: Case) -> None:
    """the ledger counts K·P scalars a reply and a record sent, the seeds of its mode, and the bytes really encoded."""
    played = play(implementation, case)
    held, knows_seed = [0] * case.M, set[int]()
    expected = [{"scalars up": 0, "scalars down": 0, "seeds down": 0} for _ in held]
    for r, round_ in enumerate(case.rounds):
        for i in round_.clients:
            row = expected[i]
            scalars, seeds = sums_or(case, held[i], r)
            seeds += case.seeding.sent(case.K, case.P(r))
            row["scalars up"] += case.K * case.P(r)
            row["scalars down"] += scalars
            seeds += case.seeding.needs_run_seed and i not in knows_seed
            knows_seed |= {i} - round_.lost  # until it answers nobody knows whether it was told
            row["seeds down"] += seeds
            # A client knows what it holds, whatever became of its reply.
            if case.tracking is Tracking.CLIENTS or i not in round_.lost:
                held[i] = r
    for i, (up, down) in enumerate(zip(played.ledger.up, played.ledger.down, strict=True)):
        counted = {"scalars up": up.scalars, "scalars down": down.scalars, "seeds down": down.seeds}
        same(f"traffic of client {i}", counted, expected[i])
        same(f"bytes down to and up from client {i}", [down.bytes, up.bytes], played.carried[i])


@law(draw_from.cases(), st.data(), parts=("encode", "decode"))
def the_wire_keeps_every_bit(implementation: Implementation, case: Case, data: st.DataObject) -> None:
    """encoding and decoding changes nothing that is to travel; a damaged message is refused."""
    played = play(implementation, case)
    run_seed = played.server.run_seed

    def there_and_back(message: Message) -> Message:
        return implementation.decode(implementation.encode(message), run_seed)

    same("decoded records", there_and_back(tuple(played.records)), tuple(played.records))
    same("decoded run seed", there_and_back(RunSeed(run_seed)), RunSeed(run_seed))
    plans = {}
    for i, client in enumerate(played.clients):
        reports = [client.report()] if played.delivery.wants_reports else None
        plans[i] = plan = played.server.plan_round([i], reports)[i]
        same(f"decoded plan of client {i}", there_and_back(plan), plan)
        reply = client.handle(plan)
        answer = there_and_back(reply)
        assert isinstance(answer, Reply)
        same(f"client and round of client {i}'s decoded reply", (answer.client, answer.round), (i, plan.round))
        same(f"decoded scalars of client {i}", bits(answer.scalars), bits(reply.scalars))
        low, high = (implementation.encode(replace(reply, loss=loss)) for loss in (-1.0, 1.0))
        same("bytes of replies that differ in a loss, which does not travel", low, high)
    message = implementation.encode(plans[data.draw(st.integers(0, case.M - 1))])
    place = data.draw(st.integers(0, len(message) - 1))
    flipped = bytes([*message[:place], message[place] ^ data.draw(st.integers(1, 255)), *message[place + 1 :]])
    for damaged in (message[:place], message + b"\0", flipped):
        refused(f"a plan damaged at byte {place} was accepted", partial(implementation.decode, damaged, run_seed))


@law(draw_from.cases())
def runs_repeat_from_one_seed(implementation: Implementation, case: Case) -> None:
    """a run repeats bit for bit from its seed; another seed gives another run."""
    one, again = play(implementation, case), play(implementation, case)
    same("records of the second run", one.records, again.records)
    same("model of the second run", again.server_model, one.server_model)
    other = play(implementation, replace(case, seed=case.seed ^ 1))
    for a, b in zip(one.records, other.records, strict=True):
        again_there = [seed for seed in a.seeds if seed in list(b.seeds)]
        same(f"step seeds of round {a.round} that another run has too", again_there, [])


@law(
    draw_from.seeds,
    st.integers(0, 50),
    st.integers(1, 12).flatmap(lambda M: st.tuples(st.just(M), st.integers(1, M))),
    parts=("sample",),
)
def sampling_is_without_replacement(implementation: Implementation, seed: int, r: int, sizes: tuple[int, int]) -> None:
    """m distinct clients of M are sampled, the same for the same (seed, round), and everybody's turn comes."""
    M, m = sizes
    same("clients sampled again", implementation.sample(seed, r, M, m), implementation.sample(seed, r, M, m))
    seen: set[int] = set()
    for q in range(r, r + 40 * M // m):  # a client is in none of them with a chance of e^-40 at most
        clients = implementation.sample(seed, q, M, m)
        same(f"number of clients of round {q}, and of distinct ones", (len(clients), len(set(clients))), (m, m))
        seen |= set(clients)
    same("clients sampled in many rounds", seen, set(range(M)))


@law(draw_from.cases(), parts=("server",))
def the_server_needs_no_model(implementation: Implementation, case: Case) -> None:
    """a server without a model aggregates the same records as one with it."""
    with_model, without = (play(implementation, case, with_model=keeps) for keeps in (True, False))
    same("records without a model", without.records, with_model.records)


@law(draw_from.cases(), parts=("server",))
def bad_replies_are_refused(implementation: Implementation, case: Case) -> None:
    """non-finite, doubled, foreign or misshapen replies are refused and nothing is stored."""
    played = play(implementation, case)
    signs = case.aggregation.dtype is np.int8
    for i, client in enumerate(played.clients):
        plan = played.plan_for(i)
        good = client.handle(plan)
        held, round_ = list(played.server.held), played.server.round
        other: Any = good.scalars.astype(np.float32 if signs else np.int8)
        bad = {
            "of another type": [replace(good, scalars=other)],
            "doubled": [good, good],
            "foreign": [replace(good, client=case.M)],
            "of another round": [replace(good, round=round_ + 1)],
            "misshapen": [replace(good, scalars=np.ones((plan.K, plan.P + 1), good.scalars.dtype))],
            "none": [],
        }
        for k, p in np.ndindex(good.scalars.shape):
            for what, g in {"no number or sign": 0 if signs else np.nan, "too large": 100 if signs else np.inf}.items():
                scalars = good.scalars.copy()
                scalars[k, p] = g
                bad[f"{what} in local step {k}, direction {p}"] = [replace(good, scalars=scalars)]
        for kind, replies in bad.items():
            refused(f"replies of client {i} that are {kind} were accepted", partial(played.server.aggregate, replies))
            now = (played.server.held, played.server.round)
            same(f"state after replies of client {i} that are {kind}", now, (held, round_))


@law(draw_from.cases(), draw_from.seeds, parts=("keyed_client",))
def private_keys_hide_the_directions(implementation: Implementation, case: Case, key: int) -> None:
    """with a private key clients measure along its directions and agree to the bit, and the server's records without it
    give another model.
    """
    clients = [implementation.keyed_client(case, i, key) for i in range(case.M)]
    watch = MeasurementWatch(case, key=key, measured_by=implementation.measured_by(case))
    played = play(implementation, case, clients=clients, with_model=False, watch=watch)
    first = played.model_after(0)
    for i in range(1, case.M):
        same(f"model of client {i} beside client 0's", played.model_after(i), first)
    keyless = implementation.replica(case)
    keyless.catch_up(played.records)
    scalars = np.concatenate([np.abs(record.scalars).reshape(-1) for record in played.records])
    # 64 coordinates, the first step of each along its own direction: a chance of 2**-64 at most to agree.
    if case.d >= 64 and isinstance(case.rule, Sgd | Momentum) and scalars.min() > 1e-3:
        same("the keyless model is that of the clients", model_of(keyless) == first, False)


@law(draw_from.cases(max_clients=4), st.integers(0, 7))
def who_joins_equals_who_was_never_sampled(implementation: Implementation, case: Case, joins: int) -> None:
    """a client that joins in any round, and a server that is made for one more then, do what they would if it had been
    there from the start and never sampled: same plans, scalars, traffic and models.
    """
    more = variant(implementation, case, M=case.M + 1)
    earlier = case.rounds[:joins]
    later = [Participation((*round_.clients, case.M), round_.lost) for round_ in case.rounds[joins:]]
    always = play(implementation, more, (*earlier, *later))
    played = play(implementation, case, earlier)
    same(f"records of the {len(earlier)} rounds before client {case.M} joined", played.records, always.records[:joins])
    server: Any = implementation.server(more)  # with the model, all records, and what it remembers of the others
    server.replica.restore(played.server.dense_model())
    server.history = History(played.records)
    server.held = [*played.server.held, 0] if case.tracking is Tracking.SERVER else []
    ledger = implementation.ledger(more)
    delivery = Delivery(server, ledger=ledger, decode=implementation.decode)
    delivery.told = played.delivery.told
    clients = [*played.clients, implementation.client(more, case.M)]
    grown = Played(delivery, clients, records=played.records)
    for round_ in later:
        grown.play_round(round_)
    for (r, i), (plan, reply) in grown.heard.items():
        plan_then, answer = always.heard[r, i]
        same(f"records sent to client {i} in round {r}", plan.records, plan_then.records)
        same(f"plan of client {i} in round {r}", plan, plan_then)
        same(f"scalars of client {i} in round {r}", bits(reply.scalars), bits(answer.scalars))
    same(f"bytes down to and up from client {case.M}", grown.carried[case.M], always.carried[case.M])
    same("records", grown.records, always.records)
    same("model of the server", grown.server_model, always.server_model)
    for i in range(more.M):
        same(f"model of client {i}", grown.model_after(i), always.model_after(i))


# A federation as a state machine: rounds, lost replies, pulls, catch-ups and restarts in any order --------------------

_CLIENTS = st.integers(0, 4)


@dataclass(frozen=True)
class Event:
    """What happens: a round, or something to one client, or the server's restart; clients are counted modulo M."""

    kind: str
    clients: tuple[int, ...] = (0,)
    lost: tuple[int, ...] = ()

    def __str__(self) -> str:
        whose = f", clients {', '.join(map(str, self.clients))}" if "server" not in self.kind else ""
        return f"{self.kind}{whose}" + f", replies lost of {', '.join(map(str, self.lost))}" * bool(self.lost)


events = st.one_of(
    st.builds(
        Event,
        st.just("round"),
        st.lists(_CLIENTS, min_size=1, max_size=5).map(tuple),
        st.lists(_CLIENTS, max_size=4).map(tuple),
    ),
    st.builds(Event, st.sampled_from(("catch up", "pull", "client restarts")), st.tuples(_CLIENTS)),
    st.just(Event("server restarts")),
)


@law(
    draw_from.cases(max_rounds=1).map(lambda case: replace(case, rounds=())),
    st.sampled_from((0, 0, 1, 3)),
    st.lists(events, min_size=1, max_size=15),
)
def any_order_of_events_keeps_the_bits(
    implementation: Implementation, case: Case, keep: int, happens: Sequence[Event]
) -> None:
    """whatever happens in whatever order, every replica has the bits of the server's model of its round, and no record
    that somebody needs is forgotten.
    """
    case = variant(implementation, case, keep=keep)
    played = play(implementation, case)
    models = [played.server_model]
    for event in happens:
        server, i = played.server, event.clients[0] % case.M
        client = played.clients[i]
        match event.kind:
            case "round":
                # Who takes part if it is a round; the first one's reply is never lost.
                first, *others = dict.fromkeys(i % case.M for i in event.clients)
                lost = frozenset(i % case.M for i in event.lost) & set(others)
                played.play_round(Participation((first, *others), lost))
            case "catch up":
                played.bring_up(i)
                same(f"round of client {i} after {event}", client.replica.round, server.round)
            case "pull":
                client.replica.restore(server.dense_model())
                server.note_dense_pull(i)
            case "client restarts":  # from its saved model, and it must be told the run's seed again
                fresh = implementation.client(case, i)
                fresh.replica.restore(client.replica.snapshot())
                played.clients[i] = fresh
                played.delivery.told.discard(i)
            case "server restarts":  # from its stored model, records and what it remembers of its clients
                again: Any = implementation.server(case)
                again.replica.restore(server.dense_model())
                records = server.history.since(server.history.start)
                stored = implementation.decode(implementation.encode(records), server.run_seed)
                assert isinstance(stored, tuple)
                again.history, again.held = History(stored, server.history.start), list(server.held)
                played.delivery.server = again
        server = played.server
        models[server.round :] = [played.server_model]
        for i, client in enumerate(played.clients):
            same(f"model of client {i} after {event}", model_of(client.replica), models[client.replica.round])
        needed = min(client.replica.round for client in played.clients)
        reach = max(needed, server.round - keep) if keep else needed
        if server.history.start > reach:
            raise LawBrokenError(f"the oldest record after {event} is of round {server.history.start}, not {reach}")
        if keep and len(server.history) > keep:
            raise LawBrokenError(f"{len(server.history)} records are kept after {event}, {keep} may be")
