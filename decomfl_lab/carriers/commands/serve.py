"""``decomfl serve``: a run whose clients connect from other processes or machines (``decomfl join``)."""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from decomfl_lab.cli.train import RunPlace, TrainGroup, prepared, report, title
from decomfl_lab.errors import InputError, require
from decomfl_lab.installation import without_extra
from decomfl_lab.interrupts import telling
from decomfl_lab.methods.registry import LAGGING
from decomfl_lab.options import option
from decomfl_lab.protocol.wire import SCALAR_BYTES
from decomfl_lab.storage.files import held, write_atomically
from decomfl_lab.storage.tables import table_beside

if TYPE_CHECKING:
    from decomfl_lab.progress import Progress

logger = logging.getLogger(__name__)

_HELP = table_beside(__name__, "options.toml")["serve"]
WAITING = "how long a round waits"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of ``decomfl serve`` beside those of a run and its method."""

    place: RunPlace
    bind: str = option("127.0.0.1:8470", "HOST:PORT to listen on; other hosts than 127.0.0.1 need --certificates.")
    certificates: Path | None = option(None, _HELP["certificates"])
    quorum: int | None = option(None, _HELP["quorum"], WAITING)
    deadline: float | None = option(None, _HELP["deadline"], WAITING)
    patience: float = option(300.0, "Seconds that a round waits for a quorum before the server gives up.", WAITING)


def _serve(method: str, options: ServeOptions, flags: dict[str, Any]) -> None:
    with_extra()
    from decomfl_lab.carriers.stream.certificates import read_identity
    from decomfl_lab.carriers.stream.connection import require_address
    from decomfl_lab.carriers.stream.server import StreamServer
    from decomfl_lab.federations.remote import RemoteFederation
    from decomfl_lab.progress import RunBars, words
    from decomfl_lab.runs.messages import Rebuilt
    from decomfl_lab.runs.preparation import movable
    from decomfl_lab.storage.outside import Offer

    out, certificates = options.place.out, options.certificates
    if out is None:
        raise InputError("out must be a folder, where the run is kept, got None")
    require_address("bind", options.bind, secured=certificates is not None)
    certificate = read_identity(certificates, "server") if certificates is not None else None
    run = prepared(method, options.place, flags, follows=True)
    federation = movable(run.federation, run.config.method)
    x = federation.observer.digest()
    identity = run.config.identity(x)
    with held(out), contextlib.ExitStack() as stack:
        server = StreamServer(
            options.bind,
            to_builtins(Offer(identity.hex(), x, run.config.to_dict())),
            run.config.clients,
            largest=1024 + SCALAR_BYTES * federation.server.K * federation.server.P.largest,
            identity=certificate,
            keys=keys_in(out / "keys", identity, run.config.clients) if certificate is None else None,
        )
        stack.callback(server.close)
        waits = {"quorum": options.quorum, "deadline": options.deadline, "patience": options.patience}
        remote = RemoteFederation.of(federation, server, identity, **waits)
        run.federation = remote
        reach = "this machine alone (loopback)" if certificates is None else "clients with certificates"
        proof = f"--key {out / 'keys'}/client-I.key" if certificates is None else "--certificates DIR"
        how = f"each client I in 0..{run.config.clients - 1} by: decomfl join {server.address} --client I {proof}"
        print(f"listening on {server.address} for {reach}; {how}", file=sys.stderr, flush=True)

        def show(progress: Progress) -> None:
            clients = f"{len(server.connected)} of {run.config.clients} clients"
            bars.show(title(run), progress.round, progress.rounds, f"{clients}, {words(progress)}")

        with RunBars() as bars:
            run.train(out=out, on_round=show, any_code=True)  # rounds that the log has are not computed again
            limit = remote.deadline or remote.patience
            logger.info("all rounds are done; the clients have %g s to say the digests of their models", limit)
            with telling(lambda: f"interrupted; all {run.round} rounds are in {out}"):
                digests = remote.rebuilt()
        server.close(over=True)
    digest = remote.observer.digest()
    report(run, Rebuilt(run.config.clients, len(digests)), out, as_json=options.place.as_json, digest=digest)
    if not options.place.as_json:
        print(f"digest of the model after round {run.round}: {digest}")


def with_extra() -> None:
    """InputError where the libraries of the extra are not installed."""
    try:
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
    except ModuleNotFoundError as error:
        without_extra("a federation of processes (certificates, serve, join)", "stream", error)


def keys_in(folder: Path, identity: bytes, M: int) -> Callable[[int], bytes]:
    """{client: key}, from a key of the server's own; all are in the folder, made if they are not those of this run."""
    from decomfl_lab.carriers.stream.certificates import client_name
    from decomfl_lab.carriers.stream.connection import KEY_BYTES, client_key

    secret = folder / "server.key"
    folder.mkdir(exist_ok=True)
    if not secret.exists() or not secret.stat().st_size:
        write_atomically(secret, secrets.token_hex(KEY_BYTES), 0o600)
    keys = [client_key(read_key(secret), identity, i) for i in range(M)]
    for i, key in enumerate(keys):
        path = folder / f"{client_name(i)}.key"
        if not path.exists() or path.read_bytes() != key.hex().encode():
            write_atomically(path, key.hex(), 0o600)
    return keys.__getitem__


def read_key(path: Path) -> bytes:
    """The key in a file; InputError if there is none."""
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except OSError as error:
        raise InputError(f"key must be a readable file, got {path} ({error.strerror})") from None
    except ValueError:
        raise InputError(f"key must be a file of hexadecimal digits, got {path}") from None
    require(len(key) == 32, f"key in {path}", "have 32 bytes", len(key))
    return key


serve = TrainGroup(
    "serve",
    ServeOptions,
    _serve,
    methods=LAGGING,
    first={},
    help=_HELP["usage"],
    short_help="Run a federation whose clients are on other machines.",
    subcommand_metavar="[METHOD] [OPTIONS]",
    context_settings={"help_option_names": ["-h", "--help"]},
)
