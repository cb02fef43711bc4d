"""The world of a small federation: its nodes, the frames in flight, the disk, the clock, and what has to be true in it.

A *history* is a run from its first round to its end, in one process and without a clock. What happens wherever
something may happen is a *decision*, a number: 0 is that nothing does. So the numbers are the whole history, and two
searches look for one that ends wrongly: all of them, those with the fewest things that go wrong first (``breadth``),
and many that a seed draws (``drawn``). Which frame is lost, late or comes twice; when a client or the server dies, and
what it comes back with; when the disk is full; when bits of a model change: both draw among the same decisions.

*Nodes.* A client's process is the number of its host's state, of which everything is known (``Hosts``). Hosts are
deterministic, so what one does is looked up where another history has had one in the same state get the same frame.
The server's processes come one after another; each has the disk of the one before it, and nothing else. *Frames* stand
in a queue by the second at which they arrive. The *disk* loses what was written and not synced, and may be full.

Who sits in the world, and what must be true there, is said by the two kinds of history (``histories``): of sessions,
by the code that ``serve`` and ``join`` run, and of deliveries alone, by anybody's servers and clients.

With ``Stand`` a replica is a hash of the records that it applied, and what a client measures one of its number, round,
place in the data and model: whatever would give a real replica other bits gives these other ones. With
``Implementation`` these are real, and slower.
"""

from __future__ import annotations

import heapq
import io
import os
import pickle
import stat
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import Tensor

from decomfl_lab.engines.base import Serial
from decomfl_lab.federations.carrier import Take
from decomfl_lab.laws.contract import Case, Implementation, Wavy
from decomfl_lab.laws.register import LawBrokenError, same
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol import session
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.messages import Message, Plan, Welcome
from decomfl_lab.protocol.server import Tracking
from decomfl_lab.protocol.session import Frames
from decomfl_lab.protocol.terms import Terms
from decomfl_lab.protocol.weights import Weighting
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import DerivedSeeds, PooledSeeds, Seeding
from decomfl_lab.replicas.replica import Snapshot
from decomfl_lab.replicas.rules import Momentum

__all__ = ["SETTINGS", "SIMPLEST", "Choose", "DeathError", "Hosts", "Log", "Process", "SmallFederation", "World"]
__all__ += ["case_of", "content", "file_of", "listed", "name_of"]

MOST_EVENTS = 2000
"""Messages after which a history is held to have no end."""
SOON, LATE, MUCH_LATER = 1.0, 7.0, 45.0
"""Seconds that a frame is under way: as it should, past other frames, past the end of its exchange."""
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

Choose = Callable[[str, int], int]
"""A decision of this kind, below this number."""

SETTINGS: dict[str, tuple[Any, ...]] = {
    "clients": (1, 2, 3),
    "sampled": (3, 2, 1),
    "quorum": (1, 2, 3),
    "deadline": (None, 10.0),
    "rounds": (1, 1, 2, 3),
    "processes": ("one each", "one each", "one for all"),
    "tracking": (Tracking.SERVER, Tracking.SERVER, Tracking.CLIENTS),
    "keep": (0, 0, 1),
    "presence": ("unknown", "known"),
    "seeding": (Seeding.PER_STEP, Seeding.PER_RUN),
    "weighting": tuple(Weighting),
    "check_every": (0, 0, 1, 2),
}
"""What each field of a ``SmallFederation`` may be, the simplest first; what stands twice is twice as frequent."""


@dataclass(frozen=True)
class SmallFederation:
    """What federation a history is of; where there are fewer clients than that, all are sampled, or are the quorum.

    Attributes:
        clients: M.
        sampled: m.
        quorum: The replies that a round needs at least.
        deadline: Seconds after which a quorum will do, None for all of ``PATIENCE``.
        rounds: Rounds before the network becomes quiet.
        processes: Whether each client has a process of its own, or all share one, and its model.
        tracking: Who remembers which round a client holds.
        keep: The most records that the server keeps, 0 for all.
        presence: Whether the carrier knows which clients are there; else what it sends to the others is lost.
        seeding: How many seeds travel.
        weighting: What clients weigh.
        check_every: Rounds between two in which all clients prove their model.
        pulls: Whether whoever missed a record is sent the model in its place, not only where records are gone.
    """

    clients: int = 1
    sampled: int = 3
    quorum: int = 1
    deadline: float | None = None
    rounds: int = 1
    processes: str = "one each"
    tracking: Tracking = Tracking.SERVER
    keep: int = 0
    presence: str = "unknown"
    seeding: Seeding = Seeding.PER_STEP
    weighting: Weighting = Weighting.CLIENTS
    check_every: int = 0
    pulls: bool = False

    @classmethod
    def drawn(cls, choose: Choose) -> SmallFederation:
        """A setting of these decisions."""
        return _setting(*[values[choose("setting", len(values))] for values in SETTINGS.values()])

    def __str__(self) -> str:
        return ", ".join(f"{each.name} {getattr(self, each.name)}" for each in fields(self) if each.name != "pulls")


@cache
def _setting(*values: Any) -> SmallFederation:
    made = SmallFederation(*values)
    m = min(made.clients, made.sampled)
    return replace(made, sampled=m, quorum=min(m, made.quorum))


SIMPLEST = SmallFederation.drawn(lambda kind, count: 0)  # noqa: ARG005


@cache
def case_of(setting: SmallFederation) -> Case:
    """Model, local steps and seeds of a setting; the learning rate differs from round to round."""
    return Case(
        M=setting.clients,
        K=2,
        P=Schedule(1),
        eta=Schedule(0.25, {r: 0.25 / (r + 1) for r in range(1, 4)}),
        rule=Momentum(0.5),
        estimator="central",
        mu=2.0**-8,
        distribution=Distribution.GAUSSIAN,
        shapes=((16,),),
        dtype=torch.float32,
        seed=1,
        rounds=(),
        seeding=setting.seeding,
        tracking=setting.tracking,
        keep=setting.keep,
    )


def listed(clients: Iterable[int]) -> str:
    """Clients, in words."""
    clients = sorted(clients)
    return f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}"


def name_of(message: Message) -> str:
    """A message by its kind and round."""
    match message:
        case Plan(round=r, records=records):
            return f"plan {r}{f' with {name_of(records)}' if records else ''}"
        case Welcome(r, steps):
            return f"welcome {r} (after {steps} steps)"
        case tuple():
            return f"records {', '.join(str(record.round) for record in message)}"
        case other:
            return f"{type(other).__name__.lower()}{f' {other.round}' if hasattr(other, 'round') else ''}"


# Nodes ----------------------------------------------------------------------------------------------------------------


_CONSTANT: dict[int, Any] = {}
"""What hosts have and never change: it is not pickled but referred to, classes among it that pickle would not find."""
_KINDS = (type, FunctionType, Terms, Snapshot, Momentum, Serial, Wavy, Implementation)


@cache
def _is_constant(kind: Any) -> bool:
    return issubclass(kind, _KINDS)


class _Pickler(pickle.Pickler):
    """The same bytes for equal tensors."""

    def persistent_id(self, obj: Any) -> Any:
        kind: Any = type(obj)
        if not _is_constant(kind):
            return None
        _CONSTANT[id(obj)] = obj
        return id(obj)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            return _tensor, (str(obj.dtype), obj.shape[0], b"" if obj.is_meta else obj.numpy().tobytes())
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: int) -> Any:
        return _CONSTANT[pid]


class _StatePickler(_Pickler):
    """What a server decides by: neither its ledgers nor its log, and functions by their names."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.fast = True  # it makes no difference whether equal parts are one object

    def persistent_id(self, obj: Any) -> Any:
        if callable(obj) or isinstance(obj, Ledger | RunLog):
            return getattr(obj, "__qualname__", type(obj).__qualname__)
        return super().persistent_id(obj)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, DerivedSeeds | PooledSeeds):  # they remember what they were asked for
            return tuple, (tuple(obj),)
        return super().reducer_override(obj)


def _tensor(dtype: str, size: int, data: bytes) -> Tensor:
    kind = getattr(torch, dtype.removeprefix("torch."))
    return torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(size, dtype=kind, device="meta")


def content(obj: Any, kind: type[_Pickler] = _StatePickler) -> bytes:
    """All that there is of an object, as bytes that are equal for equal ones."""
    file = io.BytesIO()
    kind(file).dump(obj)
    return file.getvalue()


class Hosts:
    """Hosts, by the numbers of their states; what a host does is done once for its state and what comes to it.

    Attributes:
        holds: The round and the digest of the model in each state.
    """

    def __init__(self, digest: Callable[[Any], str]) -> None:
        """No host yet; ``digest`` is that of a replica."""
        self.holds: list[tuple[int, str]] = []
        self._digest = digest
        self._content: list[bytes] = []
        self._number: dict[bytes, int] = {}
        self._done: dict[Any, tuple[int, bytes]] = {}

    def entered(self, host: Any) -> int:
        """The number of the state that a host is in."""
        whole = content(host, _Pickler)
        if whole not in self._number:
            self._number[whole] = len(self._content)
            self._content.append(whole)
            self.holds.append((host.replica.round, self._digest(host.replica)))
        return self._number[whole]

    def host(self, state: int) -> Any:
        """A host in this state."""
        return _Unpickler(io.BytesIO(self._content[state])).load()

    def _once(self, act: Callable[..., bytes], state: int, *of: Any) -> tuple[int, bytes]:
        """The state after a host in this one did something, and what it said."""
        key = act, state, of
        if key not in self._done:
            host = self.host(state)
            said = act(host, *of)
            self._done[key] = self.entered(host), said
        return self._done[key]

    def answered(self, state: int, i: int, frame: bytes) -> tuple[int, bytes]:
        """The state after a frame for client i, and the answer."""
        return self._once(_answer, state, i, frame)

    def hello(self, state: int, i: int) -> bytes:
        """What client i says of itself."""
        return self._once(_greet, state, i)[1]

    def reloaded(self, state: int, fresh: int) -> int:
        """The state of a new host that has loaded what this one saved."""
        return self._once(self._load, fresh, state)[0]

    def rotten(self, state: int, *, start: bool = False) -> int:
        """The state in which bits of the model, and perhaps of x_0, are others."""
        return self._once(_rot, state, start)[0]

    def _load(self, host: Any, saved: int) -> bytes:
        with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
            self.host(saved).save(Path(folder, "host"))
            host.load(Path(folder, "host"))
        return b""


def _answer(host: Any, i: int, frame: bytes) -> bytes:
    answer: bytes = host.handle({i: frame})[i]
    return answer


def _greet(host: Any, i: int) -> bytes:
    hello: bytes = host.hello(i)
    return hello


def _rot(host: Any, start: bool) -> bytes:
    host.replica.own()
    host.replica.x[0] += 1
    if start:
        host._start = host.replica.snapshot()
    return b""


@dataclass
class Process:
    """A client's process, or that of several.

    Attributes:
        clients: The clients.
        fresh: The state of their host at x_0.
        state: Its state now.
        here: Whether it is there.
        deaths: How often it died.
        wrong: Whether its model has had other bits since it was last seen to be right.
        strange: Whether its x_0 is another one, so that it is wrong for ever.
        past: The other states that it was in, where it may come back with these.
        lost: Whether it came back with less than it had, and the server cannot know that.
    """

    clients: tuple[int, ...]
    fresh: int
    state: int
    here: bool = True
    deaths: int = 0
    wrong: bool = False
    strange: bool = False
    past: list[int] = field(default_factory=list)
    lost: bool = False


# The disk -------------------------------------------------------------------------------------------------------------


class DeathError(BaseException):
    """The server's process dies here; nothing of it runs any more."""


class _File(io.BytesIO):
    """The file of a log, on a disk that may lose what was not synced, and may be full."""

    mode = "r+b"

    def __init__(self, whole: bytes, dies: Callable[[str], None], is_full: Callable[[], bool]) -> None:
        super().__init__(whole)
        self.synced, self._dies, self._is_full = len(whole), dies, is_full

    def open(self, mode: str, buffering: int) -> _File:  # noqa: ARG002
        """This file, as a path has it."""
        return self

    def stat(self) -> os.stat_result:
        """That of a plain file."""
        return _PLAIN

    def close(self) -> None:
        """Keep it: the next process opens it again."""

    def write(self, more: Any) -> int:
        self._dies("before it writes the log")
        if self.tell() + len(more) > self.getbuffer().nbytes and self._is_full():
            return super().write(more[: len(more) // 2])
        count = super().write(more)
        self._dies("after it wrote the log, before that is on the disk")
        return count

    def falls(self, how: int) -> None:
        """The server has died: of what was not synced all is there, or half, or nothing."""
        more = len(self.getvalue()) - self.synced
        self.truncate(self.synced + (more, more // 2, 0)[how])
        self.synced = len(self.getvalue())


_PLAIN = os.stat_result((stat.S_IFREG, *[0] * 9))


def file_of(whole: bytes) -> Any:
    """A file of these bytes, on a disk that nothing happens to."""
    return _File(whole, lambda _: None, lambda: False)


class Log(RunLog):
    """A run's log on that disk, which one process after the other has."""

    @staticmethod
    def _hold(path: Path) -> AbstractContextManager[None]:  # noqa: ARG004
        return nullcontext()

    def _has_its_name(self) -> bool:
        return True

    def sync(self) -> None:
        """Have on the disk what is in the file."""
        file: Any = self._file
        file.synced = len(file.getvalue())


# The world ------------------------------------------------------------------------------------------------------------


class World(ABC):
    """A history under way: carrier, clock, disk and clients; whoever derives from it has the server's processes.

    What happens at which second stands in a queue: a frame comes "down" or "up", a client says "hello", or is "back".
    """

    fates: ClassVar[tuple[tuple[str, tuple[float, ...]], ...]] = (
        ("there as it should", (SOON,)),
        ("late", (LATE,)),
        ("very late", (MUCH_LATER,)),
        ("sent twice", (SOON, LATE)),
        ("lost", ()),
        ("lost with its connection", ()),
    )
    """When a frame arrives, once, twice or never."""
    absences: ClassVar[tuple[float, ...]] = (3.0, 20.0, 100.0)
    """Seconds that a client's process is away after it died."""
    connected: ClassVar[bool] = True
    """Whether what is under way to a process that dies is lost."""

    def __init__(
        self,
        setting: SmallFederation,
        hosts: Hosts,
        fresh: Mapping[tuple[int, ...], int],
        log: bytes,
        choose: Choose,
        tell: Callable[[str], None] | None,
    ) -> None:
        """A world before its first second.

        Args:
            setting: The federation.
            hosts: All hosts.
            fresh: The state at x_0 of the host of these clients, for each process.
            log: The empty log.
            choose: It decides.
            tell: It is told what happens; None for nobody.
        """
        self.setting, self._hosts, self._choose, self._tell = setting, hosts, choose, tell
        self._processes = [Process(ids, state, state) for ids, state in fresh.items()]
        self._of = {i: process for process in self._processes for i in process.clients}
        self.now, self._quiet, self._bytes, self._events = 0.0, False, 0, 0
        self._there: set[int] = set()  # who has said hello to this server, and has not gone since
        self._queue: list[tuple[float, int, str, int, int, bytes]] = []
        self._waiting: set[int] = set()  # whose answers the exchange under way waits for, until its end
        self._end = 0.0
        self._has_rotten = False  # whether a client may rightly be told that its model is wrong
        self._given: dict[int, str] = {}  # the digests of the models of rounds that clients have held
        self._file = _File(log, self._dies, self._is_full)
        self._about: tuple[Any, ...] = ()  # what is decided on

    @abstractmethod
    def play(self) -> None:
        """To the end; LawBrokenError, or whatever is raised, where something is wrong."""

    @abstractmethod
    def _named(self, frame: bytes) -> str:
        """The messages of a frame."""

    @abstractmethod
    def _took(self, i: int, frame: bytes) -> None:
        """The server has taken this frame of client i."""

    @abstractmethod
    def _server_state(self) -> Any:
        """All that there is of the server, and on its disk."""

    @property
    def state(self) -> Any:
        """All that the rest of the history depends on, beside what is decided from now on."""
        under_way = sorted(
            (at - self.now, kind, i, deaths == self._of[i].deaths, frame)
            for at, _, kind, i, deaths, frame in self._queue
        )
        nodes = [(own.state, own.fresh, own.here, own.wrong, own.lost, tuple(own.past)) for own in self._processes]
        waits = frozenset(self._there), frozenset(self._waiting), self._end - self.now
        return self._about, tuple(under_way), tuple(nodes), waits, self._server_state()

    def _chooses(self, kind: str, count: int, *about: Any) -> int:
        """What happens, of ``count`` possibilities; 0 in a quiet network."""
        if self._quiet or count == 1:
            return 0
        self._about = about
        return self._choose(kind, count)

    def _say(self, words: str, *frames: bytes) -> None:
        """Tell who reads along what happens; frames stand at each {}."""
        if self._tell:
            words = words.format(*map(self._named, frames)) if frames else words
            self._tell(f"{self.now:4g} s  {words}")

    def _dies(self, where: str, *frames: bytes) -> None:
        """Perhaps the server dies here."""
        if self._chooses("server", 2, where, *frames):
            self._say(f"the server dies {where}", *frames)
            raise DeathError

    def _is_full(self) -> bool:
        """Perhaps the disk is full now."""
        return bool(self._chooses("full", 2))

    # The carrier.

    def exchange(self, frames: Frames, take: Take, deadline: float | None) -> None:
        """See ``Carrier``."""
        assert deadline is not None
        self._happens()
        self._end = end = self.now + deadline
        self._waiting = waiting = set(frames) if self.setting.presence == "unknown" else self._there & frames.keys()
        for_anybody, often = not waiting, Counter[int]()
        for i in sorted(waiting):
            self._down(i, frames[i])
        while (waiting or for_anybody) and not frames.enough() and self._queue and self._queue[0][0] <= end:
            self._waits(self._queue[0][0])
            due, _, kind, i, epoch, frame = heapq.heappop(self._queue)
            self.now = max(self.now, due)
            if kind == "down":
                self._arrives(i, epoch, frame)
            elif kind == "back":
                self._back(self._of[i])
            elif kind == "up" or epoch == self._of[i].deaths:
                self._there |= {i} if kind == "hello" else set()
                self._dies(f"before it reads {{}} of client {i}", frame)
                more = take(i, frame, float("nan"))
                self._bytes += len(frame)
                self._say(f"the server gets {{}} of client {i}", frame)
                self._took(i, frame)
                if more is None:
                    waiting.discard(i)
                elif more:
                    often[i] += 1  # it may be told where it goes on, and once why the round goes on without it
                    if often[i] > session.MOST_WELCOMES + 1:
                        raise LawBrokenError(f"client {i} begins anew for ever: it is answered {often[i]} times")
                    self._down(i, more)
                    waiting |= {i} & frames.keys()
                for_anybody = for_anybody and i not in frames
        if (waiting or for_anybody) and not frames.enough():
            self._waits(end)
            self.now = end
            self._say(f"the server has waited long enough for {listed(waiting or frames)}")
        self._dies("after an exchange")

    @abstractmethod
    def _waits(self, until: float) -> None:
        """The server is about to wait for that long."""

    def _happens(self) -> None:
        self._events += 1
        if self._events > MOST_EVENTS:
            raise LawBrokenError(f"there is no end: {MOST_EVENTS} messages, and the run goes on")

    def _put(self, after: float, kind: str, i: int, frame: bytes = b"") -> None:
        self._happens()
        heapq.heappush(self._queue, (self.now + after, self._events, kind, i, self._of[i].deaths, frame))

    def _send(self, kind: str, i: int, frame: bytes) -> None:
        """A frame sets out, to arrive once, twice, late or never, perhaps as its connection is lost."""
        fate = self._chooses("frame", len(self.fates), kind, i, frame)
        how, arrivals = self.fates[fate]
        for seconds in arrivals:
            self._put(seconds, kind, i, frame)
        if fate:
            self._say(f"{{}} {'to' if kind == 'down' else 'of'} client {i} is {how}", frame)
        if fate == 5:
            self._connects(i, 2 * SOON)

    def _down(self, i: int, frame: bytes) -> None:
        self._bytes += len(frame)
        if self._of[i].here:  # else there is nobody whom it could reach
            self._send("down", i, frame)

    def _connects(self, i: int, after: float) -> None:
        """A client has no connection; it makes one and says hello."""
        self._there.discard(i)
        if self._of[i].here:
            self._say(f"client {i} connects, which takes {after:g} s")
            self._put(after, "hello", i, self._hosts.hello(self._of[i].state, i))

    # The clients.

    def _arrives(self, i: int, epoch: int, frame: bytes) -> None:
        """A frame comes to a client, which answers, unless its process dies before or after."""
        process = self._of[i]
        if not process.here or (self.connected and epoch != process.deaths):
            return
        self._rots(process)
        ways = self._ways(process)
        death = self._chooses("client", 1 + 3 * ways, i, frame)
        when = -(-death // ways)  # 0 never, 1 before it reads, 2 before it answers, 3 after it answered
        if when != 1:
            process.state, answer = self._hosts.answered(process.state, i, frame)
            self._say(f"client {i} gets {{}}, {'but dies before it says' if when == 2 else 'says'} {{}}", frame, answer)
            self._holds(i, frame)
            if answer and when != 2:
                self._send("up", i, answer)
        if when:
            before = process.state
            process.state, words = self._comes_back(process, (death - 1) % ways)
            process.lost = process.lost or process.state != before
            process.deaths, process.here = process.deaths + 1, False
            self._there.difference_update(process.clients)
            away = self.absences[self._chooses("absence", len(self.absences))]
            self._put(away, "back", i)
            self._say(f"the process of {listed(process.clients)} dies, to come back with {words} in {away:g} s")

    @abstractmethod
    def _comes_back(self, process: Process, way: int) -> tuple[int, str]:
        """The state in which a process comes back, and its words; ``way`` is below ``self._ways``."""

    @abstractmethod
    def _ways(self, process: Process) -> int:
        """In how many ways a process may come back."""

    def _holds(self, i: int, frame: bytes) -> None:  # noqa: ARG002
        """Client i, which got this frame, has to hold the model of its round."""
        process = self._of[i]
        r, digest = self._hosts.holds[process.state]
        if process.wrong:  # until it is seen to be right again
            process.wrong = process.strange or self._given.get(r) != digest
        else:
            same(f"the model of round {r} that client {i} holds", digest, self._given.setdefault(r, digest))

    def _rots(self, process: Process) -> None:
        """Perhaps bits of a model change, where every round looks at digests before replies count."""
        if self.setting.check_every == 1 and self._chooses("rot", 2, process.clients):
            process.state, process.wrong, self._has_rotten = self._hosts.rotten(process.state), True, True
            self._say(f"bits of the model of {listed(process.clients)} change")

    def _back(self, process: Process) -> None:
        if not process.here:
            process.here = True
            self._rots(process)
            silent = self.setting.presence == "unknown" and self._chooses("silence", 2)
            for i in process.clients:
                if silent:
                    self._say(f"client {i} is back, and says nothing")
                else:
                    self._connects(i, SOON)

    def _becomes_quiet(self) -> None:
        """From now on nothing goes wrong, and everybody is there."""
        if not self._quiet:
            self._quiet = True
            self._say("the network becomes quiet")
            for process in self._processes:
                self._back(process)
            for i in self._of.keys() - self._there if self.setting.presence == "known" else ():
                self._connects(i, SOON)
