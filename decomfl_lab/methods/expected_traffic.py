"""What a run sends, in expectation: closed forms, byte by byte of the wire format."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from decomfl_lab.errors import Told
from decomfl_lab.protocol.aggregation import Weighting
from decomfl_lab.protocol.messages import Kind

if TYPE_CHECKING:
    from decomfl_lab.federations.setting import Federation
    from decomfl_lab.storage.outside import Saved


@dataclass(frozen=True)
class Cohort:
    """How many take part, and how often, as a run's configuration says (``TrainConfig.cohort``)."""

    R: int  # rounds
    M: int  # clients
    m: int  # clients sampled a round

    @property
    def q(self) -> float:
        """The probability q = m/M with which a client takes part in a round, independently of the other rounds."""
        return self.m / self.M

    @property
    def ever(self) -> float:
        """The probability 1 − (1 − q)^R that a client takes part in some round."""
        return 1 - (1 - self.q) ** self.R


@dataclass(frozen=True)
class ExpectedTraffic:
    """What one client and the server send each other, in expectation over who is sampled. All clients are alike."""

    up_bytes: float = 0.0  # bytes client → server
    up_scalars: float = 0.0  # gradient scalars or model elements client → server
    down_bytes: float = 0.0  # bytes server → client
    down_scalars: float = 0.0  # gradient scalars or model elements server → client

    @property
    def bytes(self) -> float:
        """Both ways."""
        return self.up_bytes + self.down_bytes

    @property
    def scalars(self) -> float:
        """Both ways."""
        return self.up_scalars + self.down_scalars


@dataclass(frozen=True, repr=False)
class TrafficCheck(Told):
    """What a method's formula says that is sent, and what was sent; true if they are equal up to rounding."""

    said: ExpectedTraffic  # the formula's expectation
    sent: ExpectedTraffic  # the mean of the ledger over every history of sampled sets

    def __bool__(self) -> bool:
        return all(map(math.isclose, astuple(self.said), astuple(self.sent)))

    def __str__(self) -> str:
        means = (self.said, self.sent)
        stated, sent = (f"{mean.up_bytes:,.2f} bytes up and {mean.down_bytes:,.2f} down" for mean in means)
        return f"traffic: {'as' if self else 'NOT as'} the formula says, {stated} a client, and {sent} by the ledger"


def mean_traffic(federation: Federation, cohort: Cohort) -> ExpectedTraffic:
    """What the ledger counts a client, averaged over *all* (M choose m)^R histories of sampled sets, really played.

    Args:
        federation: A federation at round 0, whose ``sample()``, or its server's, says who takes part; it is used up.
        cohort: Its clients and the rounds to play.
    """
    drawing: Any = getattr(federation, "server", federation)

    def played(state: Saved, rounds: int) -> Iterator[Any]:
        """The counts after so many rounds more: what histories begin with alike is played once."""
        for sampled in combinations(range(cohort.M), cohort.m):
            federation.load(copy.deepcopy(state))
            drawing.sample = lambda sampled=sampled: sampled
            federation.advance()
            if rounds > 1:
                yield from played(copy.deepcopy(federation.save()), rounds - 1)
            else:
                ways = zip(federation.ledger.up, federation.ledger.down, strict=True)
                yield np.mean([(up.bytes, up.scalars, down.bytes, down.scalars) for up, down in ways], axis=0)

    means = list(played(copy.deepcopy(federation.save()), cohort.R))
    return ExpectedTraffic(*map(float, np.mean(means, axis=0)))


def model_bytes(d: int) -> int:
    """A message with d float32 numbers."""
    return Kind.VECTOR.bytes(d)


def examples_bytes(cohort: Cohort, weighting: str) -> float:
    """Bytes up: where clients weigh their examples, each says once how many, with probability 1 − (1 − q)^R."""
    return cohort.ever * Kind.EXAMPLES.bytes() if weighting == Weighting.EXAMPLES else 0.0


def models_both_ways(
    cohort: Cohort,
    d: int,
    update_bytes: int | None = None,
    elements: int | None = None,
    *,
    weighting: str = Weighting.CLIENTS,
) -> ExpectedTraffic:
    """R·q times a model down and an update up, by default a model too; perhaps the number of examples up.

    Args:
        cohort: How many take part.
        d: Parameters.
        update_bytes: Bytes of the update's message.
        elements: Elements of the update.
        weighting: What clients are weighed by.
    """
    times = cohort.R * cohort.q
    up = times * (model_bytes(d) if update_bytes is None else update_bytes)
    up += examples_bytes(cohort, weighting)
    return ExpectedTraffic(up, times * (d if elements is None else elements), times * model_bytes(d), times * d)
