"""Every reachable state of a small federation, breadth first, by the real server, delivery, history, clients and codec.

The scope: M clients and R rounds, opened for every choice of participants. The network keeps the newest ``memory``
messages each way of every client and forgets none by delivering it, so each of them may be lost, doubled, overtaken by
others, or come after later rounds; a message that newer ones have pushed out is lost. At any time the server may crash,
back to its model, its records and what it remembers of its clients, and a client may crash, back to the run's seed and
the model of any earlier round, or to x_0 alone, if it had stored nothing. What a client's crash changes matters
to what this client does next and to nothing before, so it is tried right before each message that a client receives
and each report that it makes. Rounds are closed with the replies of every choice of those who answered.

What is explored is exact: messages are the bytes of the real codec, and states are told apart by the bits of models,
the bytes of records and those of messages. Server and clients are deterministic, so each runs once for each of its
own states and each input; the search then combines what they did. Two reductions keep it small. States that differ in
the clients' numbers alone count as one. And clients have the same loss, so that a round has the same record whoever
answered it, as later events cannot depend on what scalars are; that the mean is the mean of those who answered is
probed with scalars of their own in every state in which a round can be closed.
"""

from __future__ import annotations

import copy
import itertools
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from decomfl_lab.errors import THEIRS, InputError, plural, require_int
from decomfl_lab.laws.contract import Case, Implementation, Wavy, model_of
from decomfl_lab.laws.edge import fitted
from decomfl_lab.laws.register import LawBrokenError, Model, same
from decomfl_lab.noise import Distribution
from decomfl_lab.protocol.client import Client
from decomfl_lab.protocol.delivery import Delivery, receive
from decomfl_lab.protocol.messages import Dense, Held, Message, Plan, Reply, Welcome
from decomfl_lab.protocol.policy import PullPolicy
from decomfl_lab.protocol.server import Server, Tracking
from decomfl_lab.protocol.session import MOST_WELCOMES, Coordinator, Host
from decomfl_lab.protocol.terms import Terms
from decomfl_lab.protocol.wire import decode, split_frame
from decomfl_lab.records.record import History
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding
from decomfl_lab.replicas.replica import Snapshot
from decomfl_lab.replicas.rules import Momentum

__all__ = ["SCOPES", "Explored", "Scope", "explore"]

PROBED = np.array([1.0, 2.0, 4.0, 64.0], np.float32)
"""Scalars that tell who is in a mean: those of the clients 0, 1 and 2, and of a reply that must not be in it."""


@dataclass(frozen=True)
class Scope:
    """What is explored.

    Attributes:
        tracking: Who remembers which round a client holds.
        keep: The most records that the server keeps, 0 for as many as needed.
        pulls: Whether whoever missed a record is sent the model in its place, not only where records are gone.
        clients: M, at most 3.
        rounds: R.
        memory: How many messages each way of a client the network keeps.
        session: Whether it is the session's hellos and welcomes that are explored, around the same delivery.
    """

    tracking: Tracking = Tracking.SERVER
    keep: int = 0
    pulls: bool = False
    clients: int = 3
    rounds: int = 4
    memory: int = 1
    session: bool = False

    def __post_init__(self) -> None:
        require_int("clients", self.clients, 1, len(PROBED) - 1)
        require_int("rounds", self.rounds, 1)
        require_int("memory", self.memory, 1)

    def __str__(self) -> str:
        pulls = "always" if self.pulls else "when gone" if self.keep else "never"
        size = f"{plural(self.clients, 'client')}, {plural(self.rounds, 'round')}, network of {self.memory}"
        what, history = "session" if self.session else "delivery", str(self.keep or "all")
        return f"{what:9}{size:35}{self.tracking:9}history {history:5}pulls {pulls:10}"

    @property
    def case(self) -> Case:
        """A model of two parameters with momentum; the learning rate differs from round to round."""
        return Case(
            M=self.clients,
            K=2,
            P=Schedule(1),
            eta=Schedule(0.25, {r: 0.25 / (r + 1) for r in range(1, self.rounds)}),
            rule=Momentum(0.5),
            estimator="central",
            mu=2.0**-10,
            distribution=Distribution.GAUSSIAN,
            shapes=((2,),),
            dtype=torch.float32,
            seed=20,
            rounds=(),
            seeding=Seeding.PER_RUN,
            tracking=self.tracking,
            keep=self.keep,
        )


_WAYS = ((0, False), (1, False), (2, False), (0, True), (1, True), (2, True))
_FEW = _WAYS[:2] + _WAYS[-1:]
SCOPES = (
    *(Scope(Tracking.SERVER, *way) for way in _WAYS),
    *(Scope(Tracking.SERVER, *way, clients=2, memory=2) for way in _WAYS),
    Scope(Tracking.CLIENTS),
    *(Scope(Tracking.CLIENTS, *way, rounds=3) for way in _FEW),
    *(Scope(Tracking.CLIENTS, *way, clients=2, rounds=3, memory=2) for way in _FEW),
    *(Scope(tracking, keep, clients=1, session=True) for tracking in Tracking for keep in (0, 1)),
    *(Scope(tracking, clients=2, rounds=1, session=True) for tracking in Tracking),
)
"""The scopes of ``decomfl verify --states``."""


@dataclass(frozen=True)
class Explored:
    """What a search found.

    Attributes:
        scope: What was explored.
        states: The number of states that were reached.
        transitions: The number of events that were tried in them.
        depth: The largest number of events on a shortest way to a state.
        seconds: The processor time.
        broken: What is wrong, empty if nothing is.
        events: The shortest way there, an event an entry.
    """

    scope: Scope
    states: int
    transitions: int
    depth: int
    seconds: float
    broken: str = ""
    events: tuple[str, ...] = ()

    def __str__(self) -> str:
        mark = "BROKEN" if self.broken else "ok    "
        line = f"{mark} {self.scope} {self.states:8,} states {self.transitions:10,} transitions, depth {self.depth:2}"
        line += f" {self.seconds:6.1f} s"
        if not self.broken:
            return line
        return "\n".join(
            [line, *(f"{n:9}. {event}" for n, event in enumerate(self.events, 1)), f"       {self.broken}"]
        )


def explore(scope: Scope, implementation: Implementation | None = None, *, limit: int | None = None) -> Explored:
    """Search all states that the scope can reach, up to the first in which something is wrong.

    In each of them: a model has the bits of the server's model of its round; the records are those of their rounds; no
    record is gone that a client needs, but for a bounded history; a client that lost nothing never goes back and is
    never refused the plan of the round under way; a late or doubled reply is refused or changes nothing in the record;
    what is refused leaves everything as it was; a server that crashed comes back as what it stored.

    Args:
        scope: What is explored.
        implementation: Whose clients and servers; the lab's by default.
        limit: Stop after so many states; None for all.

    Raises:
        NotImplementedError: If the implementation has nothing to explore there.
    """
    implementation = fitted(Implementation() if implementation is None else implementation)
    if not implementation.supports(scope.case):
        raise NotImplementedError(f"{implementation.name}.supports refuses {scope.case.rule}, K = {scope.case.K}")
    made = implementation.server(scope.case), implementation.client(scope.case, 0)
    if scope.session and not all(map(isinstance, made, (Server, Client))):
        raise NotImplementedError("sessions are the lab's, of its own server and clients")
    kind = _Sessions if scope.session else _Search
    logger = logging.getLogger("decomfl_lab.protocol.session")
    logger.disabled, was = True, logger.disabled  # it warns of what is explored here
    try:
        return kind(scope, implementation).run(limit)
    finally:
        logger.disabled = was


class _Calm:
    """The same loss for all clients and steps, so that whoever answers a round says the same."""

    def __init__(self, d: int) -> None:
        self.loss = Wavy(d, 0)

    def __call__(self, x: Tensor, step: int) -> float:  # noqa: ARG002
        return self.loss(x, 0)


def _stored(back: int) -> str:
    return "nothing" if back < 0 else f"the model of round {back}"


class _Names:
    """Numbers for things of equal content."""

    def __init__(self) -> None:
        self.number: dict[Hashable, int] = {}
        self.content: list[Any] = []

    def __call__(self, content: Hashable) -> int:
        found = self.number.setdefault(content, len(self.content))
        if found == len(self.content):
            self.content.append(content)
        return found


@dataclass(frozen=True)
class _Link:
    """A client and its way to the server: numbers of contents."""

    client: int
    down: tuple[int, ...] = ()  # messages to it that may still arrive, newest first
    up: tuple[int, ...] = ()  # its replies
    report: int = -1  # the round of its last report
    lost: bool = False  # whether it crashed and the server cannot know that


@dataclass(frozen=True)
class _Server:
    """What there is of a server; ``own`` is, of each client, what it believes of it, as a number, and its plan's."""

    start: int
    end: int
    planned: tuple[int, ...]
    own: tuple[int, ...]


State = tuple[int, tuple[int, ...]]
"""The server's number, and of each client that of its link."""


class _Search:
    """The parts and what each of them did, in tables; the states, as tuples of the numbers of parts."""

    def __init__(self, scope: Scope, implementation: Implementation) -> None:
        self.scope, self.implementation, self.case = scope, implementation, scope.case
        self.servers, self.clients, self.links = _Names(), _Names(), _Names()
        self.beliefs, self.messages, self.replies = _Names(), _Names(), _Names()
        self.delivery_of: dict[int, Delivery] = {}
        self.client_of: dict[tuple[int, int], Any] = {}
        self.memo: dict[Any, Any] = {}
        self.model: list[tuple[Model, Snapshot]] = []  # of each round: the bits, and what restores them
        self.record: list[bytes] = []  # of each round
        self.now = ""
        self.policy = PullPolicy(bandwidth=1e15, replay_ns=1e9) if scope.pulls else None
        server = self._server(self._begin(), {})
        links = tuple(self.links(_Link(self._client(i, self._fresh(i)))) for i in range(scope.clients))
        self.first: State = (server, links)

    def run(self, limit: int | None) -> Explored:
        began = time.process_time()
        key = self._key(self.first)
        came: dict[Any, tuple[Any, str]] = {key: (None, "")}
        waiting, depth, transitions, broken = deque([(self.first, key, 0)]), 0, 0, ""
        try:
            while waiting and (limit is None or len(came) < limit):
                state, key, depth = waiting.popleft()
                for event, after in self._after(state):
                    transitions += 1
                    reached = self._key(after)
                    if reached not in came:
                        came[reached] = key, event
                        self.now = event
                        self._check(after)
                        waiting.append((after, reached, depth + 1))
        except THEIRS as error:  # whatever a faulty part raises is a finding
            broken = str(error) if isinstance(error, LawBrokenError) else f"{type(error).__name__}: {error}"
        events = [self.now] if broken else []
        while broken and key is not None:
            key, event = came[key]
            events.append(event)
        told = tuple(reversed(events[:-1]))
        return Explored(self.scope, len(came), transitions, depth, time.process_time() - began, broken, told)

    def _key(self, state: State) -> Any:
        """The state but for the clients' numbers."""
        server = self.servers.content[state[0]]
        return server.start, server.end, *sorted(zip(server.own, state[1], strict=True))

    def _check(self, state: State) -> None:
        """What holds of server and clients together."""
        server = self.servers.content[state[0]]
        links = [self.links.content[link] for link in state[1]]
        asked = self.scope.tracking is Tracking.CLIENTS
        rounds = (self.clients.content[link.client][0] for link in links if not link.lost)
        needed = 0 if asked else min(rounds, default=server.end)
        keep = self.scope.keep
        if server.start > (max(needed, server.end - keep) if keep else needed):
            raise LawBrokenError(f"the oldest record is of round {server.start}, round {needed} is needed")
        if keep and server.end - server.start > keep:
            raise LawBrokenError(f"{plural(server.end - server.start, 'record')} are kept, {keep} may be")

    # Parts ------------------------------------------------------------------------------------------------------

    def _begin(self) -> Any:
        return self.implementation.delivery(self.case, self.policy)

    def _fresh(self, i: int) -> Any:
        return self.implementation.client(self.case, i, _Calm(self.case.d))

    def _client(self, i: int, client: Any) -> int:
        """The number of a client's state: round, bits, and the run's seed if it knows it."""
        r, bits = client.replica.round, model_of(client.replica)
        same(f"the model of client {i} at round {r}", bits, self.model[r][0])
        number = self.clients((r, bits, client.run_seed))
        self.client_of.setdefault((i, number), client)
        return number

    def _server(self, delivery: Any, planned: Mapping[int, Any]) -> int:
        """The number of a server's state: what it stores, and of each client t_i, whether it was told, and the plan."""
        server = self._right(delivery)
        r = server.round
        plans = tuple(planned.get(i, -1) for i in range(self.case.M))
        held = server.held or [0] * self.case.M
        own = tuple(self.beliefs((held[i], i in delivery.told, plan)) for i, plan in enumerate(plans))
        number = self.servers(_Server(server.history.start, r, plans, own))
        self.delivery_of.setdefault(number, delivery)
        return number

    def _right(self, delivery: Delivery) -> Any:
        """The server, if its model and its records are those of their rounds."""
        server: Any = delivery.server
        kept = server.history.since(server.history.start)
        r, bits = server.round, model_of(server.replica)
        if r == len(self.model):
            self.model.append((bits, server.replica.snapshot()))
            self.record += [self.implementation.encode((record,)) for record in kept[-1:]]
        same(f"the server's model of round {r}", bits, self.model[r][0])
        for record in kept:
            same(
                f"the record of round {record.round}", self.implementation.encode((record,)), self.record[record.round]
            )
        return server

    def _once(self, act: Callable[..., Any], *of: Hashable) -> Any:
        """What a part did, which it does once for the same input."""
        key = (act.__name__, of)
        if key not in self.memo:
            self.memo[key] = act(*of)
        return self.memo[key]

    # Events -----------------------------------------------------------------------------------------------------

    def _after(self, state: State) -> Iterator[tuple[str, State]]:
        """What can happen next, and the state after it."""
        number, links = state
        planned = self.servers.content[number].planned
        ups = tuple(self.links.content[link].up for link in links)
        for event, after in self._once(self._server_moves, number, ups):
            yield event, (after, links)
        for i, link in enumerate(links):
            for event, after in self._once(self._client_moves, i, link, planned[i]):
                yield event, (number, (*links[:i], after, *links[i + 1 :]))
        for chosen in self._once(self._choices, number):
            for asked in itertools.product(*[self._once(self._asked, i, links[i]) for i in chosen]):
                event, opened, sent = self._once(self._opened, number, chosen, tuple(how for how, _ in asked))
                after = list(links)
                for i, (_, link), message in zip(chosen, asked, sent, strict=True):
                    after[i] = self._once(self._sent, link, message)
                yield event, (opened, tuple(after))

    def _choices(self, number: int) -> list[tuple[int, ...]]:
        """Who may take part in the next round."""
        server, M = self.servers.content[number], self.case.M
        if max(server.planned) >= 0 or server.end == self.scope.rounds:
            return []
        return [chosen for count in range(1, M + 1) for chosen in itertools.combinations(range(M), count)]

    def _asked(self, i: int, link: int) -> list[tuple[tuple[int, str], int]]:
        """The ways in which a client can have reported what it holds: (round, how), and the link after it."""
        known: _Link = self.links.content[link]
        if self.scope.tracking is Tracking.SERVER:
            return [((-1, ""), link)]
        ways = {link: (known.report, f" (report late: round {known.report})")} if known.report >= 0 else {}
        for back in self._backs(known):
            number = self._once(self._again, i, known.client, back)
            t, _, seed = self.clients.content[number]
            lost = (known.lost or number != known.client) and seed is None  # else the report tells what is lacking
            crash = "" if back is None else f"crashed, came back with {_stored(back)}, "
            how = t, f" ({crash}reports round {t})"
            ways.setdefault(self.links(replace(known, client=number, report=t, lost=lost)), how)
        return [(how, after) for after, how in ways.items()]

    def _sent(self, link: int, message: int) -> int:
        known: _Link = self.links.content[link]
        return self.links(replace(known, down=self._kept(message, known.down)))

    def _kept(self, new: int, old: tuple[int, ...]) -> tuple[int, ...]:
        """What the network keeps one way of a client."""
        return (new, *(each for each in old if each != new))[: self.scope.memory]

    def _backs(self, link: _Link) -> tuple[int | None, ...]:
        """None for no crash, or the round of the stored model that a client has after it; -1 if it stored nothing."""
        return None, *range(-1, self.clients.content[link.client][0] + 1)

    def _client_moves(self, i: int, link: int, due: int) -> list[tuple[str, int]]:
        """A message comes, perhaps right after a crash: the link after it, where it changes."""
        known: _Link = self.links.content[link]
        moves: dict[int, str] = {}
        for back, message in itertools.product(self._backs(known), known.down):
            crash = "" if back is None else f" crashes, comes back with {_stored(back)} and"
            self.now = f"client {i}{crash} gets the plan of round {self._decoded(message)[-1].round}"
            before, client, answer, error = self._once(self._handled, i, known.client, back, message)
            lost = known.lost or before != known.client
            if error and message == due and not lost:
                raise LawBrokenError(f"client {i}, which lost nothing, cannot take part: {error}")
            if not error:
                up = self._kept(answer, known.up)
                after = replace(known, client=client, up=up, lost=lost and message != due)
                moves.setdefault(self.links(after), self.now)
            elif not lost:
                moves.setdefault(self.links(replace(known, client=client)), self.now)
        moves.pop(link, None)
        return [(event, after) for after, event in moves.items()]

    def _server_moves(self, number: int, ups: tuple[tuple[int, ...], ...]) -> list[tuple[str, int]]:
        """A crash, or the end of the round with the replies of any of those who answered: the server after it."""
        server = self.servers.content[number]
        r, moves = server.end, []
        there = [(i, reply) for i, up in enumerate(ups) for reply in up]
        due = [(i, reply) for i, reply in there if self._fits(server, i, reply)]
        if max(server.planned) >= 0:
            for i, reply in due[:1] + [one for one in there if one not in due]:
                late = self.replies.content[reply][0]
                self.now = f"the server closes round {r}, when client {i}'s reply of round {late} comes late or again"
                self._once(self._probed, number, (*due, (i, reply)))
            for count in range(1, len(due) + 1):
                for taken in itertools.combinations(due, count):
                    who = ", ".join(str(i) for i, _ in taken)
                    self.now = f"the server closes round {r} with the replies of {who}"
                    self._once(self._probed, number, taken)
                    moves.append((self.now, self._once(self._closed, number, taken)))
        self.now = "the server crashes and comes back"
        after = self._once(self._restarted, number)
        return [*moves, (self.now, after)] if after != number else moves

    def _fits(self, server: _Server, i: int, reply: int) -> bool:
        """Whether the reply answers a plan of the round under way."""
        return bool(self.replies.content[reply][0] == server.end and server.planned[i] >= 0)

    # What parts do ----------------------------------------------------------------------------------------------

    def _opened(
        self, number: int, chosen: tuple[int, ...], asked: tuple[tuple[int, str], ...]
    ) -> tuple[str, int, list[int]]:
        who = ", ".join(f"{i}{how}" for i, (_, how) in zip(chosen, asked, strict=True))
        self.now = f"the server opens round {self.servers.content[number].end} for clients {who}"
        delivery = copy.deepcopy(self.delivery_of[number])
        reports = [self.implementation.encode(Held(i, t)) for i, (t, _) in zip(chosen, asked, strict=True) if t >= 0]
        sent = {i: self.messages(tuple(messages)) for i, messages in delivery.open(chosen, reports)}
        same("the clients that get a plan", tuple(sent), chosen)
        for i, message in sent.items():
            models = sum(isinstance(each, Dense) for each in self._decoded(message))
            if models and not (self.scope.keep or self.scope.pulls):
                raise LawBrokenError(f"client {i} is sent the model, though no record may be gone")
        return self.now, self._server(delivery, sent), list(sent.values())

    def _closed(self, number: int, taken: tuple[tuple[int, int], ...]) -> int:
        delivery = copy.deepcopy(self.delivery_of[number])
        delivery.close([self._reply(i, reply) for i, reply in taken])
        return self._server(delivery, {})

    def _probed(self, number: int, taken: tuple[tuple[int, int], ...]) -> None:
        """The mean is that of those who answered; or, if one of them did so too late or twice, nothing has changed."""
        delivery = copy.deepcopy(self.delivery_of[number])
        fit = [self._fits(self.servers.content[number], i, reply) for i, reply in taken]
        right = {i for (i, _), fits in zip(taken, fit, strict=True) if fits}
        known = self._stored(delivery)
        try:
            probed = [PROBED[i if fits else 3] for (i, _), fits in zip(taken, fit, strict=True)]
            answers = [self._reply(i, reply, scalar) for (i, reply), scalar in zip(taken, probed, strict=True)]
            record = delivery.close(answers)
        except InputError:
            if len(right) == len(taken):
                raise
            same("what the server stores after it refused a reply", self._stored(delivery), known)
        else:
            same("whether a reply of the round is among those that closed it", bool(right), True)
            mean = np.float32(sum(float(PROBED[i]) for i in right) / len(right))
            same("the scalars of the record", set(record.scalars.flat), {mean})

    def _stored(self, delivery: Delivery) -> tuple[Any, ...]:
        server: Any = delivery.server
        kept = self.implementation.encode(server.history.since(server.history.start))
        return server.history.start, server.round, zlib.crc32(kept), list(server.held), model_of(server.replica)

    def _reply(self, i: int, number: int, scalar: Any = None) -> bytes:
        r, shape, scalars = self.replies.content[number]
        measured = np.frombuffer(scalars, np.float32).reshape(shape)
        return self.implementation.encode(Reply(i, r, measured if scalar is None else np.full_like(measured, scalar)))

    def _restarted(self, number: int) -> int:
        """From its stored model and records, and what it remembers of its clients; the plans are gone."""
        old = self.delivery_of[number]
        delivery = self._begin()
        self._recall(delivery, old)
        return self._server(delivery, {})

    def _recall(self, delivery: Delivery, old: Delivery) -> None:
        server: Any = delivery.server
        start = old.server.history.start
        stored = self.implementation.encode(old.server.history.since(start))
        records = self.implementation.decode(stored, server.run_seed)
        assert isinstance(records, tuple)
        server.history, server.held = type(server.history)(records, start), list(old.server.held)
        server.replica.restore(self.model[server.round][1])
        delivery.told = set(old.told)

    def _back(self, i: int, number: int, back: int | None) -> Any:
        """The client, or the one that is there after a crash."""
        if back is None:
            return copy.deepcopy(self.client_of[i, number])
        client = self._fresh(i)
        if back >= 0:
            client.replica.restore(self.model[back][1])
            client.run_seed = self.clients.content[number][2]
        return client

    def _again(self, i: int, number: int, back: int | None) -> int:
        return self._client(i, self._back(i, number, back))

    def _handled(self, i: int, number: int, back: int | None, message: int) -> tuple[int, int, int, str]:
        """What the messages of a round make of a client: an answer, or a refusal, and then its model is what it was.

        Returns:
            The client's number before and after, that of its answer, or -1 and why it refuses.
        """
        client = self._back(i, number, back)
        before = self._once(self._again, i, number, back)
        t, bits, _ = self.clients.content[before]
        try:
            plan = receive(client, self.messages.content[message], self.implementation.decode)
            reply = client.handle(plan)
        except InputError as error:
            same(f"round of client {i} after its refusal", client.replica.round, t)
            same(f"model of client {i} after its refusal", model_of(client.replica), bits)
            return before, self._client(i, client), -1, str(error)
        s = client.replica.round
        same(f"round of client {i} after the plan of round {plan.round}", s, plan.round)
        if s < t:
            raise LawBrokenError(f"client {i} went back from round {t} to round {s}")
        answer = self.replies((reply.round, reply.scalars.shape, reply.scalars.tobytes()))
        return before, self._client(i, client), answer, ""

    def _decoded(self, message: int) -> list[Any]:
        seed = self.delivery_of[0].server.run_seed
        return [self.implementation.decode(each, seed) for each in self.messages.content[message]]


class _Kept(History):
    """All records, as the log of a run has them."""

    def prune(self, r: int) -> None:
        """Forget nothing."""


class _Sessions(_Search):
    """The same over ``Coordinator`` and ``Host``, whose frames go both ways until a client's reply is taken.

    A server that crashed has its records, and what it saves of its clients; a client that crashed says hello.
    """

    run_id = bytes(16)

    def _begin(self) -> Any:
        delivery = self.implementation.delivery(self.case, self.policy)
        replica: Any = delivery.server.replica
        if not self.scope.keep:
            delivery.server.history = _Kept()
        return Coordinator(delivery, self.run_id, digest=replica.digest)

    def _fresh(self, i: int) -> Any:
        server: Any = self.implementation.server(self.case)
        return Host({i: super()._fresh(i)}, self.run_id, Terms.of(server))

    def _client(self, i: int, host: Any) -> int:
        """The number of a host's state: its model, the steps taken, and what it has been told and has answered."""
        client, r = host.clients[i], host.replica.round
        same(f"the model of client {i} at round {r}", model_of(host.replica), self.model[r][0])
        answer = host._answers[i][1] if i in host._answers else b""
        number = self.clients((r, client.run_seed, client.steps_taken, i in host._welcomed, answer))
        self.client_of.setdefault((i, number), host)
        return number

    def _server(self, delivery: Any, planned: Mapping[int, Any]) -> int:
        """The number of a coordinator's state; ``planned`` has the frames that it waits for answers to."""
        coordinator, frames = delivery, planned
        server = self._right(coordinator.delivery)
        plans = tuple((i, self.implementation.encode(plan)) for i, plan in server.planned.items())
        often = [min(coordinator._welcomes[i], MOST_WELCOMES + 1) for i in range(self.case.M)]  # more change nothing
        counts = *server.held, *coordinator.steps, *often
        known = sorted(coordinator.replies), sorted(coordinator._reported.items()), sorted(coordinator.delivery.told)
        phase = tuple(sorted(coordinator._sure.items())), coordinator._asking, coordinator._checking
        content = (server.history.start, server.round, counts, *map(tuple, known), plans, phase)
        number = self.servers((*content, tuple(sorted(frames.items()))))
        self.delivery_of.setdefault(number, (coordinator, dict(frames)))  # type: ignore[arg-type]
        return number

    def _key(self, state: State) -> Any:
        return state

    def _check(self, state: State) -> None:
        coordinator, _ = self._coordinator(state[0])
        history, keep = coordinator.delivery.server.history, self.scope.keep
        if history.start > (history.end if keep else 0) or (keep and len(history) > keep):
            raise LawBrokenError(f"records of rounds {history.start} to {history.end - 1} are kept")
        for i, link in enumerate(state[1]):
            if i in coordinator.delivery.server.planned and i not in coordinator.replies:
                self._once(self._served, state[0], i, self.links.content[link].client)

    def _coordinator(self, number: int) -> tuple[Any, dict[int, bytes]]:
        found: Any = self.delivery_of[number]
        return cast("tuple[Any, dict[int, bytes]]", found)

    def _served(self, number: int, i: int, client: int) -> None:
        """Whatever has happened, a client that is asked, and whose frames arrive from now on, gets its reply in."""
        coordinator, frames = copy.deepcopy(self._coordinator(number))
        if coordinator._welcomes[i] > 1:
            return
        host = self._back(i, client, None)
        frame: bytes | None = frames[i]
        while frame:
            frame = coordinator.take(i, host.handle({i: frame})[i])
        if i not in coordinator.replies:
            raise LawBrokenError(f"client {i} cannot take part: {coordinator.refused.get(i, 'it is not answered')}")

    def _after(self, state: State) -> Iterator[tuple[str, State]]:
        number, links = state
        ups = tuple(self.links.content[link].up for link in links)
        for event, after, sent in self._once(self._server_moves, number, ups):
            changed = list(links)
            for i, message in sent:
                changed[i] = self._once(self._sent, links[i], message)
            yield event, (after, tuple(changed))
        for i, link in enumerate(links):
            for event, after in self._once(self._client_moves, i, link, 0):
                yield event, (number, (*links[:i], after, *links[i + 1 :]))

    def _server_moves(self, number: int, ups: tuple[tuple[int, ...], ...]) -> list[Any]:
        coordinator, frames = self._coordinator(number)
        server, moves = coordinator.delivery.server, []
        asks, r, M = coordinator.delivery.wants_reports, server.round, self.case.M

        def move(event: str, act: Callable[[Any], Mapping[int, bytes]], waits: Mapping[int, bytes] | None) -> None:
            self.now = event
            forked = copy.deepcopy(coordinator)
            sent = dict(act(forked))
            after = self._server(forked, sent if waits is None else waits)
            moves.append((event, after, tuple((i, self.messages(frame)) for i, frame in sent.items() if frame)))

        starts = "asks" if asks else f"opens round {r} for"
        for count in range(1, M + 1) if not frames and r < self.scope.rounds else ():
            for chosen in itertools.combinations(range(M), count):
                who = ", ".join(map(str, chosen))
                move(f"the server {starts} clients {who}", methodcaller("ask" if asks else "open", chosen), None)
        if frames and not server.planned and coordinator.heard:
            move(f"the server opens round {r} for those it heard", lambda at: at.open(tuple(frames)), None)
        for i, up in enumerate(ups if frames else ()):
            for answer in up:
                said = self.replies.content[answer]

                def hears(at: Any, i: int = i, said: bytes = said) -> Mapping[int, bytes]:
                    return {i: at.take(i, said) or b""}

                if server.planned or i in frames:
                    move(f"the server gets {self._frame(said)} of client {i}", hears, frames)
        for i in sorted(frames.keys() - coordinator.replies.keys()):
            again = self.messages(frames[i])
            moves.append((f"the server asks client {i} again", number, ((i, again),)))
        if server.planned and coordinator.replies:
            who = ", ".join(map(str, sorted(coordinator.replies)))
            move(f"the server closes round {r} with the replies of {who}", lambda at: at.close() and {}, {})
        self.now = "the server crashes and comes back"
        moves.append((self.now, self._once(self._restarted, number), ()))
        return moves

    def _restarted(self, number: int) -> int:
        old, _ = self._coordinator(number)
        again = self._begin()
        self._recall(again.delivery, old.delivery)
        again.steps = list(old.steps)
        return self._server(again, {})

    def _client_moves(self, i: int, link: int, due: int) -> list[tuple[str, int]]:  # noqa: ARG002
        known: _Link = self.links.content[link]
        moves: dict[int, str] = {}
        for back, message in itertools.product(self._backs(known), (-1, *known.down)):
            if back is None and message < 0:
                continue
            host = self._back(i, known.client, back)
            crash = "" if back is None else f" crashes, comes back with {_stored(back)}"
            frame = b"" if message < 0 else self.messages.content[message]
            what = "says hello" if message < 0 else f"gets {self._frame(frame)}"
            self.now = f"client {i}{crash}{' and' if crash else ''} {what}"
            answer = host.handle({i: frame})[i] if frame else host.hello(i)
            up = self._kept(self.replies(answer), known.up) if answer else known.up
            moves.setdefault(self.links(replace(known, client=self._client(i, host), up=up)), self.now)
        moves.pop(link, None)
        return [(event, after) for after, event in moves.items()]

    def _back(self, i: int, number: int, back: int | None) -> Any:
        if back is None:
            return copy.deepcopy(self.client_of[i, number])
        host = self._fresh(i)
        if back >= 0:
            host.replica.restore(self.model[back][1])
        return host

    def _frame(self, frame: bytes) -> str:
        return named(frame, self._coordinator(0)[0].delivery.server.run_seed)


def named(frame: bytes, run_seed: int) -> str:
    """The messages of a frame, by their kinds and rounds."""
    return " + ".join(_name(decode(message, run_seed)) for message in split_frame(frame)) or "nothing"


def _name(message: Message) -> str:
    match message:
        case Plan(round=r, records=records):
            return f"plan {r}{f' with {_name(records)}' if records else ''}"
        case Welcome(r, steps):
            return f"welcome {r} (after {steps} steps)"
        case tuple():
            return f"records {', '.join(str(record.round) for record in message)}"
        case other:
            return f"{type(other).__name__.lower()}{f' {other.round}' if hasattr(other, 'round') else ''}"
