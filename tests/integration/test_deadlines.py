"""No call takes more than a second longer than its timeout, though the node is stopped.

Each call is made twice: the second one meets what the first one left behind.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import smbox
from smbox.errors import ConnectError, RequestTimeoutError

BOX_S = 20.0
CALL_S = 0.5
THREADS = 24
EXIT_S = 2.0  # of the interpreter itself, on a busy machine
OUTLASTS_S = 1.0
WAIT_S = 60.0
X = np.ones((1 << 18, 2), np.float32)  # four stripes
TRANSPORTS = ("tcp", "shm")
pytestmark = pytest.mark.shares


@pytest.fixture(scope="module")
def nodes(stoppable):
    with contextlib.ExitStack() as stack:
        made = {}
        for node_id, transport in enumerate(TRANSPORTS):
            made[transport] = stoppable(node_id)
            stack.callback(made[transport].end)
        yield made


class Things:
    """A box, and what its calls need, made while the node answers."""

    def __init__(self, box):
        self.box = box
        self.region = box.create("r", init=X)
        self.other = box.create("s", init=X)
        self.counter = box.counter("c")
        self.optimizer = box.optimizer(self.region, "momentum", lr=0.1)
        self.lock, self.held = box.lock("l"), box.lock("held")
        self.holder = box.lock("held")
        self.holder.acquire()
        self.member = smbox.join(box, "run", expected=2)
        self.region.get(snapshot=True)

    def batch(self, timeout_s):
        with self.box.batch(timeout_s=timeout_s) as batch:
            batch.put(self.region, X)

    def flush(self, timeout_s):
        self.region.put_nb(X)
        self.box.flush(timeout_s=timeout_s)


VERBS = {
    "put": lambda my, s: my.region.put(X, timeout_s=s),
    "put with signal": lambda my, s: my.region.put(X, signal=my.counter, timeout_s=s),
    "get": lambda my, s: my.region.get(timeout_s=s),
    "accumulate": lambda my, s: my.region.accumulate(X, timeout_s=s),
    "elastic": lambda my, s: my.region.elastic(X.copy(), 0.5, timeout_s=s),
    "fetch_and_op": lambda my, s: my.region.fetch_and_op(X, timeout_s=s),
    "accumulate_from": lambda my, s: my.region.accumulate_from(my.other, timeout_s=s),
    "scale": lambda my, s: my.region.scale(2.0, timeout_s=s),
    "dot": lambda my, s: my.region.dot(my.other, timeout_s=s),
    "wait": lambda my, s: my.region.wait(1 << 60, timeout_s=s),
    "wait for a handle": lambda my, s: my.region.put_nb(X).wait(timeout_s=s),
    "rows.put": lambda my, s: my.region.rows([0, 9]).put(X[:2], timeout_s=s),
    "rows.get": lambda my, s: my.region.rows([0, 9]).get(timeout_s=s),
    "rows.accumulate": lambda my, s: my.region.rows([0, 9]).accumulate(X[:2], timeout_s=s),
    "step": lambda my, s: my.optimizer.step(X, timeout_s=s),
    "batch": Things.batch,
    "flush": Things.flush,
}
"""Calls that need the node where messages carry the data."""

SINGLE = {
    "snapshot": lambda my, s: my.region.get(snapshot=True, timeout_s=s),
    "counter.add": lambda my, s: my.counter.add(timeout_s=s),
    "counter.compare_and_swap": lambda my, s: my.counter.compare_and_swap(0, 1, timeout_s=s),
    "counter.wait": lambda my, s: my.counter.wait(1 << 40, timeout_s=s),
}

SERVICES = {
    "create": lambda my, s: my.box.create("new", 4, timeout_s=s),
    "create filled": lambda my, s: my.box.create("filled", init=X, timeout_s=s),
    "create or find": lambda my, s: my.box.create(
        my.region.name, init=X, exist_ok=True, timeout_s=s
    ),
    "attach": lambda my, s: my.box.attach(my.region.name, timeout_s=s),
    "attach at once": lambda my, s: my.box.attach(my.region.name, timeout_s=0.0),
    "barrier": lambda my, s: my.box.barrier("barrier", 2, timeout_s=s),
    "put at an address": lambda my, s: my.box.put(my.region.address, X[:1], timeout_s=s),
    "get at an address": lambda my, s: my.box.get(my.region.address, 8, timeout_s=s),
}
"""Calls that need the node on every path."""

LEASES = {
    "lock.acquire": lambda my, s: my.lock.acquire(timeout_s=s),
    "lock.acquire of a held one": lambda my, s: my.held.acquire(timeout_s=s),
    "member.meet": lambda my, s: my.member.meet(timeout_s=s),
}

LONGER_S = {"snapshot": 1.5}
"""So long that twice the timeout is more than the timeout and a second."""

CALLS = VERBS | SINGLE | SERVICES | LEASES
CASES = [
    *(("tcp", name) for name in CALLS),
    *(("shm", name) for name in SERVICES),
    ("shm", "lock.acquire of a held one"),
    ("shm", "member.meet"),
]


def check(call, my, timeout_s):
    """Call twice a thing that cannot be done; neither takes a second more than it may."""
    for _ in range(2):
        begun_s = time.monotonic()
        with pytest.raises(RequestTimeoutError):
            call(my, timeout_s)
        assert time.monotonic() - begun_s < timeout_s + OUTLASTS_S


@pytest.fixture(scope="module")
def things(nodes):
    """What each transport's calls need; each has a node of its own."""
    with contextlib.ExitStack() as stack:
        yield {
            transport: Things(
                stack.enter_context(
                    smbox.connect(node.address, transport=transport, timeout_s=BOX_S)
                )
            )
            for transport, node in nodes.items()
        }


@pytest.mark.parametrize(("transport", "name"), CASES)
def test_no_call_outlasts_its_timeout(nodes, things, transport, name):
    with nodes[transport].stopped():
        check(CALLS[name], things[transport], LONGER_S.get(name, CALL_S))


@contextlib.contextmanager
def in_threads(count, verb):
    """Let threads do something, which live on as long as the block: each has a channel."""
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


def test_closing_does_not_wait_for_one_channel_after_the_other(nodes):
    node = nodes["tcp"]
    box = smbox.connect(node.address, transport="tcp", timeout_s=CALL_S)
    region = box.create("many", init=X)
    with in_threads(THREADS, region.get), node.stopped():
        begun_s = time.monotonic()
        box.close()
        assert time.monotonic() - begun_s < CALL_S + OUTLASTS_S


def test_closing_does_not_wait_for_one_node_after_the_other(nodes):
    addresses = ",".join(node.address for node in nodes.values())
    box = smbox.connect(addresses, transport="tcp", timeout_s=CALL_S)
    region = box.create("wide", init=X, layout="striped")
    with in_threads(2, region.get), contextlib.ExitStack() as stack:
        for node in nodes.values():
            stack.enter_context(node.stopped())
        begun_s = time.monotonic()
        box.close()
        assert time.monotonic() - begun_s < CALL_S + OUTLASTS_S


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


def test_the_interpreter_ends_in_time(nodes):
    node = nodes["tcp"]
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
def test_connecting_ends_in_time(nodes, timeout_s, count):
    """With 1.5 s there is time left after the look at who refuses whom."""
    addresses = ",".join(node.address for node in [*nodes.values()][:count])
    with contextlib.ExitStack() as stack:
        for node in nodes.values():
            stack.enter_context(node.stopped())
        begun_s = time.monotonic()
        with pytest.raises(ConnectError):
            smbox.connect(addresses, timeout_s=timeout_s)
        assert time.monotonic() - begun_s < timeout_s + OUTLASTS_S


def fresh():
    """A name of its own for each try: what was asked for late may be there all the same."""
    return f"fresh-{secrets.token_hex(4)}"


STRIPED = {
    "create": lambda my, s: my.box.create(fresh(), 40, layout="striped", timeout_s=s),
    "create filled": lambda my, s: my.box.create(
        fresh(), init=X, layout="striped", timeout_s=s
    ),
    "create or find": lambda my, s: my.box.create(
        "r-striped", init=X, layout="striped", exist_ok=True, timeout_s=s
    ),
    "attach": lambda my, s: my.box.attach("r-striped", timeout_s=s),
    "put": VERBS["put"],
    "get": VERBS["get"],
    "wait": VERBS["wait"],
    "batch": Things.batch,
    "flush": Things.flush,
    "put at an address": SERVICES["put at an address"],
}


@pytest.fixture(scope="module")
def striped(nodes):
    """A box over both nodes, and a region on both."""
    addresses = ",".join(node.address for node in nodes.values())
    with smbox.connect(addresses, transport="tcp", timeout_s=BOX_S) as box:
        yield SimpleNamespace(box=box, region=box.create("r-striped", init=X, layout="striped"))


@pytest.mark.parametrize("name", STRIPED)
@pytest.mark.parametrize("stopped", TRANSPORTS)
def test_no_call_on_several_nodes_outlasts_its_timeout(nodes, striped, name, stopped):
    if name == "put at an address":
        part = striped.region.parts[TRANSPORTS.index(stopped)]
        my = SimpleNamespace(box=striped.box, region=part)
    else:
        my = striped
    with nodes[stopped].stopped():
        check(STRIPED[name], my, CALL_S)
