"""``decomfl serve`` and ``decomfl join``, on loopback, with a model of 650 parameters."""

import json
import os
import signal
import threading
import time

import pytest

pytest.importorskip("grpc", reason="the extra stream is not installed")

from decomfl_lab import InputError, Run, TrainConfig
from decomfl_lab.carriers.stream import client as client_module
from decomfl_lab.cli.main import main
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.interrupts import interrupt
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.configuration import config_from_mapping, read_config
from tests.decomfl_lab.carriers.killed import free_address

FLAGS = "--data digits --model logistic --clients 2 --sampled 2 --perturbations 3 --batch-size 8 --eval-every 100"


@pytest.fixture
def address():
    return free_address()


@pytest.fixture(autouse=True)
def _soon_again(monkeypatch):
    monkeypatch.setattr(client_module, "LONGEST_WAIT", 0.3)


def serve(out, address, rounds, more=""):
    return main(f"serve {FLAGS} --rounds {rounds} --out {out} --bind {address} --json {more}".split())


def joining(out, address, codes, i, certificates=None, more=""):
    """A thread that is client i, once there is a key for it."""
    key = (certificates or out / "keys") / f"client-{i}.key"
    proof = (f"--key {key}" if certificates is None else f"--certificates {certificates}") + more

    def join():
        while not key.exists():
            time.sleep(0.05)
        codes.append(main(f"join {address} --client {i} {proof} --json".split()))

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    return thread


def said(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("secured", [False, True])
def test_server_and_clients_print_the_digest_of_the_simulated_run(secured, tmp_path, address, capsys):
    certificates = tmp_path / "certificates" if secured else None
    assert not secured or main(f"certificates {certificates} --clients 2".split()) == 0
    codes: list[int] = []
    threads = [joining(tmp_path / "fl", address, codes, i, certificates) for i in range(2)]
    assert serve(tmp_path / "fl", address, 3, f"--certificates {certificates}" if secured else "") == 0
    for thread in threads:
        thread.join(30)
    assert codes == [0, 0]
    found = said(capsys)
    settings = {"clients": 2, "sampled": 2, "perturbations": 3, "batch_size": 8}
    run = Run(TrainConfig(data="digits", model="logistic", rounds=3, **settings))
    run.train()
    assert {each["digest"] for each in found} == {run.federation.observer.digest()}
    assert {each["round"] for each in found if "client" in each} == {3}


def stopped(serving, ready):
    """The exit code of a server that is interrupted as soon as it is ready for that."""
    before = signal.signal(signal.SIGTERM, interrupt)

    def stop():
        while not ready():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    try:
        return serving()
    finally:
        signal.signal(signal.SIGTERM, before)


OWN = """import os
import torch

def clients():
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
    pairs = list(zip(x.split(20), (x[:, 0] > 0).long().split(20)))
    return pairs[: int(os.environ["CLIENTS"])], pairs[0]
"""


def test_a_server_that_is_stopped_saves_the_round_and_a_client_joins_while_the_others_stay(
    here, address, capsys, monkeypatch
):
    (here / "hospitals.py").write_text(OWN)
    run = "data = 'hospitals:clients'\nmodel = 'logistic'\nsampled = 2\nperturbations = 3\nbatch_size = 8\n"
    for M in (2, 3):
        (here / f"{M}.toml").write_text(f"clients = {M}\n{run}")
    codes, fl, log = [], here / "fl", here / "fl" / "run.dcl"
    monkeypatch.setenv("CLIENTS", "2")
    threads = [joining(fl, address, codes, i, more=" --config 2.toml --trust-code") for i in range(2)]
    argv = f"serve --config 2.toml --trust-code --rounds 100000 --out {fl} --bind {address}".split()
    assert stopped(lambda: main(argv), lambda: log.exists() and log.stat().st_size >= 3000) == 143
    told = capsys.readouterr().err
    assert f"saved in {fl}" in told
    reached = int(told.split("interrupted after round ")[1].split(";")[0])
    monkeypatch.setenv("CLIENTS", "3")
    threads.append(joining(fl, address, codes, 2, more=" --config 3.toml --trust-code"))
    again = f"serve --config 3.toml --trust-code --rounds {reached + 6} --out {fl} --bind {address} --json"
    assert main(again.split()) == 0
    for thread in threads:
        thread.join(30)
    found = said(capsys)
    assert codes == [0, 0, 0]
    values = {**read_config(here / "3.toml"), "joined": {reached: 1}}
    fresh = Run(config_from_mapping(values, "here", trust_code=True))
    fresh.config = fresh.config.but(rounds=reached + 6)
    fresh.train()
    assert {each["digest"] for each in found} == {fresh.federation.observer.digest()}
    assert RunLog.open(log).header["config"]["joined"] == {str(reached): 1}


def test_a_server_that_waits_for_a_client_that_is_away_stops_at_the_first_signal(tmp_path, address):
    log = tmp_path / "fl" / "run.dcl"

    def waits():
        if log.exists():
            time.sleep(1.0)
        return log.exists()

    assert stopped(lambda: serve(tmp_path / "fl", address, 5, "--patience 10"), waits) == 143


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("--quorum 2 --deadline 1.5 --patience 7", {"quorum": 2, "deadline": 1.5, "patience": 7.0}),
        ("", {"quorum": None, "deadline": None, "patience": 300.0}),
    ],
)
def test_how_long_a_round_waits_is_what_the_flags_say(flags, options, tmp_path, address, capsys, monkeypatch):
    def told(here, server, identity, **found):
        raise InputError(f"options are {found}")

    monkeypatch.setattr(RemoteFederation, "of", told)
    assert serve(tmp_path / "fl", address, 1, flags) == 2
    assert f"options are {options}" in capsys.readouterr().err
