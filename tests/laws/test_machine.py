"""The stateful machine passes for the lab's implementation and fails for faulty ones."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from decomfl_lab.laws.faults import FAULTS
from decomfl_lab.laws.machine import FederationMachine

SETTINGS = settings(max_examples=80, stateful_step_count=15, deadline=None, derandomize=True, database=None)
UNSHRUNK = settings(SETTINGS, phases=(Phase.generate,))


def test_every_replica_has_the_bits_of_its_round_whatever_happens() -> None:
    run_state_machine_as_test(FederationMachine, settings=SETTINGS)


@pytest.mark.parametrize("fault", ["revert-forgotten", "round-skipped", "pull-without-state"])
def test_the_machine_catches(fault: str) -> None:
    class Faulty(FederationMachine):
        implementation = FAULTS[fault]

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Faulty, settings=UNSHRUNK)
