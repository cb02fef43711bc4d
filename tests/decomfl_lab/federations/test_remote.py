"""Clients elsewhere: the same records and models to the bit, whatever is lost and whoever dies."""

from __future__ import annotations

import dataclasses
import json
import math
from types import MappingProxyType

import numpy as np
import pytest

from decomfl_lab import DivergedError, InputError, Sgd
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.messages import Ask, Hello, Plan, Refusal, Reply, Welcome
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.wire import decode, encode, read, split_frame
from decomfl_lab.records.seeds import Seeding
from tests.decomfl_lab.federations.direct import CASE, LAB, RUN, Direct, but, host, remote, simulated
from tests.decomfl_lab.protocol.test_log import Full
from tests.thorough import sampled


def rounds(federation, count):
    return [federation.advance() for _ in range(count)]


def digests(federation):
    return {federation.observer.digest(), *federation.rebuilt().values()}


@pytest.mark.parametrize("tracking", sampled(Tracking, 4))
@pytest.mark.parametrize("seeding", Seeding)
def test_hosts_elsewhere_give_the_simulators_losses_and_five_equal_models(tracking, seeding):
    case = but(tracking=tracking, seeding=seeding)
    elsewhere, here = remote(case), simulated(case)
    assert rounds(elsewhere, 8) == rounds(here, 8)
    assert len(elsewhere.rebuilt()) == 4
    assert digests(elsewhere) == {here.observer.digest()}


VOTES = but(estimator="central-sign", rule=Sgd(), seeding=Seeding.PER_RUN)


@pytest.mark.parametrize(("case", "dtype"), [(VOTES, np.float32), (CASE, np.int8)])
def test_scalars_of_another_type_than_the_runs_are_refused_by_both_sides(case, dtype):
    elsewhere, wrong = remote(case, quorum=2), np.ones((2, 3), dtype)
    liar = elsewhere.delivery.sample()[0]
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


@pytest.mark.parametrize("tracking", Tracking)
def test_clients_that_share_a_host_and_its_model_give_the_same(tracking):
    case = but(tracking=tracking)
    both = [host(case, 0, 2), host(case, 1, 3)]
    elsewhere = remote(case, carrier=Direct({i: both[i % 2] for i in range(4)}))
    assert rounds(elsewhere, 8) == rounds(simulated(case), 8)
    assert digests(elsewhere) == {simulated(case, rounds=8).observer.digest()}


@pytest.mark.parametrize("case", [VOTES, *(but(tracking=at, seeding=by) for at in Tracking for by in Seeding)])
def test_a_client_that_lost_its_model_begins_anew_and_the_run_is_the_same(case):
    elsewhere, here = remote(case), simulated(case)
    for r in range(8):
        elsewhere.carrier.hosts[r % 4] = host(case, r % 4)
        assert elsewhere.advance() == here.advance()
    assert digests(elsewhere) == {here.observer.digest()}


def test_a_client_that_dies_after_its_answer_measures_the_right_batch_next():
    elsewhere, here = remote(), simulated()
    take = elsewhere.coordinator.take

    def dying(i, answer, loss):
        more = take(i, answer, loss)
        if more is None and elsewhere.round % 2:
            own = elsewhere.carrier.hosts[i] = host(CASE, i)
            own.handle({i: take(i, own.hello(i), math.nan)})
        return more

    elsewhere.coordinator.take = dying
    assert rounds(elsewhere, 8) == rounds(here, 8)


def test_a_client_whose_answer_was_lost_measures_the_same_batch_again():
    elsewhere = remote(quorum=2, deadline=0.01)
    elsewhere.carrier.between = lambda i, answer: None if (elsewhere.round, i) in lost else answer
    lost = {(1, elsewhere.coordinator.delivery.sample()[0]), (2, 3), (4, 0)}
    steps = dict.fromkeys(range(4), 0)
    for r in range(8):
        elsewhere.advance()
        for i, own in elsewhere.carrier.hosts.items():
            if i in elsewhere.coordinator.replies:
                steps[i] += CASE.K
                assert own.clients[i].steps_taken == steps[i], (r, i)
    assert elsewhere.coordinator.steps == list(steps.values())


@pytest.mark.parametrize(("case", "missed"), [(but(tracking=Tracking.CLIENTS), 0), (but(keep=1), 2)])
def test_who_is_welcomed_late_and_twice_is_told_its_place_in_the_data_again(case, missed):
    """Else it would measure a batch again, whose scalars are in the record of an earlier round already."""
    elsewhere, sent = remote(case, 4, quorum=2, deadline=0.01), []
    elsewhere.carrier.between = lambda i, answer: sent.append(elsewhere.coordinator._frames[0]) or answer
    rounds(elsewhere, 2)
    elsewhere.carrier.between = lambda i, answer: answer
    elsewhere.carrier.away = {0}
    rounds(elsewhere, missed)
    elsewhere.carrier.away = set()
    own = elsewhere.carrier.hosts[0]
    late = next(frame for frame in sent if len(split_frame(frame)) == 3)  # welcome, ask and plan of round 0
    for _ in range(2):
        own.handle({0: late})
    rounds(elsewhere, 1)
    assert 0 in elsewhere.coordinator.replies
    assert own.clients[0].steps_taken == 3 * case.K


def test_frames_that_come_twice_are_answered_with_the_same_bytes():
    elsewhere, seen = remote(), []

    def twice(i, answer):
        own = elsewhere.carrier.hosts[i]
        if isinstance(decode(split_frame(answer)[-1]), Reply):
            seen.append(own.handle({i: encode(elsewhere.server.planned[i])})[i] == split_frame(answer)[-1])
        return answer

    elsewhere.carrier.between = twice
    assert rounds(elsewhere, 4) == rounds(simulated(), 4)
    assert all(seen)
    assert len(seen) == 12


def test_a_round_goes_on_without_a_client_that_vanishes_and_says_who_answered():
    elsewhere = remote(quorum=2, deadline=0.01)
    gone = elsewhere.delivery.sample()[1]
    elsewhere.carrier.between = lambda i, answer: None if i == gone else answer
    elsewhere.advance()
    assert sorted(elsewhere.coordinator.replies) == [i for i in elsewhere.coordinator.chosen if i != gone]
    elsewhere.carrier.between = lambda i, answer: answer
    rounds(elsewhere, 3)
    assert len(digests(elsewhere)) == 1


def test_without_a_deadline_a_round_waits_for_all_as_long_as_its_patience():
    elsewhere = remote(quorum=2, patience=0.05)
    gone = elsewhere.delivery.sample()[0]
    elsewhere.carrier.between = lambda i, answer: None if i == gone else answer
    elsewhere.advance()
    assert len(elsewhere.coordinator.replies) == 2


def test_without_a_quorum_there_is_no_record():
    elsewhere = remote(quorum=3, deadline=0.01, patience=0.05)
    elsewhere.carrier.between = lambda i, answer: None
    with pytest.raises(InputError, match="quorum of 3 must be reached in 0.05 s, got 0 of 3 replies in round 0"):
        elsewhere.advance()
    assert elsewhere.round == 0


@pytest.mark.parametrize("keep", [1, 3])
def test_a_server_that_begins_again_has_as_many_records_as_it_keeps(keep, tmp_path):
    with RunLog.create(tmp_path / "run.dcl", {"run_seed": LAB.server(CASE).run_seed}) as log:
        first, second = remote(but(keep=keep)), remote(but(keep=keep))
        first.log_to(log)
        rounds(first, 5)
        tensors, values = first.save()
        second.load((tensors, values))
        second.log_to(log)
        assert second.server.history.since(5 - keep) == first.server.history.since(5 - keep)
        assert second.server.history.start == first.server.history.start == 5 - keep


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("made", [remote, simulated])
def test_a_full_disk_leaves_x_where_the_log_has_it(made, signed, tmp_path):
    with RunLog.create(path := tmp_path / "run.dcl", {"run_seed": LAB.server(CASE).run_seed}) as log:
        federation = made()
        federation.log_to(log)
        rounds(federation, 2)
        before, federation.digest_next = federation.observer.digest(), signed
        with Full(path, "r+") as full, pytest.MonkeyPatch.context() as patch:
            patch.setattr(log, "_file", full)
            with pytest.raises(InputError, match="cannot write .*run.dcl: No space left"):
                federation.advance()
        assert (federation.observer.digest(), federation.observer.round, len(log)) == (before, 2, 2)


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


def test_a_damaged_or_forged_answer_is_refused_alone():
    elsewhere = remote(quorum=2, deadline=0.01)
    bad, other, _ = elsewhere.delivery.sample()
    for forged in (b"DC", encode(Reply(other, 0, np.zeros((2, 3), np.float32))), encode(Ask())):
        elsewhere.carrier.between = lambda i, answer, forged=forged: forged if i == bad else answer
        frames = elsewhere.coordinator.open(elsewhere.delivery.sample())
        elsewhere.carrier.exchange(frames, elsewhere.coordinator.take, None)
        assert set(elsewhere.coordinator.refused) == {bad}
        assert bad not in elsewhere.coordinator.replies


def test_a_client_of_another_run_is_refused_by_name():
    elsewhere = remote(carrier=Direct({i: host(CASE, i, run=RUN if i else bytes(16)) for i in range(4)}), m=4)
    elsewhere.carrier.exchange(elsewhere.coordinator.finish(), elsewhere.coordinator.take, None)
    assert "run of client 0 must be 000102" in elsewhere.coordinator.refused[0]
    assert set(elsewhere.coordinator.digests) == {1, 2, 3}


def test_a_diverged_replica_is_revealed_and_healed():
    elsewhere, here = remote(check_every=4, m=4), simulated(m=4)
    for r in range(8):
        if r == 4:
            ill = elsewhere.carrier.hosts[2].replica
            ill.own()
            ill.x[0] += 1e-6
        losses = elsewhere.advance(), here.advance()
    assert elsewhere.coordinator.healed == 1
    assert losses[0] == losses[1]
    assert set(elsewhere.rebuilt().values()) == {elsewhere.observer.digest()}


def test_records_and_plans_that_are_not_as_agreed_are_refused():
    elsewhere = remote()
    frames = elsewhere.coordinator.open(elsewhere.delivery.sample())
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


@pytest.mark.parametrize("case", [CASE, VOTES])
def test_a_server_that_begins_again_follows_its_log_and_plans_the_same(case, tmp_path):
    here = simulated(case)
    with RunLog.create(tmp_path / "run.dcl", {"run_seed": here.server.run_seed}) as log:
        first = remote(case)
        first.log_to(log)
        rounds(first, 5)
        first.coordinator.open(first.delivery.sample())  # it dies in the middle of a round
    with RunLog.open(tmp_path / "run.dcl") as log:
        second = remote(case, carrier=first.carrier)
        second.log_to(log)
        assert all(map(math.isnan, rounds(second, 5)))
        assert second.coordinator.steps == first.coordinator.steps
        assert rounds(second, 3) == rounds(here, 8)[5:]
        assert digests(second) == {here.observer.digest()}
        assert second.ledger == here.ledger


def test_a_server_goes_on_from_its_checkpoint_and_then_its_log(tmp_path):
    first, second, here = remote(), remote(), simulated(rounds=8)
    rounds(first, 3)
    tensors, values = first.save()
    saved = {name: x.clone() for name, x in tensors.items()}, json.loads(json.dumps(values))
    rounds(first, 3)
    second.carrier = first.carrier
    second.load(saved)
    second.log_to(first.log)
    rounds(second, 5)
    assert second.round == 8
    assert digests(second) == {here.observer.digest()}
    assert second.ledger == here.ledger


class Mortal:
    """A host in a process that lives no longer than a message."""

    losses = MappingProxyType({})

    def __init__(self, i, folder):
        self.i, self.file, self.heard = i, folder / str(i), 0

    def handle(self, frames):
        own = host(CASE, self.i)
        if self.file.exists():
            own.load(self.file)
        answers = own.handle(frames)
        own.save(self.file)
        self.heard += 1
        return answers


def test_hosts_that_live_no_longer_than_a_message_go_on_from_their_files(tmp_path):
    mortals, lost = {i: Mortal(i, tmp_path) for i in range(4)}, []
    elsewhere = remote(carrier=Direct(mortals), check_every=0)
    elsewhere.carrier.between = lambda i, answer: lost.append(i) if mortals[i].heard % 5 == 3 else answer
    rounds(elsewhere, 8)
    assert sum(own.heard for own in mortals.values()) == 8 * 3 + len(lost) > 24
    assert digests(elsewhere) == {simulated(rounds=8).observer.digest()}


def test_a_client_that_says_nonsense_of_its_round_again_and_again_is_refused():
    elsewhere = remote(but(tracking=Tracking.CLIENTS), m=4)
    elsewhere.carrier.between = lambda i, answer: encode(Hello(0, RUN, 99, bytes(16))) if i == 0 else answer
    elsewhere.deadline = 1e-3
    elsewhere.advance()
    assert sorted(elsewhere.coordinator.replies) == [1, 2, 3]
    assert elsewhere.coordinator.healed == 3


def test_a_reply_counts_only_after_the_digest_that_was_asked_for():
    elsewhere = remote(quorum=2, deadline=1e-3, check_every=2)
    silent = elsewhere.delivery.sample()[0]
    elsewhere.carrier.between = lambda i, answer: split_frame(answer)[-1] if i == silent else answer
    elsewhere.advance()
    assert silent not in elsewhere.coordinator.replies
