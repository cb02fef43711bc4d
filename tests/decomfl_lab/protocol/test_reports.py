"""What clients report of the rounds that they hold."""

from __future__ import annotations

import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.protocol.messages import Held
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.records.schedules import Schedule


def server() -> Server:
    return Server(M=3, m=1, K=1, P=Schedule(1), eta=Schedule(0.1), seed=0, tracking=Tracking.CLIENTS)


def test_a_client_that_reports_two_rounds_is_refused() -> None:
    own = server()
    own.history.start = 4
    with pytest.raises(InputError, match="client of a report must say one round"):
        own.plan_round([1], [Held(1, 4), Held(1, 3)])
    assert own.plan_round([1], [Held(1, 4), Held(1, 4)]).keys() == {1}


@pytest.mark.parametrize("other", [0, 99])
def test_a_report_of_a_client_that_does_not_take_part_is_refused(other: int) -> None:
    with pytest.raises(InputError, match=rf"client of a report must be one of \[1\], got {other}"):
        server().plan_round([1], [Held(1, 0), Held(other, 0)])
