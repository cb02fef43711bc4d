"""Seals: a frame is opened by the client, run, connection and moment that it was closed for, and by no other."""

from __future__ import annotations

import pytest

from decomfl_lab.errors import InputError
from decomfl_lab.protocol.seals import Seal, client_key

KEY, RUN, NONCE = bytes(32), bytes(16), bytes(16)


def ends(i=0, run=RUN, nonce=NONCE, key=KEY):
    own = client_key(key, run, i)
    return Seal(own, nonce, server=True), Seal(own, nonce, server=False)


def test_frames_are_opened_in_order_both_ways():
    server, client = ends()
    for frame in (b"", b"plan", b"x" * 1000):
        assert client.open(server.close(frame)) == frame
        assert server.open(client.close(frame)) == frame


@pytest.mark.parametrize(
    "other",
    [ends(i=1), ends(run=b"r" * 16), ends(nonce=b"n" * 16), ends(key=b"k" * 32)],
    ids=["i", "run", "nonce", "key"],
)
def test_frames_of_another_client_run_connection_or_key_are_refused(other):
    with pytest.raises(InputError, match="tag of the frame must be that of this connection's next frame"):
        ends()[0].open(other[1].close(b"reply"))


def test_a_frame_that_comes_again_or_late_or_back_is_refused():
    server, client = ends()
    first, second = client.close(b"1"), client.close(b"2")
    with pytest.raises(InputError, match="tag"):
        server.open(second)
    assert server.open(first) == b"1"
    for wrong in (first, server.close(b"2"), second[:-1] + b"3", second[:7]):
        with pytest.raises(InputError, match="tag"):
            server.open(wrong)
    assert server.open(second) == b"2"
