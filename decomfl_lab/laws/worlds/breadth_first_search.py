"""The search breadth first: every history of a small federation in which at most so many things go otherwise.

First the history in which nothing does, then all in which one thing does, then two, up to the scope's number. So the
first that ends wrongly is one in which as little as possible happens. A history stops where it comes to a state of the
world that another one has been in before: what can follow from there has been tried, or stands in the queue already.
"""

import contextlib
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from decomfl_lab.errors import plural
from decomfl_lab.laws.contract import Implementation
from decomfl_lab.laws.worlds.histories import broken, parts_of
from decomfl_lab.laws.worlds.world import SmallFederation, World, case_of, silenced
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.records.seeds import Seeding


@dataclass(frozen=True)
class Scope:
    """What is searched."""

    setting: SmallFederation
    faults: int  # how many things go otherwise at most

    def __str__(self) -> str:
        setting = self.setting
        size = f"{plural(setting.clients, 'client')}, {plural(setting.rounds, 'round')}, {plural(self.faults, 'thing')}"
        return f"{size:32}{setting.tracking:9}history {setting.keep or 'all':<5}quorum {setting.quorum} "


SCOPES = (
    *(
        Scope(SmallFederation(1, 1, 1, None, 2, tracking=tracking, keep=keep, seeding=Seeding.PER_RUN), 3)
        for tracking in Tracking
        for keep in (0, 1)
    ),
    *(
        Scope(SmallFederation(2, 2, quorum, 10.0, 2, tracking=tracking, check_every=1), 2)
        for tracking in Tracking
        for quorum in (1, 2)
    ),
)
"""The scopes of ``decomfl verify --states``."""


@dataclass(frozen=True)
class Explored:
    """What a search found."""

    scope: Scope
    states: int  # the number that were reached
    histories: int  # the number that were begun
    seconds: float  # of processor time
    broken: str = ""  # what is wrong, empty if nothing is
    events: tuple[str, ...] = ()  # the history that ends so

    def __str__(self) -> str:
        mark = "BROKEN" if self.broken else "ok    "
        line = f"{mark} {self.scope} {self.states:9,} states {self.histories:9,} histories {self.seconds:6.1f} s"
        return "\n".join([line, *self.events, f"       {self.broken}"]) if self.broken else line


class _KnownError(BaseException):
    """Another history has been here."""


class _Steps:
    """Decisions that are given, and then zeros, up to a state that is known."""

    def __init__(self, given: tuple[int, ...], known: set[Hashable] | None) -> None:
        """After these decisions states are entered among those that are known; for None none is looked at."""
        self._given, self._known, self._taken = given, known, 0
        self.counts: list[int] = []  # of each decision after the given ones, how many possibilities there were

    def __call__(self, kind: str, count: int, world: World) -> int:
        """The next decision."""
        self._taken += 1
        if self._taken <= len(self._given):
            return min(self._given[self._taken - 1], count - 1)
        if self._known is not None:
            state = kind, hash(world.state)
            if state in self._known:
                raise _KnownError
            self._known.add(state)
        self.counts.append(count)
        return 0


def explore(scope: Scope, implementation: Implementation | None = None) -> Explored:
    """Search the scope, up to the first history in which something is wrong.

    Clients and servers are the implementation's, for None the lab's with the clients of ``Stand``; NotImplementedError
    if it has nothing to search there.
    """
    parts = parts_of(implementation)
    case = case_of(scope.setting)
    if not parts.implementation.supports(case):
        raise NotImplementedError(f"{parts.implementation.name}.supports refuses {case.rule}, K = {case.K}")
    began = time.process_time()
    known: set[Hashable] = set()
    waiting: deque[tuple[tuple[int, ...], int]] = deque([((), 0)])
    histories, wrong, events = 0, "", list[str]()
    with silenced():
        while waiting and not wrong:
            given, faults = waiting.popleft()
            histories += 1
            steps = _Steps(given, known)
            with contextlib.suppress(_KnownError):
                wrong = broken(parts, scope.setting, steps)
            if wrong:  # once more, with all that happens up to its end
                broken(parts, scope.setting, _Steps((*given, *[0] * len(steps.counts)), None), events.append)
            elif faults < scope.faults:
                for n, count in enumerate(steps.counts):
                    waiting += [((*given, *[0] * n, number), faults + 1) for number in range(1, count)]
    return Explored(scope, len(known), histories, time.process_time() - began, wrong, tuple(events))
