"""Boxes on mapped memory, and boxes over messages to a node in this process."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import secrets
import time
from dataclasses import replace

import numpy as np
import pytest

import smbox.client
import smbox.paths
import smbox.sync
import smbox.wire
from memnode.node import Node
from smbox import Box, dtypes, heartbeat
from smbox.config import ClientConfig
from smbox.memory.kernels import KernelCode, packed_scale
from smbox.memory.layout import STRIPE_NBYTES, RegionKind
from smbox.memory.locks import LockFile
from smbox.memory.node_memory import NodeMemory
from smbox.paths.control import new_token
from smbox.paths.opening import open_over
from smbox.paths.pair import PathPair
from smbox.paths.requests import Changes, CreateRequest, Operation, Reading
from smbox.testing import interrupts
from smbox.testing.inproc import InprocHub
from smbox.testing.inproc_box import handle, inproc_box
from smbox.testing.solo import solo_boxes

MEMORY_NBYTES = 256 << 20
TRACED = (
    *(os.path.dirname(part.__file__) for part in (smbox.client, smbox.paths, smbox.wire)),
    smbox.sync.__file__,
)
WAIT_S = 30.0
ADDRESS = "inproc://node"
CONFIG = ClientConfig(ADDRESS, timeout_s=WAIT_S, resend_after_s=0.05, resend_after_max_s=0.2)

_names = itertools.count()


class InprocNode:
    """A real node; ``is_down`` makes it drop messages, ``restart`` kills and starts it."""

    def __init__(self, node_id=0):
        self.node_id = node_id
        self.name = f"paths-{os.getpid()}-{next(_names)}-{secrets.token_hex(3)}"
        self.hub = InprocHub(self.handle)
        self.is_down = False
        self.seen = []
        self._start()

    def _start(self):
        self.memory = NodeMemory.open(self.name, MEMORY_NBYTES, self.node_id)
        self.node = Node(self.memory, now_s=time.monotonic())

    def handle(self, connection, frames):
        if self.is_down:
            return []
        if frames:
            self.seen.append(frames)
        return handle(self.node, connection, frames)

    def connect(self):
        return self.hub.connect()

    def restart(self, *, unlink=False):
        self.close(unlink=unlink)
        self._start()

    def close(self, *, unlink=True):
        self.node.close()
        self.memory.close(keep=not unlink)


def as_bytes(array):
    return array.reshape(-1).view(np.uint8)


def operation_of(info, x, kernel=KernelCode.SUM, scale=1, first=0, sink=None):
    source = as_bytes(x)
    limit = first + source.size
    packed = packed_scale(kernel, info.dtype, scale)
    return Operation(info, "test", kernel, packed, first, limit, source, sink=sink)


class Client:
    """Control and data path to one node, with the few verbs that the tests need."""

    operation = staticmethod(operation_of)

    def __init__(self, open_transport, config=CONFIG):
        remote = open_over(open_transport, config)
        self.control, self.data = remote.control, remote.data

    def create(self, count, dtype="float32", kind=RegionKind.ARRAY, **fields):
        name = fields.pop("name", f"r-{secrets.token_hex(4)}")
        spec = CreateRequest(name, dtypes.by_name(dtype), (count,), kind, **fields)
        return self.control.create(spec, WAIT_S, new_token())

    def change(self, info, x, kernel=KernelCode.SUM, scale=1, first=0, sink=None):
        operation = operation_of(info, x, kernel, scale, first, sink)
        return self.begun(self.data.start(operation))

    def read(self, info, out, first=0):
        return self.data.start(Reading(info, first, first + out.nbytes, out))

    def batch(self, operations):
        return self.data.start(Changes("batch", None, operations))

    def begun(self, work):
        try:
            work.begin()
        except BaseException:
            work.cancel()
            raise
        return work

    def finish(self, work):
        assert work.advance(time.monotonic() + WAIT_S)

    def get(self, info):
        out = np.empty(info.shape, info.dtype.numpy)
        self.finish(self.read(info, out))
        return out

    def close(self):
        self.data.close()
        self.control.close()


@pytest.fixture
def node():
    made = InprocNode()
    yield made
    made.close()


@pytest.fixture
def nodes():
    """Starts nodes in this process by id, and closes them."""
    made = []

    def start(*ids):
        made.extend(map(InprocNode, ids))
        return made[len(made) - len(ids) :]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def clients(node):
    """Opens clients, over a given transport or the default, and closes them."""
    opened = []

    def open_client(open_transport=None, **settings):
        opened.append(Client(open_transport or node.connect, replace(CONFIG, **settings)))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()


@pytest.fixture
def client(clients):
    return clients()


@pytest.fixture
def boxes(node):
    """Opens boxes over messages, over a given transport or the default."""
    opened = []

    def open_box(open_transport=None, config=CONFIG):
        opened.append(inproc_box(open_transport or node.connect, config))
        return opened[-1]

    yield open_box
    for box in opened:
        box.close()


@pytest.fixture
def interrupted():
    """Runs a function, interrupted at its nth line: (result, whether that was reached)."""

    def run(nth, function):
        results = [None]
        is_reached = interrupts.interrupted(nth, lambda: results.append(function()), TRACED)
        return results[-1], is_reached

    return run


@pytest.fixture
def join():
    """``join(box, ...)``: a member of the run "run", with a short lease."""
    return lambda box, **settings: smbox.join(box, "run", **({"lease_s": 0.6} | settings))


@pytest.fixture
def die():
    """``die(member)``: stop renewing its lease, as if it were killed or stopped."""
    return heartbeat.drop


@pytest.fixture
def solo():
    """Open boxes on a memory that this process owns: ``solo_box(solo)``."""
    with solo_boxes() as opener:
        yield opener


@pytest.fixture
def paths(solo):
    """The paths of the fixture ``box``."""
    return PathPair(ClientConfig(solo.control.address, timeout_s=WAIT_S), solo)


@pytest.fixture
def box(paths):
    with Box(paths) as box:
        yield box


@pytest.fixture
def region(box):
    """A region of float64 ones: two stripes and four elements."""
    return box.create("some", shape=(2 * STRIPE_NBYTES // 8 + 4,), dtype="float64", init=1.0)


@pytest.fixture
def held(solo):
    """Hold a stripe of a region, as a stopped writer would: ``with held(region, 1): ...``."""

    @contextlib.contextmanager
    def hold(region, stripe=0):
        mapped = solo.control.memory.regions[int(region.info.address)]
        locks = LockFile(solo.control.memory.name)
        assert mapped.try_lock(stripe, locks)
        try:
            yield
        finally:
            locks.close()

    return hold


@pytest.fixture
def no_more_files():
    """A context in which this process can open no file."""

    @contextlib.contextmanager
    def limited():
        before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))

    return limited
