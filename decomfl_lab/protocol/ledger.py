"""The ledger of a federation: it counts what is sent, message by message, up and down, for each client."""

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Self

from decomfl_lab.protocol.messages import Message, carried
from decomfl_lab.protocol.wire import encode

if TYPE_CHECKING:
    from decomfl_lab.storage.outside import Counts


@dataclass(slots=True)
class Traffic:
    """What went one way between the server and one client."""

    messages: int = 0
    bytes: int = 0
    scalars: int = 0  # gradient scalars, or model elements of a dense message
    seeds: int = 0


def _total(traffic: Iterable[Traffic]) -> Traffic:
    return Traffic(*map(sum, zip(*map(astuple, traffic), strict=True)))


@dataclass
class Ledger:
    """Counts every encoded message, up and down, for each client; lag is in it by nature."""

    M: int  # clients
    up: list[Traffic] = field(default_factory=list)  # client → server, one Traffic a client
    down: list[Traffic] = field(default_factory=list)  # server → client
    encode: Callable[[Message], bytes] = field(default=encode, repr=False, compare=False)  # the codec

    def __post_init__(self) -> None:
        self.up = self.up or [Traffic() for _ in range(self.M)]
        self.down = self.down or [Traffic() for _ in range(self.M)]
        self.total_up = _total(self.up)  # the sum of all that went up
        self.total_down = _total(self.down)  # the sum of all that went down

    def sent(self, client: int, message: Message, *, upwards: bool) -> bytes:
        """Encode a message to or from ``client`` and count it."""
        encoded = self.encode(message)
        self.count(client, len(encoded), *carried(message), upwards=upwards)
        return encoded

    def count(self, client: int, bytes_: int, scalars: int = 0, seeds: int = 0, *, upwards: bool) -> None:
        """Count what went to or from ``client``: a message, or what is sent again, late, damaged or refused."""
        for traffic in (self.up[client], self.total_up) if upwards else (self.down[client], self.total_down):
            traffic.messages += 1
            traffic.bytes += bytes_
            traffic.scalars += scalars
            traffic.seeds += seeds

    @property
    def bytes(self) -> int:
        """All bytes, both ways."""
        return self.total_up.bytes + self.total_down.bytes

    @property
    def bytes_up(self) -> int:
        """The bytes that clients sent."""
        return self.total_up.bytes

    @property
    def scalars(self) -> int:
        """All gradient scalars and model elements, both ways."""
        return self.total_up.scalars + self.total_down.scalars

    def save(self) -> "Counts":
        """The counts as a checkpoint keeps them."""
        from decomfl_lab.storage.outside import Counts  # here, as a machine that only reads logs need not have msgspec

        return Counts(list(map(astuple, self.up)), list(map(astuple, self.down)))

    @classmethod
    def load(cls, saved: "Counts") -> Self:
        """Inverse of ``save``."""
        return cls(len(saved.up), [Traffic(*row) for row in saved.up], [Traffic(*row) for row in saved.down])
