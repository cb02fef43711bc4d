"""Known answers of the stream, for whoever writes it in another language: the float bits of seven elements.

Gaussian bits of the first two keys are those of the specification; the others were computed with ``reference``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from decomfl_lab.noise.program import FORMATS
from decomfl_lab.noise.reference import directions, narrow, rounding_words, tile_square_sums, tile_words
from decomfl_lab.noise.spec import STREAM_VERSION, TILE, Distribution

POSITIONS = (0, 1, 32, 64, 96, 127, 128)
"""Elements whose bits are given: every word of a tile, its last element and the next tile's first."""


class KnownAnswer(NamedTuple):
    """z(key, p) in R^d at ``POSITIONS``: float32 bits as eight hex digits."""

    distribution: Distribution
    key: int
    p: int
    d: int
    bits: tuple[str, ...]


_D = 200
# distribution, key, p, bits
_TABLE = """
gaussian   0000000000000000  0  bfa16c47 bdcc0410 befe6d85 3e828295 bf3da834 bf72f2bc 3e9e4178
gaussian   DEADBEEF12345678  3  3ea3c1e6 3f9d7acd bee7cee9 3f29fe33 3ef2ee42 401dca39 3f327e8e
gaussian   FFFFFFFFFFFFFFFF 77  3e7e5353 bec66a4e bf08258d bf8794e6 3f0a91f9 3eade04a bf09ebdf
sphere     0000000000000000  0  bfa0ddeb bdcb5024 befd8d24 3e820f7c bf3d00f2 bf721c7b 3e9db5e7
sphere     DEADBEEF12345678  3  3ea5fa0c 3f9f9d2b beeaf328 3f2c4bfb 3ef63918 401fedab 3f34e9d5
sphere     FFFFFFFFFFFFFFFF 77  3e86a265 bed212c9 bf10256a bf8f8c43 3f12b64a 3eb817aa bf12066e
rademacher 0000000000000000  0  3f800000 bf800000 3f800000 bf800000 bf800000 3f800000 bf800000
rademacher DEADBEEF12345678  3  bf800000 3f800000 3f800000 bf800000 bf800000 bf800000 3f800000
rademacher FFFFFFFFFFFFFFFF 77  3f800000 3f800000 bf800000 3f800000 3f800000 bf800000 3f800000
"""


KNOWN_ANSWERS = tuple(
    KnownAnswer(Distribution(distribution), int(key, 16), int(p), _D, tuple(bits))
    for distribution, key, p, *bits in map(str.split, _TABLE.strip().splitlines())
)

PHILOX_ANSWERS = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)
"""Counter, key and words of Random123's published tests of Philox4x32-10 (kat_vectors)."""


class StartAnswer(NamedTuple):
    """Elements of a tensor of x_0 at ``POSITIONS``: float32 bits as eight hex digits."""

    draw: str
    scale: float
    cut: float | None
    key: int
    tensor: int
    bits: tuple[str, ...]


# draw, scale, cut, key, tensor, bits
_STARTS = """
uniform  0.2  -   0000000000000000     0  3d36eea0 3d7f863a bcaee740 3e3ed0a5 3a9038cd 3dcf7f30 3e383095
uniform  1.0  -   deadbeef12345678     3  bf679352 be6e1df8 bf2f121a 3f23f3de bdf10f50 bf19c186 bf7809a2
normal   0.02 -   0000000000000000     0  bd2921d4 3d032461 bbe50a42 3cca80a2 396001d5 3c193c14 bc640686
normal   1.0  -   deadbeef12345678     3  bf05d416 bec5a8d2 bf76fa34 3fbde090 be8e0c5c bf926cc1 be0345fb
normal   1.0  -   ffffffffffffffff 65535  bebfb54d be45821e 3f961b2e bf4231b5 be1b4a91 3f079517 3ede6ce2
normal   1.0  0.5 0000000000000000     0  be5fc847 be817a1b beb2f004 be993deb 3c2f016f 3eef6de0 bef3940d
normal   0.02 2.0 ffffffffffffffff    77  3a60818f 39f52259 bc96b829 3bb0a929 bc02b6a9 3b661d13 bcce2753
constant 1.0  -   0000000000000000     0  3f800000 3f800000 3f800000 3f800000 3f800000 3f800000 3f800000
"""


START_ANSWERS = tuple(
    StartAnswer(draw, float(scale), None if cut == "-" else float(cut), int(key, 16), int(tensor), tuple(bits))
    for draw, scale, cut, key, tensor, *bits in map(str.split, _STARTS.strip().splitlines())
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
        for key, c2 in _KEYS
        for tag in (0, 5)
        for first, tiles in ((0, [0]), (_FAR, [_FAR // TILE]))
    ]
    directions_ = []
    for answer in KNOWN_ANSWERS:
        squares = tile_square_sums(answer.key, answer.p, 0, -(-answer.d // TILE), answer.d)
        scale = float(np.float32(np.sqrt(answer.d / float(np.add.accumulate(squares)[-1]))))  # of a sphere alone
        own = {"distribution": answer.distribution.value, "key": f"{answer.key:016x}", "p": answer.p}
        bits = hex_words(directions(answer.key, answer.p, 0, answer.d, answer.distribution, scale))
        directions_.append({**own, "d": answer.d, "bits": bits})
    # Float32 numbers, normal, tiny and large, narrowed to 16 bits and widened again.
    plain = directions(*_KEYS[1], 0, 16, Distribution.GAUSSIAN, 1.0)
    before = np.concatenate([plain, plain * np.float32(2e-6), plain * np.float32(4e4)])
    noise = rounding_words(_KEYS[1][0], 0, 0, before.size)
    narrowed = [
        {
            "format": kind.value,
            "words": None if of is None else hex_words(of),
            "before": hex_words(before),
            "after": hex_words(narrow(before, kind, of)),
        }
        for kind in FORMATS
        for of in (None, noise)
    ]
    return {
        "version": STREAM_VERSION,
        "philox": philox,
        "words": words,
        "directions": directions_,
        "narrow": narrowed,
    }
