"""Replay or pull? What a client that missed rounds should be sent: the records that it missed, or the model."""

from collections.abc import Sequence
from dataclasses import dataclass

from decomfl_lab.protocol.messages import Kind
from decomfl_lab.protocol.wire import encode
from decomfl_lab.records.record import RoundRecord


@dataclass(frozen=True)
class PullPolicy:
    """Send whatever is there sooner.

        replay: bytes(records) / bandwidth + pairs · d · ns · 10⁻⁹,    pull: bytes(model and state) / bandwidth

    Numbers are given, not measured on the way, so that a run repeats.
    """

    bandwidth: float = 12.5e6  # the bytes a second of the link to a client
    # The nanoseconds that a client needs for one element and missed direction (``decomfl bench rebuild`` measures it).
    replay_ns: float = 1.0

    def pulls(self, records: Sequence[RoundRecord], *, d: int, vectors: int, bytes_per_element: int) -> bool:
        """Whether a client that lacks ``records`` is sent the model.

        Args:
            records: The records that it missed.
            d: The number of parameters.
            vectors: 1 + the number of the rule's state vectors: a pull needs all of them.
            bytes_per_element: The size of a number that is sent, 4 or 8.
        """
        pairs = sum(record.scalars.size for record in records)
        replay_bytes = len(encode(tuple(records))) if records else 0
        pull_bytes = vectors * (Kind.VECTOR.bytes() + bytes_per_element * d)
        replay_seconds = replay_bytes / self.bandwidth + pairs * d * self.replay_ns * 1e-9
        return pull_bytes / self.bandwidth < replay_seconds
