"""``decomfl noise``: bits of the perturbation stream, to compare with an implementation in another language."""

import sys
from dataclasses import dataclass
from functools import partial

from decomfl_lab.cli.command import command
from decomfl_lab.errors import require, require_int, require_possible
from decomfl_lab.noise import BACKENDS, STREAM_VERSION, Distribution, cpu_backend, direction, require_distribution
from decomfl_lab.noise.known_answers import stream_vectors
from decomfl_lab.options import option
from decomfl_lab.storage.json_values import print_json

_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """The options of ``decomfl noise``."""

    key: str = option("0", "64-bit seed of the local step, in hexadecimal. [default: 0]")
    p: int = option(0, "Number p of the direction, 0-based.", flag="--direction", ge=0, le=2**32 - 1)
    first: int = option(0, "Number j of the first element.", ge=0)
    count: int = option(8, "How many elements to print.", ge=1)
    distribution: str = option("gaussian", f"Distribution of z: {', '.join(Distribution)}.")
    d: int | None = option(None, "Dimension of the direction; a sphere's radius is √d. [default: first + count]")
    backend: str | None = option(
        None, f"Which code makes z: {', '.join(BACKENDS)}; the bits are the same. [default: the fastest]"
    )
    values: bool = option(False, "Print position and decimal value beside the bits.")
    as_json: bool = option(False, "Print one JSON object.", flag="--json")
    vectors: bool = option(False, "Print test vectors of the whole stream, as JSON; no other option counts then.")


@command
def noise(options: NoiseOptions) -> None:
    """Print the bits of a direction z(key, p), as eight hex digits.

    A line each has the float32 numbers z(key, p)[first .. first+count-1].

    The stream is specified in docs/noise-stream.md; decomfl_lab/noise/known_answers.py holds its known answers.

    Example: decomfl noise --key deadbeef12345678 --direction 3 --first 96 --count 1
    prints 3ef2ee42.
    """
    if options.vectors:
        print_json(stream_vectors(), indent=1)
        return
    kind = require_distribution(options.distribution)
    try:
        seed = int(options.key, 16)
    except ValueError:
        seed = -1
    require(0 <= seed < 2**64, "key", "be a hexadecimal number of at most 16 digits", options.key)
    require_possible(
        "count",
        options.count,
        operations=100 * options.count,
        memory=100 * options.count * options.as_json,
    )
    needed = options.first + options.count
    if kind is Distribution.SPHERE and options.d is None:
        print(f"no --d given: the sphere of radius √d has d = {needed} here", file=sys.stderr)
    whole = require_int("first + count", needed, 1) if options.d is None else require_int("d", options.d, 1)
    require_possible("d", whole, operations=10 * whole * (kind is Distribution.SPHERE))
    piece = partial(direction, seed, options.p, whole, distribution=kind, backend=options.backend)
    parts = (piece(first=a, count=min(_CHUNK, needed - a)) for a in range(options.first, needed, _CHUNK))
    if options.as_json:
        bits = [f"{word:08x}" for part in parts for word in part.view("uint32").tolist()]
        about = {
            "stream_version": STREAM_VERSION,
            "backend": options.backend or cpu_backend(),
            "distribution": kind.value,
            "key": f"{seed:016x}",
            "direction": options.p,
            "first": options.first,
            "count": options.count,
            "d": whole,
            "bits": bits,
        }
        print_json(about)
        return
    first = options.first
    for part in parts:
        words = part.view("uint32").tolist()
        if options.values:
            lines = (
                f"{first + n} {word:08x} {value!r}"
                for n, (word, value) in enumerate(zip(words, part.tolist(), strict=True))
            )
        else:
            lines = (f"{word:08x}" for word in words)
        sys.stdout.write("\n".join(lines) + "\n")
        first += len(words)
