"""Clients in actors of Ray: the simulator's run to the bit, however many actors there are and whichever die."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial

import pytest
import torch

import decomfl_lab as lab
from decomfl_lab.carriers.ray import connect
from decomfl_lab.cli.main import main
from decomfl_lab.errors import DivergedError, InputError
from decomfl_lab.methods.registry import LAGGING
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.server import Terms
from decomfl_lab.protocol.session import Host
from decomfl_lab.records.seeds import Seeding
from tests.cases import refuses
from tests.decomfl_lab.federations.direct import CASE, LAB, RUN, but, counted, host, remote, simulated
from tests.decomfl_lab.federations.test_remote import CLIENTS, model

ray = pytest.importorskip("ray", reason="Ray is not installed here: make engines tests it")
pytestmark = [pytest.mark.engine, pytest.mark.thorough]


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    connect(2)
    yield
    ray.shutdown()


def carrier(workers, case=CASE):
    return lab.Ray(workers).carrier(partial(_host, case), case.M)


def _host(case, ids):
    return host(case, *ids)


def same(elsewhere, here, rounds=8):
    """Whether both give the same losses, records, bytes and models of every client in so many rounds."""
    here.server.history.prune = lambda r: None
    losses = [(elsewhere.advance(), here.advance()) for _ in range(rounds)]
    records = [[*map(repr, each.server.history.since(0))] for each in (elsewhere, here)]
    models = {elsewhere.observer.digest(), here.observer.digest(), *elsewhere.rebuilt().values()}
    ledgers = elsewhere.ledger.save() == here.ledger.save() != Ledger(4).save()
    return all(a == b for a, b in losses) and records[0] == records[1] and len(models) == 1 and ledgers


@pytest.mark.parametrize(("workers", "seeding"), [(1, Seeding.PER_STEP), (2, Seeding.PER_ROUND), (5, Seeding.PER_RUN)])
def test_any_number_of_actors_gives_the_simulators_records_bytes_and_models(workers, seeding):
    case = but(seeding=seeding)
    elsewhere = remote(case, carrier=carrier(workers, case))
    assert len(elsewhere.carrier.actors) == min(workers, 4)
    assert same(elsewhere, simulated(case))
    assert len(elsewhere.rebuilt()) == 4


class Tallying(Host):
    """A host that counts the bytes of its frames: {(client, whether upwards): bytes}."""

    def handle(self, frames):
        answers = super().handle(frames)
        self.tally = getattr(self, "tally", Counter())
        for i, frame in frames.items():
            self.tally[i, False] += len(frame)
            self.tally[i, True] += len(answers[i])
        return answers


def _tallying(ids):
    return Tallying({i: LAB.client(CASE, i) for i in ids}, RUN, Terms.of(LAB.server(CASE)))


def test_the_ledgers_have_the_bytes_that_go_to_actors_and_come_from_them():
    elsewhere = remote(carrier=lab.Ray(2).carrier(_tallying, 4))
    for _ in range(5):
        elsewhere.advance()
    elsewhere.rebuilt()
    tallies = ray.get([each.__ray_call__.remote(lambda self: self.host.tally) for each in elsewhere.carrier.actors])
    assert counted(elsewhere) == tallies[0] + tallies[1]


def test_actors_that_measure_something_else_are_noticed():
    assert not same(remote(carrier=carrier(1, but(mu=0.5))), simulated())


def test_an_actor_that_dies_again_and_again_is_given_up():
    elsewhere = remote(carrier=lab.Ray(1).carrier(_deadly, 4))
    with pytest.raises(InputError, match=r"deaths of actor 0 must number 3 at most a round, got 'The actor died"):
        elsewhere.advance()


def _deadly(ids):
    os._exit(1)


def test_an_error_in_an_actor_comes_out_by_its_name():
    with pytest.raises(InputError, match=r"^clients must number at least 1, got 0$"):
        remote(carrier=lab.Ray(1).carrier(lambda ids: host(CASE), 4)).advance()
    with pytest.raises(InputError, match=r"^model and loss must be such that pickle can carry them to actors, got "):
        lab.Ray(1).carrier(partial(_host, threading.Lock()), 4)


OPTIONS = {"sampled": 2, "batch_size": 4, "perturbations": 3, "local_steps": 2, "eval_every": 3, "test": CLIENTS[0]}


def trained(**options):
    return lab.train(model(), clients=CLIENTS, **OPTIONS | {"rounds": 6, "lr": 0.1} | options)


@pytest.mark.parametrize("options", [{"rebuild": "copy"}, {"pull": "auto", "bandwidth": 1e3}])
def test_lab_train_gives_the_same_table_and_model_and_goes_on(options):
    here, elsewhere = trained(**options), trained(federation=lab.Ray(2), **options)
    here.more(3), elsewhere.more(3)
    assert here.metrics.drop(columns="seconds").equals(elsewhere.metrics.drop(columns="seconds"))
    assert torch.equal(here.model.weight, elsewhere.model.weight)
    assert (bool(elsewhere.verify()), elsewhere.verify().clients) == (True, 3)


@pytest.mark.parametrize("now", [None, lab.Ray(1)])
def test_a_run_saved_by_actors_goes_on_with_or_without_them(now, tmp_path):
    options = {"rule": lab.Momentum(0.5), "seeds": "per-run"}
    whole = trained(rounds=12, **options)
    trained(rounds=6, federation=lab.Ray(2), out=tmp_path, **options)
    again = lab.load(tmp_path, model(), clients=CLIENTS, test=CLIENTS[0], federation=now).more(6)
    assert again.metrics.drop(columns="seconds").equals(whole.metrics.drop(columns="seconds"))
    assert torch.equal(again.model.weight, whole.model.weight)
    assert again.verify()
    assert lab.replay(tmp_path / "run.dcl", model()).agrees


def test_a_run_saved_without_its_first_records_or_with_another_model_is_not_taken_over(tmp_path):
    trained(rounds=1, out=tmp_path / "young")
    with pytest.raises(
        InputError, match="model must be the one at x_0, from which clients elsewhere begin, .* got 'another'"
    ):
        lab.load(tmp_path / "young", torch.nn.Linear(3, 2), clients=CLIENTS, test=CLIENTS[0], federation=lab.Ray(1))
    trained(rounds=9, out=tmp_path / "old")
    with pytest.raises(
        InputError, match=r"saved run must have its records from round 0 on, .* 'records from round \d on'"
    ):
        lab.load(tmp_path / "old", model(), clients=CLIENTS, test=CLIENTS[0], federation=lab.Ray(1))


def test_without_ray_the_error_says_which_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"Ray needs the extra ray: pip install "):
        trained(federation=lab.Ray())


def test_divergence_in_an_actor_is_told_as_in_one_process():
    for where in (None, lab.Ray(2)):
        with pytest.raises(
            DivergedError, match=r"must be finite: training diverged in round \d at lr = 1e\+30; try lr"
        ):
            trained(federation=where, lr=1e30)


ELSEWHERE = f"^method must be one of {', '.join(LAGGING)} where clients are in other processes"


@refuses(
    (lab.FedAvg(), ELSEWHERE),
    (lab.Baffle(), ELSEWHERE),
    (
        lab.DeComFL(rule=lab.Sgd(), revert="sync"),
        r"^revert must be 'snapshot' with federation Ray\(workers=4, address=None\), got",
    ),
    (lab.DeComFL(tracking="clients"), "^tracking must be 'server' with federation Ray"),
    (lab.DeComFL(history=5), "^history must be 0 with federation Ray"),
    (lab.DeComFL(perturbations=3, log_kappa=True), "^log_kappa must be False with federation Ray"),
    (lab.DeComFL(private_seeds=True), "^private_seeds must be False with federation Ray"),
)
def test_what_cannot_be_in_other_processes_is_refused_by_name(method):
    lab.train(torch.nn.Linear(3, 2), clients=CLIENTS, method=method, federation=lab.Ray())


LINE = "train --data digits --model logistic --rounds 3 --clients 3 --sampled 2 --json"
ARGS = LINE.split()


def test_the_command_line_gives_the_same_in_actors_with_progress(capsys):
    told = []
    for more in ([], ["--federation", "ray", "--workers", "2"]):
        assert main([*ARGS, *more]) == 0
        out, err = capsys.readouterr()
        assert "3/3, loss" in err
        result = json.loads(out)
        told.append([result["rebuilt"], *({**row, "seconds": 0} for row in result["metrics"])])
    assert told[0] == told[1]


COMMAND = "import sys; from decomfl_lab.cli.main import main; main()"


def test_a_cluster_at_an_address_is_used_and_none_there_is_refused():
    command = [sys.executable, "-c", COMMAND, *ARGS, "--federation", "ray"]
    there = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run(command, env=there, capture_output=True, text=True)
    assert json.loads(done.stdout)["rebuilt"] == {"clients": 3, "equal": 3}
    nowhere = {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"}
    refused = subprocess.run(command, env=nowhere, capture_output=True, text=True)
    words = "address must be that of a Ray that is running, got '127.0.0.1:1' ("
    assert (refused.returncode, words in refused.stderr) == (2, True)


def test_a_run_that_is_interrupted_leaves_no_process_behind():
    args = [*ARGS, "--rounds", "1000000", "--federation", "ray", "--workers", "2"]
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *args], start_new_session=True, stderr=subprocess.PIPE
    ) as run:
        while b"1000000, loss" not in run.stderr.readline():
            assert run.poll() is None
        assert len(_processes(run.pid)) > 3
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(60) == 130
    until = time.monotonic() + 30
    while left := _processes(run.pid):
        assert time.monotonic() < until, left
        time.sleep(0.2)


def _processes(session):
    listed = subprocess.run(["ps", "-eo", "sid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [args for sid, stat, *args in rows if int(sid) == session and not stat.startswith("Z")]
