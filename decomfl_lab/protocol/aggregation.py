"""Rules that make a round's scalars of the clients' replies: the mean, and others that liars cannot move far.

What each promises where up to f of n replies are arbitrary numbers, and what it costs, is proved in docs/robust.md.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.errors import InputError, is_number, require, require_int
from decomfl_lab.plugins import OwnFunction
from decomfl_lab.records.record import ScalarArray, require_sound

_F32 = NDArray[np.float32]
_F64 = NDArray[np.float64]


@runtime_checkable
class Aggregation(Protocol):
    """g_{r,p}^k of the clients' g_{i,r,p}^k. Its bits do not depend on the order of the clients."""

    dtype: ClassVar[type[np.float32] | type[np.int8]] = np.float32
    """What it takes and gives: float32 scalars, or int8 signs."""

    @property
    def least(self) -> int:
        """The fewest replies that it is defined for."""
        return 1

    def __call__(self, replies: Sequence[Any]) -> Any:
        """The round's scalars.

        Args:
            replies: One (K, P) array of ``dtype`` a client, finite or of signs.

        Returns:
            (K, P) array of ``dtype``.

        Raises:
            InputError: If there are fewer than ``least``, or they are not of this kind.
        """


def _values(rule: Aggregation, replies: Sequence[ScalarArray]) -> _F64:
    """The replies in double precision, shape (n, K, P); InputError unless the rule is defined for them."""
    require(len(replies) >= rule.least, f"replies for {rule}", f"number at least {rule.least}", len(replies))
    alike = {(reply.dtype, reply.shape) for reply in replies}
    is_one = len(alike) == 1 and replies[0].dtype == rule.dtype and replies[0].ndim == 2
    require(is_one, "replies", f"be {np.dtype(rule.dtype)} arrays of one shape (K, P)", alike)
    for reply in replies:
        require_sound("replies", reply)
    return np.stack(replies).astype(np.float64)


def exact_mean(values: _F64, total: int | None = None) -> _F64:
    """The sum over the first axis, divided by ``total``, or by how many there are.

    The sum is ``math.fsum``'s, exact and rounded once, so it has no order to depend on; then one division in double
    precision.
    """
    total = len(values) if total is None else total
    columns = values.reshape(len(values), -1).T.tolist()
    return np.array([math.fsum(column) / total for column in columns]).reshape(values.shape[1:])


def weighed_mean(replies: Sequence[ScalarArray], weights: Sequence[int]) -> _F32:
    """Σ_i n_i g_i / Σ_i n_i: a reply of weight n counts as n replies of its scalars do in ``Mean``, to the bit.

    Products of a float32 and an integer below 2^29 are exact in double precision, and so is the sum before it is
    rounded.

    Args:
        replies: One (K, P) float32 array a client, finite.
        weights: n_i of each, 1..2^29 − 1.

    Raises:
        InputError: If there are no replies, or they are not of this kind.

    Source: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
    Algorithm 1, with scalars for models.
    """
    values = _values(Mean(), replies)
    return exact_mean(values * np.array(weights, np.float64)[:, None, None], sum(weights)).astype(np.float32)


def _square(vector: _F64) -> float:
    """‖v‖², the sum rounded once."""
    return math.fsum((vector * vector).ravel().tolist())


@dataclass(frozen=True)
class Mean(Aggregation):
    """g = (1/n) Σ_i g_i, which one liar can make anything.

    Source: [DeComFL, Algorithm 3, "Compute the global gradient scalars"].
    """

    def __call__(self, replies: Sequence[_F32]) -> _F32:
        return exact_mean(_values(self, replies)).astype(np.float32)


@dataclass(frozen=True)
class ClippedMean(Aggregation):
    """g = (1/n) Σ_i g_i · min(1, c/‖g_i‖), with Euclidean norms over all K·P scalars: ‖g‖ ≤ c, whoever lies.

    Raises:
        InputError: If c is not a finite number of at least 0.

    Source: Karimireddy, He and Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021, without
    their centre.
    """

    # the norm c, a scalar's unit; 0 for the median of the norms ‖g_i‖, which is at most the largest norm of an honest
    # reply while fewer than half of them lie
    clip: float = 0.0

    def __post_init__(self) -> None:
        require(is_number(self.clip) and self.clip >= 0, "clip c", "be a finite number of at least 0", self.clip)

    def __call__(self, replies: Sequence[_F32]) -> _F32:
        values = _values(self, replies)
        norms = [math.sqrt(_square(value)) for value in values]
        clip = self.clip or statistics.median(norms)
        shares = [min(1.0, clip / norm) if norm else 1.0 for norm in norms]
        return exact_mean(values * np.array(shares)[:, None, None]).astype(np.float32)


@dataclass(frozen=True)
class TrimmedMean(Aggregation):
    """The mean, coordinate by coordinate, of what is left of n numbers without the f smallest and the f largest.

    While at most f of them lie, every coordinate is within the range of the honest ones.

    Raises:
        InputError: If f is no integer of at least 0.

    Source: Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical
    rates", ICML 2018, Definition 2.
    """

    tolerated: int = 1  # f, so many liars are tolerated, n > 2f

    def __post_init__(self) -> None:
        require_int("tolerated", self.tolerated, 0)

    @property
    def least(self) -> int:
        return 2 * self.tolerated + 1

    def __call__(self, replies: Sequence[_F32]) -> _F32:
        inner = slice(self.tolerated, len(replies) - self.tolerated)
        return exact_mean(np.sort(_values(self, replies), axis=0)[inner]).astype(np.float32)


@dataclass(frozen=True)
class Median(Aggregation):
    """The median, coordinate by coordinate; of an even number the mean of the two in the middle.

    While fewer than half of the clients lie, every coordinate is within the range of the honest ones.

    Source: Yin, Chen, Ramchandran and Bartlett, ICML 2018, Definition 1.
    """

    def __call__(self, replies: Sequence[_F32]) -> _F32:
        return TrimmedMean(max(len(replies) - 1, 0) // 2)(replies)


@dataclass(frozen=True)
class Krum(Aggregation):
    """The reply, whole, with the least sum of squared distances to the n − f − 2 others that are nearest to it.

    Of equal sums the one whose bytes come first, so that the clients have no order here either.

    Raises:
        InputError: If f is no integer of at least 0.

    Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
    descent", NeurIPS 2017.
    """

    tolerated: int = 1  # f, so many liars are tolerated, n ≥ 2f + 3

    def __post_init__(self) -> None:
        require_int("tolerated", self.tolerated, 0)

    @property
    def least(self) -> int:
        return 2 * self.tolerated + 3

    def __call__(self, replies: Sequence[_F32]) -> _F32:
        values = _values(self, replies)
        near = len(replies) - self.tolerated - 2

        def score(i: int) -> tuple[float, bytes]:
            squares = sorted(_square(values[i] - other) for j, other in enumerate(values) if j != i)
            return math.fsum(squares[:near]), replies[i].tobytes()

        return replies[min(range(len(replies)), key=score)].copy()


@dataclass(frozen=True)
class Majority(Aggregation):
    """The sign, coordinate by coordinate, that more of n signs have; 1 where as many have either: g = sgn(Σ_i g_i ≥ 0).

    While fewer than half of the clients lie, a sign on which the honest ones agree is the round's.

    Source: [FeedSign], arXiv 2501.17610.
    """

    dtype = np.int8

    def __call__(self, replies: Sequence[NDArray[np.int8]]) -> NDArray[np.int8]:
        return np.where(_values(self, replies).sum(axis=0) >= 0, 1, -1).astype(np.int8)


@dataclass(frozen=True, repr=False)
class OwnRule(Aggregation):
    """A rule of the user's own: a function of the round's replies, (n, K, P) float32 numbers that are read-only.

    In every round it is tried on other numbers, with the clients in two orders.
    """

    own: Any  # the function, or its name

    def __post_init__(self) -> None:
        object.__setattr__(self, "own", OwnFunction.of(self.own, "aggregation", "(replies)"))

    def __repr__(self) -> str:
        return str(self.own)

    @property
    def least(self) -> int:
        """See ``Aggregation``; 1 where a function does not say it."""
        return require_int(f"least of aggregation {self}", getattr(self.own.function, "least", 1), 1)

    def __call__(self, replies: Sequence[_F32]) -> _F32:
        """See ``Aggregation``; InputError, too, where the rule is none."""
        values = _values(self, replies).astype(np.float32) + np.float32(0)  # of zeros there is one alone, +0
        shape = values.shape[1:]
        # The order is tried of numbers with all digits: differences of losses have few, and their sums are often exact.
        full = values + np.random.default_rng(0).standard_normal(values.shape, np.float32)
        one, other = (self.own.array(shape, np.float32, np.roll(full, n, axis=0)) for n in (0, 1))  # n clients on
        rule = "give the same bits in any order of the clients (sum by math.fsum, or first np.sort(replies, axis=0))"
        require(one.tobytes() == other.tobytes(), f"aggregation {self}", rule, (one.tolist(), other.tolist()))
        scalars: _F32 = self.own.array(shape, np.float32, values)
        return scalars


def omega(rule: Aggregation, n: int, f: int) -> float:
    """A number ω with ‖A − ḡ‖² ≤ ω s² for all n replies of which f are arbitrary; infinite where none is proved.

    A is what the rule makes of all n, ḡ the mean of the n − f honest replies and s² = (1/(n − f)) Σ ‖g_i − ḡ‖² their
    spread. All but Krum keep it in every coordinate by itself, and no smaller ω is true of them.

        trimmed by t, f ≤ t:    t/(n − t − f)        the mean is trimmed by 0, the median by t = ⌊(n − 1)/2⌋
        krum that tolerates t:  (√(2h(n − t − 2)/((h − 1)q)) + √((t + 1)/q))²,   h = n − f,  q = n − t − f − 1

    *Proof for Krum* (docs/robust.md has the others, and the lemma that is used). An honest reply's sum over its n − t −
    2 nearest others is at most that over its n − t − 2 nearest honest ones, at most (n − t − 2)/(h − 1) of the sum over
    all h − 1, whose mean over the honest is 2hs². So the least sum is at most S = 2hs²(n − t − 2)/(h − 1). Of the reply
    A that has it and its n − t − 2 neighbours at least q are honest: at most f are liars, A among them or not. These q
    have Σ ‖A − g_j‖² ≤ S, so their mean is within √(S/q) of A; by the lemma, along the line from ḡ to it, it is within
    s√((h − q)/q) of ḡ, and h − q = t + 1. ∎

    Source: docs/robust.md.
    """
    match rule:
        case Mean():
            t = 0
        case Median():
            t = (n - 1) // 2
        case TrimmedMean(t) | Krum(t):
            pass
        case _:
            return math.inf
    if n < rule.least or f > t:
        return math.inf
    if not isinstance(rule, Krum):
        return t / (n - t - f)
    h, q = n - f, n - t - f - 1
    return (math.sqrt(2 * h * (n - t - 2) / ((h - 1) * q)) + math.sqrt((t + 1) / q)) ** 2


# What a client weighs in the mean: as much as every other client, or as much as it has examples.


MOST_EXAMPLES = 2**29 - 1
"""The largest n_i. A float32 has 24 bits, so that its product with an integer of 29 is exact in double precision."""


class Weighting(StrEnum):
    """What a client weighs in a round's mean."""

    CLIENTS = "clients"  # as much as every other client: the paper's mean over the sampled ones
    EXAMPLES = "examples"  # its number n_i of examples, so that every example weighs the same. The client says it once.


@dataclass
class Weights:
    """What each client weighs, as far as the server knows."""

    by: Weighting = Weighting.CLIENTS  # what clients are weighed by
    # {i: n_i} of the clients that have said it; empty where all weigh the same.
    examples: dict[int, int] = field(default_factory=dict)

    @property
    def wanted(self) -> bool:
        """Whether clients have to say how many examples they have."""
        return self.by is Weighting.EXAMPLES

    def lacks(self, client: int) -> bool:
        """Whether this client still has to say how many examples it has."""
        return self.wanted and client not in self.examples

    def note(self, client: int, n: int) -> None:
        """Remember that a client has n examples.

        InputError if n is not in 1..2^29 − 1, is another number than before, or if clients weigh the same.
        """
        what = f"examples of client {client}"
        require(self.wanted, what, "be left out where every client weighs the same", n)
        require_int(what, n, 1, MOST_EXAMPLES)
        before = self.examples.setdefault(client, n)
        require(n == before, what, f"number {before}, as it said before", n)

    def of(self, clients: Iterable[int]) -> tuple[int, ...] | None:
        """n_i of these clients; None where all weigh the same; InputError if one has not said it."""
        if not self.wanted:
            return None
        clients = tuple(clients)
        for client in clients:
            if client not in self.examples:
                raise InputError(f"client {client} must say how many examples it has before its reply counts")
        return tuple(self.examples[client] for client in clients)
