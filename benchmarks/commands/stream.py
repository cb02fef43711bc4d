"""``decomfl bench stream``: bytes of the own stream on the wire, and one server against many clients."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from benchmarks.commands.shared import Rows, measured, numbers, print_tables
from decomfl_lab.cli.command import command
from decomfl_lab.errors import require_int, require_possible
from decomfl_lab.options import option

__all__ = ["stream"]


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The options of ``decomfl stream``."""

    clients: int = option(1000, "Number of clients of the server that is put under load.")
    d: str = option("1e4,1e7", "Model sizes d of that server's run.")
    rounds: int = option(20, "Rounds of the load; bytes are of 100 rounds.")
    as_json: bool = option(False, "Print the record of it as JSON.", flag="--json")


@command
def stream(options: StreamOptions) -> None:
    """Measure bytes on the wire, and the load of a server.

    Bytes are those of a client-round; the server has many clients on loopback, K·P = 20.

    Bytes are those of every segment on a loopback interface of its own, the headers of IP and TCP, acknowledgements
    and TLS included (Linux, unshare --net). "answer after" is how long a client takes: after 40 ms its side
    acknowledges the plan by a segment of its own. Under load all clients take part in every round and answer without
    computing; the server has no model, as the algorithm has it, or one that follows every record, as that of decomfl
    serve. Memory is that of the whole process, libraries included.
    """
    from benchmarks.stream import load_rows, wire_rows

    require_int("rounds", options.rounds, 2)
    require_possible(
        "clients and rounds", (options.clients, options.rounds), operations=1e5 * options.clients * options.rounds
    )
    sizes = numbers("d", options.d)
    for size in sizes:
        require_possible("d", require_int("d", size, 1), memory=4 * size)
    wire = [asdict(row) for row in measured(wire_rows(), 4)]
    load = [
        asdict(row)
        for row in measured(load_rows(sizes, clients=options.clients, rounds=options.rounds), 2 * len(sizes))
    ]
    columns = {
        "security": "{security}",
        "answer after": "{pause:g} s",
        "scalars": "{scalars}",
        "messages": "{messages:.0f} B",
        "on the wire": "{bytes:.0f} B",
        "segments": "{segments:.2f}",
    }
    rows = [row | {"security": "mutual TLS" if row["secured"] else "keyed tags"} for row in wire]
    traffic = Rows("A client-round of the stream, both ways", rows, columns)
    columns = {
        "server": "{server}",
        "clients": "{clients:,}",
        "d": "{d:,}",
        "rounds a second": "{rounds_per_second:.2f}",
        "MB half way": "{half_mb:.1f}",
        "MB at the end": "{end_mb:.1f}",
    }
    rows = [
        row
        | {"server": "with a model" if row["model"] else "without a model"}
        | {f"{name}_mb": row[name] and 1e-6 * row[name] for name in ("half", "end")}
        for row in load
    ]
    loaded = Rows(f"One server on loopback, {options.rounds} rounds", rows, columns)
    print_tables(traffic, loaded, width=100, as_json=options.as_json)
