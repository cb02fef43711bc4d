"""Directions of low rank: which factors make which elements, and where these lie.

A tensor of shape (a, ...) is a matrix of a rows and b columns, b being the product of the other dimensions. With
standard normal factors A (a, r) and B (b, r) its part of a direction is

    z_ij = fl(s · Σ_k fl(A_ik · B_jk)),    s = float32(1/√r),

the sum rounded after every term, in the order of k, and not multiplied by s for r = 1. A tensor whose factors would be
as many as its elements, (a + b)r ≥ ab, and every one of fewer than two dimensions, has numbers of its own: z is
standard normal there. The factors of direction p of a key are numbered through the tensors in the model's order, in
each first A, then B, column after column; number f is element f of a gaussian direction with a tag of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.noise.spec import TILE, Distribution

__all__ = ["AnyDistribution", "FactorPart", "LowRank", "in_dimension", "require_distribution"]

_ROOM = 1 << 22
"""Factors that a rebuild holds at a time on small models; on large ones, an eighth of the model."""


class _Tensor(NamedTuple):
    """A tensor in R^d: its first element, size and columns, its first factor, and terms of a sum (0 for none)."""

    begin: int
    size: int
    columns: int
    factor: int
    terms: int

    @property
    def rows(self) -> int:
        return self.size // self.columns


class FactorPart(NamedTuple):
    """What it takes to make some consecutive elements of directions.

    Attributes:
        begin: The first element.
        size: The number of elements.
        ranges: int64 (n, 3): factors first.. of a direction, how many, and their place in its row of a table.
        tensors: int64 (n, 9), a row for each tensor that some of the elements are of: the first and the end of them,
            the tensor's first element and columns, the place of A_00, the step to A_01, those of B, and r. A vector
            is a matrix of one row, the factor of which is 1: that lies at place 0 of every row of the table.
        width: The length of a row of the table.
    """

    begin: int
    size: int
    ranges: NDArray[np.int64]
    tensors: NDArray[np.int64]
    width: int


@dataclass(frozen=True)
class LowRank:
    """Directions of rank r for tensors of these shapes; it stands where a distribution does that needs no shapes.

    E[z] = 0 and E[z zᵀ] = I, as for every ``Distribution``. A direction takes r(a + b) normal numbers a matrix.

    Attributes:
        shapes: The shapes of the model's tensors in their order, () for a number.
        rank: r ≥ 1.

    Source: EGGROLL, arXiv 2511.16652.
    """

    shapes: tuple[tuple[int, ...], ...]
    rank: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", tuple(tuple(int(n) for n in shape) for shape in self.shapes))
        require_int("rank", self.rank, 1, 2**31 - 1)
        for shape in self.shapes:
            require(all(n >= 0 for n in shape), "shapes", "hold no negative numbers", shape)
        require(self.d > 0, "shapes", "hold at least one element", self.shapes)

    @classmethod
    def filling(cls, d: int, rank: int = 1) -> LowRank:
        """Two square matrices, as large as they can be, and a vector that fills R^d: where there is no model."""
        side = math.isqrt(d // 2)
        return cls(((side, side), (side, side), (d - 2 * side * side,)), rank)

    @property
    def d(self) -> int:
        """The number of elements."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def factors(self) -> int:
        """F, the normal numbers that a direction takes."""
        last = self.tensors[-1]
        return last.factor + (last.terms * (last.rows + last.columns) or last.size)

    @property
    def scale(self) -> np.float32:
        """The factor s of a matrix."""
        return np.float32(1.0 / math.sqrt(self.rank))

    @cached_property
    def tensors(self) -> tuple[_Tensor, ...]:
        """The tensors that are not empty."""
        made, begin, factor = [], 0, 0
        for shape in self.shapes:
            size = math.prod(shape)
            if not size:
                continue
            columns = math.prod(shape[1:])
            factors = self.rank * (shape[0] + columns) if len(shape) > 1 else size
            terms = self.rank if factors < size else 0
            made.append(_Tensor(begin, size, columns if terms else size, factor, terms))
            begin += size
            factor += min(factors, size)
        return tuple(made)

    def parts(self, first: int, count: int, directions: int) -> Iterator[FactorPart]:
        """Elements first.. of so many directions, cut so that the factors of a part fit into a bounded memory."""
        most = max(max(_ROOM, self.d // 8) // max(directions, 1), 2 * TILE)
        begin, held = first, 0
        end = first
        for at in self._reached(first, first + count):
            stop = min(at.begin + at.size, first + count)
            while end < stop:
                cost = self._cost(at, end, stop)
                if held + cost <= most:
                    end, held = stop, held + cost
                elif held:
                    yield self.part(begin, end - begin)
                    begin, held = end, 0
                else:
                    end = min(stop, end + _fitting(at, end, most))
                    yield self.part(begin, end - begin)
                    begin = end
        if end > begin:
            yield self.part(begin, end - begin)

    def _reached(self, begin: int, end: int) -> list[_Tensor]:
        return [at for at in self.tensors if at.begin < end and begin < at.begin + at.size]

    @staticmethod
    def _windows(at: _Tensor, begin: int, end: int) -> tuple[int, int, int, int]:
        """The rows and the columns that elements begin..end-1 of R^d take of the tensor."""
        (top, left), (bottom, right) = divmod(begin - at.begin, at.columns), divmod(end - 1 - at.begin, at.columns)
        return (top, bottom + 1, left, right + 1) if top == bottom else (top, bottom + 1, 0, at.columns)

    def _cost(self, at: _Tensor, begin: int, end: int) -> int:
        if not at.terms:
            return end - begin
        top, bottom, left, right = self._windows(at, begin, end)
        return at.terms * (bottom - top + right - left)

    def part(self, first: int, count: int) -> FactorPart:
        """Elements first.. in one part."""
        begin, end = first, first + count
        ranges: list[list[int]] = []
        tensors, width = [], 1  # place 0 is the factor 1 of vectors
        for at in self._reached(begin, end):
            low, high = max(begin, at.begin), min(end, at.begin + at.size)
            if not at.terms:
                tensors.append([low, high, at.begin, at.columns, 0, 0, width - (low - at.begin), 0, 1])
                ranges.append([at.factor + low - at.begin, high - low, width])
                width += high - low
                continue
            top, bottom, left, right = self._windows(at, low, high)
            rows, columns, places = bottom - top, right - left, []
            for begin_, length, wanted, of in (
                (0, at.rows, rows, top),
                (at.terms * at.rows, at.columns, columns, left),
            ):
                places += [width - of, wanted]
                for k in range(at.terms):
                    ranges.append([at.factor + begin_ + k * length + of, wanted, width])
                    width += wanted
            tensors.append([low, high, at.begin, at.columns, *places, at.terms])
        return FactorPart(begin, end - begin, _joined(ranges), np.array(tensors, dtype=np.int64), width)


def _fitting(at: _Tensor, begin: int, most: int) -> int:
    """How many elements from ``begin`` on need at most so many factors: whole rows, or else a piece of one."""
    if not at.terms:
        return most
    column = (begin - at.begin) % at.columns
    rows = most // at.terms - at.columns
    left = at.columns - column
    return left + (rows - 1) * at.columns if rows >= 1 else min(max(most // at.terms - 1, TILE), left)


def _joined(ranges: Sequence[list[int]]) -> NDArray[np.int64]:
    """Ranges, those put together that follow on each other."""
    joined: list[list[int]] = []
    for first, count, place in ranges:
        if joined and joined[-1][0] + joined[-1][1] == first:  # then their places follow on each other, too
            joined[-1][1] += count
        else:
            joined.append([first, count, place])
    return np.array(joined, dtype=np.int64).reshape(-1, 3)


AnyDistribution = Distribution | LowRank
"""A distribution as directions are made from it: low-rank ones need the tensors' shapes."""


def in_dimension(distribution: Distribution, d: int, rank: int = 1) -> AnyDistribution:
    """The distribution on R^d, low-rank directions with the shapes of ``LowRank.filling``."""
    return LowRank.filling(d, rank) if distribution is Distribution.LOW_RANK else distribution


def require_distribution(distribution: Any, d: int | None = None) -> None:
    """InputError for the bare name of low-rank directions, and for shapes of another number of elements than d."""
    if isinstance(distribution, LowRank):
        require(d in (None, distribution.d), "elements of the shapes of a LowRank", f"be d={d}", distribution.d)
    elif distribution is Distribution.LOW_RANK:
        raise InputError("distribution must be a noise.LowRank, which has the tensors' shapes, got low-rank alone")
