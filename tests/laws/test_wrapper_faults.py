"""Implementations whose own server is the truth, and faults around the parts of anybody's."""

from typing import Any

import numpy as np
import pytest
import torch

from decomfl_lab import InputError, Sgd, laws
from decomfl_lab.cli.main import main
from decomfl_lab.laws.wrapper_faults import AROUND, around
from tests.laws import foreign


class Replica(foreign.Replica):
    """With torch's generator, and sums in another order."""

    def direction(self, seed: Any, p: int) -> foreign.Vector:
        generator = torch.Generator().manual_seed((seed ^ seed >> 32) + 7919 * p & 0xFFFFFFFF)
        return torch.randn(self.x.size, generator=generator).numpy()

    def step(self, seed: Any, g: foreign.Vector, eta: float) -> None:
        z = np.stack([self.direction(seed, p) for p in range(g.size)])
        self.x = self.x - np.float32(eta) * (g / np.float32(g.size)) @ z


class Client(foreign.Client):
    model = Replica


class Own(laws.Implementation):
    own = True

    def supports(self, case: laws.Case) -> bool:
        plain = case.rule == Sgd() and case.dtype == torch.float32 and case.estimator in ("forward", "central")
        return plain and case.seeding is not laws.Seeding.PER_DIRECTION

    def client(self, case: laws.Case, i: int, objective: Any = None) -> Any:
        return Client(case, i, laws.Wavy(case.d, i) if objective is None else objective)

    def replica(self, case: laws.Case, *, per_tensor: bool = False) -> Any:
        return Replica(case)


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

    law = "replay-equals-the-written-out-recursion"
    assert laws.verify(Theirs(), cases=6, laws=[law]).broken
    assert not laws.verify(Theirs(own=True), cases=6, laws=[law]).tried
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
    target = ["verify", "--target", f"{__file__}:Own", "--law", "a-gap-is-refused", "--plant"]
    assert main([*target, "all"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 faults are caught" in out
    assert "not tried: the-first-reply-is-taken, where the server is the lab's" in out
    assert [main([*target, name]) for name in ("the-first-reply-is-taken", "a-gap-is-skipped-over")] == [2, 1]
