"""What a run sends, in expectation: closed forms, byte by byte of the wire format."""

from __future__ import annotations

from dataclasses import dataclass

from decomfl_lab.errors import require_int
from decomfl_lab.protocol.wire import HEADER_BYTES, SCALAR_BYTES, VECTOR_HEAD_BYTES

__all__ = ["Cohort", "Traffic", "model_bytes", "models_both_ways"]


@dataclass(frozen=True)
class Cohort:
    """How many take part, and how often.

    Attributes:
        R: Rounds.
        M: Clients.
        m: Clients sampled a round.
    """

    R: int
    M: int
    m: int

    def __post_init__(self) -> None:
        require_int("rounds R", self.R, 1)
        require_int("clients M", self.M, 1)
        require_int(f"sampled clients m (of M={self.M})", self.m, 1, self.M)

    @property
    def q(self) -> float:
        """The probability q = m/M with which a client takes part in a round, independently of the other rounds."""
        return self.m / self.M


@dataclass(frozen=True)
class Traffic:
    """What one client and the server send each other, in expectation over who is sampled. All clients are alike.

    Attributes:
        up_bytes: Bytes client → server.
        up_scalars: Gradient scalars or model elements client → server.
        down_bytes: Bytes server → client.
        down_scalars: Gradient scalars or model elements server → client.
    """

    up_bytes: float = 0.0
    up_scalars: float = 0.0
    down_bytes: float = 0.0
    down_scalars: float = 0.0

    @property
    def bytes(self) -> float:
        """Both ways."""
        return self.up_bytes + self.down_bytes

    @property
    def scalars(self) -> float:
        """Both ways."""
        return self.up_scalars + self.down_scalars

    def times(self, clients: int) -> Traffic:
        """What so many clients send and get together."""
        return Traffic(
            clients * self.up_bytes, clients * self.up_scalars, clients * self.down_bytes, clients * self.down_scalars
        )


def model_bytes(d: int) -> int:
    """A message with d float32 numbers."""
    require_int("d", d, 1)
    return HEADER_BYTES + VECTOR_HEAD_BYTES + SCALAR_BYTES * d


def models_both_ways(cohort: Cohort, d: int, update_bytes: int | None = None, elements: int | None = None) -> Traffic:
    """R·q times a model down and an update up, by default a model too.

    Args:
        cohort: How many take part.
        d: Parameters.
        update_bytes: Bytes of the update's message without its header.
        elements: Elements of the update.
    """
    times = cohort.R * cohort.q
    up = model_bytes(d) if update_bytes is None else HEADER_BYTES + update_bytes
    return Traffic(times * up, times * (d if elements is None else elements), times * model_bytes(d), times * d)
