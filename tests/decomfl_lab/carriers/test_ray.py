"""Clients in actors of Ray: the simulator's run to the bit, however many actors there are and whichever die."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
import torch

import decomfl_lab as lab
from decomfl_lab.carriers.ray import connect
from decomfl_lab.cli.main import main
from decomfl_lab.errors import InputError
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.records.seeds import Seeding
from tests.decomfl_lab.federations.direct import CASE, but, host, remote, simulated
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


def test_without_ray_the_error_says_which_extra_to_install(without):
    without("ray")
    with pytest.raises(InputError, match=r"Ray needs the extra ray: pip install "):
        trained(federation=lab.Ray())


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
