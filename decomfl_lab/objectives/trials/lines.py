"""Whether differences of values at μ are those of a continuous f whose derivative is torch's: f along random lines.

A method of differences takes (f(x + μz) − f(x))/μ for a slope. Where f jumps (weights on a grid, a gate, a sign that is
drawn from x) it is about 1/μ instead, or 0, and a run follows noise without a word. So f is looked at on a few lines
x + cz. Where one of its changes is not like the others, it is halved again and again: the change across ever shorter
pieces of a line goes to 0 where f is continuous, kinks or not, and stays where f jumps.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from statistics import median
from typing import NamedTuple

LINES = 3
"""The number of random directions."""
PLACES = (0.0, 0.1, 1.0, 2.0, 100.0)
"""Where f is looked at on each, in units of μ; the last is as far as a run may come in some steps."""
FAR, HALVINGS = 7, 8
"""Halvings of the last piece of a line until it is as short as μ; those that show a jump."""
LARGE = 3.0
"""How much larger than a typical difference at μ a change across μ is further on, where there is a jump."""
UNUSUAL = 0.3
"""A jump by less than this share of a typical difference at μ does no harm: steps of many small jumps have a slope."""
STAYS = 0.25
"""The share of an unusual change that is a jump if it is still there after all halvings."""
ROUNDED = 64.0
"""Units of rounding of f below which nothing is said."""
LARGER = (10.0, 100.0, 1000.0)
"""Multiples of μ that are tried as a better one."""
MORE = 8
"""The number of random directions on which they are."""
AGREES = 0.05
"""The share of its size by which a slope may differ from differences."""
KINKED = 4.0
"""How much more than differences ahead and behind differ from each other it may be."""

Line = Callable[[int, float], float]
"""f(x + c z_p) by p and c."""


def continuous(f: Line, mu: float, eps: float, *, step: float, slopes: Callable[[], Sequence[float]]) -> Iterator[str]:
    """Where f jumps near x, with a μ at which it does not matter; else where torch's slopes are not f's.

    The values of f on lines are rounded by ``eps`` of their size. The slopes ∇fᵀz_p, none where there is no gradient,
    are compared with differences at c = ``step``.
    """

    @cache
    def known(p: int, c: float) -> float:  # NaN where it fails: a run says that itself
        try:
            return f(p, c)
        except Exception:
            return math.nan

    def value(p: int, c: float) -> float:  # computed once at each point; x is on every line
        return known(p if c else 0, c)

    jump = _jump(value, mu, eps)
    # It is rough where differences at μ and 2μ are not alike, and by more than rounding: of many small jumps none
    # stands out. Most functions are even on few lines. Where a loss is no number nothing is said.
    beyond = ROUNDED * eps * abs(value(0, 0.0)) / mu
    uneven = (_unevenness(value, mu, lines) for lines in (LINES, MORE))
    if jump is not None or all(max(size / 2, beyond) < off < math.inf for off, size in uneven):
        better = ""
        for larger in (mu * times for times in LARGER):
            # There they are even, as those of a function with slopes, and no smaller than the jump.
            off, size = _unevenness(value, larger, MORE)
            if off < size / 2 and (jump is None or jump.off < LARGE * larger * size):
                better = f"at mu = {larger:g} they are"
                break
        what = "is rough" if jump is None else f"jumps by {jump.off:.3g} as x moves by {jump.b - jump.a:.1g}"
        yield (
            f"the loss {what} along a random direction, so that differences at mu = {mu:g} are no slopes; "
            f"{better or f'up to mu = {LARGER[-1] * mu:g} none are'} (is there a round, a sign, a comparison, or a "
            "cast to integers or to 16 bits, as autocast does, in model or loss?)"
        )
    elif derived := slopes():
        # Slopes that are not the mean of the differences ahead and behind, by more than these differ from each other:
        # at a kink, as that of a ReLU at exactly 0, the two differ, and torch's slope is neither.
        here = value(0, 0.0)
        ahead = [(value(p, step) - here) / step for p in range(LINES)]
        behind = [(here - value(p, -step)) / step for p in range(LINES)]
        mean = [(a + b) / 2 for a, b in zip(ahead, behind, strict=True)]
        size = max(math.hypot(*derived), math.hypot(*mean))
        off, bent = math.dist(derived, mean), math.dist(ahead, behind) / 2
        if off > KINKED * bent + AGREES * size + ROUNDED * eps * abs(here) / step:
            p = max(range(LINES), key=lambda p: abs(derived[p] - mean[p]))
            yield (
                f"the loss changes by {mean[p]:.3g} along a random direction where torch's derivative is "
                f"{derived[p]:.3g}: differences follow the values, whatever a detach, a hook or a backward of your own "
                "makes of gradients"
            )


class _Piece(NamedTuple):
    """A piece of line p, from a to b, and by how much f's change across it is not as the slope says."""

    off: float
    p: int
    slope: float
    a: float
    b: float


def _jump(value: Line, mu: float, eps: float) -> _Piece | None:
    """A jump within 2μ of x, which differences there see; else one further on that is larger than they are."""
    places = [place * mu for place in PLACES]
    table = [[value(p, c) for c in places] for p in range(LINES)]
    if not all(math.isfinite(loss) for losses in table for loss in losses):
        return None
    rounding = ROUNDED * eps * abs(table[0][0])
    typical = math.sqrt(math.fsum((values[2] - values[0]) ** 2 for values in table) / LINES)
    near, far = list[_Piece](), list[_Piece]()
    for p, values in enumerate(table):
        *pieces, last = [(a, b, high - low) for (a, low), (b, high) in pairwise(zip(places, values, strict=True))]
        # Where f is smooth, all changes are as their lengths; a jump is in one of them, perhaps.
        slope = median(change / (b - a) for a, b, change in pieces)
        near += [_Piece(abs(change - slope * (b - a)), p, slope, a, b) for a, b, change in pieces]
        far.append(_Piece(abs(last[2] - slope * (last[1] - last[0])), p, slope, *last[:2]))
    unusual = max(near)
    least = max(UNUSUAL * typical, rounding)
    if unusual.off <= least:
        # As far away only what is still large across about μ is no curvature.
        least = max(LARGE * typical, rounding)
        unusual = _halved(value, FAR, max(far))
        if unusual.off <= least:
            return None
    jump = _halved(value, HALVINGS, unusual)
    return jump if jump.off > max(STAYS * unusual.off, least) else None


def _halved(value: Line, times: int, piece: _Piece) -> _Piece:
    """A piece of a line, halved so many times: always the half that is less as the slope says."""
    _, p, slope, *_ = piece

    def half(a: float, b: float) -> _Piece:
        return _Piece(abs(value(p, b) - value(p, a) - slope * (b - a)), p, slope, a, b)

    for _ in range(times):
        middle = (piece.a + piece.b) / 2
        piece = max(half(piece.a, middle), half(middle, piece.b))
    return piece


def _unevenness(value: Line, mu: float, lines: int) -> tuple[float, float]:
    """By how much differences around x at μ and at 2μ differ, and how large those ahead of x are: root mean squares."""
    here = value(0, 0.0)
    off, sizes = list[float](), list[float]()
    for p in range(lines):
        one, two = ((value(p, c) - value(p, -c)) / (2 * c) for c in (mu, 2 * mu))
        off.append(one - two)
        sizes.append(max(abs(two), abs(value(p, 2 * mu) - here) / (2 * mu)))  # at a flat place curvature is all
    root = math.sqrt(lines)
    return math.hypot(*off) / root, math.hypot(*sizes) / root
