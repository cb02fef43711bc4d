"""Initial weights from the stream: every element of x_0 is a pure function of a key, its tensor and its place there.

    constant   x = a
    uniform    x = fl(a · u),  u = ((w >> 8) | 1) · 2⁻²³, an odd multiple of 2⁻²³ in (−1, 1), w a signed word
    normal     x = fl(a · z),  z standard normal, as a gaussian direction's

Element j of tensor t reads the words of the counter (block, block >> 32, t, 4), where those of a direction p have p and
0. A normal one may be cut: z is then drawn anew, with t + 2¹⁶, t + 2·2¹⁶, ... instead of t, until |z| ≤ c. Whoever
knows the stream can so make x_0 from the numbers (shape, a, c) of every tensor, which a log carries.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import is_number, require, require_choice, require_finite_positive, require_int
from decomfl_lab.noise.reference import gaussian_tiles, tile_words
from decomfl_lab.noise.spec import TAG_START, TILE

MOST_TENSORS: Final = 1 << 16
"""The number t of a tensor lies below; the bits above it count the attempts of a cut normal one."""
DRAWS: Final = ("constant", "uniform", "normal")
CUT: Final = (0.1, 10)
"""The least and the largest cut; a smaller one would take many attempts."""
_ATTEMPTS: Final = 1 << 16
_AT_ONCE: Final = 1 << 13
"""Tiles that are made at a time: a million elements."""


@dataclass(frozen=True)
class Start:
    """How the elements of a tensor begin."""

    draw: str  # constant, uniform or normal
    # the constant a, the largest size a of a uniform element, or the standard deviation a; a float32 number
    scale: float
    cut: float | None = None  # the largest |z| of a normal element, 0.1 to 10; None for any

    def __post_init__(self) -> None:
        require_choice("draw", self.draw, DRAWS)
        number = is_number(self.scale) and abs(self.scale) <= float(np.finfo(np.float32).max)
        require(number, "scale", "be a float32 number", self.scale)
        scale = float(np.float32(self.scale))
        require(self.draw == "constant" or scale >= 0, "scale", "be 0 or more", scale)
        object.__setattr__(self, "scale", scale)
        if self.cut is not None:
            require(self.draw == "normal", "cut", "be left out unless draw is normal", self.cut)
            inside = CUT[0] <= require_finite_positive("cut", self.cut) <= CUT[1]
            require(inside, "cut", "be in {}..{}".format(*CUT), self.cut)
            object.__setattr__(self, "cut", float(np.float32(self.cut)))

    def elements(self, key: int, tensor: int, count: int) -> NDArray[np.float32]:
        """The elements 0, ..., count − 1 of a tensor, row by row.

        Args:
            key: The key of x_0, 0..2**64-1.
            tensor: The number t of the tensor in x, 0..65535.
            count: How many elements it has.
        """
        require_int("key", key, 0, 2**64 - 1)
        require_int("tensor", tensor, 0, MOST_TENSORS - 1)
        x = np.full(require_int("count", count, 0), np.float32(self.scale))
        if self.draw != "constant":
            tiles = -(-count // TILE)
            for first in range(0, tiles, _AT_ONCE):
                numbers = np.arange(first, min(first + _AT_ONCE, tiles))
                part = x[first * TILE : (first + _AT_ONCE) * TILE]
                part *= self._drawn(key, tensor, numbers)[: part.size]
        return x

    def _drawn(self, key: int, tensor: int, tiles: NDArray[np.int64]) -> NDArray[np.float32]:
        """The numbers u or z of whole tiles, one after another."""
        if self.draw == "uniform":
            words = tile_words(key, tensor, TAG_START, tiles).reshape(-1).view(np.int32)
            return ((words >> np.int32(8)) | np.int32(1)).astype(np.float32) * np.float32(2.0**-23)
        z = gaussian_tiles(key, tensor, tiles, TAG_START)
        if self.cut is not None:
            for attempt in range(1, _ATTEMPTS):
                if not (beyond := np.abs(z) > np.float32(self.cut)).any():
                    break
                # Only tiles with an element that is too large are made again.
                again = np.flatnonzero(beyond.any(axis=1))
                fresh = gaussian_tiles(key, tensor + MOST_TENSORS * attempt, tiles[again], TAG_START)
                z[again] = np.where(beyond[again], fresh, z[again])
        return z.reshape(-1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a log has them."""
        return {"draw": self.draw, "scale": self.scale} | ({} if self.cut is None else {"cut": self.cut})
