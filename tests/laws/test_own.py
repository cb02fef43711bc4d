"""Implementations whose own server is the truth, and faults around the parts of anybody's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from decomfl_lab import InputError, laws
from decomfl_lab.cli.main import main
from decomfl_lab.laws.around import AROUND, around
from tests.laws.own import Own

TARGET = f"{Path(__file__).with_name('own.py')}:Own"


class WithServer(Own):
    def server(self, case: laws.Case, *, with_model: bool = True) -> Any:
        return super().server(case, with_model=with_model)


def test_own_noise_and_arithmetic_keep_the_laws_and_those_of_the_labs_stream_are_named() -> None:
    found = laws.verify(Own(), cases=6)
    assert (found.broken, found.tried) == ([], 15), found
    left = {own.law for own in found if "the lab's stream and arithmetic" in own.counterexample}
    assert left == {"replies-are-measurements", "replay-equals-the-written-out-recursion"}


def test_without_own_the_same_code_is_measured_by_the_labs_stream() -> None:
    class Theirs(Own):
        own = False

    found = laws.verify(Theirs(), cases=6, laws=["replay-equals-the-written-out-recursion"])
    assert found.broken
    assert not laws.verify(Theirs(own=True), cases=6, laws=["replay-equals-the-written-out-recursion"]).tried
    with pytest.raises(InputError, match="own must be of who makes the client, and the replica or the server, got"):
        laws.verify(laws.Implementation(own=True))


def test_every_fault_around_somebodys_parts_is_caught_by_its_law() -> None:
    table = laws.planted(WithServer())
    assert table.keys() == AROUND.keys()
    assert {next(iter(row.values())).status for row in table.values()} == {"broken"}


def test_faults_of_parts_that_are_the_labs_are_named_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    planted, left = around(Own())
    assert {AROUND[name].part for name in planted} == {"client", "replica"}
    assert set(left.values()) == {"the server is the lab's"}
    assert main(["verify", "--target", TARGET, "--plant", "all", "--law", "a-gap-is-refused"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 faults are caught" in out
    assert "not tried: the-first-reply-is-taken, where the server is the lab's" in out
    assert main(["verify", "--target", TARGET, "--plant", "the-first-reply-is-taken"]) == 2
    assert main(["verify", "--target", TARGET, "--plant", "a-gap-is-skipped-over", "--law", "a-gap-is-refused"]) == 1
