"""``decomfl certificates``: who is who in a federation on a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["certificates"]


def certificates(
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to; made if missing.")],
    clients: Annotated[int, typer.Option(help="Number M of clients.")] = 4,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or IP address by which clients reach the server; may be given several times."),
    ] = None,
    days: Annotated[int, typer.Option(help="Days for which the certificates are valid.")] = 365,
    as_json: Annotated[bool, typer.Option("--json", help="Print the names of the files as one JSON list.")] = False,
) -> None:
    """Make the certificates of a server and of its clients.

    They are for decomfl serve and decomfl join, with the authority that signs them.

    The server's is for localhost and the hosts that are given. A client needs three of the files: ca.crt, client-3.crt
    and client-3.key; carry them to it on a way that you trust, and keep ca.key at home. What is there already is never
    overwritten: with more --clients, or after deleting a pair, only what is missing is made.

    Example: decomfl certificates certs --clients 4 --host fl.example.org
    """
    from decomfl_lab.carriers.stream.certificates import make_certificates

    made = make_certificates(folder, clients, host or (), days)
    if as_json:
        print(json.dumps([str(path) for path in made]))
    else:
        print(f"{len(made)} files made in {folder}" + (f": {', '.join(path.name for path in made)}" if made else ""))
