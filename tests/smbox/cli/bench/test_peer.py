"""The other end of the limits."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading

import pytest

from smbox.cli.bench import peer


def test_a_stream_arrives_whole():
    here, there = socket.socketpair()
    with here, there:
        sender = threading.Thread(
            target=peer.send_stream,
            args=(there, memoryview(bytearray(b"x" * 4096)), 10_000, 4096),
        )
        sender.start()
        got = here.recv(10_000, socket.MSG_WAITALL)
        sender.join()
    assert got == b"x" * 10_000


def test_a_stream_is_taken_whole():
    here, there = socket.socketpair()
    with here, there:
        sender = threading.Thread(target=here.sendall, args=(b"y" * 10_000 + b"z",))
        sender.start()
        peer.take_stream(there, memoryview(bytearray(4096)), 10_000, 4096)
        assert there.recv(2) == b"z"
        sender.join()


def test_a_stream_that_ends_early_is_an_error():
    here, there = socket.socketpair()
    with there:
        here.close()
        with pytest.raises(ConnectionError):
            peer.take_stream(there, memoryview(bytearray(16)), 16, 16)


def test_the_process_tells_its_ports_and_ends_with_its_input():
    program = subprocess.Popen(
        [sys.executable, "-m", "smbox.cli.bench.peer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    told, _ = program.communicate("", timeout=60)
    assert {"tcp_port", "zmq_port", "pid"} == set(json.loads(told))
    assert program.returncode == 0
