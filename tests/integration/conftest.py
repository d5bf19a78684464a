"""Fixtures: memory nodes that tests kill, stop and restart, and scripts that use them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import smbox
from smbox.errors import AccessDeniedError
from smbox.keys import Authorised, Role, add_client, make_node_key
from smbox.memory.layout import PREFIX
from smbox.memory.segment import listing, unlink
from smbox.testing.chaos.processes import NodeRole
from smbox.testing.chaos.proxy import Proxy

WAIT_S = 60.0
SOON_S = 10.0
MEMNODE = (sys.executable, "-m", "memnode", "--json", "--memory", "64MiB")
MEMNODE += ("--bind",)


class Place:
    """A memory node with a mapped path and a tcp path, and the boxes and scripts of a test."""

    def __init__(self, node, proxy, stack):
        self.node, self.proxy, self.name = node, proxy, node.node
        self._stack = stack

    def address(self, transport):
        return self.proxy.address if transport == "tcp" else self.node.address

    def box(self, transport="shm", **more):
        address = self.address(transport)
        more = {"timeout_s": WAIT_S} | more
        return self._stack.enter_context(smbox.connect(address, transport=transport, **more))

    def restart(self):
        """Kill the node and start it again."""
        self.node.kill()
        self.node.start_and_wait()

    def script(self, code, transport, *arguments, python=sys.executable, **environment):
        """Start Python code in a new process, with a ``box`` of its own."""
        command = [python, "-c", PREAMBLE + textwrap.dedent(code)]
        command += [self.address(transport), transport, *map(str, arguments)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(command, text=True, env=os.environ | environment, **pipes)
        self._stack.callback(end, process)
        return process


PREAMBLE = f"""
import os, random, signal, sys, threading, time
import numpy as np
import smbox
signal.signal(signal.SIGINT, signal.default_int_handler)
box = smbox.connect(sys.argv[1], transport=sys.argv[2], timeout_s={WAIT_S})
"""

READS_ON = """
region = box.attach("w")
print("ready", flush=True)
try:
    while True:
        region.get()
except smbox.RegionFreedError:
    print("freed", flush=True)
"""


@pytest.fixture(autouse=True, scope="module")
def all_start_quickly(quick_starts):
    """Memory nodes and scripts are forks."""


def end(process):
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def place_node(tmp_path_factory):
    """Yield a memory node for all tests of a file; they may kill it and start it again."""
    node = NodeRole(f"test-{secrets.token_hex(4)}", tmp_path_factory.mktemp("node"))
    with contextlib.ExitStack() as stack:
        stack.callback(remove, f"{PREFIX}{node.node}.")
        stack.callback(node.kill)
        node.start_and_wait()
        yield node
        assert node.stop() is None
        assert listing(f"{PREFIX}{node.node}.") == []


@pytest.fixture
def place(place_node, monkeypatch):
    """Yield a place at the node of the file; the test's regions are freed afterwards."""
    monkeypatch.setenv("SMBOX_RESEND_AFTER_S", "0.2")
    if place_node.process is None:  # after a test that failed
        place_node.start_and_wait()
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(place_node.path))
        yield Place(place_node, proxy, boxes := stack.enter_context(contextlib.ExitStack()))
        boxes.close()
        with smbox.connect(place_node.address, timeout_s=WAIT_S) as box:
            for region in box.regions():
                box.free(region)
        assert listing(f"{PREFIX}{place_node.node}.region.") == []


def remove(prefix):
    for name in listing(prefix):
        unlink(name)


@pytest.fixture
def reads_on():
    """Return code for ``Place.script`` that reads the region "w" until it is freed."""
    return READS_ON


@pytest.fixture
def reader():
    """Return the same as a complete script, whose arguments are an address and a transport."""
    return PREAMBLE + READS_ON


class Guarded:
    """A memory node that accepts only clients with keys."""

    def __init__(self, folder, stack):
        self.folder, self._stack = folder, stack
        self.name = f"keys-{secrets.token_hex(4)}"
        make_node_key(folder)
        self.address = "tcp://127.0.0.1:0"
        self._start()
        stack.callback(self.stop)

    def _start(self):
        self.process = subprocess.Popen(
            [*MEMNODE, self.address, "--name", self.name, "--keys", str(self.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.address = json.loads(self.process.stdout.readline())["address"]

    def restart(self):
        """Kill the node and start it again."""
        self.process.kill()
        self.process.communicate(timeout=60)
        self._start()

    def key(self, name, role=Role.ADMIN, prefix=""):
        return add_client(self.folder, Authorised(name, role, prefix))

    def box(self, key, **more):
        """Connect as soon as the node knows the key; it reads its folder once a second."""
        limit_s = time.monotonic() + SOON_S
        while True:
            try:
                box = smbox.connect(self.address, key=key, transport="tcp", **more)
            except AccessDeniedError:
                if time.monotonic() > limit_s:
                    raise
            else:
                return self._stack.enter_context(box)

    def denies(self, use, match):
        """Call ``use`` until the node denies it; return True if the error matches."""
        limit_s = time.monotonic() + SOON_S
        while time.monotonic() < limit_s:
            try:
                use()
            except AccessDeniedError as error:
                return match in str(error)
        return False

    def stop(self):
        self.process.terminate()
        self.errors = self.process.communicate(timeout=60)[1]
        for left in listing(f"{PREFIX}{self.name}."):
            unlink(left)


@pytest.fixture
def guarded(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Guarded(tmp_path / "keys", stack)


class StoppableNode:
    """A memory node in its own process, which a test can stop by SIGSTOP."""

    def __init__(self, node_id):
        self.name = f"deadlines-{secrets.token_hex(4)}"
        command = [sys.executable, "-m", "memnode", "--json", "--memory", "256MiB"]
        command += ["--bind", "tcp://127.0.0.1:0", "--node-id", str(node_id)]
        command += ["--name", self.name]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self._process.stdout.readline())["address"]

    @contextlib.contextmanager
    def stopped(self):
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def end(self):
        self._process.terminate()
        self._process.communicate(timeout=WAIT_S)


@pytest.fixture(scope="session")
def stoppable():
    """Return the class of nodes that can be stopped; its argument is the node id."""
    return StoppableNode


@pytest.fixture(scope="module")
def stoppable_nodes(stoppable):
    """Yield two nodes that can be stopped: one for tcp, one for mapped memory."""
    with contextlib.ExitStack() as stack:
        made = {}
        for node_id, transport in enumerate(("tcp", "shm")):
            made[transport] = stoppable(node_id)
            stack.callback(made[transport].end)
        yield made
