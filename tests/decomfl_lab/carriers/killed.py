"""A run whose clients and server are processes, some of which are killed on the way: what all models are at the end."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from decomfl_lab.processes import environment
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.runs.configuration import TrainConfig
from decomfl_lab.storage.tables import text_beside

STEP = 0.03
"""Seconds between two looks at how far a run is."""
COME = 120.0
"""Seconds that a process may take to begin, or to end, and a run to its next round."""


class Processes:
    """Processes of Python, their output in a folder; what still runs at the end is killed.

    Attributes:
        folder: Where each leaves NAME.out and NAME.err.
        current: The folder in which they run.
    """

    def __init__(self, folder: Path, current: Path | None = None) -> None:
        self.folder, self.current = folder, current
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    def start(
        self, name: str, *arguments: str, program: Sequence[str] = ("-m", "decomfl_lab"), **variables: str
    ) -> None:
        """Start one, a command of decomfl if nothing else is said; it appends to NAME.err and writes NAME.out.

        Its environment is that of this process, with ``variables``.
        """
        words = [sys.executable, *program, *arguments]
        with (self.folder / f"{name}.out").open("wb") as output, (self.folder / f"{name}.err").open("ab") as errors:
            own = subprocess.Popen(words, stdout=output, stderr=errors, env=environment(variables), cwd=self.current)
        self.running[name] = own

    def kill(self, name: str) -> None:
        """Kill one at once."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()

    def wait(self, done: Callable[[], int], least: int) -> None:
        """Wait until ``done`` is as large as that; all processes must go on meanwhile."""
        last, since = -1, time.monotonic()
        while (now := done()) < least:
            for name, process in self.running.items():
                assert process.poll() is None, self.said(name)
            if now > last:
                last, since = now, time.monotonic()
            assert time.monotonic() - since < COME, f"{now} of {least} for {COME:g} s"
            time.sleep(STEP)

    def said(self, name: str) -> str:
        """What one has said last."""
        return (self.folder / f"{name}.err").read_text(errors="replace")[-2000:]

    def result(self, name: str) -> Any:
        """What one prints as JSON when it ends."""
        assert self.running[name].wait(COME) == 0, self.said(name)
        return json.loads((self.folder / f"{name}.out").read_text())


def rounds_of(log: Path) -> int:
    """How many rounds a run's log has."""
    if not log.exists():
        return 0
    with RunLog.open(log, write=False) as own:
        return len(own)


def free_address() -> str:
    """HOST:PORT on loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def over_stream(config: TrainConfig, folder: Path, current: Path | None = None) -> dict[str, str]:
    """The digests of all models by decomfl serve and decomfl join, of which client 1 and the server are killed.

    Args:
        config: The run.
        folder: An empty folder, for the run and for what the processes say.
        current: The folder in which they run.
    """
    address = free_address()
    (folder / "run.toml").write_text(config.to_toml())
    serve = ["serve", "--config", str(folder / "run.toml"), "--bind", address, "--out", str(folder / "server")]
    serve += ["--quorum", str(config.sampled), "--trust-code", "--json"]
    log, keys = folder / "server" / "run.dcl", folder / "server" / "keys"

    def join(i: int) -> list[str]:
        key = str(keys / f"client-{i}.key")
        return ["join", address, "--client", str(i), "--key", key, "--trust-code", "--json"]

    with Processes(folder, current) as own:
        own.start("server", *serve)
        own.wait(lambda: len(list(keys.glob("client-*.key"))), config.clients)
        for i in range(config.clients):
            own.start(f"client {i}", *join(i))
        own.wait(lambda: rounds_of(log), config.rounds // 3)
        own.kill("client 1")
        own.start("client 1", *join(1))
        own.wait(lambda: rounds_of(log), 2 * config.rounds // 3)
        own.kill("server")
        assert rounds_of(log) < config.rounds, "the run was over before the server could be killed"
        own.start("server", *serve)
        return {name: own.result(name)["digest"] for name in own.running}


BY_NVFLARE = text_beside(__name__, "killed_nvflare.txt")


def by_nvflare(config: TrainConfig, folder: Path) -> dict[str, str]:
    """The digests of all models by a job in SimEnv, which is killed with all its sites, and a second one."""
    import psutil  # it comes with NVFlare

    (folder / "run.toml").write_text(config.to_toml())
    out = folder / "server"
    words = str(folder / "run.toml"), str(out)
    with Processes(folder) as own:
        own.start("job", *words, program=("-c", BY_NVFLARE))
        own.wait(lambda: rounds_of(out / "run.dcl"), config.rounds // 3)
        sites = psutil.Process(own.running["job"].pid).children(recursive=True)
        own.kill("job")
        for site in sites:
            site.kill()
        own.start("job", *words, program=("-c", BY_NVFLARE))
        assert own.running["job"].wait(10 * COME) == 0, own.said("job")
    found: dict[str, str] = json.loads((out / "digests.json").read_text())
    return found


BY_RAY = text_beside(__name__, "killed_ray.txt")


def by_ray(config: TrainConfig, folder: Path) -> dict[str, str]:
    """The digests of all models by two actors, one of which is killed, and then the process that they work for."""
    import psutil  # it comes with Ray's extra

    (folder / "run.toml").write_text(config.to_toml())
    log = folder / "server" / "run.dcl"
    words = str(folder / "run.toml"), str(folder / "server")
    with Processes(folder) as own:
        own.start("server", *words, program=("-c", BY_RAY))
        own.wait(lambda: rounds_of(log), config.rounds // 3)
        below = psutil.Process(own.running["server"].pid).children(recursive=True)
        living = [each for each in below if each.status() != psutil.STATUS_ZOMBIE]
        actors = [each for each in living if "ray::_Actor" in " ".join(each.cmdline())]
        assert len(actors) == 2
        actors[0].kill()
        own.wait(lambda: rounds_of(log), 2 * config.rounds // 3)
        own.kill("server")
        assert rounds_of(log) < config.rounds, "the run was over before its process could be killed"
        own.start("server", *words, program=("-c", BY_RAY))
        found: dict[str, str] = own.result("server")
    return found
