"""Seals: a frame is opened by the client, run, connection and moment that it was closed for, and by no other."""

import pytest

from decomfl_lab.carriers.stream.connection import Seal, client_key
from decomfl_lab.errors import InputError

KEY, RUN, NONCE = bytes(32), bytes(16), bytes(16)


def ends(i: int = 0, run: bytes = RUN, nonce: bytes = NONCE, key: bytes = KEY) -> tuple[Seal, Seal]:
    """The server's end and the client's."""
    own = client_key(key, run, i)
    return Seal(own, nonce, server=True), Seal(own, nonce, server=False)


def test_a_frame_that_comes_again_or_too_early_is_refused() -> None:
    server, client = ends()
    first, second = client.close(b"1"), client.close(b"2")
    with pytest.raises(InputError, match="tag"):
        server.open(second)
    assert server.open(first) == b"1"
    with pytest.raises(InputError, match="tag"):
        server.open(first)
    assert server.open(second) == b"2"


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("sender", [0, 1], ids=["server", "client"])
def test_a_frame_that_is_reflected_to_its_sender_is_refused(sender: int, before: int) -> None:
    both = ends()
    own, other = both[sender], both[1 - sender]
    for n in range(before):  # as many each way, so that the count alone does not tell the directions apart
        assert other.open(own.close(n * b"there")) == n * b"there"
        assert own.open(other.close(n * b"back")) == n * b"back"
    frame = own.close(b"plan")
    with pytest.raises(InputError, match="tag"):
        own.open(frame)
    assert other.open(frame) == b"plan"


def changed(whole: bytes) -> list[bytes]:
    """The same with one bit of a byte changed, for each byte."""
    return [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]


def test_every_byte_of_key_run_and_nonce_and_of_the_clients_number_tells_connections_apart() -> None:
    others = [ends(run=run) for run in changed(RUN)] + [ends(nonce=nonce) for nonce in changed(NONCE)]
    others += [ends(key=key) for key in changed(KEY)] + [ends(i=256**n) for n in range(4)]
    for server, client in others:
        for end, frame in ((server, ends()[1].close(b"reply")), (client, ends()[0].close(b"plan"))):
            with pytest.raises(InputError, match="tag"):
                end.open(frame)


def test_a_frame_is_refused_whichever_of_its_bytes_was_changed() -> None:
    sealed = ends()[0].close(b"plan of a round")
    client = ends()[1]
    for wrong in (*changed(sealed), sealed[:-1], sealed + b"\0"):
        with pytest.raises(InputError, match="tag"):
            client.open(wrong)
    assert client.open(sealed) == b"plan of a round"


def test_a_nonce_that_is_too_short_is_refused() -> None:
    with pytest.raises(InputError, match="nonce of the connection must have 16 bytes, got 15"):
        Seal(KEY, bytes(15), server=True)
