"""A federation as a state machine: rounds, lost replies, pulls, catch-ups and restarts in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from decomfl_lab.laws import strategies as draw_from
from decomfl_lab.laws.contract import Case, Implementation, Participation, model_of, play, variant
from decomfl_lab.laws.register import LawBrokenError, law, same
from decomfl_lab.records.record import History

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
                kept = server.history.since(server.history.start)
                stored = implementation.decode(implementation.encode(kept), server.run_seed)
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
