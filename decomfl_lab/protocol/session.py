"""The session: what server and clients say on a network, where messages are lost and processes die, without transport.

    server side                                                client side
    frames = coordinator.open(chosen)                          host = Host(clients, run, terms)
    answer = host.handle({i: frames[i]})[i]                    (its first word is host.hello(i))
    more = coordinator.take(i, answer)
    record = coordinator.close()

A frame is one or more messages of the wire, one after the other. It is made, and counted, when it is read from
``frames``: so of a client that is away nothing is planned, made or counted. Where one that was chosen comes back while
the round is under way, it says hello and gets its plan then. A client that cannot serve a plan, because it is new,
was restarted or has lost its model, answers with a ``Hello``; the server then says where it goes on (``Welcome``), with
the records that it lacks and the plan again. So no client has to keep anything: what it lost, the records give back to
the bit. A plan that comes twice is answered with the same bytes.

Where clients are weighed by their examples, an answer with a hello and a reply has their number between the two. So the
server hears it before the first reply of a client counts, and again from a client that begins anew.
"""

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from decomfl_lab.errors import DivergedError, InputError, quoted, require, require_int
from decomfl_lab.protocol.client import Client, handle_all
from decomfl_lab.protocol.delivery import Delivery, take_model
from decomfl_lab.protocol.ledger import Ledger
from decomfl_lab.protocol.log import LogEntry
from decomfl_lab.protocol.messages import Ask, Dense, Examples, Hello, Message, Plan, Refusal, Reply, RunSeed, Welcome
from decomfl_lab.protocol.server import Terms
from decomfl_lab.protocol.wire import decode, encode, split_frame
from decomfl_lab.records.pool import PoolSums
from decomfl_lab.records.record import RoundRecord, unsound
from decomfl_lab.records.seeds import pooled
from decomfl_lab.replicas.replica import Replica, Snapshot
from decomfl_lab.storage.checkpoint_file import read_checkpoint, write_checkpoint
from decomfl_lab.storage.outside import SavedHost, read_as

logger = logging.getLogger(__name__)

MOST_WELCOMES = 3
"""How often a client may begin anew in one round before the round goes on without it."""


class Frames(Mapping[int, bytes]):
    """{i: frame} of the clients that are asked something; a frame is made, and counted as sent, when it is read.

    Whoever carries frames reads a frame for each time that it sends it, and none of a client that is away.
    """

    def __init__(
        self,
        clients: Iterable[int],
        made: Mapping[int, bytes],
        read: Callable[[int], bytes],
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Frames to these clients, in this order, of which ``read`` makes one; ``made`` are those of before.

        Once there is ``enough``, as it says after each answer, nobody waits for the others.
        """
        self._clients = dict.fromkeys(clients)
        self._made = made
        self._read = read
        self.enough = enough

    def __getitem__(self, i: int) -> bytes:
        if i not in self._clients:
            raise KeyError(i)
        return self._read(i)

    def __contains__(self, i: object) -> bool:
        return i in self._clients

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def sent(self) -> set[int]:
        """The clients whose frame was read before: who loses nothing need not send it again."""
        return self._made.keys() & self._clients.keys()

    def without(self, done: Container[int], enough: Callable[[], bool]) -> "Frames":
        """The frames to all clients but these, of whose answers there may be enough at some time."""
        return Frames((i for i in self._clients if i not in done), self._made, self._read, enough)


class Farewell(bytes):
    """A last frame, to whoever is no client of the run: where it has a connection, that is cut, with the reason."""

    reason = ""  # the reason, which is in the frame, too


class _StrangerError(InputError):
    """Who says hello is another client, or of another run."""


class Host:
    """The clients' side: some clients of a run, and the one model that all of them share."""

    def __init__(self, clients: Mapping[int, Client], run: bytes, terms: Terms) -> None:
        """A host, at round 0, of {i: client at x_0}; ``run`` is the run's identity, 16 bytes.

        InputError if there are no clients, or their replicas drift (revert sync), so that they share nothing.
        """
        require(bool(clients), "clients", "number at least 1", 0)
        self.clients = dict(clients)  # {i: client}, each without a model of its own between its rounds
        # the model of the latest round that any of them took part in
        self.replica: Replica = next(iter(clients.values())).replica.clone()
        require(not self.replica.drifts, "revert", "be snapshot where clients are in other processes", "sync")
        # {i: mean training loss} of the latest round of each, for a log; it is not sent
        self.losses: dict[int, float] = {}
        self._run, self._terms = run, terms
        self._start = self.replica.snapshot()
        self.answers: dict[int, tuple[int, bytes]] = {}  # the round and the bytes of each client's latest
        self.welcomed: set[int] = set()  # who has been told where its data go on
        for client in self.clients.values():
            client.replica.forget()

    def hello(self, i: int) -> bytes:
        """What client i says of itself."""
        return encode(Hello(i, self._run, self.replica.round, bytes.fromhex(self.replica.digest())))

    def handle(self, frames: Mapping[int, bytes]) -> dict[int, bytes]:
        """The answers {i: frame} to the frames {i: frame} of a round; clients measure together where they can.

        An answer is empty where nothing is asked: a welcome alone, records, or a refusal, which is logged.

        A frame that is damaged, or not as the run's terms have it, is answered with the reason, and changes nothing.
        """
        answers: dict[int, bytes] = {}
        plans: dict[int, Plan] = {}
        asked = set()
        for i, frame in frames.items():
            try:
                plan, asks = self._read(i, frame)
            except InputError as error:
                logger.warning("client %d refuses a frame: %s", i, error)
                answers[i] = encode(Refusal(str(error)))
                continue
            if plan is not None:
                plans[i] = plan
            if asks:
                asked.add(i)
        # The plans that can be served: another client's frame may have moved the model that they share.
        served = {i: plan for i, plan in plans.items() if plan.round == self.replica.round and i in self.welcomed}
        # The replies to plans of one round; those given before, to the byte, where a plan comes again.
        before = {i: self.answers.get(i, (None, b"")) for i in served}
        repeated = {i: answer for i, (r, answer) in before.items() if r == served[i].round and answer}
        measuring = [i for i in served if i not in repeated]
        clients = [self.clients[i] for i in measuring]
        for i, client in zip(measuring, clients, strict=True):
            if before[i][0] == served[i].round:
                client.steps_taken -= served[i].K
            client.replica.restore(self.replica.snapshot())
        replies = handle_all(clients, [served[i] for i in measuring]) if measuring else []
        for i, reply in zip(measuring, replies, strict=True):
            self.clients[i].replica.forget()
            self.losses[i] = reply.loss
            answer: Message = reply
            if unsound(reply.scalars).size:
                answer = Refusal(str(DivergedError(f"scalars of client {i}")), True)
            self.answers[i] = served[i].round, encode(answer)
        answers |= repeated | {i: self.answers[i][1] for i in measuring}
        hello = {i: self.hello(i) for i in asked | (plans.keys() - served.keys())}
        weighed = hello.keys() & served.keys() if self._terms.weighs else ()
        hello |= {i: hello[i] + encode(self.clients[i].examples()) for i in weighed}
        return {i: hello.get(i, b"") + answers.get(i, b"") for i in frames}

    def _read(self, i: int, frame: bytes) -> tuple[Plan | None, bool]:
        """Bring the model up with what came for client i; its plan, if there is one, and whether to say hello."""
        client = self.clients[i]
        messages = [decode(message, self._terms.run_seed) for message in split_frame(frame)]
        plan: Plan | None = None
        welcome: Welcome | None = None
        records: tuple[RoundRecord, ...] = ()
        vectors: list[Dense] = []
        sums: PoolSums | None = None
        # First everything is read and checked, so that a bad frame changes nothing.
        for message in messages:
            match message:
                case Welcome():
                    welcome = message
                case Ask():
                    pass
                case RunSeed(seed):
                    require(seed == self._terms.run_seed, "seed of the run", "be that of its configuration", seed)
                case Dense():
                    vectors.append(message)
                case PoolSums():
                    sums = message
                case Plan():
                    self._terms.check(message)
                    plan, records = message, records + message.records
                case tuple():
                    records += message
                case Refusal(text):
                    logger.warning("the server refuses client %d: %s", i, quoted(text))
                case other:
                    require(False, f"message to client {i}", "be one to clients", type(other).__name__)
        for n, record in enumerate(records):
            self._terms.check(record)
            require(record.round == records[0].round + n, "records", "follow one another", record.round)
        # Only now the shared model is moved: by a model, by sums of a pool, or to x_0, and then by records.
        anew = welcome is not None and welcome.round == 0
        if vectors:  # a model instead of records
            client.replica.round = 0 if anew else self.replica.round
            take_model(client, vectors[-1].round if plan is None else plan.round, vectors)
            self.replica.restore(client.replica.snapshot())
            client.replica.forget()
        elif sums is not None and (anew or sums.round > self.replica.round):
            moved = self.replica.clone()  # a refusal leaves the model as it was
            if anew:
                moved.restore(self._start)
            r = sums.round if plan is None else plan.round
            require(sums.round == r, "round of a pool's sums", f"be {r}", sums.round)
            moved.take(sums, pooled(self._terms.seeds(r)).pool, self._terms.distribution)
            self.replica.restore(moved.snapshot())
        elif anew:
            self.replica.restore(self._start)
        if records and records[0].round <= self.replica.round:
            self.replica.catch_up(records)
        if anew:  # what was measured of the model before is not repeated: who is asked again measures it again
            self.answers = {j: (r, b"") for j, (r, _) in self.answers.items()}
        if welcome is not None:
            answered, _ = self.answers.pop(i, (0, b""))
            client.steps_taken = welcome.steps
            # Of a welcome that came late the steps are too few: whoever gets one says hello before it measures again.
            self.welcomed.discard(i)
            if plan is not None and answered <= plan.round == self.replica.round:
                self.welcomed.add(i)
        return plan, Ask() in messages

    def save(self, path: Path) -> None:
        """Write all that a host goes on from to a file: model, places in the data, latest answers.

        Where a process lives no longer than a message. A host that has no such file begins at x_0.
        """
        state = {f"state.{slot}": vector for slot, vector in self.replica.state.items()}
        saved = SavedHost(
            run=self._run.hex(),
            round=self.replica.round,
            steps={str(i): self.clients[i].steps_taken for i in self.welcomed},
            answers={str(i): (r, answer.hex()) for i, (r, answer) in self.answers.items()},
        )
        write_checkpoint(path, {"x": self.replica.x, **state}, saved)

    def load(self, path: Path) -> None:
        """Go on from what ``save`` wrote; InputError if the file is damaged, of another run or of other clients."""
        tensors, values = read_checkpoint(path)
        saved = read_as(SavedHost, values, f"checkpoint {path}")
        require(saved.run == self._run.hex(), "model of the host", "be of this run", str(path))
        vectors = {"x": self.replica.x} | {f"state.{slot}": vector for slot, vector in self.replica.state.items()}
        for name, vector in vectors.items():
            shape, wanted = tuple(tensors[name].shape), tuple(vector.shape)
            require(shape == wanted, f"{name} in the checkpoint {path}", f"have shape {wanted}", shape)
        steps = {int(i): taken for i, taken in saved.steps.items()}
        require(steps.keys() <= self.clients.keys(), "clients of the host", f"be {sorted(steps)}", sorted(self.clients))
        state = {slot: tensors[f"state.{slot}"] for slot in self.replica.state}
        self.replica.restore(Snapshot(saved.round, tensors["x"], state))
        for i, taken in steps.items():
            self.clients[i].steps_taken = taken
        self.welcomed = set(steps)
        self.answers = {int(i): (r, bytes.fromhex(answer)) for i, (r, answer) in saved.answers.items()}


class Coordinator:
    """The server's side of a session, around a ``Delivery``."""

    def __init__(
        self, delivery: Delivery, run: bytes, *, digest: Callable[[], str] | None = None, check_every: int = 0
    ) -> None:
        """A coordinator.

        Args:
            delivery: The server's side of a federation.
            run: The run's identity, 16 bytes.
            digest: It gives the digest of the model of the server's round; None where the server's side has no model.
            check_every: How many rounds there are between two in which every participant has to say its model's
                digest before its reply counts; 0 for only those that come anew.
        """
        # it makes the messages of the rounds and counts each once, as in a run where nothing is lost
        self.delivery = delivery
        # it counts what is said beyond these since this coordinator was made: hellos and welcomes, refusals, and all
        # that is sent again. Both ledgers together are the bytes of the frames that went, for each client.
        self.session = Ledger(delivery.server.M, encode=delivery.ledger.encode)
        # the local steps that each client has measured in the rounds of the record, M of them
        self.steps = [0] * delivery.server.M
        self.chosen: tuple[int, ...] = ()  # the clients that were chosen for the round
        self.asked: set[int] = set()  # those of them that were sent a plan of it
        # {i: reply} accepted in the round under way, with the mean training loss, NaN where it is not known
        self.replies: dict[int, Reply] = {}
        self.refused: dict[int, str] = {}  # {i: why} of the clients that the round under way goes on without
        self.diverged = False
        # {i: digest} of the models that clients said, and proved, to hold after the last round (``finish``)
        self.digests: dict[int, str] = {}
        self.healed = 0  # how often a client that held another model than the server's had to begin anew
        self._run, self._digest, self._check_every = run, digest, check_every
        self._known: tuple[int, str] | None = None
        self.welcomes: Counter[int] = Counter()
        # Who is known to know how many local steps of its are in the record, and the round that it answered then.
        self.sure: dict[int, int] = {}
        self._reported: dict[int, int] = {}
        self._invited: dict[int, int] = {}  # what each who was sent a plan of the round was taken to hold then
        self._frames: dict[int, bytes] = {}  # what each client was sent first since something was begun
        # "asking" who holds what, "open" for a round, "finishing"; or "", between them
        self._phase, self._checking = "", False

    @property
    def round(self) -> int:
        """The round under way."""
        return self.delivery.server.round

    def ask(self, chosen: Sequence[int]) -> Frames:
        """{i: frame} that asks who holds what, where clients track that themselves; ``take`` reads the answers."""
        self._begin(chosen, "asking")
        self._reported.clear()
        return Frames(chosen, self._frames, self._frame)

    def _begin(self, chosen: Iterable[int], phase: str = "") -> None:
        """Be at the beginning of a phase for these clients."""
        self.chosen, self.asked = tuple(chosen), set(self.delivery.server.planned)
        # A round that is opened again, as nobody came, goes on with what it has.
        self.replies = {i: reply for i, reply in self.replies.items() if reply.round == self.round}
        self._invited = {i: r for i, r in self._invited.items() if i in self.asked}
        self.refused, self._frames, self._phase, self.diverged = {}, {}, phase, False
        self.welcomes.clear()

    def open(self, chosen: Sequence[int]) -> Frames:
        """{i: frame} of a new round for these clients; where clients track it, for those of them that were heard."""
        self._begin(chosen, "open")
        every = self._check_every if self._digest is not None else 0
        self._checking = every > 0 and self.round % every == 0
        heard = [i for i in chosen if not self.delivery.wants_reports or i in self._reported]
        return Frames(heard, self._frames, self._frame)

    def _frame(self, i: int) -> bytes:
        """The frame to client i; the same one where it is sent again."""
        if i in self._frames:
            self.session.count(i, len(self._frames[i]), upwards=False)
            return self._frames[i]
        if self._phase in ("asking", "finishing"):
            frame = self._ask(i)
        else:
            pulls, plan = self.delivery.pulls, self._plan(i)
            # Who is sent a model holds the right one then, whatever it has been told before.
            sure = i in self.sure and self.delivery.pulls == pulls
            frame = b"" if sure else self._welcome(i, self.round)
            if self._checking or not sure:
                frame += self._ask(i)
            frame += plan
        self._frames[i] = frame
        return frame

    def _plan(self, i: int) -> bytes:
        """What client i must read of the round, from the round that it is taken to hold."""
        self.asked.add(i)
        if i in self.delivery.server.planned:  # the round was opened before
            return b"".join(self.delivery.bring_up(i, self._holds(i), self.session))
        self._invited[i] = self._holds(i)
        return b"".join(self.delivery.invite(i, self._invited[i]))

    def _holds(self, i: int) -> int:
        """The round that client i is taken to hold: by its report, or by the record of answers."""
        return self._reported[i] if self.delivery.wants_reports else self.delivery.server.held[i]

    def take(self, i: int, frame: bytes, loss: float = float("nan")) -> bytes | None:
        """What to do with an answer of client i, which came over a connection that is known to be client i's.

        Args:
            i: The client's number.
            frame: What it answered.
            loss: The mean training loss of its local steps, where it is known.

        Returns:
            A frame to send to it, whose answer is to be waited for; empty if there is nothing to send and its answer
            is still to come (this one was late or unasked); None if the round needs nothing more of it. What is refused
            is answered with the reason, by a ``Farewell`` where it is no client of this run.
        """
        require_int("client", i, 0, self.delivery.server.M - 1)  # whose connection it is: the carrier's word
        before = self._counted(i)
        try:
            return self._read(i, frame, loss)
        except InputError as error:
            heard_why = i in self.refused
            logger.warning("round %d: an answer of client %d is refused: %s", self.round, i, error)
            self.refused[i] = str(error)
            stranger = isinstance(error, _StrangerError)
            if heard_why and not stranger:
                return None  # it is told once a round, or a liar could go on for ever
            refusal = self.session.sent(i, Refusal(str(error)), upwards=False)
            if not stranger:
                return refusal
            farewell = Farewell(refusal)
            farewell.reason = str(error)
            return farewell
        finally:
            if stray := len(frame) - (self._counted(i) - before):  # late, sent again, damaged or refused
                self.session.count(i, stray, upwards=True)

    def _counted(self, i: int) -> int:
        """The bytes of client i that both ledgers have counted."""
        return self.session.up[i].bytes + self.delivery.ledger.up[i].bytes

    def _read(self, i: int, frame: bytes, loss: float) -> bytes | None:
        """See ``take``."""
        hello: Hello | None = None
        for encoded in split_frame(frame):
            match message := self.delivery.decode(encoded, None):
                case Hello():
                    hello, whose = message, f"be {i}, whose connection it is"
                    try:
                        require(hello.client == i, "client of a hello", whose, hello.client)
                        require(hello.run == self._run, f"run of client {i}", f"be {self._run.hex()}", hello.run.hex())
                    except InputError as error:
                        raise _StrangerError(str(error)) from None
                    self.session.sent(i, hello, upwards=True)
                case Examples(client, n):
                    require(client == i, "client of a number of examples", f"be {i}, whose connection it is", client)
                    self.delivery.server.note_examples(i, n)
                    # It is a message of the run with the client's first reply, else of the session.
                    if i in self.delivery.told:
                        self.session.sent(i, message, upwards=True)
                case Refusal(text, diverged):
                    self.diverged = self.diverged or diverged
                    self.refused[i] = f"it says: {quoted(text)}"
                    logger.warning("round %d: client %d refuses: %s", self.round, i, quoted(text))
                    return None
                case Reply():
                    return self._accept(i, message, hello, loss)
                case other:
                    require(False, f"message of client {i}", "be a hello or a reply", type(other).__name__)
        if hello is not None:
            return self._greet(i, hello)
        return None if i in self.refused else b""  # it has heard why

    def _accept(self, i: int, reply: Reply, hello: Hello | None, loss: float) -> bytes | None:
        """Take a reply, before which the client said hello or not; what to send as ``take`` has it."""
        require(reply.client == i, "client of a reply", f"be {i}, whose connection it is", reply.client)
        if self._phase == "asking" or reply.round < self.round or i not in self.delivery.server.planned:
            return b""  # late
        if i in self.replies:
            return None
        if hello is not None and not self._agrees(hello):
            return self._greet(i, hello)
        require(hello is not None or not self._checking, f"reply of client {i}", "come after a hello, as asked", "none")
        self.delivery.server.check(reply)
        weights = self.delivery.server.weights
        if weights.wanted and i not in self.delivery.told:
            self.delivery.ledger.sent(i, Examples(i, weights.examples[i]), upwards=True)
        self.delivery.ledger.sent(i, reply, upwards=True)
        self.replies[i] = replace(reply, loss=loss)
        self.sure[i] = self.round
        return None

    def _agrees(self, hello: Hello) -> bool:
        """Whether a client's model is the server's, as far as that is known."""
        if hello.round != self.round or self._digest is None:
            return hello.round <= self.round
        if self._known is None or self._known[0] != self.round:
            self._known = self.round, self._digest()
        return hello.digest.hex() == self._known[1]

    def _greet(self, i: int, hello: Hello) -> bytes | None:
        """Where a client that says hello goes on, and what it needs for that; what to send as ``take`` has it."""
        right = self._agrees(hello)
        waited_for = i in self.delivery.server.planned and i not in self.replies
        if self._phase == "finishing" and right and hello.round == self.round:
            self.digests[i] = hello.digest.hex()
            return None
        if self._phase == "asking" and i not in self.chosen:
            return b""
        if self._phase == "asking" and right:
            self._reported[i] = hello.round
            if self.sure.get(i) != hello.round:  # it has begun anew, perhaps by a frame that came late
                self.sure.pop(i, None)
            return None
        self.welcomes[i] += 1
        often = f"number {MOST_WELCOMES} at most a round"
        require(self.welcomes[i] <= MOST_WELCOMES, f"new beginnings of client {i}", often, self.welcomes[i])
        if not right:
            self.healed += 1
            what = f"another model of round {hello.round}" if hello.round <= self.round else f"round {hello.round}"
            logger.warning("round %d: client %d holds %s; it begins anew", self.round, i, what)
        r = hello.round if right else 0
        self.sure.pop(i, None)  # if its answer to this round is in already, it is told one round too few
        server, welcome = self.delivery.server, self._welcome(i, r)
        if self._phase == "asking":
            return welcome + self._ask(i)
        comes_late = self._phase == "open" and i in self.chosen and i not in self.asked
        if server.seeding.needs_run_seed and (i in self.delivery.told or not comes_late):
            welcome += self.session.sent(i, RunSeed(server.run_seed), upwards=False)
        if comes_late:
            if self.delivery.wants_reports:
                self._reported[i] = r
            # What it lacks of what it is taken to hold; then its plan, the one that it would have had.
            lacks = self.delivery.catch_up(i, r, self._holds(i), self.session)
            self._frames[i] = welcome + self._ask(i) + b"".join(lacks) + self._plan(i)
            return self._frames[i]
        if not waited_for and self._phase != "finishing":
            return welcome
        return welcome + self._ask(i) + b"".join(self.delivery.bring_up(i, r, self.session))

    def _welcome(self, i: int, r: int) -> bytes:
        return self.session.sent(i, Welcome(r, self.steps[i]), upwards=False)

    def _ask(self, i: int) -> bytes:
        return self.session.sent(i, Ask(), upwards=False)

    def close(self) -> RoundRecord:
        """The record of the round, from the replies that were accepted; InputError if there are none."""
        if not self.replies and self.diverged:
            raise DivergedError("scalars of every client")
        record = self.delivery.close([self.delivery.ledger.encode(self.replies[i]) for i in sorted(self.replies)])
        for i in self.asked - self.replies.keys():  # they may have measured all the same
            self.sure.pop(i, None)
        self._phase = ""
        for i in self.replies:
            self.steps[i] += record.K
        return record

    def repeat(self, entry: LogEntry) -> None:
        """Be where the server was after a round that a log has, where those who were asked were sent a plan."""
        self._begin(entry.sampled)
        self._reported = dict(zip(entry.sampled, entry.held or (), strict=False))
        for i in entry.sampled:
            self._plan(i)
        self.delivery.repeat(entry)
        for i in entry.answered:
            self.steps[i] += entry.record.K

    @property
    def heard(self) -> int:
        """How many clients have said what they hold."""
        return len(self._reported)

    @property
    def held(self) -> tuple[int, ...] | None:
        """What those who are asked in the round said that they hold, where clients track it."""
        return tuple(self._invited[i] for i in sorted(self.asked)) if self.delivery.wants_reports else None

    def finish(self) -> Frames:
        """{i: frame} after which every client holds the model of the server's round, and says so: ``digests``."""
        self._begin((), "finishing")
        self.digests = {}
        return Frames(range(self.delivery.server.M), self._frames, self._frame)
