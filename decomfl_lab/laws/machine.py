"""A federation as a state machine: rounds, lost replies, pulls, catch-ups and restarts in any order."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from decomfl_lab.laws import strategies as draw_from
from decomfl_lab.laws.contract import Case, Implementation, Participation, Played, play
from decomfl_lab.protocol.wire import decode_records, encode_records
from decomfl_lab.records.record import History

__all__ = ["FederationMachine"]


class FederationMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order, every replica has the bits of the server's model of its round."""

    implementation = Implementation()

    @initialize(case=draw_from.cases(max_rounds=1), keep=st.sampled_from((0, 0, 1, 3)))
    def start(self, case: Case, keep: int) -> None:
        """A federation before its first round."""
        self.case = dataclasses.replace(case, keep=keep)
        self.played: Played = play(self.implementation, self.case, rounds=())
        self.digests = [self._server_digest()]

    def _server_digest(self) -> str:
        replica = self.played.server.replica
        assert replica is not None
        return replica.digest()

    @rule(data=st.data())
    def round_(self, data: st.DataObject) -> None:
        """Any clients take part; some replies may be lost."""
        at: Participation = data.draw(draw_from.participations(self.case.M))
        self.played.play_round(at)
        self.digests.append(self._server_digest())

    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        """A client rebuilds the present model without taking part."""
        i = data.draw(st.integers(0, self.case.M - 1))
        self.played.bring_up(i)
        assert self.played.clients[i].replica.round == self.played.server.round

    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        """A client takes the server's whole model instead of replaying."""
        i = data.draw(st.integers(0, self.case.M - 1))
        self.played.clients[i].replica.restore(self.played.server.dense_model())
        self.played.server.note_dense_pull(i)

    @rule()
    def restart_server(self) -> None:
        """The server's history goes through its stored form; what it holds in memory otherwise is ``held``."""
        old = self.played.server
        stored = encode_records(old.history.since(old.history.start))
        fresh = self.implementation.server(self.case)
        assert fresh.replica is not None
        fresh.replica.restore(old.dense_model())
        fresh.history = History(decode_records(stored, old.run_seed), old.history.start)
        fresh.held = list(old.held)
        self.played.delivery.server = fresh

    @rule(data=st.data())
    def restart_client(self, data: st.DataObject) -> None:
        """A client comes back from its saved model, with a clean replica."""
        i = data.draw(st.integers(0, self.case.M - 1))
        saved = self.played.clients[i].replica.snapshot()
        fresh = self.implementation.client(self.case, i)
        fresh.replica.restore(saved)
        fresh.steps_taken = self.played.clients[i].steps_taken
        fresh.run_seed = self.played.clients[i].run_seed
        self.played.clients[i] = fresh

    @invariant()
    def every_replica_has_the_bits_of_its_round(self) -> None:
        """The law."""
        if not hasattr(self, "played"):
            return
        for client in self.played.clients:
            assert client.replica.digest() == self.digests[client.replica.round]

    @invariant()
    def the_history_reaches_back_to_the_slowest(self) -> None:
        """Pruning forgets nothing that someone needs, but for what a bounded history has no room for."""
        if hasattr(self, "played"):
            server, keep = self.played.server, self.case.keep
            needed = min(client.replica.round for client in self.played.clients)
            assert server.history.start <= (max(needed, server.round - keep) if keep else needed)
            assert not keep or len(server.history) <= keep
