"""Bytes on the wire are counted to the byte; a small load ends with numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("grpc", reason="the extra stream is not installed")

from benchmarks.stream import NAMESPACE, load_rows, wire_rows

TCP_SEGMENT = 52  # the headers of IP and TCP, with timestamps
DATAGRAM = """
import socket
from benchmarks.stream import loopback_counts, loopback_up
loopback_up()
before = loopback_counts()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    own.bind(("127.0.0.1", 0))
    own.sendto(bytes(100), own.getsockname())
    own.recv(200)
print(*(b - a for a, b in zip(before, loopback_counts())))
"""


@pytest.fixture(autouse=True)
def _namespaces():
    try:
        subprocess.run([*NAMESPACE, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces are not to be had here")


def test_the_counter_counts_the_headers_of_ip_and_udp():
    done = subprocess.run([*NAMESPACE, sys.executable, "-c", DATAGRAM], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(100 + 8 + 20), "1"]


@pytest.mark.thorough
def test_a_client_round_of_twenty_scalars_each_way_takes_400_bytes_at_most_under_seals():
    sealed, secured = (row for row in wire_rows(rounds=20) if row.pause == 0.0)
    assert (sealed.scalars, sealed.messages) == (40, 238)
    # A client that is slow to answer acknowledges apart, by a segment without content.
    plain, under_tls = (row.bytes - TCP_SEGMENT * (row.segments - 2) for row in (sealed, secured))
    assert 200 + 2 * TCP_SEGMENT < plain <= 400
    assert under_tls - plain == pytest.approx(2 * 22 - 2 * 8, abs=2)  # a record's head and tag for each tag of ours


@pytest.mark.thorough
def test_the_server_is_measured_without_and_with_a_model():
    rows = list(load_rows([100], clients=5, rounds=4))
    assert [row.model for row in rows] == [False, True]
    assert all(row.rounds_per_second > 0 and row.half and row.end for row in rows)
