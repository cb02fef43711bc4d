"""Clients elsewhere: the simulator's records and models, and what both sides refuse.

Whatever is lost, doubled or late, and whoever dies when, is played by the histories of
``tests/laws/test_histories.py``.
"""

import dataclasses
import math
from itertools import product
from typing import cast

import numpy as np
import pytest
import torch

import decomfl_lab as lab
from decomfl_lab import DivergedError, InputError, Sgd
from decomfl_lab.federations.carrier import Elsewhere
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.methods.registry import LAGGING
from decomfl_lab.protocol.aggregation import Aggregation, Krum, Mean, TrimmedMean
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.messages import Plan, Refusal, Reply, Welcome
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.wire import encode, read, split_frame
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.replica import Replica
from tests.cases import refuses, sampled
from tests.decomfl_lab.federations.direct import CASE, LAB, RUN, Direct, but, counted, host, remote, simulated


def rounds(federation, count):
    return [federation.advance() for _ in range(count)]


@pytest.mark.parametrize(("tracking", "seeding"), sampled(product(Tracking, Seeding), 4))
def test_hosts_elsewhere_give_the_simulators_losses_and_five_equal_models(tracking, seeding):
    case = but(tracking=tracking, seeding=seeding)
    elsewhere, here = remote(case), simulated(case)
    assert rounds(elsewhere, 8) == rounds(here, 8)
    models = [elsewhere.observer.digest(), *elsewhere.rebuilt().values()]
    assert models == 5 * [here.observer.digest()]


VOTES = but(estimator="central-sign", rule=Sgd(), seeding=Seeding.PER_RUN)


@pytest.mark.parametrize(("case", "dtype"), [(VOTES, np.float32), (CASE, np.int8)])
def test_scalars_of_another_type_than_the_runs_are_refused_by_both_sides(case, dtype):
    elsewhere, wrong = remote(case, quorum=2), np.ones((2, 3), dtype)
    liar = elsewhere.delivery.server.sample()[0]
    lie = encode(Reply(liar, 0, wrong))
    elsewhere.carrier.between = lambda i, answer: b"".join(split_frame(answer)[:-1]) + lie if i == liar else answer
    elsewhere.advance()
    wanted = f"scalars of client {liar} must be {np.dtype(case.aggregation.dtype)} of shape"
    assert wanted in elsewhere.coordinator.refused[liar]
    (record,) = elsewhere.server.history.since(0)
    own = host(case, 0)
    own.handle({0: encode(Welcome(0, 0))})
    (answer,) = own.handle({0: encode((dataclasses.replace(record, scalars=wrong),))}).values()
    assert "type of the scalars of the record of round 0 must be" in read(Refusal, answer).text
    assert own.replica.round == 0


@pytest.mark.parametrize("case", [CASE, VOTES])
def test_losses_that_are_no_numbers_end_a_run_elsewhere_too(case):
    elsewhere = remote(case)
    for i, own in elsewhere.carrier.hosts.items():
        own.clients[i].objective = lambda x, step: math.nan
    with pytest.raises(DivergedError):
        elsewhere.advance()
    assert elsewhere.server.round == 0


def test_a_server_killed_before_it_signed_a_round_signs_it_when_it_follows_its_log(tmp_path):
    with RunLog.create(tmp_path / "run.dcl", {"run_seed": LAB.server(CASE).run_seed}) as log:
        first, again = remote(), remote()
        for federation in (first, again):
            federation.log_to(log)
        rounds(first, 3)  # no digest is wanted, as if it came no more to be written
        again.digest_next = True
        rounds(again, 3)
        found = [entry.digest for entry in log.entries()]
        assert found == [None, None, first.observer.digest()]


def test_records_and_plans_that_are_not_as_agreed_are_refused():
    elsewhere = remote()
    frames = elsewhere.coordinator.open(elsewhere.delivery.server.sample())
    i = next(iter(frames))
    plan = read(Plan, split_frame(frames[i])[-1])
    for name, changes in {
        "eta": {"eta": 1e300},
        "K and P": {"P": 65535},
        "K and P ": {"seeds": plan.seeds * 2},
        "seeds": {"seeds": (1, 2)},
    }.items():
        wrong = Plan(**{**{k: getattr(plan, k) for k in ("round", "eta", "P", "distribution", "seeds")}, **changes})
        (said,) = split_frame(elsewhere.carrier.hosts[i].handle({i: encode(wrong)})[i])
        assert read(Refusal, said).text.startswith(name.strip())


def test_a_reply_counts_only_after_the_digest_that_was_asked_for():
    elsewhere = remote(quorum=2, deadline=1e-3, check_every=2)
    silent = elsewhere.delivery.server.sample()[0]
    elsewhere.carrier.between = lambda i, answer: split_frame(answer)[-1] if i == silent else answer
    elsewhere.advance()
    assert silent not in elsewhere.coordinator.replies


# A federation of one's own --------------------------------------------------------------------------------------------


CLIENTS = [(torch.randn(8, 3, generator=torch.Generator().manual_seed(i)), torch.arange(8) % 2) for i in range(3)]


class Hosts:
    """Every client in a host of its own, in this process."""

    def carrier(self, make, M):
        return Direct({i: make([i]) for i in range(M)})

    def __str__(self):
        return "the hosts of a test"


def model():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def trained(**options):
    return lab.train(model(), clients=CLIENTS, perturbations=3, rounds=5, sampled=2, eval_every=2, **options)


def test_a_run_with_its_clients_there_is_the_run_of_one_process_to_the_bit():
    here, there = trained(), trained(federation=Hosts())
    assert here.metrics.drop(columns="seconds").equals(there.metrics.drop(columns="seconds"))
    assert torch.equal(here.federation.x, there.federation.x)
    assert (bool(there.verify()), there.verify().clients) == (True, 3)


def test_it_goes_on_in_one_process_and_there_again(tmp_path):
    trained(federation=Hosts(), out=tmp_path)
    expected = trained().more(2).federation.x
    for federation in (None, Hosts()):
        again = lab.load(tmp_path, model(), clients=CLIENTS, federation=federation)
        assert torch.equal(again.more(2, out=None).federation.x, expected)


def test_what_has_no_carrier_is_refused():
    assert isinstance(lab.Ray(), Elsewhere)
    with pytest.raises(InputError, match=r"federation must be lab.Ray\(workers=N\), or None .* got 'ray'"):
        trained(federation="ray")


ELSEWHERE = f"^method must be one of {', '.join(LAGGING)} where clients are in other processes"


@refuses(
    (lab.FedAvg(), ELSEWHERE),
    (lab.Baffle(), ELSEWHERE),
    (
        lab.DeComFL(rule=lab.Sgd(), revert="sync"),
        r"^revert must be 'snapshot' with federation the hosts of a test, got",
    ),
    (lab.DeComFL(tracking="clients"), "^tracking must be 'server' with federation the hosts of a test"),
    (lab.DeComFL(history=5), "^history must be 0 with federation the hosts of a test"),
    (lab.DeComFL(perturbations=3, log_kappa=True), "^log_kappa must be False with federation the hosts of a test"),
    (lab.DeComFL(private_seeds=True), "^private_seeds must be False with federation the hosts of a test"),
)
def test_what_cannot_be_in_other_processes_is_refused_by_name(method):
    lab.train(model(), clients=CLIENTS, method=method, federation=Hosts())


# Clients that are away, and a quorum ----------------------------------------------------------------------------------


def test_a_quorum_is_of_the_sampled_clients_and_who_is_away_lacks():
    elsewhere = remote(m=4, quorum=3, patience=0.05)
    elsewhere.carrier.away = {0, 1}
    with pytest.raises(InputError, match=r"quorum of 3 must be reached in 0.05 s, got 2 of 4 replies in round 0"):
        elsewhere.advance()
    elsewhere.carrier.away = {0}
    elsewhere.advance()  # the round goes on with the replies that it has
    assert counted(elsewhere) == elsewhere.carrier.bytes
    assert elsewhere.ledger.down[1].messages == 1


def test_a_round_needs_more_than_half_of_the_answers_unless_told() -> None:
    assert [remote(but(M=5), m).quorum for m in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


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
