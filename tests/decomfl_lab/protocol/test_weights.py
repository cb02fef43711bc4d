"""Clients weighed by their examples: who says the number, when it is counted, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decomfl_lab import TrainConfig
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.federations.remote import CarriedFederation, RemoteFederation, host_of
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.messages import Examples, Reply
from decomfl_lab.protocol.session import Host
from decomfl_lab.protocol.wire import decode, encode, split_frame
from decomfl_lab.runs.preparation import Prepared
from tests.decomfl_lab.federations.direct import RUN, Direct

CONFIG = TrainConfig(
    data="digits", model="logistic", clients=4, sampled=3, rounds=6, seed=2, weighting="examples",
    perturbations=3, local_steps=2, lr=0.01, mu=1e-3, batch_size=16, seeds="per-run",
)  # fmt: skip
SIZES = (5, 40, 200, 700)


def simulated(rounds: int = 0, sizes: tuple[int, ...] = SIZES, **changes: Any) -> DeComFLFederation:
    """The run in this process, of clients with so many examples, after so many rounds."""
    ends = np.cumsum((0, *sizes))
    parts = [np.arange(*pair) for pair in pairwise(ends)]
    federation = Prepared.of(CONFIG.but(**changes), replace(load_dataset("digits"), parts=parts)).federation()
    assert isinstance(federation, DeComFLFederation)
    for _ in range(rounds):
        federation.advance()
    return federation


def host(i: int, n: int | None = None, **changes: Any) -> Host:
    """A new process of client i, which may say that it has n examples."""
    own = host_of(simulated(**changes), RUN, [i])
    if n is not None:
        own.clients[i].examples = lambda: Examples(i, n)  # type: ignore[method-assign]
    return own


def remote(kind: type[RemoteFederation] = RemoteFederation, **options: Any) -> Any:
    """The run with every client in a process of its own."""
    return kind.of(simulated(), Direct({i: host(i) for i in range(4)}), RUN, **options)


def answers(messages: Callable[[int], list[Any]], i: int) -> Callable[[int, bytes], bytes]:
    """What comes instead of the answer of client i: hello, these messages, its reply."""

    def between(j: int, answer: bytes) -> bytes:
        said = split_frame(answer)
        own = isinstance(decode(said[-1]), Reply) and i == j
        return said[0] + b"".join(map(encode, messages(j))) + said[-1] if own else answer

    return between


def test_a_number_is_in_the_runs_ledger_where_a_reply_of_its_client_is_in_the_log() -> None:
    elsewhere, again = remote(quorum=2, deadline=1e-3), remote()
    elsewhere.carrier.between = lambda i, answer: b"".join(split_frame(answer)[:2]) if i == 0 else answer
    for _ in range(4):
        elsewhere.advance()
    assert elsewhere.server.weights.examples[0] == SIZES[0]
    again.log_to(elsewhere.log)
    for _ in range(4):
        again.advance()
    assert again.ledger == elsewhere.ledger
    assert elsewhere.ledger.up[0].bytes == 0


def test_a_client_that_says_another_number_is_left_out_from_then_on_and_named() -> None:
    elsewhere = remote(quorum=2)
    elsewhere.advance()
    liar = elsewhere.coordinator.chosen[0]
    before = elsewhere.server.weights.examples[liar]
    elsewhere.carrier.hosts[liar] = host(liar, before + 1)
    for _ in range(4):
        elsewhere.advance()
        if liar in elsewhere.coordinator.chosen:
            told = f"examples of client {liar} must number {before}, as it said before, got {before + 1}"
            assert elsewhere.coordinator.refused == {liar: told}
            assert liar not in elsewhere.coordinator.replies
    assert elsewhere.server.weights.examples[liar] == before


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "client {} must say how many examples it has before its reply counts"),
        ([Examples(9, 5)], "client of a number of examples must be {}, whose connection it is, got 9"),
    ],
)
def test_a_reply_without_its_clients_own_number_does_not_count(messages: list[Any], told: str) -> None:
    elsewhere = remote(quorum=2)
    i = elsewhere.delivery.sample()[1]
    elsewhere.carrier.between = answers(lambda _: messages, i)
    elsewhere.advance()
    assert elsewhere.coordinator.refused == {i: told.format(i)}
    assert sorted({*elsewhere.coordinator.replies, i}) == list(elsewhere.coordinator.chosen)


@pytest.mark.parametrize("kind", [RemoteFederation, CarriedFederation])
def test_a_saved_server_knows_the_numbers_and_refuses_others(kind: type[RemoteFederation], tmp_path: Path) -> None:
    first, second, here = remote(kind, quorum=3), remote(kind, quorum=2), simulated(6)
    with RunLog.create(tmp_path / "run.dcl", {"run_seed": here.server.run_seed}) as log:
        first.log_to(log)
        for _ in range(3):
            first.advance()
        tensors, values = first.save()
        second.load(({name: vector.clone() for name, vector in tensors.items()}, values))
        assert second.server.weights == first.server.weights
        if kind is RemoteFederation:
            second.log_to(log)
        for _ in range(3):
            second.advance()
        assert (second.observer.digest(), second.ledger.save()) == (here.observer.digest(), here.ledger.save())
        liar = second.delivery.sample()[0]
        second.carrier.hosts[liar] = host(liar, 7)
        second.advance()
        assert "as it said before, got 7" in second.coordinator.refused[liar]
