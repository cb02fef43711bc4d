"""The lab's own stream, on loopback: the simulator's bits, and who does not belong harms nobody."""

import queue
import random
import threading
import time
import zlib
from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

import pytest

pytest.importorskip("grpc", reason="the extra stream is not installed")

import grpc
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from decomfl_lab import InputError
from decomfl_lab.carriers.stream import server as server_module
from decomfl_lab.carriers.stream.certificates import client_name, make_certificates, read_identity
from decomfl_lab.carriers.stream.client import StreamClient
from decomfl_lab.carriers.stream.connection import HALF_NONCE, METHOD, MOST_DEFLATED, Link, Seal
from decomfl_lab.carriers.stream.server import MOST_UNANSWERED, MOST_UNHEARD, StreamServer
from decomfl_lab.federations.remote import RemoteFederation
from decomfl_lab.protocol.delivery import Delivery
from decomfl_lab.protocol.messages import Reply
from decomfl_lab.protocol.server import Server
from decomfl_lab.protocol.session import Coordinator, Farewell, Frames
from decomfl_lab.protocol.wire import encode
from decomfl_lab.records.schedules import Schedule
from decomfl_lab.records.seeds import Seeding
from tests.decomfl_lab.federations.direct import CASE, LAB, RUN, host, simulated
from tests.decomfl_lab.protocol.test_session import TEXTS, is_one_short_line

pytestmark = pytest.mark.engine
OFFER = {"run": RUN.hex()}


def key(i):
    return bytes([i]) * 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("certificates")
    make_certificates(made, 4)
    return made


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def listening(stack):
    """A function that starts a server, which ends with the test."""

    def listen(bind="127.0.0.1:0", offer=OFFER, **proof):
        server = StreamServer(bind, offer, 4, largest=2000, **(proof or {"keys": key}))
        stack.callback(server.close)
        return server

    return listen


def federation_of(server, m=4, **options):
    delivery = LAB.delivery(CASE)
    delivery.server.m = m
    return RemoteFederation(delivery, LAB.replica(CASE), server, RUN, **options)


class Joined(threading.Thread):
    """A client in a thread; ``told`` is the error that it ended with, or None."""

    def __init__(self, address, i, own=None, answer=None, run=OFFER["run"], patience=5, **proof):
        super().__init__(daemon=True)
        self.own, self.told = own or host(CASE, i), None
        self.stream = StreamClient(address, i, patience=patience, **(proof or {"key": key(i)}))
        self.i, self.answer, self.run_name = i, answer or (lambda frame: self.own.handle({i: frame})[i]), run
        self.start()

    def run(self):
        try:
            self.stream.serve(self.run_name, lambda: self.own.hello(self.i), self.answer)
        except InputError as error:
            self.told = str(error)

    def ended(self):
        self.join(20)
        assert not self.is_alive()
        return self.told


def joined(server, *ids, **more):
    return [Joined(server.address, i, **more) for i in ids]


def finish(server, federation, clients, rounds=8):
    """Train to the end; the digests of all models."""
    while federation.round < rounds:
        federation.advance()
    digests = {federation.observer.digest(), *federation.rebuilt().values()}
    server.close(over=True)
    assert [client.ended() for client in clients] == [None] * len(clients)
    return digests | {client.own.replica.digest() for client in clients}


def whisper(server, i, words, hello=b"hello", **proof):
    """Connect as client i, say hello and these bytes as they are, and return what the server has against it."""
    stream = StreamClient(server.address, i, **(proof or {"key": key(i)}))
    with stream.connected(1 << 21) as (_, connection):
        connection.send(hello)
        frames = iter(connection)
        for word in words(connection.link, frames):
            connection.outbox.put(word)
        with pytest.raises(grpc.RpcError) as caught:
            list(frames)
    return f"{caught.value.code().name}: {caught.value.details()}"


def test_a_client_cannot_take_anothers_name_by_certificate_or_by_key(listening, folder):
    secured, keyed = listening(identity=read_identity(folder, "server")), listening()
    forger = Joined(secured.address, 2, identity=read_identity(folder, client_name(1)))
    assert "client must be the one that its certificate names, got 'client-2'" in forger.ended()
    assert "key must be the one that the server at" in Joined(keyed.address, 2, key=key(1)).ended()
    assert "client must be client-0..client-3, got 'client-7'" in Joined(keyed.address, 7).ended()


def test_who_has_no_certificate_of_the_federation_is_not_let_in(listening, folder, tmp_path):
    make_certificates(tmp_path, 4)
    server = listening(identity=read_identity(folder, "server"))
    foreign = Joined(server.address, 0, identity=read_identity(tmp_path, "client-0"), patience=0.3)
    whose = f"certificate of the server at {server.address} must be of the authority in ca.crt"
    assert whose in foreign.ended()
    borrowed = replace(read_identity(tmp_path, "client-0"), authority=read_identity(folder, "server").authority)
    told = Joined(server.address, 0, identity=borrowed, patience=0.3).ended()
    assert told == "certificate of client-0 must be of the authority in ca.crt, got one of another"
    impostor = listening(identity=read_identity(folder, "client-1"))  # a client that plays the server
    honest = Joined(impostor.address, 0, identity=read_identity(folder, "client-0"), patience=0.3)
    assert "must be a server's, got" in honest.ended()


def test_who_never_comes_is_waited_for_once_and_costs_no_byte(listening):
    server = listening()
    clients, federation = joined(server, 0, 1), federation_of(server, quorum=2, deadline=1.0)
    began = time.monotonic()
    for _ in range(11):
        federation.advance()
    assert 1.0 < time.monotonic() - began < 6.0
    assert len(finish(server, federation, clients, rounds=11)) == 1
    assert [there.bytes > 0 for there in federation.ledger.down] == [True, True, False, False]


def test_a_client_whose_second_connection_is_refused_is_away(listening):
    server = listening()
    said = {b"hello": b"", b"another's": Farewell(b"bye")}

    def hear(i, frame, _):
        return said[frame]

    with ExitStack() as opened:
        for hello, there in ((b"hello", {3}), (b"another's", set())):
            stream = StreamClient(server.address, 3, key=key(3))
            opened.enter_context(stream.connected(1 << 21))[1].send(hello)
            while server._arrived.empty():
                time.sleep(0.01)
            server.exchange(Frames((3,), {}, lambda i: b"plan"), hear, 0.3)
            assert server.connected.keys() == there


def test_a_server_that_has_no_certificate_for_its_address_is_refused_by_that(listening, folder):
    server = listening("127.0.0.2:0", identity=read_identity(folder, "server"))
    told = Joined(server.address, 0, identity=read_identity(folder, "client-0"), patience=0.3).ended()
    assert f"certificate of the server at {server.address} must have the name in the address, got" in told


@TEXTS
def test_what_a_server_says_where_it_cuts_a_client_is_shown_as_quoted_text(text, listening, monkeypatch, caplog):
    async def cuts(self, context, connection, cut):
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)

    monkeypatch.setattr(StreamServer, "_cut", cuts)
    told = Joined(listening().address, 7).ended()
    assert told.startswith("server at 127.0.0.1:")
    assert "must take client 7, got '" in told
    assert is_one_short_line(told)
    assert all(record.getMessage().isprintable() for record in caplog.records)


@TEXTS
def test_the_name_of_a_run_that_a_server_offers_is_shown_as_quoted_text(text, listening):
    assert is_one_short_line(Joined(listening(offer={"run": text}).address, 0).ended())


def test_a_client_of_another_run_says_so_and_a_hello_of_another_run_is_refused_by_name(listening):
    server = listening()
    assert "must be 2020, got '000102" in Joined(server.address, 0, run="2020").ended()
    federation = federation_of(server, m=4, quorum=3, deadline=20)
    stranger = Joined(server.address, 3, own=host(CASE, 3, run=bytes(16)))
    clients = joined(server, 0, 1, 2)
    federation.advance()
    assert "run of client 3 must be 000102" in federation.coordinator.refused[3]
    assert 'must take client 3, got "run of client 3 must be 000102' in stranger.ended()
    assert server.cut == 1
    federation.deadline = 0.2
    finish(server, federation, clients, rounds=1)


def test_a_frame_that_comes_twice_or_from_another_connection_cuts_its_connection_alone(listening):
    server, own, kept = listening(), host(CASE, 3), []
    clients, federation = joined(server, 0, 1, 2), federation_of(server, quorum=3, deadline=0.5)
    training = threading.Thread(target=lambda: [federation.advance() for _ in range(6)])
    training.start()

    def twice(link, frames):
        kept.append(link.pack(own.handle({3: next(frames)})[3]))
        yield kept[0]
        next(frames)
        yield kept[0]

    assert "PERMISSION_DENIED: tag of the frame" in whisper(server, 3, twice, own.hello(3))
    assert "PERMISSION_DENIED: tag of the frame" in whisper(server, 3, lambda *_: kept, own.hello(3))
    training.join()
    assert len(finish(server, federation, clients)) == 1


def test_an_oversized_frame_is_refused_by_name_and_harms_nobody(listening):
    server = listening()
    clients, federation = joined(server, 0, 1, 2), federation_of(server, quorum=3, deadline=0.2)
    federation.advance()
    assert "frame must have at most 2000 bytes" in whisper(server, 3, lambda link, _: [link.pack(b"x" * 2500)])
    assert "RESOURCE_EXHAUSTED" in whisper(server, 3, lambda *_: [bytes(100_000)])
    assert len(finish(server, federation, clients)) == 1


def test_who_answers_nothing_is_cut_and_the_others_go_on(listening):
    server = listening()
    federation = federation_of(server, quorum=3, deadline=0.1)
    clients, slow = joined(server, 0, 1, 2), threading.Event()
    Joined(server.address, 3, answer=lambda frame: slow.wait(20) and b"", patience=0.1)
    while 3 not in server.connected:
        federation.advance()
    for _ in range(MOST_UNANSWERED + 1):
        federation.advance()
    assert server.cut == 1
    slow.set()
    assert len(finish(server, federation, clients, rounds=federation.round + 1)) == 1


def test_who_connects_a_hundred_times_without_a_hello_keeps_nobody_out(listening):
    server, silent = listening(), queue.SimpleQueue()
    metadata = (("client", client_name(3)), ("nonce-bin", bytes(HALF_NONCE)))
    with grpc.insecure_channel(server.address) as channel:
        calls = [channel.stream_stream(METHOD)(iter(silent.get, None), metadata=metadata) for _ in range(100)]
        newest = next(calls[-1])
        clients, federation = joined(server, 0, 1, 2, 3, patience=1), federation_of(server)
        assert finish(server, federation, clients) == {simulated(m=4, rounds=8).observer.digest()}
        assert server.cut >= 100 - MOST_UNHEARD
        assert newest
        [silent.put(None) for _ in calls]


@pytest.mark.parametrize("offer", [b"[1]", b"{", b"", b"\xff", b"[" * 100_000])
def test_an_offer_that_is_none_is_refused_in_one_line(offer, listening):
    server = listening()
    server._offer = offer
    told = Joined(server.address, 0).ended()
    assert told.startswith("offer of the server must be a JSON object, got b'")
    assert len(told) < 300


@mock.patch.multiple(server_module, WRITE_SECONDS=0.2, WRITE_BYTES=1e9)
def test_who_does_not_read_is_cut_and_the_others_are_served(listening):
    server, large, got = listening(), random.Random(0).randbytes(1 << 20), []
    Joined(server.address, 0, answer=lambda frame: b"answer")

    def take(i, frame, _):
        got.append((i, frame))
        return large if i == 3 else None if frame == b"answer" else b"plan"

    def deaf(*_):
        server.exchange(Frames((0, 3), {}, lambda i: b""), take, 2)
        return []

    assert whisper(server, 3, deaf) == "RESOURCE_EXHAUSTED: client 3 must read what it is sent"
    assert (0, b"answer") in got


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:1", "example.org:1"])
def test_without_certificates_only_loopback_is_allowed(address):
    with pytest.raises(InputError, match=r"bind must be of loopback \(127.0.0.1\) without certificates"):
        StreamServer(address, OFFER, 4, largest=2000, keys=key)
    with pytest.raises(InputError, match=r"address must be of loopback \(127.0.0.1\) without certificates"):
        StreamClient(address, 0, key=key(0))


def test_a_client_round_of_twenty_scalars_each_way_is_238_bytes_and_213_of_them_travel():
    state, rng = (
        Server(1, 1, 1, Schedule(20), Schedule(1e-3), seed=0, seeding=Seeding.PER_RUN),
        np.random.default_rng(0),
    )
    coordinator, rounds = Coordinator(Delivery(state), RUN), []
    down, up = (Link(Seal(key(0), bytes(16), server=side), 2000) for side in (True, False))
    for r in range(60):
        asked = coordinator.open(state.sample())[0]
        reply = encode(Reply(0, r, rng.standard_normal((1, 20), dtype=np.float32)))
        coordinator.take(0, reply)
        coordinator.close()
        rounds.append((len(asked) + len(reply), len(down.pack(asked)) + len(up.pack(reply))))
    # The first plan has no record beside it, and what is deflated has no context yet.
    frames, travelled = np.array(rounds[10:]).T
    assert set(frames) == {238}
    assert travelled.mean() == pytest.approx(197 + 2 * 8, abs=1)  # deflated, and a tag each way


@given(st.lists(st.binary(max_size=200) | st.integers(0, 3 * MOST_DEFLATED), max_size=6))
def test_frames_of_any_size_arrive_as_they_were_sent(frames):
    here, there = Link(None, 1 << 20), Link(None, 1 << 20)
    for frame in map(bytes, frames):
        assert there.unpack(here.pack(frame)) == frame


def test_a_small_message_that_would_unpack_to_a_large_one_is_refused():
    bomb = Link(None, 1).pack(bytes(MOST_DEFLATED))
    assert len(bomb) < 1000
    with pytest.raises(InputError, match="frame must have at most 2000 bytes, got 'more'"):
        Link(None, 2000).unpack(bomb)
    ended, receiver = zlib.compressobj(1, zlib.DEFLATED, -9), Link(None, 2000)
    with pytest.raises(InputError, match="frame must be deflated without an end"):
        receiver.unpack(ended.compress(b"frame") + ended.flush())
    with pytest.raises(InputError, match="frame must be deflated as the other end does it"):
        Link(None, 2000).unpack(b"\xff" * 20)
