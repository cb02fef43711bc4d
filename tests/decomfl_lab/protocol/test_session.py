"""The clients' side of a session: what a host takes of the records that come off the wire, and what it refuses."""

from functools import cache
from pathlib import Path

import pytest

from decomfl_lab.checkpoint import read_checkpoint, write_checkpoint
from decomfl_lab.errors import InputError
from decomfl_lab.protocol.messages import Ask, Hello, Plan, Refusal, Welcome
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.session import Coordinator, Host
from decomfl_lab.protocol.wire import decode, encode, read, split_frame
from decomfl_lab.records.record import RoundRecord
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.pool_sums import PooledSgd
from tests.decomfl_lab.federations.direct import CASE, LAB, RUN, but, host, simulated

CASES = {"plain": CASE, "pooled": but(rule=PooledSgd(5, -24), seeding=Seeding.POOL)}
ASTRAY = [(0, 2), (0, 1, 3), (0, 0, 1), (0, 1, 1), (1, 0), (0, 2, 1), (2, 1, 0), (1, 1), (2, 4), (2, 2, 3), (1, 3, 2)]
"""Rounds of records that do not follow one another."""


@cache
def history(kind: str) -> tuple[RoundRecord, ...]:
    """The records of five rounds."""
    return simulated(but(CASES[kind], tracking=Tracking.CLIENTS), rounds=5).server.history.since(0)


def records(*rounds: int, kind: str = "plain") -> tuple[RoundRecord, ...]:
    """Those of these rounds."""
    return tuple(history(kind)[r] for r in rounds)


def kept(own: Host, folder: Path) -> tuple[object, object]:
    """All that the host would go on from."""
    own.save(folder / "host")
    tensors, values = read_checkpoint(folder / "host")
    return {name: vector.tolist() for name, vector in tensors.items()}, values


@pytest.mark.parametrize("rounds", ASTRAY)
@pytest.mark.parametrize("held", [0, 2])
@pytest.mark.parametrize("kind", CASES)
def test_records_that_do_not_follow_one_another_are_refused_and_change_nothing(
    kind: str, held: int, rounds: tuple[int, ...], tmp_path: Path
) -> None:
    own = host(CASES[kind], 0)
    own.handle({0: encode(Welcome(0, 0)) + encode(records(*range(held), kind=kind))})
    before = kept(own, tmp_path)
    for welcome in (b"", encode(Welcome(held, 6)), encode(Welcome(0, 0))):
        (said,) = split_frame(own.handle({0: welcome + encode(records(*rounds, kind=kind)) + encode(Ask())})[0])
        assert read(Refusal, said).text.startswith("records must follow one another, got")
        assert kept(own, tmp_path) == before
    own.handle({0: encode(records(*range(5), kind=kind))})
    assert own.replica.round == 5


def test_records_that_are_known_already_and_records_that_come_too_early_are_left_out() -> None:
    own, whole = host(CASE, 0), host(CASE, 0)
    whole.handle({0: encode(records(0, 1, 2, 3))})
    own.handle({0: encode(records(0, 1))})
    for rounds, reached in (((0, 1), 2), ((3, 4), 2), ((1, 2), 3), ((0, 1, 2, 3), 4)):
        answer = own.handle({0: encode(records(*rounds)) + encode(Ask())})[0]
        assert read(Hello, answer).round == reached
    assert own.hello(0) == whole.hello(0)


@pytest.mark.parametrize("rounds", [(2,), (4,), (1, 3), (3, 2), (3, 3), (2, 2, 3), (1, 3, 3), (2, 1, 3), (0, 1, 2)])
def test_a_plans_records_are_those_of_the_rounds_before_it_in_order(rounds: tuple[int, ...]) -> None:
    seeds = history("plain")[4].seeds
    for n in range(5):
        plan = Plan(4, 0.1, 3, CASE.distribution, seeds, records(*range(n, 4)))
        assert decode(encode(plan)) == plan
    with pytest.raises(InputError, match="records of the plan message must be of the rounds before 4, in order"):
        decode(encode(Plan(4, 0.1, 3, CASE.distribution, seeds, records(*rounds))))


def coordinator(rounds: int) -> Coordinator:
    """The server's side of a session without a model that digests could be compared with, after so many rounds."""
    own = Coordinator(LAB.delivery(CASE), RUN)
    for record in history("plain")[:rounds]:
        own.delivery.server.store(record, ())
    return own


@pytest.mark.parametrize(("holds", "healed"), [(0, 0), (1, 0), (2, 0), (3, 1)])
def test_without_a_digest_a_client_is_believed_unless_it_is_ahead(holds: int, healed: int) -> None:
    own, client = coordinator(2), host(CASE, 0)
    client.replica.catch_up(records(*range(holds)))
    own.open((0, 1))
    own.take(0, client.hello(0))
    assert own.healed == healed


@pytest.mark.parametrize(("options", "asked"), [({}, False), ({"check_every": 0}, False), ({"check_every": 1}, True)])
def test_a_client_that_is_known_is_asked_for_its_digest_only_if_that_was_said(
    options: dict[str, int], asked: bool
) -> None:
    delivery, client = LAB.delivery(CASE), host(CASE, 0)
    own = Coordinator(delivery, RUN, digest=lambda: str(delivery.server.replica.digest()), **options)
    for _ in range(2):
        first = frame = own.open((0,))[0]
        while frame:
            frame = own.take(0, client.handle({0: frame})[0]) or b""
        own.close()
    kinds = [type(decode(message, delivery.server.run_seed)) for message in split_frame(first)]
    assert (Ask in kinds) is asked


FORGED = {
    "a client that is no number": lambda _, values: values.update(steps={"first": 1}),
    "an answer that is no bytes": lambda _, values: values.update(answers={"0": [1, "zz"]}),
    "a shorter model": lambda tensors, _: tensors.update(x=tensors["x"][:1].clone()),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_host_does_not_go_on_from_a_forged_file(name: str, tmp_path: Path) -> None:
    own = host(CASE, 0)
    before = kept(own, tmp_path)
    tensors, values = map(dict, read_checkpoint(tmp_path / "host"))
    FORGED[name](tensors, values)
    write_checkpoint(tmp_path / "forged", tensors, values)
    with pytest.raises(InputError, match="forged must|in the checkpoint .*forged must"):
        own.load(tmp_path / "forged")
    assert kept(own, tmp_path) == before
