"""Known answers of the stream (known_answers.toml), for whoever writes it in another language and for our own tests."""

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from decomfl_lab.noise.program import FORMATS
from decomfl_lab.noise.reference import directions, narrow, rounding_words, tile_square_sums, tile_words
from decomfl_lab.noise.spec import STREAM_VERSION, TILE, Distribution
from decomfl_lab.storage.tables import table_beside

POSITIONS = (0, 1, 32, 64, 96, 127, 128)
"""Elements whose bits are given: every word of a tile, its last element and the next tile's first."""


class KnownAnswer(NamedTuple):
    """z(key, p) in R^d at ``POSITIONS``: float32 bits as eight hex digits."""

    distribution: Distribution
    key: int
    p: int
    d: int
    bits: tuple[str, ...]


class StartAnswer(NamedTuple):
    """Elements of a tensor of x_0 at ``POSITIONS``: float32 bits as eight hex digits."""

    draw: str
    scale: float
    cut: float | None
    key: int
    tensor: int
    bits: tuple[str, ...]


_ROWS = table_beside(__name__, "known_answers.toml")
KNOWN_ANSWERS = tuple(
    KnownAnswer(Distribution(distribution), int(key, 16), p, 200, tuple(bits.split()))
    for distribution, key, p, bits in _ROWS["directions"]
)
PHILOX_ANSWERS = tuple(map(tuple, _ROWS["philox"]))
"""Counter, key and words."""
START_ANSWERS = tuple(
    StartAnswer(draw, scale, None if cut == "-" else cut, int(key, 16), tensor, tuple(bits.split()))
    for draw, scale, cut, key, tensor, bits in _ROWS["starts"]
)

_KEYS = ((0, 0), (0xDEADBEEF12345678, 3), (0xFFFFFFFFFFFFFFFF, 77))
_FAR = 1 << 38
"""An element whose block needs more than 32 bits."""


def hex_words(numbers: Any) -> str:
    """Numbers by their bits, most significant digit first, with blanks between."""
    array = np.ascontiguousarray(numbers)
    digits = 2 * array.itemsize
    return " ".join(f"{int(word):0{digits}x}" for word in array.reshape(-1).view(f"u{array.itemsize}"))


def stream_vectors() -> dict[str, Any]:
    """Test vectors of the stream as plain values, for implementations in other languages (docs/how-to)."""
    philox = [dict(zip(("counter", "key", "words"), answer, strict=True)) for answer in PHILOX_ANSWERS]
    words = [
        {
            "key": f"{key:016x}",
            "tag": tag,
            "c2": c2,
            "first": first,
            "words": hex_words(tile_words(key, c2, tag, tiles)),
        }
        for (key, c2), tag, (first, tiles) in product(_KEYS, (0, 5), ((0, [0]), (_FAR, [_FAR // TILE])))
    ]
    directions_ = []
    for answer in KNOWN_ANSWERS:
        squares = tile_square_sums(answer.key, answer.p, 0, -(-answer.d // TILE), answer.d)
        scale = float(np.float32(np.sqrt(answer.d / float(np.add.accumulate(squares)[-1]))))  # of a sphere alone
        head = {"distribution": answer.distribution.value, "key": f"{answer.key:016x}", "p": answer.p, "d": answer.d}
        bits = hex_words(directions(answer.key, answer.p, 0, answer.d, answer.distribution, scale))
        directions_.append({**head, "bits": bits})
    # Float32 numbers, normal, tiny and large, narrowed to 16 bits and widened again.
    key, p = _KEYS[1]
    normal = directions(key, p, 0, 16, Distribution.GAUSSIAN, 1.0)
    before = np.concatenate([normal, normal * np.float32(2e-6), normal * np.float32(4e4)])
    narrowed = [
        {
            "format": kind.value,
            "words": None if noise is None else hex_words(noise),
            "before": hex_words(before),
            "after": hex_words(narrow(before, kind, noise)),
        }
        for kind in FORMATS
        for noise in (None, rounding_words(key, 0, 0, before.size))
    ]
    return {
        "version": STREAM_VERSION,
        "philox": philox,
        "words": words,
        "directions": directions_,
        "narrow": narrowed,
    }
