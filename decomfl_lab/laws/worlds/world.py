"""The world of a small federation: its nodes, the frames in flight, the disk, the clock, and what has to be true in it.

A *history* is a run from its first round to its end, in one process and without a clock. What happens wherever
something may happen is a *decision*, a number: 0 is that nothing does. So the numbers are the whole history, and two
searches look for one that ends wrongly: all of them, those with the fewest things that go wrong first
(``breadth_first_search``), and many that a seed draws (``random_search``). Both decide on the same things.

*Nodes.* A client's process is the number of its host's state, of which everything is known (``Parts``). Hosts are
deterministic, so what one does is looked up where another history has had one in the same state get the same frame.
The server's processes come one after another; each has the disk of the one before it, and nothing else. *Frames* stand
in a queue by the second at which they arrive. The *disk* loses what was written and not synced, and may be full.

Hosts, coordinator, delivery, log and codec are those that ``serve`` and ``join`` run.
"""

import contextlib
import heapq
import io
import logging
import os
import pickle
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec
import torch
from torch import Tensor

from decomfl_lab.engines.base import Serial
from decomfl_lab.errors import DivergedError, InputError
from decomfl_lab.federations.carrier import Take
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.laws.contract import Case, Implementation, Wavy
from decomfl_lab.laws.register import LawBrokenError, bits, same
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol import session
from decomfl_lab.protocol.aggregation import Weighting, Weights, weighed_mean
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.messages import Message, Plan, Welcome
from decomfl_lab.protocol.server import Terms, Tracking
from decomfl_lab.protocol.session import Coordinator, Frames, Host
from decomfl_lab.protocol.wire import decode, split_frame
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import DerivedSeeds, PooledSeeds, Seeding
from decomfl_lab.replicas.replica import Snapshot
from decomfl_lab.replicas.rules import Momentum
from decomfl_lab.storage.outside import Saved, SavedFederation

MOST_EVENTS = 2000
"""Messages after which a history is held to have no end."""
SOON, LATE, MUCH_LATER = 1.0, 7.0, 45.0
"""Seconds that a frame is under way: as it should, past other frames, past the end of its exchange."""
FATES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("there as it should", (SOON,)),
    ("late", (LATE,)),
    ("very late", (MUCH_LATER,)),
    ("sent twice", (SOON, LATE)),
    ("lost", ()),
    ("lost with its connection", ()),
)
"""When a frame arrives, once, twice or never."""
ABSENCES = 3.0, 20.0, 100.0
"""Seconds that a client's process is away after it died."""
RUN = bytes(range(16))
MOST_ENDS = 4
"""The server's deaths and refusals after which the network becomes quiet."""
PATIENCE = 60.0
"""Seconds that a round waits for a quorum."""
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

Choose = Callable[..., int]
"""A decision of this kind, below this number; the world in which it is taken is the third argument."""
Tell = Callable[[str], None] | None
"""Who is told what happens; None for nobody."""


def _one_of(*values: Any) -> Any:
    """A field with the values that are drawn, the simplest first; what stands twice is twice as frequent."""
    return field(default=values[0], metadata={"values": values})


@dataclass(frozen=True)
class SmallFederation:
    """What federation a history is of."""

    clients: int = _one_of(1, 2, 3)
    sampled: int = _one_of(3, 2, 1)  # of each round; where there are fewer clients, all
    quorum: int = _one_of(1, 2, 3)  # the replies that a round needs at least, or all where fewer are sampled
    deadline: float | None = _one_of(None, 10.0)  # seconds after which a quorum will do; None for all of PATIENCE
    rounds: int = _one_of(1, 1, 2, 3)  # before the network becomes quiet
    processes: str = _one_of("one each", "one each", "one for all")  # of clients; who shares one shares its model
    tracking: Tracking = _one_of(Tracking.SERVER, Tracking.SERVER, Tracking.CLIENTS)  # noqa: RUF009
    keep: int = _one_of(0, 0, 1)  # the most records that the server keeps, 0 for all
    presence: str = _one_of("unknown", "known")  # to the carrier; else what it sends to who is away is lost
    seeding: Seeding = _one_of(Seeding.PER_STEP, Seeding.PER_RUN)  # noqa: RUF009
    weighting: Weighting = _one_of(*Weighting)  # noqa: RUF009
    check_every: int = _one_of(0, 0, 1, 2)  # rounds between two in which all clients prove their model, 0 for none

    @classmethod
    def drawn(cls, choose: Choose) -> "SmallFederation":
        """The federation of these decisions."""
        made = [values[choose("setting", len(values))] for values in SETTINGS.values()]
        m = min(made[:2])
        return _federation(made[0], m, min(m, made[2]), *made[3:])

    def __str__(self) -> str:
        return ", ".join(f"{name} {getattr(self, name)}" for name in SETTINGS)


SETTINGS = {f.name: f.metadata["values"] for f in fields(SmallFederation)}
_federation = cache(SmallFederation)
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


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Without the warnings of a protocol to which everything here is done."""
    logger = logging.getLogger("decomfl_lab.protocol")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


# Nodes ----------------------------------------------------------------------------------------------------------------


_CONSTANT: dict[int, Any] = {}
"""What hosts have and never change: it is not pickled but referred to, classes among it that pickle would not find."""
_KINDS = (type, FunctionType, Terms, Snapshot, Momentum, Serial, Wavy, Implementation)


class _Pickler(pickle.Pickler):
    """The same bytes for equal tensors.

    ``fast`` is for what is compared and never read again: it makes no difference whether equal parts are one object,
    functions are their names, ledgers and logs are left out, and seeds do not remember what they were asked for.
    """

    def persistent_id(self, obj: Any) -> Any:
        if self.fast and (callable(obj) or isinstance(obj, Ledger | RunLog)):
            return getattr(obj, "__qualname__", type(obj).__qualname__)
        if not isinstance(obj, _KINDS):
            return None
        _CONSTANT[id(obj)] = obj
        return id(obj)

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            return _tensor, (str(obj.dtype), obj.shape[0], b"" if obj.is_meta else obj.numpy().tobytes())
        if self.fast and isinstance(obj, DerivedSeeds | PooledSeeds):
            return tuple, (tuple(obj),)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    persistent_load = staticmethod(_CONSTANT.__getitem__)


def _tensor(dtype: str, size: int, data: bytes) -> Tensor:
    kind = getattr(torch, dtype.removeprefix("torch."))
    return torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(size, dtype=kind, device="meta")


def content(obj: Any, *, fast: bool = True) -> bytes:
    """All that there is of an object, as bytes that are equal for equal ones."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.fast = fast
    pickler.dump(obj)
    return file.getvalue()


class Parts:
    """Servers and clients of an implementation, and what its histories share: hosts, by the numbers of their states."""

    def __init__(self, implementation: Implementation) -> None:
        """No history yet."""
        self.implementation = implementation
        self.run_seed: int = implementation.server(case_of(SIMPLEST)).run_seed  # that of every server
        self.holds: list[tuple[int, str]] = []  # the round and the digest of the model in each state of a host
        self._content: list[bytes] = []
        self._number: dict[bytes, int] = {}
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[..., Any], *arguments: Any) -> Any:
        """What was made for this key; it is made of these arguments where it was not."""
        if key not in self._made:
            self._made[key] = make(*arguments)
        return self._made[key]

    def entered(self, host: Any) -> int:
        """The number of the state that a host is in."""
        whole = content(host, fast=False)
        if whole not in self._number:
            self._number[whole] = len(self._content)
            self._content.append(whole)
            self.holds.append((host.replica.round, host.replica.digest()))
        return self._number[whole]

    def host(self, state: int) -> Any:
        """A host in this state."""
        return _Unpickler(io.BytesIO(self._content[state])).load()

    def after(self, state: int, act: Callable[..., Any], *arguments: Any) -> tuple[int, Any]:
        """The state after a host in this one did something, and what it said; of each act it is made once."""
        key = act, state, arguments
        if key not in self._made:
            host = self.host(state)
            result = act(host, *arguments)
            self._made[key] = self.entered(host), result
        outcome: tuple[int, Any] = self._made[key]
        return outcome


def _answer(host: Host, i: int, frame: bytes) -> bytes:
    return host.handle({i: frame})[i]


def _loads(host: Host, parts: Parts, state: int) -> None:
    """A new host has what one in this state saved."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        parts.host(state).save(Path(folder, "host"))
        host.load(Path(folder, "host"))


def rot(host: Any, start: bool = False) -> None:
    """Bits of the model change, and perhaps of x_0."""
    host.replica.own()
    host.replica.x[0] += 1
    if start:
        host._start = host.replica.snapshot()


class Weighty(Wavy):
    """A loss of more examples, the larger its client's number."""

    @property
    def examples(self) -> int:
        """n_i = 2 + i."""
        return 2 + self.client


@dataclass
class Process:
    """A client's process, or that of several; states are numbers of ``Parts``."""

    clients: tuple[int, ...]
    fresh: int  # the state of its host at x_0
    state: int  # that of its host now
    here: bool = True  # whether it runs
    deaths: int = 0
    wrong: bool = False  # whether its model has had other bits since it was last seen to be right
    strange: bool = False  # whether its x_0 is another one, so that it is wrong for ever


# The disk -------------------------------------------------------------------------------------------------------------


class DeathError(BaseException):
    """The server's process dies here; nothing of it runs any more."""


class File(io.BytesIO):
    """The file of a log, on a disk that may lose what was not synced, and may be full."""

    mode = "r+b"

    def __init__(self, whole: bytes, world: "World | None" = None) -> None:
        """Of these bytes; without a world nothing happens to the disk."""
        super().__init__(whole)
        self.synced, self._world = len(whole), world

    def open(self, mode: str, buffering: int) -> "File":  # noqa: ARG002
        """This file, as a path has it."""
        return self

    def stat(self) -> os.stat_result:
        """That of a plain file."""
        return os.stat_result((stat.S_IFREG, *[0] * 9))

    def close(self) -> None:
        """Keep it: the next process opens it again."""

    def __str__(self) -> str:
        return "the log"

    def write(self, more: Any) -> int:
        """Perhaps the server dies before or after it, or only half of it finds a place."""
        if self._world is None:
            return super().write(more)
        self._world.dies("before it writes the log")
        if self.tell() + len(more) > self.getbuffer().nbytes and self._world.chooses("full", 2):
            return super().write(more[: len(more) // 2])
        count = super().write(more)
        self._world.dies("after it wrote the log, before that is on the disk")
        return count

    def falls(self, how: int) -> None:
        """The server has died: of what was not synced all is there, or half, or nothing."""
        more = len(self.getvalue()) - self.synced
        self.truncate(self.synced + (more, more // 2, 0)[how])
        self.synced = len(self.getvalue())


@cache
def _empty_log(run_seed: int) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        RunLog.create(path := Path(folder, "run.dcl"), {"run_seed": run_seed}).close()
        return path.read_bytes()


class Log(RunLog):
    """A run's log on that disk, which one process after the other has."""

    @staticmethod
    def _hold(path: Path) -> contextlib.AbstractContextManager[None]:  # noqa: ARG004
        return contextlib.nullcontext()

    def _has_its_name(self) -> bool:
        return True

    def sync(self) -> None:
        """Have on the disk what is in the file."""
        file: Any = self._file
        file.synced = len(file.getvalue())


# The world ------------------------------------------------------------------------------------------------------------


class World:
    """A history under way: carrier, clock, disk, clients and the server's process, and what must be true of them.

    What happens at which second stands in a queue: a frame comes "down" or "up", a client says "hello", or is "back".

    The run has to end within a bounded number of messages once the network is quiet. A server that has no quorum in
    time may refuse to go on, in words, while there are faults; it opens the round again, or is started again.
    """

    _server: Any = None  # the process under way
    _saved: Saved | None = None
    _began: float | None = None  # when the round under way did
    _ends = 0  # of the server's processes

    def __init__(self, parts: Parts, setting: SmallFederation, choose: Choose, tell: Tell) -> None:
        """A world before its first second; ``choose`` decides, and ``tell`` is told what happens."""
        self.setting, self._parts, self._choose, self._tell = setting, parts, choose, tell
        every = tuple(range(setting.clients))
        groups = [every] if setting.processes == "one for all" else [(i,) for i in every]
        fresh = [(ids, self._fresh(ids)) for ids in groups]
        self._processes = [Process(ids, state, state) for ids, state in fresh]
        self._of = {i: process for process in self._processes for i in process.clients}
        self.now, self._quiet, self._bytes, self._events = 0.0, False, 0, 0
        self._connected: set[int] = set()  # who has said hello to this server, and has not gone since
        self._queue: list[tuple[float, int, str, int, int, Any]] = []
        self._waiting: set[int] = set()  # whose answers the exchange under way waits for, until its end
        self._end = 0.0
        self._has_rotten = False  # whether a client may rightly be told that its model is wrong
        self._given: dict[int, str] = {}  # the digests of the models of rounds that clients have held
        self._file = File(_empty_log(parts.run_seed), self)
        self._about: tuple[Any, ...] = ()  # what is decided on

    def _fresh(self, ids: tuple[int, ...]) -> int:
        """The state of a new host of these clients."""

        def make() -> int:
            return self._parts.entered(Host({i: self._client(i) for i in ids}, RUN, Terms.of(self._delivery().server)))

        like = self.setting.seeding, self.setting.weighting  # hosts differ in nothing else
        state: int = self._parts.once((like, ids), make)
        return state

    def _client(self, i: int) -> Any:
        return self._parts.implementation.client(case_of(self.setting), i, Weighty(16, i))

    def _delivery(self) -> Delivery:
        """The server's side of sessions at round 0."""
        delivery = self._parts.implementation.delivery(case_of(self.setting), with_model=self.setting.keep > 0)
        delivery.server.m = self.setting.sampled
        delivery.server.weights = Weights(self.setting.weighting)
        return delivery

    @property
    def state(self) -> Any:
        """All that the rest of the history depends on, beside what is decided from now on."""
        under_way = sorted(
            (due - self.now, kind, i, deaths == self._of[i].deaths, frame)
            for due, _, kind, i, deaths, frame in self._queue
        )
        nodes = [(process.state, process.fresh, process.here, process.wrong) for process in self._processes]
        waits = frozenset(self._connected), frozenset(self._waiting), self._end - self.now
        server, began = self._server, self._began
        known = None if server is None else content((vars(server.coordinator), server.observer.digest()))
        disk = self._file.getvalue(), self._file.synced, content(self._saved)
        rest = known, disk, began is not None and began - self.now, self._ends, self._has_rotten
        return self._about, tuple(under_way), tuple(nodes), waits, rest

    def chooses(self, kind: str, count: int, *about: Any) -> int:
        """What happens, of ``count`` possibilities; 0 in a quiet network."""
        if self._quiet or count == 1:
            return 0
        self._about = about
        return self._choose(kind, count, self)

    def _say(self, words: str, *frames: Any) -> None:
        """Tell who reads along what happens; the messages of frames stand at each {}."""
        if self._tell:
            messages = [[decode(message, self._parts.run_seed) for message in split_frame(frame)] for frame in frames]
            named = [" + ".join(map(name_of, of_frame)) or "nothing" for of_frame in messages]
            self._tell(f"{self.now:4g} s  {words.format(*named) if frames else words}")

    def dies(self, where: str, *frames: Any) -> None:
        """Perhaps the server dies here."""
        if self.chooses("server", 2, where, *frames):
            self._say(f"the server dies {where}", *frames)
            raise DeathError

    # The carrier.

    def exchange(self, frames: Frames, take: Take, deadline: float | None) -> None:
        """See ``Carrier``."""
        assert deadline is not None
        self._happens()
        self._end = end = self.now + deadline
        self._waiting = waiting = set(frames) if self.setting.presence == "unknown" else self._connected & frames.keys()
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
                self._connected |= {i} if kind == "hello" else set()
                self.dies(f"before it reads {{}} of client {i}", frame)
                more = take(i, frame, float("nan"))
                self._bytes += len(frame)
                self._say(f"the server gets {{}} of client {i}", frame)
                if not self._has_rotten:  # and nobody began from another x_0
                    same("how often a client is told that its model is wrong", self._server.coordinator.healed, 0)
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
        self.dies("after an exchange")

    def close(self) -> None:
        """See ``Carrier``."""

    def _waits(self, until: float) -> None:
        """A server waits no longer than it may, where a round has one exchange."""
        if self._began is None or self.setting.tracking is Tracking.CLIENTS:
            return
        limit, deadline = self._began + PATIENCE, self.setting.deadline
        if deadline is not None and len(self._server.coordinator.replies) >= self.setting.quorum:
            limit = max(self._began + deadline, self.now)
        if until > limit:
            raise LawBrokenError(f"the server waits until {until:g} s, where it may until {limit:g} s")

    def _happens(self) -> None:
        self._events += 1
        if self._events > MOST_EVENTS:
            raise LawBrokenError(f"there is no end: {MOST_EVENTS} messages, and the run goes on")

    def _put(self, after: float, kind: str, i: int, frame: Any = b"") -> None:
        self._happens()
        heapq.heappush(self._queue, (self.now + after, self._events, kind, i, self._of[i].deaths, frame))

    def _send(self, kind: str, i: int, frame: Any) -> None:
        """A frame sets out, to arrive once, twice, late or never, perhaps as its connection is lost."""
        fate = self.chooses("frame", len(FATES), kind, i, frame)
        how, arrivals = FATES[fate]
        for seconds in arrivals:
            self._put(seconds, kind, i, frame)
        if fate:
            self._say(f"{{}} {'to' if kind == 'down' else 'of'} client {i} is {how}", frame)
        if fate == 5:
            self._connects(i, 2 * SOON)

    def _down(self, i: int, frame: Any) -> None:
        self._bytes += len(frame)
        if self._of[i].here:  # else there is nobody whom it could reach
            self._send("down", i, frame)

    def _connects(self, i: int, after: float) -> None:
        """A client has no connection; it makes one and says hello."""
        self._connected.discard(i)
        if self._of[i].here:
            self._say(f"client {i} connects, which takes {after:g} s")
            self._put(after, "hello", i, self._parts.after(self._of[i].state, Host.hello, i)[1])

    # The clients.

    def _arrives(self, i: int, epoch: int, frame: Any) -> None:
        """A frame comes to a client, which answers, unless its process dies before or after."""
        process = self._of[i]
        if not process.here or epoch != process.deaths:
            return
        self._rots(process)
        death = self.chooses("client", 7, i, frame)
        when = (death + 1) // 2  # 0 never, 1 before it reads, 2 before it answers, 3 after it answered
        if when != 1:
            process.state, answer = self._parts.after(process.state, _answer, i, frame)
            self._say(f"client {i} gets {{}}, {'but dies before it says' if when == 2 else 'says'} {{}}", frame, answer)
            # It has to hold the model of its round; after a wrong one, until it is seen to be right again, it need not.
            r, digest = self._parts.holds[process.state]
            if process.wrong:
                process.wrong = process.strange or self._given.get(r) != digest
            else:
                same(f"the model of round {r} that client {i} holds", digest, self._given.setdefault(r, digest))
            if answer and when != 2:
                self._send("up", i, answer)
        if when:
            if death % 2:
                process.wrong, process.state, words = process.strange, process.fresh, "x_0"
            else:
                saved, words = process.state, "what it has saved"
                process.state, _ = self._parts.after(process.fresh, _loads, self._parts, saved)
            process.deaths, process.here = process.deaths + 1, False
            self._connected.difference_update(process.clients)
            away = ABSENCES[self.chooses("absence", len(ABSENCES))]
            self._put(away, "back", i)
            self._say(f"the process of {listed(process.clients)} dies, to come back with {words} in {away:g} s")

    def _rots(self, process: Process) -> None:
        """Perhaps bits of a model change, where every round looks at digests before replies count."""
        if self.setting.check_every == 1 and self.chooses("rot", 2, process.clients):
            process.state = self._parts.after(process.state, rot)[0]
            process.wrong = True
            self._has_rotten = True
            self._say(f"bits of the model of {listed(process.clients)} change")

    def _back(self, process: Process) -> None:
        if process.here:
            return
        process.here = True
        self._rots(process)
        silent = self.setting.presence == "unknown" and self.chooses("silence", 2)
        for i in process.clients:
            if silent:
                self._say(f"client {i} is back, and says nothing")
            else:
                self._connects(i, SOON)

    def _becomes_quiet(self) -> None:
        """From now on nothing goes wrong, everybody is there, and whoever had another x_0 has the right one."""
        if self._quiet:
            return
        self._quiet = True
        self._say("the network becomes quiet")
        for process in self._processes:
            if process.strange:
                process.fresh = process.state = self._fresh(process.clients)
                process.deaths += 1
                process.here = False
                process.wrong = False
                process.strange = False
            self._back(process)
        for i in self._of.keys() - self._connected if self.setting.presence == "known" else ():
            self._connects(i, SOON)

    # The server.

    def play(self) -> None:
        """To the end; LawBrokenError, or whatever is raised, where something is wrong."""
        # Perhaps a process has another x_0, so that it begins anew for ever, until somebody mends it at last.
        if which := self.chooses("stranger", 1 + len(self._processes)):
            process = self._processes[which - 1]
            process.fresh = process.state = self._parts.after(process.fresh, rot, True)[0]
            process.wrong = process.strange = self._has_rotten = True
            self._say(f"the process of {listed(process.clients)} has another x_0")
        refused = False  # by a quiet network, as it may once, for what was still under way
        while True:
            if self._ends == MOST_ENDS:
                self._becomes_quiet()
            try:
                with Log.open(self._file) as log:  # type: ignore[arg-type]
                    # A new process of the server, to which nothing is under way that was sent to the one before.
                    self._server = None
                    self._queue = [event for event in self._queue if event[2] not in ("up", "hello")]
                    heapq.heapify(self._queue)
                    self._connected.clear()
                    for i in self._of if self.setting.presence == "known" else ():
                        self._connects(i, (SOON, LATE, MUCH_LATER)[self.chooses("greeting", 3, i)])
                    self._server = federation = RemoteFederation(
                        self._delivery(),
                        self._parts.implementation._replica(case_of(self.setting)),
                        self,
                        RUN,
                        quorum=self.setting.quorum,
                        deadline=self.setting.deadline,
                        patience=PATIENCE,
                        check_every=self.setting.check_every,
                        clock=lambda: self.now,
                        log=log,
                    )
                    self._run(federation, log)
                break
            except DeathError:
                self._file.falls(self.chooses("disk", 3))
            except InputError as error:
                if refused or isinstance(error, DivergedError):
                    raise
                refused = self._quiet
                self._say(f"the server refuses to go on: {error}")
            self._ends += 1
            self.now += LATE
            self._say("the server is started again")
        # What the disk has is what the server has, what clients held, and what a follower of the log knows.
        whole, setting = self._file.getvalue(), self.setting
        key = setting.clients, setting.sampled, setting.quorum, whole
        digests, steps = self._parts.once(key, self._replayed, whole)
        for r, digest in self._given.items():
            if r >= len(digests):
                raise LawBrokenError(f"a client held a model of round {r}, but the log has {len(digests) - 1} rounds")
            same(f"the model of round {r} that clients held", digest, digests[r])
        same("the last model", federation.observer.digest(), digests[-1])
        same("the local steps that the server counts", federation.coordinator.steps, steps)
        delivery = self._delivery()
        follower = Coordinator(delivery, RUN)
        with Log.open(File(whole)) as log:  # type: ignore[arg-type]
            for entry in log.entries():
                follower.repeat(entry)
        follows, serves = ((d.told, d.pulls, d.server.held, d.ledger) for d in (delivery, federation.delivery))
        same("what a server knows that follows the log", serves, follows)

    def _run(self, federation: RemoteFederation, log: RunLog) -> None:
        """From the checkpoint and the log to the end of the run."""
        coordinator = federation.coordinator
        if self._saved is not None:
            federation.load(self._saved)
            federation.log_to(log)
        sent, counted = self._bytes, federation.ledger.bytes
        while (r := federation.round) <= self.setting.rounds:
            if r == self.setting.rounds:
                self._becomes_quiet()
            known = len(log) > r
            self._began = self.now
            try:
                federation.advance()
            except InputError as error:
                if isinstance(error.__cause__, OSError):  # a full disk ends the process
                    same("the round of the model of a server whose disk is full", federation.observer.round, len(log))
                    self._say(f"the server ends: {error}")
                    raise DeathError from error
                if isinstance(error, DivergedError) or not self.chooses("again", 2):
                    raise
                self._say(f"the server refuses to go on, and opens the round again: {error}")
                continue
            took, self._began = self.now - self._began, None
            if known:
                counted = federation.ledger.bytes
                self._say(f"round {r} is in the log")
                continue
            self._say(f"round {r} has a record of {listed(coordinator.replies)}")
            silent = coordinator.asked - coordinator.refused.keys() - coordinator.replies.keys()
            if took < (self.setting.deadline or PATIENCE) and self.setting.tracking is Tracking.SERVER:
                present = silent if self.setting.presence == "unknown" else silent & self._connected
                same("who is there and is not waited for", present, set())
            both = federation.ledger.bytes - counted + coordinator.session.bytes
            same("the bytes that both ledgers count", both, self._bytes - sent)
            if self._quiet and self.setting.presence == "unknown":  # else those who have come by then will do
                same("who is asked in a quiet network and not heard", silent, set())
            self.dies(f"after round {r}")
            if self.chooses("checkpoint", 2):
                tensors, values = federation.save()
                self._saved = (
                    {name: x.clone() for name, x in tensors.items()},
                    msgspec.json.decode(msgspec.json.encode(values), type=SavedFederation),
                )
                self._say(f"the server has a checkpoint of round {r + 1}")
                self.dies("after its checkpoint")
        right = dict.fromkeys(self._of, federation.observer.digest())
        for _ in range(3):  # again for those who had not come yet, or were refused for what was still under way
            digests = federation.rebuilt()
            if digests == right:
                return
        same("the digests of all clients at the end", digests, right)

    def _replayed(self, whole: bytes) -> tuple[list[str], list[int]]:
        """The digests of all models of a log, and each client's local steps, if its records are what they have to be.

        Each is the mean of what those measure whom it names, at this model, in their next steps, so that no step counts
        twice or is lost; they are a quorum of the sampled ones.
        """
        server = self._delivery().server
        replica = self._parts.implementation._replica(case_of(self.setting))
        digests, steps = [replica.digest()], [0] * self.setting.clients
        with Log.open(File(whole)) as log:  # type: ignore[arg-type]
            for r, entry in enumerate(log.entries()):
                who = entry.answered
                places = ", ".join(f"{i} (local steps {steps[i]}, {steps[i] + 1})" for i in who)
                what = f"the record of round {r}, the mean of what clients {places} measure"
                chosen = set(who) <= set(entry.sampled) <= set(server.sampled(r))
                if not chosen or len(set(who)) < max(self.setting.quorum, len(who)):
                    raise LawBrokenError(f"{what}: no quorum of {self.setting.quorum} of those sampled")
                replies = []
                for i in who:
                    key = i, steps[i], r, digests[-1]
                    replies.append(self._parts.once(key, self._measured, i, steps[i], replica))
                    steps[i] += entry.record.K
                weights = entry.examples or [1] * len(who)
                same(what, bits(entry.record.scalars), bits(weighed_mean(replies, weights)))
                replica.catch_up([entry.record])
                digests.append(replica.digest())
        return digests, steps

    def _measured(self, i: int, steps: int, replica: Any) -> Any:
        """What client i measures at this model in its local steps ``steps``, ``steps`` + 1, ..."""
        terms, r = Terms.of(self._delivery().server), replica.round
        assert terms.eta is not None
        client = self._client(i)
        client.replica.restore(replica.snapshot())
        client.steps_taken = steps
        return client.handle(Plan(r, terms.eta(r), terms.P(r), terms.distribution, terms.seeds(r))).scalars
