"""What a client weighs in a round's mean: as much as every other client, or as much as it has examples."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from decomfl_lab.errors import InputError, require, require_int
from decomfl_lab.protocol.aggregation import Aggregation, Mean

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

        Raises:
            InputError: If n is not in 1..2^29 − 1, is another number than before, or if clients weigh the same.
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


def require_weighable(by: Weighting, aggregation: Aggregation) -> None:
    """InputError unless the rule of aggregation has weights where they are wanted; only the mean has."""
    weighable = by is Weighting.CLIENTS or type(aggregation) is Mean  # a class derived from Mean may do something else
    rule = f"be {Weighting.CLIENTS} with aggregation {aggregation}, which has no weights; only the mean has"
    require(weighable, "weighting", rule, str(by))
