"""What a run tells of itself: its progress, what was sent, which models were rebuilt."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress", "Rebuilt", "Sent"]


@dataclass(frozen=True)
class Progress:
    """The state of a run after a round, as a progress bar shows it."""

    round: int
    rounds: int
    train_loss: float
    test_accuracy: float  # of the latest evaluation, NaN before the first
    scalars: float  # communicated scalars a client, bytes / 4, averaged over clients
    test_loss: float = float("nan")  # of the latest evaluation


@dataclass(frozen=True)
class Sent:
    """What a run has sent; ``str`` says it in a line.

    Attributes:
        clients: The number of clients.
        rounds: The number of rounds done.
        up_bytes: The bytes clients → server, all together.
        down_bytes: The bytes server → clients, all together.
        model_bytes: The bytes of the model, d numbers of 4 bytes.
    """

    clients: int
    rounds: int
    up_bytes: int
    down_bytes: int
    model_bytes: int

    def __str__(self) -> str:
        up, down = (1e-3 * count / self.clients for count in (self.up_bytes, self.down_bytes))
        return (
            f"wire: {up + down:,.2f} kB a client, {up:,.2f} of them up (mean over the {self.clients:,}), after "
            f"{self.rounds:,} rounds; the model itself has {1e-3 * self.model_bytes:,.1f} kB"
        )


@dataclass(frozen=True)
class Rebuilt:
    """How many clients, brought up to date by the records that they missed, hold the global model; true if all do."""

    clients: int
    equal: int

    def __bool__(self) -> bool:
        return self.equal == self.clients

    def __str__(self) -> str:
        if not self.clients:
            return "rebuilt: no client keeps a model between its rounds"
        equal = f"{self.equal:,} of {self.clients:,} clients"
        return f"rebuilt: {equal}, brought up to date by the records they missed, hold the global model bit for bit"
