"""``decomfl certificates``: who is who in a federation on a network."""

from dataclasses import dataclass
from pathlib import Path

from decomfl_lab.carriers.commands.serve import with_extra
from decomfl_lab.cli.command import command
from decomfl_lab.options import REQUIRED, option
from decomfl_lab.storage.json_values import print_json
from decomfl_lab.storage.tables import table_beside

_HELP = table_beside(__name__, "options.toml")["certificates"]


@dataclass(frozen=True, kw_only=True)
class CertificatesOptions:
    """The options of ``decomfl certificates``."""

    folder: Path = option(REQUIRED, "Folder to write to; made if missing.", argument=True, metavar="DIR")
    clients: int = option(4, "Number M of clients.", symbol="M", ge=1, le=100_000)
    host: tuple[str, ...] = option((), _HELP["host"])
    days: int = option(365, "Days for which the certificates are valid.", ge=1, le=36_500)
    as_json: bool = option(False, "Print the names of the files as one JSON list.", flag="--json")


@command
def certificates(options: CertificatesOptions) -> None:
    """Make the certificates of a server and of its clients.

    They are for decomfl serve and decomfl join, with the authority that signs them.

    The server's is for localhost and the hosts that are given. A client needs three of the files: ca.crt, client-3.crt
    and client-3.key; carry them to it in a way that you trust, and keep ca.key secret. Existing files are never
    overwritten: with more --clients, or after you deleted a pair, only the missing files are made.

    Example: decomfl certificates certs --clients 4 --host fl.example.org
    """
    with_extra()
    from decomfl_lab.carriers.stream.certificates import make_certificates

    made = make_certificates(options.folder, options.clients, options.host, options.days)
    if options.as_json:
        print_json([str(path) for path in made])
    else:
        names = ": " + ", ".join(path.name for path in made) if made else ""
        print(f"{len(made)} files made in {options.folder}{names}")
