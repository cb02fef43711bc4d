"""The protocol of who carries clients elsewhere: in other processes, or on other machines.

A run knows these two and nothing of any engine. Whatever has ``Elsewhere.carrier`` can be handed to it, as
``lab.train(..., federation=...)``; an entry of the group ``FEDERATIONS`` is a value of ``decomfl train --federation``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from decomfl_lab.protocol.session import Frames, Host

FEDERATIONS = "decomfl.federations"
"""The group of entry points that make an ``Elsewhere``."""

MakeHost = Callable[[Iterable[int]], "Host"]
"""It makes the host of these clients, at x_0, in any process."""

Take = Callable[[int, bytes, float], bytes | None]
"""``Coordinator.take``: of a client's number, its answer and the loss of it (NaN where it is not known)."""


class Carrier(Protocol):
    """Who carries the frames: an engine."""

    def exchange(self, frames: Frames, take: Take, deadline: float | None) -> None:
        """Send each frame to its client and hand every answer to ``take``, from this thread.

        What ``take`` returns is sent to that client, and its next answer waited for; None means that it is done. It
        returns when all are done or after ``deadline`` seconds, and whatever else a client says unasked is handed to
        ``take`` too. Frames may be lost, doubled or late; but one of an earlier exchange, sent to a process that has
        ended, never reaches the one in its place.

        A frame is read each time that it is sent, and then alone (``Frames``), so that nothing is made or counted for a
        client that is known to be away. It need not be waited for either, unless nobody else is: then until one has
        come. A client that comes says hello, which goes to ``take``.
        """

    def close(self) -> None:
        """Let the clients go."""


@runtime_checkable
class Elsewhere(Protocol):
    """A place where a run puts its clients, as ``lab.Ray``; its ``repr`` is what errors call it."""

    def carrier(self, make: MakeHost, M: int) -> Carrier:
        """Who carries frames to clients 0..M-1, whose hosts are made there by ``make``.

        InputError if the place cannot be reached, or the clients cannot be sent there.
        """
