"""The perturbation stream, version 1: constants, keys and distributions; ``reference`` makes z of these words.

z(key, p)[j] is a pure function of the 64-bit key of a local step, the direction p and the position j in
the flat parameter vector, so any slice of any direction can be made alone, in any order, on any device.

Words come from Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011). Element j of the flat vector reads word (j >> 5) & 3 of block 32·(j >> 7) + (j & 31): tiles of
128 elements = 4 words × 32 lanes. The counter is (block, block >> 32, direction, tag).
"""

import hashlib
import struct
from enum import StrEnum
from typing import Any, Final

from decomfl_lab.errors import require, require_choice, require_int

STREAM_VERSION: Final = 1

LANES: Final = 32
WORDS: Final = 4
TILE: Final = LANES * WORDS
ROUNDS: Final = 10

PHILOX_M0: Final = 0xD2511F53
PHILOX_M1: Final = 0xCD9E8D57
PHILOX_W0: Final = 0x9E3779B9
PHILOX_W1: Final = 0xBB67AE85

# Box-Muller in float32: Horner coefficients, highest power first.
LOG_Q: Final = (-0.244219363, 0.375654489, -0.409095138, 0.497935861, -0.666320562, 1.00002801, -2.00000167)
LOG_2_TWICE: Final = 1.38629436
SIN_T: Final = (-0.0043710256, 0.0795006678, -0.645925999, 1.57079518)
COS_T: Final = (0.000870188756, -0.0208331067, 0.25366348, -1.23370039, 1.0)
SQRT_HALF_BITS: Final = 0x3F3504F3


class Distribution(StrEnum):
    """The distribution of a direction z in R^d; each has E[z] = 0 and E[z zᵀ] = I."""

    GAUSSIAN = "gaussian"  # z ~ N(0, I), the default and Theorem 1's
    SPHERE = "sphere"  # z uniform on the sphere of radius √d, Theorem 2's
    RADEMACHER = "rademacher"  # z_j = ±1 with equal chance: one bit an element


LOW_RANK: Final = "low-rank"
"""A distribution that version 0.1 had, and its files may name."""
LOW_RANK_CODE: Final = 3
"""What stood for it in messages; no other distribution takes its place."""
NO_LOW_RANK: Final = "as only version 0.1 of decomfl-lab has low-rank directions"
"""Why a file or a message that has them is refused."""


def require_distribution(value: Any, argument: str = "distribution") -> Distribution:
    """The distribution of this name; InputError if there is none."""
    names = [kind.value for kind in Distribution]
    require(value != LOW_RANK, argument, f"be one of {', '.join(names)}, {NO_LOW_RANK}", value)
    return Distribution(require_choice(argument, value, names))


TAGS: Final[dict[Distribution, int]] = {
    Distribution.GAUSSIAN: 0,
    Distribution.SPHERE: 0,  # a sphere direction is a gaussian one, scaled
    Distribution.RADEMACHER: 1,
}
"""Counter word 3: one tag for each source of bits, so that no two distributions share words.

Tag 3 is reserved: version 0.1 made the factors of low-rank directions with it.
"""

TAG_ROUNDING: Final = 2
"""Counter word 3 of the bits of stochastic rounding; counter word 2 tells the roundings of one step apart."""


TAG_START: Final = 4
"""Counter word 3 of initial weights (``starts``); counter word 2 is the number of the tensor."""
TAG_DRAWS: Final = 5
"""Counter word 3 of random choices: of splits and of the order of examples (``draws``)."""


def derive_seed(run_key: int, *path: int) -> int:
    """The 64-bit seed at ``path`` under ``run_key``, by keyed BLAKE2b.

    The seeds of the algorithm are nested: a round's is at (r) under the run's, a step's at (k) under its round's, a
    direction's at (p) under its step's (``decomfl_lab.records.seeds``), so who holds one can draw all those below it.

    Args:
        run_key: The run's key, 0..2**64-1.
        path: Integers 0..2**64-1 that name the place; paths of different lengths never collide, since
            the message holds its own length.

    Returns:
        An integer in 0..2**64-1.

    Raises:
        InputError: If a number is out of range.
    """
    require_int("run_key", run_key, 0, 2**64 - 1)
    for part in path:
        require_int("path", part, 0, 2**64 - 1)
    message = struct.pack(f"<{len(path)}Q", *path)
    digest = hashlib.blake2b(message, digest_size=8, key=struct.pack("<Q", run_key), person=b"decomfl-v1")
    return int.from_bytes(digest.digest(), "little")
