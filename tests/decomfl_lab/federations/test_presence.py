"""Clients that are away: nobody plans for them, ledgers have what was sent, and a quorum of answers is enough."""

import contextlib
from typing import Any, cast

import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.protocol.aggregation import Aggregation, Krum, Mean, TrimmedMean
from decomfl_lab.replicas.replica import Replica
from tests.decomfl_lab.federations.direct import CASE, LAB, RUN, Direct, but, counted, remote


def test_a_quorum_is_of_the_sampled_clients_and_who_is_away_lacks():
    elsewhere = remote(m=4, quorum=3, patience=0.05)
    elsewhere.carrier.away = {0, 1}
    with pytest.raises(InputError, match=r"quorum of 3 must be reached in 0.05 s, got 2 of 4 replies in round 0"):
        elsewhere.advance()
    elsewhere.carrier.away = {0}
    elsewhere.advance()  # the round goes on with the replies that it has
    assert counted(elsewhere) == elsewhere.carrier.bytes
    assert elsewhere.ledger.down[1].messages == 1


# A quorum -------------------------------------------------------------------------------------------------------------


def reaches(elsewhere: RemoteFederation, came: int) -> bool:
    """Whether a round has a record where so many of the sampled clients answer."""
    silent, carrier = elsewhere.delivery.sample()[came:], cast("Direct", elsewhere.carrier)
    carrier.between = lambda i, answer: None if i in silent else answer
    with contextlib.suppress(InputError):
        elsewhere.advance()
    return elsewhere.round == 1


def meetings(m: int, **options: Any) -> list[bool]:
    """The same of 1..m answers."""
    return [reaches(remote(but(M=5), m, deadline=1e-3, patience=0.01, **options), came) for came in range(1, m + 1)]


@pytest.mark.parametrize(("m", "least"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_round_needs_more_than_half_of_the_answers_unless_told(m: int, least: int) -> None:
    assert remote(but(M=5), m).quorum == least
    assert meetings(m) == [came >= least for came in range(1, m + 1)]


@pytest.mark.parametrize(("rule", "least", "default"), [(Mean(), 1, 3), (TrimmedMean(1), 3, 3), (Krum(1), 5, 5)])
def test_a_quorum_is_what_the_aggregation_needs_at_least_and_the_sample_at_most(
    rule: Aggregation, least: int, default: int
) -> None:
    delivery, observer = LAB.delivery(but(M=6)), cast("Replica", LAB.replica(CASE))
    delivery.server.m, delivery.server.aggregation = 5, rule

    def quorum(wanted: int | None) -> int:
        return RemoteFederation(delivery, observer, Direct({}), RUN, quorum=wanted).quorum

    assert [quorum(n) for n in (None, *range(least, 6))] == [default, *range(least, 6)]
    for wrong in (0, least - 1, 6):
        with pytest.raises(InputError, match=rf"quorum must be an integer in {least}\.\.5, got {wrong}"):
            quorum(wrong)
