"""The messages of the protocol, as values: what the server asks and what a client answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.noise import Distribution
from decomfl_lab.records import RoundRecord

__all__ = ["Plan", "Reply"]


@dataclass(frozen=True)
class Plan:
    """Server → client: the records it missed, then what to measure in round ``round``.

    Attributes:
        round: r.
        eta: η of this round, for the local steps.
        P: Directions a local step.
        distribution: Law of the directions.
        seeds: s_r^k, k = 1..K.
        records: Records of the rounds that the server believes the client has not applied.
    """

    round: int
    eta: float
    P: int
    distribution: Distribution
    seeds: tuple[int, ...]
    records: tuple[RoundRecord, ...] = ()

    @property
    def K(self) -> int:
        """Local steps."""
        return len(self.seeds)


@dataclass(frozen=True, eq=False)
class Reply:
    """Client → server: g_{i,r,p}^k.

    Attributes:
        client: i.
        round: r.
        scalars: float32, shape (K, P).
        loss: Mean loss over the local steps, for the log only: it is not sent and not counted.
    """

    client: int
    round: int
    scalars: NDArray[np.float32]
    loss: float = float("nan")
