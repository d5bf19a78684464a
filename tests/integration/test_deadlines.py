"""Tests that no call outlasts its timeout by more than a second while the node is stopped.

Each call is made twice, because the first one may leave something that delays the second. A few
calls run at the same time, each in a thread with its own box, because a sequence takes minutes.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import numpy as np
import pytest

import smbox
from smbox.errors import RequestTimeoutError

BOX_S = 20.0
CALL_S = 0.5
AT_ONCE = 8
OUTLASTS_S = 1.0
WAIT_S = 60.0
X = np.ones((1 << 18, 2), np.float32)  # four stripes
TRANSPORTS = ("tcp", "shm")
pytestmark = pytest.mark.shares


def fresh():
    """Return a new name: a late request of an earlier try may still create the earlier one."""
    return f"fresh-{secrets.token_hex(4)}"


class Things:
    """A box and the objects that the calls need, created while the node answers."""

    def __init__(self, box):
        self.box = box
        self.region = box.create("r", init=X, exist_ok=True)
        self.other = box.create("s", init=X, exist_ok=True)
        self.counter = box.counter("c")
        self.optimizer = box.optimizer(self.region, "momentum", lr=0.1)
        self.lock, self.held = box.lock(fresh()), box.lock(name := fresh())
        self.holder = box.lock(name)
        self.holder.acquire()
        self.member = smbox.join(box, fresh(), expected=2)
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
"""Calls that need the node on the remote path."""

SINGLE = {
    "snapshot": lambda my, s: my.region.get(snapshot=True, timeout_s=s),
    "counter.add": lambda my, s: my.counter.add(timeout_s=s),
    "counter.compare_and_swap": lambda my, s: my.counter.compare_and_swap(0, 1, timeout_s=s),
    "counter.wait": lambda my, s: my.counter.wait(1 << 40, timeout_s=s),
}

SERVICES = {
    "create": lambda my, s: my.box.create(fresh(), 4, timeout_s=s),
    "create filled": lambda my, s: my.box.create(fresh(), init=X, timeout_s=s),
    "create or find": lambda my, s: my.box.create(
        my.region.name, init=X, exist_ok=True, timeout_s=s
    ),
    "attach": lambda my, s: my.box.attach(my.region.name, timeout_s=s),
    "attach at once": lambda my, s: my.box.attach(my.region.name, timeout_s=0.0),
    "barrier": lambda my, s: my.box.barrier(fresh(), 2, timeout_s=s),
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
"""Timeouts for which twice the timeout is more than the timeout and a second."""

CALLS = VERBS | SINGLE | SERVICES | LEASES
MAPPED = [*SERVICES, "lock.acquire of a held one", "member.meet"]


def groups(transport, names):
    """Return test parameters: a transport, and names of calls that run at the same time."""
    names = list(names)
    parts = [names[first : first + AT_ONCE] for first in range(0, len(names), AT_ONCE)]
    return [pytest.param(transport, part, id=f"{transport}, {part[0]}...") for part in parts]


def outlasts(call, my, timeout_s):
    """Call twice what cannot succeed; return a description of a fault, or None."""
    for _ in range(2):
        begun_s = time.monotonic()
        try:
            call(my, timeout_s)
        except RequestTimeoutError:
            if (took_s := time.monotonic() - begun_s) >= timeout_s + OUTLASTS_S:
                return f"it took {took_s:.2f} s of {timeout_s} s"
        except Exception as error:
            return repr(error)
        else:
            return "it was done"
    return ""


def check(node, calls, make):
    """Make all calls, each on the objects of its own ``make()``, while a node is stopped.

    One thread makes the objects and the call, because a box has a connection for each thread.
    """
    ready, stopped = threading.Barrier(len(calls) + 1), threading.Event()

    def run(name):
        try:
            with make() as my:
                ready.wait(WAIT_S)
                assert stopped.wait(WAIT_S)
                return outlasts(calls[name], my, LONGER_S.get(name, CALL_S))
        except Exception as error:
            ready.abort()
            return repr(error)

    with ThreadPoolExecutor(len(calls)) as pool:
        made = {name: pool.submit(run, name) for name in calls}
        with contextlib.suppress(threading.BrokenBarrierError):
            ready.wait(WAIT_S)
        with node.stopped():
            stopped.set()
            wait(made.values())
    assert {name: told for name, each in made.items() if (told := each.result())} == {}


@pytest.mark.parametrize(
    ("transport", "names"), [*groups("tcp", CALLS), *groups("shm", MAPPED)]
)
def test_no_call_outlasts_its_timeout(stoppable_nodes, transport, names):
    node = stoppable_nodes[transport]

    @contextlib.contextmanager
    def things():
        with smbox.connect(node.address, transport=transport, timeout_s=BOX_S) as box:
            yield Things(box)

    check(node, {name: CALLS[name] for name in names}, things)


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
    "put at an address": lambda my, s: my.box.put(my.part.address, X[:1], timeout_s=s),
}


@pytest.mark.parametrize(
    ("stopped", "names"), [*groups("tcp", STRIPED), *groups("shm", STRIPED)]
)
def test_no_call_on_several_nodes_outlasts_its_timeout(stoppable_nodes, stopped, names):
    addresses = ",".join(node.address for node in stoppable_nodes.values())

    @contextlib.contextmanager
    def things():
        with smbox.connect(addresses, transport="tcp", timeout_s=BOX_S) as box:
            region = box.create("r-striped", init=X, layout="striped", exist_ok=True)
            part = region.parts[TRANSPORTS.index(stopped)]
            yield SimpleNamespace(box=box, region=region, part=part)

    check(stoppable_nodes[stopped], {name: STRIPED[name] for name in names}, things)
