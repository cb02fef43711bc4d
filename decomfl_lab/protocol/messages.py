"""The messages of the protocol, as values: what the server asks and what a client answers or reports."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.compression import QuantizedVector, SparseVector
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord, ScalarArray
from decomfl_lab.records.seeds import Seeding, StepSeed, seeding_of


class Sent:
    """What one side says to the other."""


@dataclass(frozen=True)
class Held(Sent):
    """Client → server, where clients track their own last round: which round's model the client holds."""

    client: int  # the client's number i
    round: int  # t_i, the round whose model it holds


@dataclass(frozen=True)
class Examples(Sent):
    """Client → server, with its first reply, where clients are weighed by their examples."""

    client: int  # the client's number i
    n: int  # n_i, the number of its examples, which stays the same for a run


@dataclass(frozen=True)
class Plan(Sent):
    """Server → client: the records it missed, then what to measure in round ``round``."""

    round: int  # the round r to measure in
    eta: float  # the learning rate η of this round, for the local steps
    P: int  # the number of directions a local step
    distribution: Distribution  # the distribution of the directions z
    seeds: Sequence[StepSeed]  # the seeds s_r^k, k = 1..K, in one of the forms of ``draw_seeds``
    # the records of the rounds that the server believes the client has not applied
    records: tuple[RoundRecord, ...] = ()

    @property
    def K(self) -> int:
        """Local steps."""
        return len(self.seeds)

    @property
    def seeding(self) -> Seeding:
        """How many seeds the plan carries."""
        return seeding_of(self.seeds, self.P)


@dataclass(frozen=True, eq=False)
class Reply(Sent):
    """Client → server: g_{i,r,p}^k."""

    client: int  # the client's number i
    round: int  # the round r that was measured
    scalars: ScalarArray  # the measured g_{i,r,p}^k, shape (K, P): float32, or int8 signs
    # the mean loss over the local steps; it serves the log alone, and is neither sent nor counted
    loss: float = float("nan")
    # the second differences, shape (K, P), where they are measured; they serve the log alone, too
    curvature: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class RunSeed(Sent):
    """Server → client, once, where no plan carries seeds."""

    seed: int  # the run's seed, which those of all rounds derive from


@dataclass(frozen=True, eq=False)
class Dense(Sent):
    """Server → client: a vector of the model of round ``round``, instead of records."""

    round: int  # r
    # A state vector of the optimizer or, last, the parameters: float32 or float64, shape (d,).
    x: NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Quantized(Sent):
    """Client → server: the update of round ``round``, quantised."""

    round: int
    update: QuantizedVector


@dataclass(frozen=True, eq=False)
class Sparse(Sent):
    """Client → server: the largest elements of the update of round ``round``."""

    round: int
    update: SparseVector


@dataclass(frozen=True)
class Hello(Sent):
    """Client → server, on a network: who it is, which run it is in, and the model that it holds."""

    client: int  # the client's number i
    run: bytes  # the run's identity, 16 bytes
    round: int  # t_i, the round whose model it holds
    digest: bytes  # the BLAKE2b-128 of that model, optimizer state included


@dataclass(frozen=True)
class Welcome(Sent):
    """Server → client, on a network: where the client goes on."""

    round: int  # the round whose model it keeps; 0 for x_0, whatever it holds
    steps: int  # the number of local steps that it has measured in the rounds of the record, which picks its next batch


@dataclass(frozen=True)
class Ask(Sent):
    """Server → client, on a network: say hello."""


@dataclass(frozen=True)
class Refusal(Sent):
    """Either way, on a network: why a message could not be served."""

    text: str  # the reason
    diverged: bool = False  # whether it is that losses are no longer finite numbers


Message = Sent | PoolSums | tuple[RoundRecord, ...]
"""All that the wire has a form for; records alone are what a server stores, sums of a pool what may stand for them."""
