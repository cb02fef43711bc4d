"""``decomfl noise``: bits of the perturbation stream, to compare with an implementation in another language."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from decomfl_lab.errors import require, require_choice, require_int, require_possible
from decomfl_lab.noise import (
    BACKENDS,
    STREAM_VERSION,
    AnyDistribution,
    Distribution,
    LowRank,
    cpu_backend,
    direction,
)

__all__ = ["noise"]

_CHUNK = 1 << 16


def noise(
    *,
    key: Annotated[
        str, typer.Option(help="64-bit seed of the local step, in hexadecimal. [default: 0]", show_default=False)
    ] = "0",
    p: Annotated[int, typer.Option("--direction", help="Number p of the direction, 0-based.")] = 0,
    first: Annotated[int, typer.Option(help="Number j of the first element.")] = 0,
    count: Annotated[int, typer.Option(help="How many elements to print.")] = 8,
    distribution: Annotated[str, typer.Option(help=f"Distribution of z: {', '.join(Distribution)}.")] = "gaussian",
    d: Annotated[
        int | None,
        typer.Option("--d", help="Dimension of the direction; a sphere's radius is √d. [default: first + count]"),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(help="Shapes of the model's tensors, which low-rank directions need: e.g. 64x32,64."),
    ] = None,
    rank: Annotated[int, typer.Option(help="Rank r of low-rank directions.")] = 1,
    backend: Annotated[
        str | None,
        typer.Option(help=f"Which code makes z: {', '.join(BACKENDS)}; the bits are the same. [default: the fastest]"),
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Print position and decimal value beside the bits.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the bits of a direction z(key, p), as eight hex digits.

    A line each has the float32 numbers z(key, p)[first .. first+count-1].

    The stream is specified in docs/noise-stream.md; decomfl_lab/noise/vectors.py holds its known answers.

    Example: decomfl noise --key deadbeef12345678 --direction 3 --first 96 --count 1
    prints 3ef2ee42.
    """
    kind = Distribution(require_choice("distribution", distribution, Distribution))
    try:
        seed = int(key, 16)
    except ValueError:
        seed = -1
    require(0 <= seed < 2**64, "key", "be a hexadecimal number of at most 16 digits", key)
    require_int("direction", p, 0, 2**32 - 1)
    require_int("first", first, 0)
    require_possible("count", require_int("count", count, 1), operations=100 * count, memory=100 * count * as_json)
    if kind is Distribution.SPHERE and d is None:
        print(f"no --d given: the sphere of radius √d has d = {first + count} here", file=sys.stderr)
    low_rank = kind is Distribution.LOW_RANK
    require(low_rank or rank == 1, "rank", "be 1 unless distribution is low-rank", rank)
    require(low_rank == (shapes is not None), "shapes", "be given for low-rank directions, and for no others", shapes)
    of: AnyDistribution = LowRank(_shapes(shapes), rank) if shapes else kind
    needed = of.d if isinstance(of, LowRank) else first + count
    whole = require_int("first + count", needed, 1) if d is None else require_int("d", d, 1)
    require_possible("d", whole, operations=10 * whole * (kind is Distribution.SPHERE))
    chunks = range(first, first + count, _CHUNK)
    parts = (
        direction(seed, p, whole, first=a, count=min(_CHUNK, first + count - a), distribution=of, backend=backend)
        for a in chunks
    )
    if as_json:
        bits = [f"{word:08x}" for part in parts for word in part.view("uint32").tolist()]
        about = {
            "stream_version": STREAM_VERSION,
            "backend": backend or cpu_backend(),
            "distribution": kind.value,
            "key": f"{seed:016x}",
            "direction": p,
            "first": first,
            "count": count,
            "d": whole,
            "bits": bits,
        }
        print(json.dumps(about))
        return
    at = first
    for part in parts:
        words = part.view("uint32").tolist()
        if values:
            lines = (
                f"{at + n} {word:08x} {value!r}"
                for n, (word, value) in enumerate(zip(words, part.tolist(), strict=True))
            )
        else:
            lines = (f"{word:08x}" for word in words)
        sys.stdout.write("\n".join(lines) + "\n")
        at += len(words)


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """((64, 32), (64,)) from "64x32,64"; InputError naming the piece that does not fit."""
    pieces = text.split(",")
    for piece in pieces:
        known = all(part.isdecimal() and len(part) < 20 for part in piece.split("x"))
        require(known, "shapes", "be numbers joined by x, shapes joined by commas", piece)
    return tuple(tuple(map(int, piece.split("x"))) for piece in pieces)
