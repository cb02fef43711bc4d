"""The same job in two of NVFlare's environments: the bits of the simulator, whoever vanishes."""

import importlib
import importlib.util
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from decomfl_lab import InputError, Run, TrainConfig
from decomfl_lab.protocol.messages import Hello
from decomfl_lab.protocol.wire import read
from decomfl_lab.runs.configuration import config_from_mapping, read_config
from decomfl_lab.storage.tables import text_beside
from tests.decomfl_lab.carriers.killed import rounds_of
from tests.decomfl_lab.carriers.stand_ins import standing_in

ROOT = Path(__file__).parents[3]
EXAMPLE = "examples/nvflare/job.py"
SITES = [f"site-{n}" for n in range(1, 5)]
JOB = text_beside(__name__, "nvflare_job.txt")
HERE = text_beside(__name__, "nvflare_parts.txt")
engine = [
    pytest.mark.engine,
    pytest.mark.thorough,
    pytest.mark.skipif(
        importlib.util.find_spec("nvflare") is None, reason="NVFlare is not installed here: make engines tests it"
    ),
]


def test_without_nvflare_the_error_says_which_extra_to_install():
    with (
        pytest.raises(InputError, match=r"NVFlare needs the extra nvflare: pip install "),
        standing_in("decomfl_lab.carriers.nvflare", {"nvflare": None, "nvflare.collab": None}),
    ):
        pass


class TestJob:
    pytestmark = engine

    def test_digests_in_pocenv_are_the_same_and_nobody_gets_in_without_a_certificate(self, tmp_path):
        job = _start(tmp_path, EXAMPLE, "poc")
        kit = tmp_path / "poc/example_project/prod_00/site-1/startup"
        assert _shakes_hands(job, kit, with_certificate=True)
        assert not _shakes_hands(job, kit, with_certificate=False)
        _end(job, tmp_path)
        assert _digests(tmp_path) == dict.fromkeys(["server", *SITES], _simulated(tmp_path))

    def test_rounds_go_on_without_a_site_that_was_killed(self, tmp_path):
        job = _start(tmp_path, "-c", JOB)
        _kill(job, tmp_path, "site-2")
        _end(job, tmp_path)
        digests = _digests(tmp_path)
        assert list(digests) == ["server", "site-1", "site-3", "site-4"]
        assert len(set(digests.values())) == 1

    def test_a_site_has_its_own_examples_and_none_of_the_others(self, tmp_path, monkeypatch):
        nvflare = importlib.import_module("decomfl_lab.carriers.nvflare")
        (tmp_path / "here.py").write_text(HERE)
        monkeypatch.syspath_prepend(tmp_path)
        config = TrainConfig(data="here:load", model="here:model", clients=4, sampled=2, batch_size=2)
        monkeypatch.setenv(nvflare.TRUST, "1")
        run, federation, identity = nvflare.run_of(config.to_toml())
        assert len(run.dataset.train_labels) == 3
        assert [client.objective.batches.n for client in federation.clients] == [3] * 4
        assert read(Hello, nvflare.host_at(config.to_toml(), 3).hello(3)).run == identity

    @pytest.mark.parametrize(
        ("change", "rule"),
        [({"sites": SITES[:3]}, "sites must be 4"), ({"quorum": 5}, "quorum"), ({"deadline": 0.0}, "deadline")],
    )
    def test_bad_options_are_refused_by_name(self, change, rule):
        code = f"from examples.nvflare.job import *; job(CONFIG, **({{'sites': SITES}} | {change}))"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
        assert f"InputError: {rule}" in done.stderr


def _start(out: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A process of Python in the project's folder; what it prints is in job.log."""
    with (out / "job.log").open("wb") as log:
        own = {**os.environ, "NVFLARE_POC_WORKSPACE": str(out / "poc")}
        return subprocess.Popen([sys.executable, *arguments, str(out)], cwd=ROOT, stdout=log, stderr=log, env=own)


def _end(job: subprocess.Popen[bytes], out: Path) -> None:
    """Wait for its end; where another process had taken the port of a site, it is begun again."""
    for _ in range(3):
        code, words = job.wait(), (out / "job.log").read_text()
        if "failed to sync clients" not in words:
            break
        job = _start(out, *job.args[1:-1])
    assert code == 0, words[-2000:]


def _digests(out: Path) -> dict[str, str]:
    return dict(sorted(json.loads((out / "digests.json").read_text()).items()))


def _simulated(out: Path) -> str:
    """The digest of the same run in the simulator."""
    run = Run(config_from_mapping(read_config(out / "config.toml"), "the job's run"))
    run.train()
    return run.federation.observer.digest()


def _shakes_hands(job: subprocess.Popen[bytes], kit: Path, *, with_certificate: bool) -> bool:
    """Whether the server of the job, once it is there, speaks to whoever has this."""
    while True:
        assert job.poll() is None, (kit.parents[4] / "job.log").read_text()
        try:
            context = ssl.create_default_context(cafile=kit / "rootCA.pem")
            context.check_hostname = False
            if with_certificate:
                context.load_cert_chain(kit / "client.crt", kit / "client.key")
            raw = socket.create_connection(("localhost", 8002), timeout=5)
            break
        except OSError:
            time.sleep(0.5)
    with raw, context.wrap_socket(raw) as connection:
        try:
            return connection.recv(1) != b""
        except TimeoutError:  # it waits for a word
            return True
        except (ssl.SSLError, ConnectionError):
            return False


def _kill(job: subprocess.Popen[bytes], out: Path, site: str) -> None:
    """Kill the process of a site after some rounds."""
    psutil = pytest.importorskip("psutil")  # NVFlare brings it
    while rounds_of(out / "run.dcl") < 5:
        assert job.poll() is None, (out / "job.log").read_text()
        time.sleep(0.2)
    for process in psutil.Process(job.pid).children(recursive=True):
        if f"--client {site} " in " ".join(process.cmdline()):
            process.kill()
