"""How training examples go to clients: i.i.d., or with Dirichlet class shares.

Every split gives M disjoint index arrays of n = floor(N / M) examples each; the N - M n left over are dropped.
A split is a pure function of (labels, M, seed and the split's own parameters), with the same examples on any machine.

**Two readings of "Dirichlet α".** Client i's class shares q_i over C classes are drawn from

    "dirichlet"          Dir(α, ..., α)      total concentration α C (the usual meaning)
    "dirichlet-total"    Dir(α p)            total concentration α, p = class frequencies of the data

The authors' code (text classification) does the second: for 10 equal classes its "α = 1" is the usual
Dir(0.1, ..., 0.1), much more skewed (median largest share of a client near 0.6 instead of 0.28). The authors then
even out the sizes by moving random examples from large clients to small ones, which pulls the shares towards p;
here sizes and shares are settled together, as ``split`` says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from decomfl_lab.errors import InputError, require
from decomfl_lab.noise.draws import STREAM, Draws, draws_of

if TYPE_CHECKING:
    from torch import Tensor

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]

SPLITS = ("iid", "dirichlet", "dirichlet-total")
"""The names that ``split`` resolves."""

_SPLIT = 4  # spawn key of splits among the streams of a seed
_FLOOR = 1e-9  # least share of a class: keeps every fitted table feasible, moves no share visibly
_SWEEPS = 20_000  # limit of the proportional fitting; what is missing then is filled exactly
UNIT = 2**24  # fitted counts are integers in units of 1/UNIT examples, so margins are exact


def split(name: str, labels: ArrayLike, M: int, seed: int, *, alpha: float = 1.0, draws: str = STREAM) -> list[Indices]:
    """The split called ``name``: M clients of equal size, i.i.d. or with Dirichlet class shares.

    "iid" is a random permutation of 0..N-1, cut into M pieces. The Dirichlet splits have class shares that are as
    nearly Dirichlet as the data allow:

    1. Draw q_i ~ Dir(α, ..., α), or Dir(α p), for every client i.
    2. Fit T = (r_i q_ic s_c), with r and s such that row i sums to n and column c to N_c, the examples of class c
       (iterative proportional fitting). One more row, q = p, of N - M n examples, holds what is dropped. T is the
       table with these margins that is nearest to (n q_ic) in relative entropy.
    3. Round T to integers A with the same margins by moving random amounts around cycles of fractions, so that
       |A - T| < 1 and E[A] = T.
    4. Deal A_ic examples of class c, drawn at random, to client i.

    The bias: shares are q_i r_i s_c / n, not q_i. Together the clients must use each class as often as it exists, so
    classes that the q_i ask for too often give way in the same proportion at all clients (the odds q_ic / q_ib
    between two classes change by the same factor at every client). It vanishes with M; no client is served first.
    A split exists for every M in 1..N.

    Args:
        name: "iid", "dirichlet" (Dir(α, ..., α)) or "dirichlet-total" (Dir(α p), the authors' reading).
        labels: Class of each example, shape (N,), integers of at least 0.
        M: Number of clients, 1..N.
        seed: Integer in 0..2**64-1.
        alpha: Concentration α of the Dirichlet splits, finite and > 0; "iid" does not use it.
        draws: Where random choices come from (``noise.draws``).

    Returns:
        M int64 index arrays of n = floor(N / M) examples each, disjoint, in random order.

    Raises:
        InputError: If there are more clients than examples, labels are not as described, or a class up to the largest
            label has no examples ("dirichlet" gives each a positive share).
    """
    y = np.asarray(labels)
    require(y.ndim == 1 and y.size > 0, "labels", "be one axis of at least one label", y.shape)
    require(y.dtype.kind in "iu", "labels", "be integers", str(y.dtype))
    require(int(y.min()) >= 0, "labels", "be of at least 0", int(y.min()))
    N = len(y)
    require(M <= N, "clients M", f"be at most the {N} training examples, one each", M)
    drawn = draws_of(draws, seed, _SPLIT)
    if name == "iid":
        return list(drawn.permutation(N)[: N // M * M].reshape(M, -1))

    counts = np.bincount(y)
    present = np.flatnonzero(counts)
    if name == "dirichlet":
        empty = np.flatnonzero(counts == 0)
        if empty.size:
            raise InputError(
                f"every class of a per-class Dirichlet split must have examples (classes={len(counts)}), "
                f"got none of class {empty[0]}"
            )
        parameters = np.full(len(counts), float(alpha))
    else:
        parameters = float(alpha) * counts[present] / N
    q = drawn.dirichlet(parameters, M)  # (M, classes present)
    # A table near n q whose rows sum to n and whose columns to at most the classes' counts; one row more is dropped.
    columns, n, dropped = counts[present], N // M, N % M
    rows = np.full(M, n, dtype=np.int64)
    if dropped:
        rows, q = np.append(rows, dropped), np.vstack([q, columns / columns.sum()])
    U = np.floor(fit(q, rows, columns, drawn.dot) * UNIT).astype(np.int64)
    # Its margins are at most those asked for: what is missing is added cell by cell, from the top left. What rows and
    # columns miss, each laid end to end along one line, share of it what is added where they cross.
    by_row, by_column = (np.cumsum([0, *short]) for short in (rows * UNIT - U.sum(1), columns * UNIT - U.sum(0)))
    ends, starts = np.minimum.outer(by_row[1:], by_column[1:]), np.maximum.outer(by_row[:-1], by_column[:-1])
    U += np.maximum(ends - starts, 0)
    A = round_cycles(U, drawn)[:M]
    dealt = [np.split(drawn.permutation(np.flatnonzero(y == c)), np.cumsum(A[:, j]))[:M] for j, c in enumerate(present)]
    return [drawn.permutation(np.concatenate(pieces)) for pieces in zip(*dealt, strict=True)]


def fit(
    q: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64], dot: Callable[[Floats, Floats], Floats]
) -> NDArray[np.float64]:
    """(r_i q_ic s_c) with these margins, by iterative proportional fitting; rows sum to at most ``rows``."""
    Q = np.maximum(q, _FLOOR)
    s = np.ones(len(columns))
    for _ in range(_SWEEPS):
        r = rows / dot(Q, s)
        ratio = columns / (s * dot(Q.T, r))  # 1 where the column's sum is right
        s = s * ratio
        if np.abs(ratio - 1.0).max() < 1e-10:
            break
    r = rows / dot(Q, s)
    T: NDArray[np.float64] = r[:, None] * Q * s
    T *= np.minimum(1.0, columns / T.sum(axis=0))
    return T


def round_cycles(U: NDArray[np.int64], drawn: Draws) -> NDArray[np.int64]:
    """Round U / UNIT, whose margins are whole, to whole numbers with the same margins, without bias.

    A row or column with one fraction has another (its sum is whole), so a walk along fractions that alternates
    between rows and columns closes a cycle. Adding δ and -δ in turn along it keeps all margins. δ is one of the two
    values, of either sign, at which a first entry becomes whole, drawn so that E[δ] = 0.

    Source: controlled rounding, Cox, J. Am. Stat. Assoc. 82 (1987), 520-524.
    """
    whole = (U // UNIT).tolist()
    fraction = (U % UNIT).tolist()
    in_row: list[dict[int, None]] = [{c: None for c, f in enumerate(row) if f} for row in fraction]
    in_column: list[dict[int, None]] = [
        {i: None for i in range(len(fraction)) if fraction[i][c]} for c in range(U.shape[1])
    ]
    for start in range(len(fraction)):
        while in_row[start]:
            # Cells of a closed walk among fractions; neighbours share a row and a column in turn. ``seen`` has for a
            # row or column, (whether it is a column, its number), how many cells there were when the walk came to it.
            of_column, node, last = False, start, -1
            cycle: list[tuple[int, int]] = []
            seen: dict[tuple[bool, int], int] = {}
            while (of_column, node) not in seen:
                seen[of_column, node] = len(cycle)
                following = next(key for key in (in_column if of_column else in_row)[node] if key != last)
                cycle.append((following, node) if of_column else (node, following))
                of_column, node, last = not of_column, following, node
            cycle = cycle[seen[of_column, node] :]
            up, down = cycle[::2], cycle[1::2]
            most = min([UNIT - fraction[i][c] for i, c in up] + [fraction[i][c] for i, c in down])
            least = min([fraction[i][c] for i, c in up] + [UNIT - fraction[i][c] for i, c in down])
            # P(δ = most) = least / (most + least), P(δ = -least) = most / (most + least)
            delta = most if drawn.integers(most + least) < least else -least
            for sign, cells in ((1, up), (-1, down)):
                for i, c in cells:
                    fraction[i][c] += sign * delta
                    if fraction[i][c] in (0, UNIT):
                        whole[i][c] += fraction[i][c] // UNIT
                        del in_row[i][c], in_column[c][i]
    return np.array(whole, dtype=np.int64)


def fixed_choice(n: int, count: int, purpose: int) -> Tensor:
    """At most ``count`` of 0..n-1, chosen at random but by no run's seed."""
    import torch  # whose splits have names that the help lists

    order = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(purpose,))).permutation(n)
    return torch.from_numpy(order[:count])
