"""Rules of aggregation: their definitions in exact arithmetic, what they bear, what they refuse; weights of clients."""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decomfl_lab import ClippedMean, InputError, Krum, Majority, Mean, Median, TrainConfig, TrimmedMean
from decomfl_lab.datasets.images import load_dataset
from decomfl_lab.federations.remote import CarriedFederation, RemoteFederation, host_of
from decomfl_lab.federations.simulation import DeComFLFederation
from decomfl_lab.protocol.aggregation import Aggregation, omega
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.messages import Examples, Reply
from decomfl_lab.protocol.server import Server
from decomfl_lab.protocol.session import Host
from decomfl_lab.protocol.wire import decode, encode, split_frame
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.runs.preparation import Prepared
from tests.cases import refuses
from tests.decomfl_lab.federations.direct import RUN, Direct

FAR = 1e30


def _replies(*scalars: float) -> list[np.ndarray[Any, Any]]:
    """Replies of a scalar each."""
    return [np.array([[scalar]], dtype=np.float32) for scalar in scalars]


def _of(rule: Aggregation, *scalars: float) -> float:
    return float(rule(_replies(*scalars))[0, 0])


rows = st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4), min_size=1, max_size=9)


@given(rows)
def test_mean_trimmed_mean_and_median_are_those_of_exact_arithmetic(drawn: list[list[float]]) -> None:
    replies = [np.array(row, dtype=np.float32).reshape(2, 2) for row in drawn]
    t = (len(replies) - 1) // 3
    for n in range(4):
        column = sorted(Fraction(float(reply.flat[n])) for reply in replies)
        left = column[t : len(column) - t]
        wanted = {Mean(): statistics.mean(column), TrimmedMean(t): statistics.mean(left)}
        for rule, exact in (wanted | {Median(): statistics.median(column)}).items():
            found = Fraction(float(rule(replies).flat[n]))
            assert abs(found - exact) <= abs(exact) * Fraction(1, 2**23) + Fraction(1, 2**148)


def test_a_clipped_mean_shortens_what_is_longer_than_c() -> None:
    long, short = (np.array([row], np.float32) for row in ([3.0, 4.0], [0.0, 0.5]))  # of norms 5 and 0.5
    assert ClippedMean(1.25)([long, short]).tolist() == [[0.375, 0.75]]
    assert ClippedMean(9.0)([long, short]).tobytes() == Mean()([long, short]).tobytes()
    assert ClippedMean()([short, -short, long]) == pytest.approx(np.array([[0.1, 0.4 / 3]]))  # to the median, 0.5


@pytest.mark.parametrize(
    ("scalars", "wanted"),
    [
        ((2.0,), 2.0),
        ((1.0, 3.0), (1 + 2) / 2),  # c = 2, between them
        ((-4.0, 2.0), (-3 + 2) / 2),  # c = 3: norms have no sign
        ((0.0, 0.0, 0.0, 7.0), 0.0),
        ((1.0, 2.0, 3.0, 8.0, 9.0, 9.0), (1 + 2 + 3 + 3 * 5.5) / 6),
    ],
)
def test_a_clip_of_0_is_the_median_norm_of_an_even_number_that_between_the_two_in_the_middle(
    scalars: tuple[float, ...], wanted: float
) -> None:
    for order in (scalars, scalars[::-1]):
        assert _of(ClippedMean(), *order) == pytest.approx(wanted)


def test_krum_takes_the_reply_with_the_nearest_neighbours() -> None:
    # n − f − 2 = 2 neighbours: 1.0 has squared distances 0.04 and 0.09, 1.2 has 0.01 and 0.04, 1.3 has 0.01 and 0.09.
    assert _of(Krum(1), 1.0, 1.2, 1.3, 7.0, FAR) == np.float32(1.2)
    assert _of(Krum(1), FAR, 1.3, 7.0, 1.2, 1.0) == np.float32(1.2)


def _votes(*signs: int) -> list[np.ndarray[Any, Any]]:
    return [np.array([[sign]], dtype=np.int8) for sign in signs]


@pytest.mark.parametrize(("rule", "n", "f", "t"), [(TrimmedMean(3), 9, 1, 3), (Median(), 10, 1, 4)])
def test_omega_cannot_be_smaller(rule: Aggregation, n: int, f: int, t: int) -> None:
    # The t smallest of the honest are at -1, the others at 0, and all liars above: then A = 0, and (A − ḡ)² = ω s².
    honest = [-1.0] * t + [0.0] * (n - f - t)
    away = _of(rule, *honest, *[FAR] * f) - np.mean(honest)
    assert away**2 == pytest.approx(omega(rule, n, f) * np.var(honest), rel=1e-6)


def test_omega_is_the_formula_of_the_document_and_infinite_where_there_is_no_proof() -> None:
    assert (omega(Mean(), 5, 0), omega(Median(), 10, 1), omega(TrimmedMean(2), 9, 1)) == (0.0, 4 / 5, 2 / 6)
    assert omega(Krum(1), 5, 1) == pytest.approx((math.sqrt(2 * 4 * 2 / (3 * 2)) + math.sqrt(2 / 2)) ** 2)
    assert omega(Krum(2), 9, 1) == pytest.approx((math.sqrt(2 * 8 * 5 / (7 * 5)) + math.sqrt(3 / 5)) ** 2)
    for rule, n, f in (
        (Mean(), 5, 1),
        (Median(), 8, 4),
        (TrimmedMean(1), 9, 2),
        (TrimmedMean(2), 4, 1),
        (Krum(1), 9, 2),
    ):
        assert omega(rule, n, f) == math.inf
    assert omega(ClippedMean(), 5, 0) == math.inf


@refuses(
    (lambda: TrimmedMean(-1), "tolerated must be an integer of at least 0, got -1"),
    (lambda: Krum(0.5), "tolerated must be an integer of at least 0, got 0.5"),  # type: ignore[arg-type]
    (lambda: ClippedMean(float("nan")), "clip c must be a finite number of at least 0, got nan"),
    (lambda: ClippedMean(True), "clip c must be a finite number of at least 0, got True"),
    (lambda: ClippedMean("1"), "clip c must be a finite number of at least 0, got '1'"),  # type: ignore[arg-type]
    (lambda: Median()([*_replies(1.0), np.zeros((2, 1), np.float32)]), "replies must be float32 arrays of one"),
    (lambda: Majority()(_replies(1.0, -1.0)), "replies must be int8 arrays of one shape"),
    (lambda: Median()(_votes(1, -1)), "replies must be float32 arrays of one shape"),
    (lambda: Majority()(_votes(1, 100)), "replies must be -1 or 1, got 100"),
    (lambda: Majority()(_votes(1, 0)), "replies must be -1 or 1, got 0"),
    (lambda: Mean()(_replies(1.0, np.inf)), "replies must be finite, got .*inf"),
    (lambda: Krum(1)(_replies(*range(4))), r"replies for Krum\(tolerated=1\) must number at least 5, got 4"),
    (lambda: Mean()([]), r"replies for Mean\(\) must number at least 1, got 0"),
)
def test_what_is_no_rule_or_no_reply_is_refused(make: Any) -> None:
    make()


def test_a_server_aggregates_by_its_rule_and_stores_nothing_where_too_few_answer() -> None:
    server = Server(M=5, m=5, K=1, P=Schedule(1), eta=Schedule(0.1), seed=0, aggregation=TrimmedMean(2))
    server.plan_round()
    replies = [Reply(i, 0, scalars) for i, scalars in enumerate(_replies(FAR, 1.0, 2.0, 4.0, -FAR))]
    with pytest.raises(InputError, match=r"replies for TrimmedMean\(tolerated=2\) must number at least 5, got 4"):
        server.aggregate(replies[:4])
    assert (server.round, server.held) == (0, [0] * 5)
    assert server.aggregate(replies).scalars.tolist() == [[2.0]]


# Clients weighed by their examples ------------------------------------------------------------------------------------


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
    i = elsewhere.delivery.server.sample()[1]
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
        liar = second.delivery.server.sample()[0]
        second.carrier.hosts[liar] = host(liar, 7)
        second.advance()
        assert "as it said before, got 7" in second.coordinator.refused[liar]
