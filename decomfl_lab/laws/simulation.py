"""Simulated time: whole runs of a federation whose network loses, delays and repeats, and whose processes die.

A *history* is a run from its first round to its end, in one process and without a clock: a seed decides the setting,
which frame is lost, late or comes twice, and when a client or the server dies. At last the network becomes quiet and
everybody comes back. Then the run has to end within a bounded number of messages, and

- every client's digest is the server's, and the log, read from the disk, replays to it;
- each record is the mean of what exactly the clients that it names measure, each at the model of the round and at its
  next place in its data, so that no local step counts twice or is lost; they are a quorum of the sampled ones;
- nobody ever held a model of a round that is another than the log's, nor was told that it does;
- a server that follows the log alone knows what this one knows;
- no round waits longer than it may, or goes on sooner than all have answered who are there.

A server that has no quorum in time may refuse to go on, in words, while there are faults; it opens the round again, or
is started again.

Real are ``RemoteFederation`` with its deadline, quorum and restarts, ``Coordinator``, ``Delivery``, ``Server``, the
log's bytes, ``Host`` with its file, and the codec. Simulated are the carrier, the clock and the disk, which loses what
was written and not synced. With ``Stand`` a replica is a hash of the records that it applied, and what a client
measures one of its number, round, place in the data and model: whatever would give a real replica other bits gives
these other ones. With ``Implementation`` these are real, and slower. Hosts are deterministic, so what one does is
looked up where another history has had one in the same state, all of it, get the same frame.

A history that breaks a rule is made shorter, decision by decision, as long as it still breaks one.
"""

from __future__ import annotations

import gc
import hashlib
import heapq
import io
import itertools
import json
import logging
import os
import pickle
import random
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.checkpoint import Saved
from decomfl_lab.engines.base import Serial
from decomfl_lab.errors import THEIRS, DivergedError, InputError
from decomfl_lab.estimators.differences import central
from decomfl_lab.federations.carrier import Take
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.laws.contract import AnyClient, Case, Implementation, Wavy
from decomfl_lab.laws.exploration import named
from decomfl_lab.laws.register import LawBrokenError, bits, same
from decomfl_lab.noise import Distribution
from decomfl_lab.objectives.objective import Objective
from decomfl_lab.protocol.aggregation import weighed_mean
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.log import RunLog
from decomfl_lab.protocol.messages import Message, Plan, Reply
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.protocol.session import Coordinator, Frames, Host
from decomfl_lab.protocol.terms import Terms
from decomfl_lab.protocol.weights import Weighting, Weights
from decomfl_lab.records.record import RoundRecord, ScalarArray
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.replica import Replica, Snapshot
from decomfl_lab.replicas.rules import Momentum

__all__ = ["Decisions", "Found", "Setting", "Simulation", "Stand"]

RUN = bytes(range(16))
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
MOST_EVENTS = 2000
"""Messages after which a history is held to have no end."""
ALIKE = 12
"""The first letters of what is wrong, which say of what kind it is."""
TRIES = 100
"""Seeds that are tried to find what is wrong in a simpler federation."""
MOST_ENDS = 4
"""The server's deaths and refusals after which the network becomes quiet."""
PATIENCE = 60.0
"""Seconds that a round waits for a quorum."""
SOON, LATE, MUCH_LATER = 1.0, 7.0, 45.0
"""Seconds that a frame is under way: as it should, past other frames, past the end of its exchange."""
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
    "check_every": (0, 2),
}
"""What each field of a ``Setting`` may be, the simplest first; what stands twice is twice as frequent."""
_OFTEN, _SELDOM = (0.0, 0.05, 0.2, 0.5), (0.0, 0.01, 0.03, 0.1)
RATES: dict[str, tuple[float, ...]] = {"frame": _SELDOM, "client": _SELDOM, "server": (0.0, 0.005, 0.02, 0.08)}
RATES |= {
    "again": _OFTEN,
    "absence": _OFTEN,
    "greeting": _OFTEN,
    "disk": _OFTEN,
    "checkpoint": _OFTEN,
    "silence": (0.0, 0.5, 0.9),
}
"""How often a thing happens where it can: a history draws one of these for each kind."""


class _Chain(Replica):
    """A replica whose x is a hash of all records that it applied, a byte an element."""

    def _apply_all(self, records: Sequence[RoundRecord]) -> None:
        chain = self.x.numpy().tobytes()
        for n, record in enumerate(records):
            if record.round != self.round + n:
                raise InputError(f"a replica at round {self.round + n} cannot apply the record of round {record.round}")
            chain = hashlib.blake2b(chain + record.scalars.tobytes(), digest_size=16).digest()
            chain = np.frombuffer(chain, np.uint8).astype(np.float32).tobytes()
        self.x = torch.frombuffer(bytearray(chain), dtype=torch.float32)
        self.round += len(records)


class _Weighty(Wavy):
    """A loss of more examples, the larger its client's number."""

    @property
    def examples(self) -> int:
        return 2 + self.client


class _Hashing(Client):
    """A client whose scalars are a hash of all that they may depend on."""

    def handle(self, plan: Plan) -> Reply:
        self._catch_up(plan)
        place = f"{self.id} {plan.round} {self.steps_taken} {self.replica.digest()}".encode()
        found = hashlib.blake2b(place, digest_size=2 * plan.K * plan.P).digest()
        self.steps_taken += plan.K
        return Reply(self.id, plan.round, np.frombuffer(found, np.uint16).astype(np.float32).reshape(plan.K, plan.P))


class Stand(Implementation):
    """The lab's server, and clients that hash where others rebuild and measure."""

    name = "hashes"

    def __init__(self) -> None:
        self._decoded = lru_cache(maxsize=1 << 16)(super().decode)
        self._encoded = lru_cache(maxsize=1 << 16)(super().encode)

    def decode(self, message: bytes, run_seed: int | None = None) -> Message:
        """See ``Implementation``; each message is read once."""
        return self._decoded(message, run_seed)

    def encode(self, message: Message) -> bytes:
        """See ``Implementation``; each message is made once."""
        try:
            return self._encoded(message)
        except TypeError:  # plans with records, which have no hash
            return super().encode(message)

    @cached_property
    def _first(self) -> _Chain:
        """The replica at x_0, which all settings share."""
        return _Chain(_case(SIMPLEST).initial(), Momentum(0.5))

    def _replica(self, case: Case, *, per_tensor: bool = False) -> Any:  # noqa: ARG002
        return self._first.clone()

    def client(self, case: Case, i: int, objective: Objective | None = None) -> AnyClient:
        """A client that hashes."""
        own: Any = objective
        return _Hashing(i, self._replica(case), own, central, case.mu)


class Decisions:
    """Numbers drawn where something may happen, kind by kind; 0 is that nothing does.

    Attributes:
        taken: The numbers so far, of each kind.
    """

    def __init__(self, seed: int | None = None, given: Mapping[str, Sequence[int]] | None = None) -> None:
        """Of these kinds the given numbers, and then zeros; of the others those of a seed, or zeros for None."""
        self.taken: dict[str, list[int]] = {kind: [] for kind in ("setting", *RATES)}
        self._given = given or {}
        self._random = None if seed is None else random.Random(seed)
        self._rates: dict[str, float] = {}

    def __call__(self, kind: str, count: int) -> int:
        """A number below ``count``; in a history of a seed some kinds of faults are frequent, rare or never there."""
        taken, given = self.taken[kind], self._given.get(kind)
        if given is not None or self._random is None:
            number = min(given[len(taken)], count - 1) if given is not None and len(taken) < len(given) else 0
        elif kind == "setting":
            number = self._random.randrange(count)
        else:
            if kind not in self._rates:
                self._rates[kind] = self._random.choice(RATES[kind])
            number = self._random.randrange(1, count) if self._random.random() < self._rates[kind] else 0
        taken.append(number)
        return number


@dataclass(frozen=True)
class Setting:
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
    """

    clients: int
    sampled: int
    quorum: int
    deadline: float | None
    rounds: int
    processes: str
    tracking: Tracking
    keep: int
    presence: str
    seeding: Seeding
    weighting: Weighting
    check_every: int

    @classmethod
    def drawn(cls, choose: Callable[[str, int], int]) -> Setting:
        """A setting of these decisions."""
        return _setting(*[values[choose("setting", len(values))] for values in SETTINGS.values()])

    def __str__(self) -> str:
        return ", ".join(f"{each.name} {getattr(self, each.name)}" for each in fields(self))


@cache
def _setting(*values: Any) -> Setting:
    made = Setting(*values)
    m = min(made.clients, made.sampled)
    return replace(made, sampled=m, quorum=min(m, made.quorum))


SIMPLEST = Setting.drawn(lambda kind, count: 0)  # noqa: ARG005


@cache
def _case(setting: Setting) -> Case:
    """Model, local steps and seeds of a setting."""
    return Case(
        M=setting.clients,
        K=2,
        P=Schedule(1),
        eta=Schedule(0.25),
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


_CONSTANT: dict[int, Any] = {}
"""What hosts have and never change: it is not pickled but referred to, classes among it that pickle would not find."""


_KINDS = {FunctionType, Terms, Snapshot, _Weighty, Momentum, Serial}


class _Pickler(pickle.Pickler):
    """The same bytes for equal tensors."""

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) not in _KINDS and not isinstance(obj, type):
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


def _tensor(dtype: str, size: int, content: bytes) -> Tensor:
    kind = getattr(torch, dtype.removeprefix("torch."))
    return torch.frombuffer(bytearray(content), dtype=kind) if content else torch.empty(size, dtype=kind, device="meta")


def _host(content: bytes) -> Any:
    return _Unpickler(io.BytesIO(content)).load()


class _Hosts:
    """Hosts, by the numbers of their states; what a host does is done once for its state and what comes to it.

    Attributes:
        holds: The round and the digest of the model in each state.
    """

    def __init__(self) -> None:
        self.holds: list[tuple[int, str]] = []
        self._content: list[bytes] = []
        self._number: dict[bytes, int] = {}
        self._done: dict[Any, tuple[int, bytes]] = {}

    def entered(self, host: Host) -> int:
        """The number of the state that a host is in."""
        file = io.BytesIO()
        _Pickler(file).dump(host)
        content = file.getvalue()
        if content not in self._number:
            self._number[content] = len(self._content)
            self._content.append(content)
            self.holds.append((host.replica.round, host.replica.digest()))
        return self._number[content]

    def _once(self, act: Callable[..., bytes], state: int, *of: Any) -> tuple[int, bytes]:
        """The state after a host in this one did something, and what it said."""
        key = act, state, of
        if key not in self._done:
            host = _host(self._content[state])
            said = act(host, *of)
            self._done[key] = self.entered(host), said
        return self._done[key]

    def answered(self, state: int, i: int, frame: bytes) -> tuple[int, bytes]:
        """The state after a frame for client i, and the answer."""
        return self._once(_answer, state, i, frame)

    def hello(self, state: int, i: int) -> bytes:
        """What client i says of itself."""
        return self._once(Host.hello, state, i)[1]

    def reloaded(self, state: int, fresh: int) -> int:
        """The state of a new host that has loaded what this one saved."""
        return self._once(_load, fresh, self._content[state])[0]


def _answer(host: Host, i: int, frame: bytes) -> bytes:
    return host.handle({i: frame})[i]


def _load(host: Host, other: bytes) -> bytes:
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        _host(other).save(Path(folder, "host"))
        host.load(Path(folder, "host"))
    return b""


class _DeathError(BaseException):
    """The server's process dies here; nothing of it runs any more."""


_PLAIN = os.stat_result((stat.S_IFREG, *[0] * 9))


class _File(io.BytesIO):
    """The file of a log, on a disk that may lose what was not synced."""

    mode = "r+b"

    def __init__(self, content: bytes, dies: Callable[[str], None]) -> None:
        super().__init__(content)
        self.synced, self._dies = len(content), dies

    def open(self, mode: str, buffering: int) -> _File:  # noqa: ARG002
        """This file, as a path has it."""
        return self

    def stat(self) -> os.stat_result:
        """That of a plain file."""
        return _PLAIN

    def close(self) -> None:
        """Keep it: the next process opens it again."""

    def write(self, content: Any) -> int:
        self._dies("before it writes the log")
        count = super().write(content)
        self._dies("after it wrote the log, before that is on the disk")
        return count

    def falls(self, how: int) -> None:
        """The server has died: of what was not synced all is there, or half, or nothing."""
        more = len(self.getvalue()) - self.synced
        self.truncate(self.synced + (more, more // 2, 0)[how])
        self.synced = len(self.getvalue())


class _Log(RunLog):
    """A run's log on that disk, which one process after the other has."""

    @staticmethod
    def _hold(path: Path) -> AbstractContextManager[None]:  # noqa: ARG004
        return nullcontext()

    def _has_its_name(self) -> bool:
        return True

    def sync(self) -> None:
        file: Any = self._file
        file.synced = len(file.getvalue())


@dataclass
class _Process:
    """Some clients and their host: its state at x_0 and now, whether it is there, and how often it died."""

    clients: tuple[int, ...]
    fresh: int
    state: int
    here: bool = True
    deaths: int = 0


class _History:
    """A history under way: carrier, clock, disk and clients, and the server's processes one after another.

    What happens at which second stands in a queue: a frame comes "down" or "up", a client says "hello", or is "back".
    """

    def __init__(self, own: Simulation, choose: Decisions, tell: Callable[[str], None] | None) -> None:
        self.setting = setting = Setting.drawn(choose)
        self._own, self._hosts, self._choose, self._tell = own, own.hosts, choose, tell
        ids = tuple(range(setting.clients))
        groups = [ids] if setting.processes == "one for all" else [(i,) for i in ids]
        fresh = {group: own.fresh(setting, group) for group in groups}
        self._processes = [_Process(group, state, state) for group, state in fresh.items()]
        self._of = {i: process for process in self._processes for i in process.clients}
        self.now, self._quiet, self._bytes, self._events = 0.0, False, 0, 0
        self._there: set[int] = set()  # who has said hello to this server, and has not gone since
        self._queue: list[tuple[float, int, str, int, int, bytes]] = []
        self._began: float | None = None  # when the round under way did
        self._given: dict[int, str] = {}  # the digests of the models of rounds that clients have held
        self._file = _File(own.empty_log, self._dies)
        self._saved: Saved | None = None

    def play(self) -> None:
        """To the end; LawBrokenError, or whatever is raised, where something is wrong."""
        if self._tell:
            self._tell(str(self.setting))
        refused = False  # by a quiet network, as it may once, for what was still under way
        for end in itertools.count():
            if end == MOST_ENDS:
                self._becomes_quiet()
            try:
                with _Log.open(self._file) as log:  # type: ignore[arg-type]
                    self._server = federation = self._starts(log)
                    self._run(federation, log)
                break
            except _DeathError:
                self._file.falls(self._chooses("disk", 3))
            except InputError as error:
                if refused or isinstance(error, DivergedError):
                    raise
                refused = self._quiet
                self._say(f"the server refuses to go on: {error}")
            self.now += LATE
            self._say("the server is started again")
        self._check(federation)

    def _chooses(self, kind: str, count: int) -> int:
        """What happens, of ``count`` possibilities; 0 in a quiet network."""
        return 0 if self._quiet else self._choose(kind, count)

    def _say(self, words: str, *frames: bytes) -> None:
        """Tell who reads along what happens; frames stand at each {}."""
        if self._tell:
            words = words.format(*(named(frame, self._own.run_seed) for frame in frames)) if frames else words
            self._tell(f"{self.now:4g} s  {words}")

    def _dies(self, where: str, *frames: bytes) -> None:
        """Perhaps the server dies here."""
        if self._chooses("server", 2):
            self._say(f"the server dies {where}", *frames)
            raise _DeathError

    # The carrier.

    def exchange(self, frames: Frames, take: Take, deadline: float | None) -> None:
        """See ``Carrier``."""
        assert deadline is not None
        self._happens()
        end = self.now + deadline
        waiting = set(frames) if self.setting.presence == "unknown" else self._there & frames.keys()
        for_anybody = not waiting
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
                same("how often a client is told that its model is wrong", self._server.coordinator.healed, 0)
                if more is None:
                    waiting.discard(i)
                elif more:
                    self._down(i, more)
                    waiting |= {i} & frames.keys()
                for_anybody = for_anybody and i not in frames
        if (waiting or for_anybody) and not frames.enough():
            self._waits(end)
            self.now = end
            self._say(f"the server has waited long enough for {_listed(waiting or frames)}")
        self._dies("after an exchange")

    def close(self) -> None:
        """See ``Carrier``."""

    def _waits(self, until: float) -> None:
        """The server waits; LawBrokenError if that is longer than it may, where a round has one exchange."""
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

    def _put(self, after: float, kind: str, i: int, frame: bytes = b"") -> None:
        self._happens()
        heapq.heappush(self._queue, (self.now + after, self._events, kind, i, self._of[i].deaths, frame))

    def _send(self, kind: str, i: int, frame: bytes) -> None:
        """A frame sets out, to arrive once, twice, late or never, perhaps as its connection is lost."""
        fate = self._chooses("frame", 6)
        for seconds in ((SOON,), (LATE,), (MUCH_LATER,), (SOON, LATE), (), ())[fate]:
            self._put(seconds, kind, i, frame)
        if fate:
            how = ("late", "very late", "sent twice", "lost", "lost with its connection")[fate - 1]
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

    def _arrives(self, i: int, epoch: int, frame: bytes) -> None:
        """A frame comes to a client, which answers, unless its process dies before or after."""
        process = self._of[i]
        if not process.here or epoch != process.deaths:
            return
        death = self._chooses("client", 7)
        when = (death + 1) // 2  # 0 never, 1 before it reads, 2 before it answers, 3 after it answered
        if when != 1:
            process.state, answer = self._hosts.answered(process.state, i, frame)
            self._say(f"client {i} gets {{}}, {'but dies before it says' if when == 2 else 'says'} {{}}", frame, answer)
            r, digest = self._hosts.holds[process.state]
            same(f"the model of round {r} that client {i} holds", digest, self._given.setdefault(r, digest))
            if answer and when != 2:
                self._send("up", i, answer)
        if when:
            kept = death % 2 == 0
            process.state = self._hosts.reloaded(process.state, process.fresh) if kept else process.fresh
            process.deaths, process.here = process.deaths + 1, False
            self._there.difference_update(process.clients)
            away = (3.0, 20.0, 100.0)[self._chooses("absence", 3)]
            self._put(away, "back", i)
            what = "what it has saved" if kept else "x_0"
            self._say(f"the process of {_listed(process.clients)} dies, to come back with {what} in {away:g} s")

    def _back(self, process: _Process) -> None:
        if not process.here:
            process.here = True
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

    # The server.

    def _starts(self, log: RunLog) -> RemoteFederation:
        """A new process of the server, to which nothing is under way that was sent to the one before."""
        self._queue = [event for event in self._queue if event[2] not in ("up", "hello")]
        heapq.heapify(self._queue)
        self._there.clear()
        for i in self._of if self.setting.presence == "known" else ():
            self._connects(i, (SOON, LATE, MUCH_LATER)[self._chooses("greeting", 3)])
        return RemoteFederation(
            self._own.delivery(self.setting),
            self._own.replica(self.setting),
            self,
            RUN,
            quorum=self.setting.quorum,
            deadline=self.setting.deadline,
            patience=PATIENCE,
            check_every=self.setting.check_every,
            clock=lambda: self.now,
            log=log,
        )

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
                if isinstance(error, DivergedError) or not self._chooses("again", 2):
                    raise
                self._say(f"the server refuses to go on, and opens the round again: {error}")
                continue
            took, self._began = self.now - self._began, None
            if known:
                counted = federation.ledger.bytes
                self._say(f"round {r} is in the log")
                continue
            self._say(f"round {r} has a record of {_listed(coordinator.replies)}")
            if took < (self.setting.deadline or PATIENCE) and self.setting.tracking is Tracking.SERVER:
                silent = coordinator.asked - coordinator.refused.keys() - coordinator.replies.keys()
                there = silent if self.setting.presence == "unknown" else silent & self._there
                same("who is there and is not waited for", there, set())
            both = federation.ledger.bytes - counted + coordinator.session.bytes
            same("the bytes that both ledgers count", both, self._bytes - sent)
            if self._quiet and self.setting.presence == "unknown":  # else those who have come by then will do
                silent = coordinator.asked - coordinator.refused.keys() - coordinator.replies.keys()
                same("who is asked in a quiet network and not heard", silent, set())
            self._dies(f"after round {r}")
            if self._chooses("checkpoint", 2):
                tensors, values = federation.save()
                self._saved = {name: x.clone() for name, x in tensors.items()}, json.loads(json.dumps(values))
                self._say(f"the server has a checkpoint of round {r + 1}")
                self._dies("after its checkpoint")
        right = dict.fromkeys(self._of, federation.observer.digest())
        for _ in range(3):  # again for those who had not come yet, or were refused for what was still under way
            digests = federation.rebuilt()
            if digests == right:
                return
        same("the digests of all clients at the end", digests, right)

    def _check(self, federation: RemoteFederation) -> None:
        """What the disk has is what the server has, and what clients held."""
        digests, steps = self._own.replayed(self.setting, self._file.getvalue())
        for r, digest in self._given.items():
            if r >= len(digests):
                raise LawBrokenError(f"a client held a model of round {r}, but the log has {len(digests) - 1} rounds")
            same(f"the model of round {r} that clients held", digest, digests[r])
        same("the last model", federation.observer.digest(), digests[-1])
        same("the local steps that the server counts", federation.coordinator.steps, steps)
        delivery = self._own.delivery(self.setting)
        follower = Coordinator(delivery, RUN)
        with _Log.open(_File(self._file.getvalue(), self._dies)) as log:  # type: ignore[arg-type]
            for entry in log.entries():
                follower.repeat(entry.record, entry.sampled, entry.answered, entry.held, entry.examples)
        known, knows = ((own.told, own.pulls, own.server.held, own.ledger) for own in (delivery, federation.delivery))
        same("what a server knows that follows the log", knows, known)


def _listed(clients: Iterable[int]) -> str:
    clients = sorted(clients)
    return f"client{'s' * (len(clients) > 1)} {', '.join(map(str, clients))}"


def _weight(decisions: Mapping[str, Sequence[int]]) -> tuple[Any, ...]:
    """Of two histories the one of less weight is simpler."""
    every = [number for own in decisions.values() for number in own]
    return sum(map(bool, every)), len(every), every


@dataclass(frozen=True)
class Found:
    """A history that breaks a rule, as short as it could be made.

    Attributes:
        seed: The seed of the history in which it was found.
        broken: What is wrong.
        decisions: The decisions of the short history, of each kind.
        events: What happens in it.
    """

    seed: int
    broken: str
    decisions: dict[str, tuple[int, ...]]
    events: tuple[str, ...]

    def __str__(self) -> str:
        again = f"again: decomfl verify --histories 1 --seed {self.seed}"
        return "\n".join([*self.events, f"BROKEN  {self.broken}", again])


class Simulation:
    """Histories of one implementation, and what they share."""

    def __init__(self, implementation: Implementation | None = None) -> None:
        """With the clients of ``Stand`` for None; NotImplementedError for parts that are not made of the lab's."""
        self.implementation = Stand() if implementation is None else implementation
        made = self.implementation.server(_case(SIMPLEST)), self.implementation.client(_case(SIMPLEST), 0)
        if not all(map(isinstance, made, (Server, Client))):
            raise NotImplementedError("sessions are the lab's, of its own server and clients")
        self.hosts = _Hosts()
        self.run_seed = self.delivery(SIMPLEST).server.run_seed
        with tempfile.TemporaryDirectory() as folder:
            RunLog.create(path := Path(folder, "run.dcl"), {"run_seed": self.run_seed}).close()
            self.empty_log = path.read_bytes()
        self._fresh: dict[Any, int] = {}
        self._replayed: dict[Any, tuple[list[str], list[int]]] = {}
        self._measured: dict[Any, ScalarArray] = {}

    def search(self, seeds: Iterable[int]) -> Found | None:
        """The first of these histories that breaks a rule, made short; None if none does."""
        logger = logging.getLogger("decomfl_lab.protocol")
        was = logger.level
        logger.setLevel(logging.ERROR)  # it warns of what is done here
        try:
            for n, seed in enumerate(seeds, 1):
                choose = Decisions(seed)
                if broken := self.broken(choose):
                    return self._short(seed, choose.taken, broken[:ALIKE])
                if n % 1000 == 0:  # what histories share stays, and need not be looked through for what does not
                    gc.collect()
                    gc.freeze()
        finally:
            gc.unfreeze()
            logger.setLevel(was)
        return None

    def broken(self, choose: Decisions, tell: Callable[[str], None] | None = None) -> str:
        """What is wrong with the history of these decisions; empty if nothing is."""
        try:
            _History(self, choose, tell).play()
        except LawBrokenError as error:
            return str(error)
        except THEIRS as error:  # whatever a faulty part raises is a finding
            return f"{type(error).__name__}: {error}"
        return ""

    def _short(self, seed: int, taken: Mapping[str, Sequence[int]], broken: str) -> Found:
        """A simple federation in which the like is wrong; then have less happen for as long as it is."""
        best: Mapping[str, Sequence[int]] = taken
        simplest = [*best["setting"]]
        for place in range(len(SETTINGS)):
            for n in range(simplest[place]):
                simpler = [*simplest[:place], n, *simplest[place + 1 :]]
                if (found := next(self._alike(simpler, TRIES, broken), None)) is not None:
                    best, simplest = found, simpler
                    break
        best = min([best, *self._alike(simplest, 8 * TRIES, broken)], key=_weight)
        for kind in [*RATES, *RATES]:  # what happens less of one kind may be of use to another
            best = self._shorter(best, kind, broken)
        events: list[str] = []
        wrong = self.broken(Decisions(given=best), events.append)
        return Found(seed, wrong, {kind: tuple(own) for kind, own in best.items()}, tuple(events))

    def _alike(self, setting: Sequence[int], count: int, broken: str) -> Iterator[Mapping[str, Sequence[int]]]:
        """Histories of this setting, of this number of seeds, in which the like is wrong."""
        tries = (self._failing(Decisions(seed, {"setting": setting}), broken) for seed in range(count))
        return (found for found in tries if found is not None)

    def _shorter(self, best: Mapping[str, Sequence[int]], kind: str, broken: str) -> Mapping[str, Sequence[int]]:
        """Leave out pieces of the decisions of a kind, put zeros there, or smaller numbers: large pieces first."""
        size = len(best[kind])
        while size:
            at = 0
            while at < len(best[kind]):
                old = best[kind]
                piece = old[at : at + size]
                pieces = [[], [0] * len(piece), *([n] for n in range(1, piece[0]) if size == 1)]
                given = (best | {kind: [*old[:at], *own, *old[at + size :]]} for own in pieces)  # type: ignore[operator]
                tries = (self._failing(Decisions(given=each), broken) for each in given)
                shorter = next((own for own in tries if own and _weight(own) < _weight(best)), None)
                best, at = (best, at + size) if shorter is None else (shorter, at)
            size //= 2
        return best

    def _failing(self, choose: Decisions, broken: str) -> dict[str, list[int]] | None:
        """The decisions that this history takes, without the zeros at their ends; None if nothing like it is wrong."""
        if not self.broken(choose).startswith(broken):
            return None
        for kind, taken in choose.taken.items():
            while kind != "setting" and taken and not taken[-1]:
                taken.pop()
        return choose.taken

    # What histories share.

    def replica(self, setting: Setting) -> Any:
        """A replica at x_0."""
        return self.implementation._replica(_case(setting))

    def delivery(self, setting: Setting) -> Delivery:
        """The server's side at round 0."""
        delivery = self.implementation.delivery(_case(setting), with_model=setting.keep > 0)
        delivery.server.m, delivery.server.weights = setting.sampled, Weights(setting.weighting)
        return delivery

    def _client(self, setting: Setting, i: int) -> Any:
        return self.implementation.client(_case(setting), i, _Weighty(16, i))

    def fresh(self, setting: Setting, ids: tuple[int, ...]) -> int:
        """The state of a new host of these clients."""
        key = setting.seeding, setting.weighting, ids
        if key not in self._fresh:
            clients = {i: self._client(setting, i) for i in ids}
            self._fresh[key] = self.hosts.entered(Host(clients, RUN, Terms.of(self.delivery(setting).server)))
        return self._fresh[key]

    def replayed(self, setting: Setting, content: bytes) -> tuple[list[str], list[int]]:
        """The digests of all models of a log, and each client's local steps, if its records are what they have to be.

        Each is the mean of what those measure whom it names, at this model, in their next steps; they are a quorum.
        """
        key = setting.clients, setting.sampled, setting.quorum, content
        if key not in self._replayed:
            replica, steps, server = self.replica(setting), [0] * setting.clients, self.delivery(setting).server
            digests = [replica.digest()]
            with _Log.open(_File(content, lambda _: None)) as log:  # type: ignore[arg-type]
                for r, entry in enumerate(log.entries()):
                    who = entry.answered
                    places = ", ".join(f"{i} (local steps {steps[i]}, {steps[i] + 1})" for i in who)
                    what = f"the record of round {r}, the mean of what clients {places} measure"
                    chosen = set(who) <= set(entry.sampled) <= set(server.sampled(r))
                    if not chosen or len(set(who)) < max(setting.quorum, len(who)):
                        raise LawBrokenError(f"{what}: no quorum of {setting.quorum} of those sampled")
                    replies = [self._scalars(setting, i, steps[i], replica) for i in who]
                    weights = entry.examples or [1] * len(who)
                    same(what, bits(entry.record.scalars), bits(weighed_mean(replies, weights)))
                    for i in who:
                        steps[i] += entry.record.K
                    replica.catch_up([entry.record])
                    digests.append(replica.digest())
            self._replayed[key] = digests, steps
        return self._replayed[key]

    def _scalars(self, setting: Setting, i: int, steps: int, replica: Any) -> ScalarArray:
        """What client i measures at this model in its local steps ``steps``, ``steps`` + 1, ..."""
        key = i, steps, replica.round, replica.digest()
        if key not in self._measured:
            terms, r = Terms.of(self.delivery(setting).server), replica.round
            assert terms.eta is not None
            client = self._client(setting, i)
            client.replica.restore(replica.snapshot())
            client.steps_taken = steps
            plan = Plan(r, terms.eta(r), terms.P(r), terms.distribution, terms.seeds(r))
            self._measured[key] = client.handle(plan).scalars
        return self._measured[key]
