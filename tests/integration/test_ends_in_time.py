"""Tests that connect, close and interpreter exit finish in time while nodes are stopped."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import smbox
from smbox.errors import ConnectError

CALL_S = CLOSE_S = 0.5
THREADS = 24
EXIT_S = 2.0  # for the interpreter itself, on a busy machine
OUTLASTS_S = 1.0
WAIT_S = 60.0
X = np.ones((1 << 18, 2), np.float32)  # four stripes
pytestmark = pytest.mark.shares


@contextlib.contextmanager
def in_threads(count, verb):
    """Run ``work`` in threads that live as long as the block; each has a channel."""
    done, over = threading.Barrier(count + 1), threading.Event()

    def work():
        verb()
        done.wait(WAIT_S)
        over.wait(WAIT_S)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        done.wait(WAIT_S)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(WAIT_S)


def test_closing_does_not_wait_for_one_channel_after_the_other(stoppable_nodes):
    node = stoppable_nodes["tcp"]
    box = smbox.connect(node.address, transport="tcp")
    region = box.create("many", init=X)
    with in_threads(THREADS, region.get), node.stopped():
        begun_s = time.monotonic()
        box.close()
        assert time.monotonic() - begun_s < CLOSE_S + OUTLASTS_S


def test_closing_does_not_wait_for_one_node_after_the_other(stoppable_nodes):
    addresses = ",".join(node.address for node in stoppable_nodes.values())
    box = smbox.connect(addresses, transport="tcp")
    region = box.create("wide", init=X, layout="striped")
    with in_threads(2, region.get), contextlib.ExitStack() as stack:
        for node in stoppable_nodes.values():
            stack.enter_context(node.stopped())
        begun_s = time.monotonic()
        box.close()
        assert time.monotonic() - begun_s < CLOSE_S + OUTLASTS_S


EXIT = """
import sys, threading
import smbox
box = smbox.connect(sys.argv[1], transport="tcp", timeout_s=0.5)
region = box.create("exit", 4, exist_ok=True)
done, over = threading.Barrier(25), threading.Event()
def work():
    region.get()
    done.wait()
    over.wait()
threads = [threading.Thread(target=work) for _ in range(24)]
for thread in threads:
    thread.start()
done.wait()
print("ready", flush=True)
sys.stdin.readline()
over.set()
for thread in threads:
    thread.join()
print("ends", flush=True)
"""


def test_the_interpreter_ends_in_time(stoppable_nodes):
    node = stoppable_nodes["tcp"]
    command = [sys.executable, "-c", EXIT, node.address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as script:
        assert script.stdout.readline() == "ready\n"
        with node.stopped():
            script.stdin.write("\n")
            script.stdin.flush()
            assert script.stdout.readline() == "ends\n"
            begun_s = time.monotonic()
            assert script.wait(WAIT_S) == 0
            assert time.monotonic() - begun_s < CALL_S + OUTLASTS_S + EXIT_S


@pytest.mark.parametrize("timeout_s", [0.1, CALL_S, 1.5])
@pytest.mark.parametrize("count", [1, 2])
def test_connecting_ends_in_time(stoppable_nodes, timeout_s, count):
    """With 1.5 s there is time left after the client has examined the handshake."""
    addresses = ",".join(node.address for node in [*stoppable_nodes.values()][:count])
    with contextlib.ExitStack() as stack:
        for node in stoppable_nodes.values():
            stack.enter_context(node.stopped())
        begun_s = time.monotonic()
        with pytest.raises(ConnectError):
            smbox.connect(addresses, timeout_s=timeout_s)
        assert time.monotonic() - begun_s < timeout_s + OUTLASTS_S
