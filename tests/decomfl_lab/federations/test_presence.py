"""Clients that are away: nobody plans for them, and the ledgers have what was really sent."""

from __future__ import annotations

import math

import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.pooled import PooledSgd
from tests.decomfl_lab.federations.direct import CASE, LAB, Direct, but, counted, host, remote, simulated

CASES = {
    "plain": CASE,
    "clients track": but(tracking=Tracking.CLIENTS),
    "seeds per run": but(seeding=Seeding.PER_RUN),
    "one record kept": but(keep=1),
    "pool": but(rule=PooledSgd(5, -24), seeding=Seeding.POOL),
}


def test_nothing_is_planned_or_counted_for_who_is_away_however_long():
    elsewhere = remote(m=4, quorum=2, deadline=1e-3)
    elsewhere.carrier.away = {3}
    for _ in range(20):
        elsewhere.advance()
    assert elsewhere.ledger.down[3].bytes == elsewhere.ledger.up[3].bytes == 0
    elsewhere.carrier.away = set()
    elsewhere.advance()
    assert elsewhere.carrier.hosts[3].replica.round == 20


class Returns(Direct):
    """A client that was away comes back once the others have answered."""

    def exchange(self, frames, take, deadline):
        super().exchange(frames, take, deadline)
        for i in sorted(self.away):
            self.come(i, take)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_who_comes_back_in_the_middle_of_a_round_takes_part_in_it(case, lost, tmp_path):
    with RunLog.create(tmp_path / "run.dcl", {"run_seed": LAB.server(case).run_seed}) as log:
        carrier = Returns({i: host(case, i) for i in range(4)})
        elsewhere, here = remote(case, 4, carrier, quorum=2, deadline=1e-3), simulated(case, 4)
        elsewhere.log_to(log)
        for r in range(6):
            carrier.away = {r % 4}
            if lost:
                carrier.hosts[r % 4] = host(case, r % 4)
            elsewhere.advance(), here.advance()
        assert elsewhere.observer.digest() == here.observer.digest()
        assert counted(elsewhere) == carrier.bytes
        if case.tracking is Tracking.SERVER:
            assert elsewhere.ledger == here.ledger
        again = remote(case, 4)
        again.log_to(log)
        assert all(math.isnan(again.advance()) for _ in range(6))
        assert again.ledger == elsewhere.ledger


def test_a_quorum_is_of_the_sampled_clients_and_who_is_away_lacks():
    elsewhere = remote(m=4, quorum=3, patience=0.05)
    elsewhere.carrier.away = {0, 1}
    with pytest.raises(InputError, match=r"quorum of 3 must be reached in 0.05 s, got 2 of 4 replies in round 0"):
        elsewhere.advance()
    elsewhere.carrier.away = {0}
    elsewhere.advance()  # the round goes on with the replies that it has
    assert counted(elsewhere) == elsewhere.carrier.bytes
    assert elsewhere.ledger.down[1].messages == 1
