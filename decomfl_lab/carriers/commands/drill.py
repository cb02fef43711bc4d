"""``decomfl drill``: a federation of real processes, some of them killed, against the simulator's bits."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from decomfl_lab.children import environment
from decomfl_lab.cli.command import command
from decomfl_lab.errors import InputError, require, require_choice, require_int
from decomfl_lab.options import option
from decomfl_lab.plain import print_json

if TYPE_CHECKING:
    from decomfl_lab.runs.config import TrainConfig

__all__ = ["drill"]

Says = Callable[[str], None]
STEP = 0.03
"""Seconds between two looks at how far a run is."""
COME = 120.0
"""Seconds that a process may take to begin, or to end."""


@dataclass(frozen=True, kw_only=True)
class DrillOptions:
    """The options of ``decomfl drill``."""

    engine: str = option("stream", "The engine: stream, ray or nvflare.", argument=True)
    data: str = option("mnist", "Data set, as of decomfl train.")
    model: str = option("cnn-mnist", "Model, as of decomfl train.")
    rounds: int = option(50, "Number of rounds.")
    clients: int = option(4, "Number of clients, all but one of them sampled a round.")
    seed: int = option(0, "Seed of everything random.")
    out: Path | None = option(None, "Empty folder for the run and what its processes print. [default: none kept]")
    as_json: bool = option(False, "Print one JSON object.", flag="--json")


@command
def drill(options: DrillOptions) -> None:
    """Kill clients and server of a real run, and compare all models.

    They are started as processes, and in the end all models must be equal.

    The same run is simulated first, undisturbed. After a third of the rounds a client is killed (SIGKILL) and started
    again, after two thirds the server. At the end the digests of the server's model and of every client's must be
    the simulator's. Exit code 0 if all are equal, 1 if not.

    stream: decomfl serve and one decomfl join a client, over gRPC on loopback. ray: decomfl train --federation ray,
    whose actors are the clients' processes. nvflare: a job in NVFlare's SimEnv, whose sites lose their models, and a
    second job that goes on where the first was killed.

    Example: decomfl drill ray --rounds 30
    """
    from decomfl_lab.runs.config import TrainConfig

    require_choice("engine", options.engine, ENGINES)
    require_int("rounds", options.rounds, 3)
    require_int("clients", options.clients, 2)
    config = TrainConfig(
        data=options.data,
        model=options.model,
        clients=options.clients,
        sampled=options.clients - 1,
        rounds=options.rounds,
        seed=options.seed,
        batch_size=32,
        perturbations=10,
        seeds="per-run",
        eval_every=options.rounds,
        test_examples=500,
    )
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.out is None else options.out
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"out must be an empty folder, got {folder}")
        wanted, accuracy = _simulated(config)
        _say(f"simulated: {options.rounds} rounds, accuracy {accuracy:.3f}, model {wanted}")
        digests = ENGINES[options.engine](config, folder)
    equal = {name: digest == wanted for name, digest in digests.items()}
    whole = len(digests) == options.clients + 1 and all(equal.values())
    if options.as_json:
        print_json({"engine": options.engine, "simulated": wanted, "digests": digests, "equal": whole})
    else:
        for name, digest in digests.items():
            print(f"{name:10} {digest} {'equal' if equal[name] else 'DIFFERS'}")
        print(f"{sum(equal.values())} of {options.clients + 1} models have the bits of the undisturbed simulated run")
    raise click.exceptions.Exit(not whole)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _simulated(config: TrainConfig) -> tuple[str, float]:
    """Digest and accuracy of the run in this process."""
    from decomfl_lab.runs.prepared import movable
    from decomfl_lab.runs.run import Run

    run = Run(config)
    run.train()
    return movable(run.federation, config.method).observer.digest(), float(run.metrics.test_accuracy.iloc[-1])


class _Processes:
    """Commands of decomfl, their output in a folder; what still runs at the end is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str, program: Sequence[str] = ("-m", "decomfl_lab")) -> None:
        """Start one, which appends to NAME.err and writes NAME.out."""
        command = [sys.executable, *program, *arguments]
        with (self.folder / f"{name}.out").open("wb") as output, (self.folder / f"{name}.err").open("ab") as words:
            self.running[name] = subprocess.Popen(command, stdout=output, stderr=words, env=environment())

    def kill(self, name: str, r: int) -> None:
        """Kill one at once."""
        _say(f"round {r}: {name} is killed")
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()

    def check(self, *, may_end: bool = False) -> None:
        """InputError if one has ended badly, or has ended at all."""
        for name, process in self.running.items():
            if process.poll() is not None and not (may_end and process.returncode == 0):
                raise InputError(
                    f"{name} must go on to its end, got exit code {process.returncode}: {self.words(name)}"
                )

    def words(self, name: str) -> str:
        """The last line that one has said."""
        lines = (self.folder / f"{name}.err").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing"

    def result(self, name: str) -> dict[str, Any]:
        """What one prints as JSON when it ends."""
        self.running[name].wait(COME)
        self.check(may_end=True)
        found: dict[str, Any] = json.loads((self.folder / f"{name}.out").read_text())
        return found


@contextlib.contextmanager
def _processes(folder: Path) -> Iterator[_Processes]:
    own = _Processes(folder)
    try:
        yield own
    finally:
        for process in own.running.values():
            process.kill()
            process.wait()


def _rounds(log: Path) -> int:
    """How many rounds a run's log has."""
    from decomfl_lab.protocol.log import RunLog

    if not log.exists():
        return 0
    with RunLog.open(log, write=False) as own:
        return len(own)


def _wait(processes: _Processes, what: str, done: Callable[[], int], least: int) -> None:
    """Wait until ``done`` is as large as that; InputError if it does not rise for too long."""
    last, since = -1, time.monotonic()
    while (now := done()) < least:
        processes.check()
        if now > last:
            last, since = now, time.monotonic()
        require(time.monotonic() - since < COME, what, f"rise within {COME:g} s", now)
        time.sleep(STEP)


def _written(config: TrainConfig, folder: Path) -> str:
    (folder / "run.toml").write_text(config.to_toml())
    return str(folder / "run.toml")


def _require_under_way(config: TrainConfig, log: Path) -> None:
    require(
        _rounds(log) < config.rounds, "rounds", "be more: the run was over before it could be killed", config.rounds
    )


def _stream(config: TrainConfig, folder: Path) -> dict[str, str]:
    """Decomfl serve and decomfl join."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    serve = ["serve", "--config", _written(config, folder), "--bind", address, "--out", str(folder / "server")]
    serve += ["--quorum", str(config.sampled), "--trust-code", "--json"]
    log, keys = folder / "server" / "run.dcl", folder / "server" / "keys"

    def join(i: int) -> list[str]:
        key = str(keys / f"client-{i}.key")
        return ["join", address, "--client", str(i), "--key", key, "--trust-code", "--json"]

    with _processes(folder) as own:
        own.start("server", *serve)
        _wait(own, "keys of clients", lambda: len(list(keys.glob("client-*.key"))), config.clients)
        for i in range(config.clients):
            own.start(f"client {i}", *join(i))
        _wait(own, "rounds", lambda: _rounds(log), config.rounds // 3)
        own.kill("client 1", _rounds(log))
        own.start("client 1", *join(1))
        _wait(own, "rounds", lambda: _rounds(log), 2 * config.rounds // 3)
        _require_under_way(config, log)
        own.kill("server", _rounds(log))
        own.start("server", *serve)
        return {name: own.result(name)["digest"] for name in own.running}


SIMULATE = """
import os, sys
os.environ["DECOMFL_TRUST_CODE"] = "1"  # the drill's own job, of what its user named
from decomfl_lab.carriers.nvflare import simulate
simulate(*sys.argv[1:])
"""


def _nvflare(config: TrainConfig, folder: Path) -> dict[str, str]:
    """A job in SimEnv that is killed with all its sites, and a second one."""
    try:
        import nvflare  # noqa: F401
        import psutil  # it comes with NVFlare
    except ModuleNotFoundError:
        raise InputError("drill nvflare needs the extra nvflare: pip install 'decomfl-lab[nvflare]'") from None
    out = folder / "server"
    log = out / "run.dcl"
    with _processes(folder) as own:
        own.start("job", _written(config, folder), str(out), program=("-c", SIMULATE))
        _wait(own, "rounds", lambda: _rounds(log), config.rounds // 3)
        sites = psutil.Process(own.running["job"].pid).children(recursive=True)
        own.kill("job", _rounds(log))
        for site in sites:
            site.kill()
        own.start("job", _written(config, folder), str(out), program=("-c", SIMULATE))
        _wait(own, "rounds", lambda: _rounds(log), config.rounds)
        own.running["job"].wait(COME)
        own.check(may_end=True)
    found: dict[str, str] = json.loads((out / "digests.json").read_text())
    return found


def by_ray(config: str, out: str) -> None:
    """Run the configuration in two actors, and print {whose: digest of its model} at the end."""
    from decomfl_lab.carriers.ray import Ray
    from decomfl_lab.runs.config import config_from_mapping, read_config
    from decomfl_lab.runs.prepared import movable
    from decomfl_lab.runs.run import Run

    values = read_config(Path(config))
    run = Run(config_from_mapping(values, config, trust_code=True), federation=Ray(workers=2))
    run.train(out=Path(out))
    federation = movable(run.federation, run.config.method)
    clients = {f"client {i}": digest for i, digest in sorted(federation.rebuilt().items())}
    print_json({"server": federation.observer.digest(), **clients})


def _ray(config: TrainConfig, folder: Path) -> dict[str, str]:
    """Two actors, one of which is killed, and then the process that they work for."""
    try:
        import psutil  # it comes with Ray's extra
        import ray  # noqa: F401
    except ModuleNotFoundError:
        raise InputError("drill ray needs the extra ray: pip install 'decomfl-lab[ray]'") from None
    program = ("-c", "import sys; from decomfl_lab.carriers.commands.drill import by_ray; by_ray(*sys.argv[1:])")
    out = folder / "server"
    log = out / "run.dcl"
    with _processes(folder) as own:
        own.start("server", _written(config, folder), str(out), program=program)
        _wait(own, "rounds", lambda: _rounds(log), config.rounds // 3)
        below = psutil.Process(own.running["server"].pid).children(recursive=True)
        living = [each for each in below if each.status() != psutil.STATUS_ZOMBIE]
        actors = [each for each in living if "ray::_Actor" in " ".join(each.cmdline())]
        require(len(actors) == 2, "actors", "be 2", len(actors))
        _say(f"round {_rounds(log)}: an actor is killed, with the clients in it")
        actors[0].kill()
        _wait(own, "rounds", lambda: _rounds(log), 2 * config.rounds // 3)
        own.kill("server", _rounds(log))
        own.start("server", _written(config, folder), str(out), program=program)
        return own.result("server")


ENGINES: dict[str, Callable[[TrainConfig, Path], dict[str, str]]] = {
    "stream": _stream,
    "ray": _ray,
    "nvflare": _nvflare,
}
