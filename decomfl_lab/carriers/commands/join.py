"""``decomfl join``: one client of a run that ``decomfl serve`` serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decomfl_lab.carriers.commands.serve import read_key, with_extra
from decomfl_lab.cli.command import command
from decomfl_lab.errors import require
from decomfl_lab.interrupts import telling
from decomfl_lab.options import MOST_THREADS, REQUIRED, option
from decomfl_lab.runs.configuration import TrainConfig, config_from_mapping, read_config
from decomfl_lab.storage.json_values import print_json
from decomfl_lab.storage.tables import table_beside

_HELP = table_beside(__name__, "options.toml")["join"]


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """The options of ``decomfl join``."""

    address: str = option(REQUIRED, "Where decomfl serve listens.", argument=True, metavar="HOST:PORT")
    client: int = option(REQUIRED, "Number of this client.", ge=0)
    certificates: Path | None = option(None, _HELP["certificates"])
    key: Path | None = option(None, _HELP["key"])
    config: Path | None = option(None, "TOML file of the run, as decomfl train has it. [default: what the server says]")
    trust_code: bool = option(False, _HELP["trust_code"])
    device: str = option("cpu", "Where losses are computed: cpu, cuda, cuda:N or auto.")
    threads: int = option(1, "CPU threads of torch.", ge=1, le=MOST_THREADS)
    patience: float = option(60.0, "Seconds without a server after which to give up.", gt=0)
    as_json: bool = option(False, "Print one JSON object.", flag="--json")


def _config_of(options: JoinOptions, offered: dict[str, Any]) -> TrainConfig:
    """The run's configuration: that of this machine's file, or else what the server offers."""
    if options.config is None:
        # Refused where it would have this machine import code of the server's choice.
        run_config = config_from_mapping(offered, "the server's config", trust_code=options.trust_code)
        return run_config.but(run_config.method.replaying())
    values, origin = read_config(options.config), f"config {options.config}"
    run_config = config_from_mapping(values, origin, trust_code=options.trust_code)
    if run_config.joined:
        return run_config
    # A client that joins need not write in its file in which round it and others came.
    numbers: dict[str, Any] = {name: offered[name] for name in ("clients", "joined") if name in offered}
    whole = config_from_mapping({**numbers, "sampled": 1}, "the server's config")
    if any(whole.present(r) == run_config.clients for r in (0, *whole.joined)):
        return run_config.but(joined=whole.of_first(run_config.clients).joined)
    return run_config


@command
def join(options: JoinOptions) -> None:
    """Be a client of a server's run, with the data of this machine.

    The data stay here: only scalars are sent. Run, x_0 and directions follow from the configuration, and x_0 is
    compared with the server's by its digest first. Connections that break are made again for --patience seconds; a
    client that was stopped may be started again at any time and gets the records that it lacks. At the end it prints
    the digest of its model, which is the server's.

    Example: decomfl join 127.0.0.1:8470 --client 0 --key fl/keys/client-0.key
    """
    with_extra()
    from decomfl_lab.carriers.stream.certificates import client_name, read_identity
    from decomfl_lab.carriers.stream.client import StreamClient
    from decomfl_lab.devices import use_threads_
    from decomfl_lab.federations.remote import host_of
    from decomfl_lab.runs.preparation import Materials, movable
    from decomfl_lab.runs.run import Run
    from decomfl_lab.storage.outside import Offer, read_as

    use_threads_(options.threads)
    got = "neither" if options.key is None else "both"
    require(
        (options.certificates is None) != (options.key is None),
        "--key or --certificates",
        "be given, one of the two",
        got,
    )
    identity = (
        read_identity(options.certificates, client_name(options.client)) if options.certificates is not None else None
    )
    stream = StreamClient(
        options.address,
        options.client,
        identity=identity,
        key=read_key(options.key) if options.key is not None else None,
        patience=options.patience,
    )
    offer = read_as(Offer, stream.offer(), f"offer of the server at {options.address}")
    run_config = _config_of(options, offer.config)
    require(options.client < run_config.clients, "client", f"be in 0..{run_config.clients - 1}", options.client)
    run = Run(run_config, dataset=Materials(run_config).dataset(options.device))
    federation = movable(run.federation, run_config.method)
    x, server = federation.observer, federation.server
    require(x.digest() == offer.x0, "digest of x_0", f"be the server's, {offer.x0}", x.digest())
    identity_of_run = run_config.identity(x.digest())
    host = host_of(federation, identity_of_run, [options.client])

    def answer(frame: bytes) -> bytes:
        answered = host.handle({options.client: frame})[options.client]
        run.resolution.tell()
        return answered

    model = 8 * x.d * (1 + len(x.state))
    record = 64 + (4 + 8) * server.K * server.P.largest
    with telling(
        lambda: f"interrupted; the run goes on without client {options.client} until the same command is given again"
    ):
        stream.serve(
            identity_of_run.hex(),
            lambda: host.hello(options.client),
            answer,
            largest=4096 + model + record * (run_config.rounds + 1),
        )
    summary = {"client": options.client, "round": host.replica.round, "digest": host.replica.digest()}
    if options.as_json:
        print_json(summary)
    else:
        print(f"the run is over; digest of the model after round {summary['round']}: {summary['digest']}")
