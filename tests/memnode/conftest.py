"""Nodes on real memory, without sockets or in a process, and a client frame by frame."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import zmq

from memnode.access import Access
from memnode.node import Node
from smbox import dtypes
from smbox.keys import Authorised, Role, add_client, make_node_key, read_client_key
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import Superblock, name_of
from smbox.memory.node_memory import NodeMemory
from smbox.memory.segment import Segment, listing
from smbox.wire.codec import Reply, Request, decode_reply, encode_request
from smbox.wire.header import pack_scale
from smbox.wire.messages import Create, Hello
from smbox.wire.operands import pack_items
from smbox.wire.ops import Op
from smbox.wire.proving import CLIENT, Challenge, challenge_of, proof_of

MEMORY_NBYTES = 256 << 20
FREE_PORT = "tcp://127.0.0.1:0"
WAIT_S = 60.0
_names = itertools.count()


def fresh_name() -> str:
    return f"test-{os.getpid()}-{next(_names)}-{secrets.token_hex(3)}"


def scale(value: float, dtype: str) -> bytes:
    return pack_scale(value, dtypes.by_name(dtype).kind[0])


class Peer:
    """Builds requests of one channel, and numbers its changes unless told the number.

    ``send`` takes a connection and frames, and ``receive`` gives the next reply's frames.
    """

    def __init__(self, send: Callable, receive: Callable, cookie: bytes, challenge: Challenge):
        self.send, self.receive = send, receive
        self.cookie, self.challenge = cookie, challenge
        self.client_id, self.channel, self.generation = secrets.token_bytes(16), 0, 0
        self.number = 1
        self._ids = itertools.count(1)

    def ask(self, op: Op, **fields) -> Reply:
        self.begin(op, **fields)
        return self.reply()

    def begin(self, op: Op, **fields) -> Request:
        fields = {"generation": self.generation} | fields
        if op is Op.BATCH:
            fields["payload"] = pack_items(fields["items"])
        request = Request(op, request=next(self._ids), **fields)
        self.send(encode_request(request))
        return request

    def reply(self) -> Reply:
        return decode_reply(self.receive())

    def hello(self, **fields) -> Reply:
        self.generation += 1
        known = {"client_id": self.client_id, "channel": self.channel, "pid": os.getpid()}
        known |= {"nonce": secrets.token_bytes(16)} | fields
        generation = known.pop("generation", self.generation)
        if "proof" not in known:
            known["proof"] = proof_of(CLIENT, self.cookie, self.challenge, Hello(**known))
        return self.ask(Op.HELLO, body=Hello(**known), generation=generation)

    def create(self, name: str, shape=(8,), dtype="float32", **fields) -> Reply:
        fields.setdefault("token", secrets.token_bytes(16))
        return self.ask(Op.CREATE, body=Create(name=name, shape=shape, dtype=dtype, **fields))

    def change(
        self, op, kernel, address, source, *, nbytes=None, number=None, numbers=1, **more
    ):
        """Send a change and return its reply; counts the number on unless it was given."""
        source = np.ascontiguousarray(source)
        reply = self.ask(
            op,
            kernel=int(kernel),
            address=address,
            nbytes=source.nbytes if nbytes is None else nbytes,
            number=self.number if number is None else number,
            numbers=numbers,
            payload=source.tobytes(),
            **more,
        )
        if number is None and reply.error is None:
            self.number += numbers
        return reply

    def put(self, address, source, **more) -> Reply:
        return self.change(Op.PUT, KernelCode.REPLACE, address, source, **more)

    def add(self, address, source, *, scale_by=1, op=Op.ACCUMULATE, **more) -> Reply:
        raw = scale(scale_by, np.asarray(source).dtype.name)
        return self.change(op, KernelCode.SUM, address, source, scale=raw, **more)

    def fetch_add(self, address, source, **more) -> Reply:
        return self.add(address, source, op=Op.FETCH, **more)

    def get(self, address, nbytes, dtype=np.float32, *, number=0) -> np.ndarray:
        reply = self.ask(Op.GET, address=address, nbytes=nbytes, number=number)
        assert reply.error is None, reply.error
        return np.frombuffer(reply.payload, dtype)


class Bench:
    """A node in this process, with a clock that moves only when told."""

    def __init__(self, name: str, **settings):
        self.name = name
        self.now_s = 0.0
        self.memory = NodeMemory.open(name, MEMORY_NBYTES)
        self.node = Node(self.memory, now_s=self.now_s, **settings)
        self.inbox: dict[tuple[int, bytes], list] = {}
        self._connections = itertools.count(1)

    def peer(self, *, bind: int = 0, hello: bool = True, user: str = "") -> Peer:
        connection = (bind, b"peer-%d" % next(self._connections))
        found = Peer(
            lambda frames: self.deliver(connection, frames, user),
            lambda: self.take(connection),
            self.memory.cookie,
            challenge_of(self.memory.cookie, self.name, self.memory.superblock.uuid),
        )
        assert not hello or found.hello().error is None
        return found

    def deliver(self, connection, frames, user="") -> None:
        self.sort(self.node.receive(connection, frames, now_s=self.now_s, user=user))

    def tick(self, *, after_s: float = 0.0) -> None:
        while after_s > 1.0:  # a node that runs ticks each second
            self.tick(after_s=1.0)
            after_s -= 1.0
        self.now_s += after_s
        self.sort(self.node.tick(now_s=self.now_s))

    def take(self, connection):
        """The next reply; lets the node work on what it does in slices."""
        for _ in range(1000):
            if self.inbox.get(connection):
                return self.inbox[connection].pop(0)
            self.tick()
        raise AssertionError("no reply")

    def waiting(self, peer: Peer) -> bool:
        """Whether the node owes this peer something that one more try does not give."""
        self.tick()
        return not any(self.inbox.values())

    def restart(self) -> None:
        """Let everything go but the memory, as a kill would, and open it again."""
        self.node.close()
        self.memory.close(keep=True)
        self.memory = NodeMemory.open(self.name, MEMORY_NBYTES)
        self.node = Node(self.memory, now_s=self.now_s)

    def close(self) -> None:
        self.node.close()
        self.memory.close(keep=False)

    def sort(self, outgoing) -> None:
        for connection, frames in outgoing:
            self.inbox.setdefault(connection, []).append([bytes(each) for each in frames])


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(fresh_name())
    yield made
    made.close()


@pytest.fixture
def guarded_bench(tmp_path) -> Iterator[tuple[Bench, Callable[[Role, str], Peer]]]:
    """A node that knows keys, and what makes peers that came with one."""
    make_node_key(tmp_path)
    access = Access(tmp_path)
    made = Bench(fresh_name(), access=access)

    def enter(role: Role, prefix: str = "") -> Peer:
        path = add_client(tmp_path, Authorised(secrets.token_hex(4), role, prefix))
        access.refresh()
        return made.peer(user=read_client_key(path).public)

    yield made, enter
    made.close()


@pytest.fixture
def make_peer() -> type[Peer]:
    return Peer


class Process:
    """A node in a process of its own."""

    def __init__(self, *arguments, bind=FREE_PORT):
        command = [sys.executable, "-m", "memnode", "--json", "--memory", "64MiB"]
        self.process = subprocess.Popen(
            [*command, "--bind", bind, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.ready = json.loads(line)
        self.address = self.ready["address"]

    def stop(self, number=signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.errors = self.process.communicate(timeout=WAIT_S)[1]
        return self.process.returncode


@pytest.fixture
def start():
    nodes = []

    def started(*arguments, **more):
        nodes.append(Process(*arguments, **more))
        return nodes[-1]

    yield started
    for node in nodes:
        if node.process.poll() is None:
            node.stop()
    for node in nodes:
        remove(node.ready["name"])


def remove(name):
    for segment in listing(f"smbox.{name}."):
        os.unlink(f"/dev/shm/{segment}")


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def connect(make_peer, context):
    sockets = []

    def connected(node, like=None):
        client = context.socket(zmq.DEALER)
        sockets.append(client)
        client.setsockopt(zmq.LINGER, 0)
        client.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
        client.connect(node.address)
        name = node.ready["name"]
        cookie = Segment.attach(name_of(name, "cookie")).bytes.tobytes()
        segment = Segment.attach(name_of(name, "node"))
        uuid = segment.words(0, Superblock.UUID_HIGH + 1)[Superblock.UUID_LOW :].tobytes()
        challenge = challenge_of(cookie, name, uuid)
        peer = make_peer(client.send_multipart, client.recv_multipart, cookie, challenge)
        if like is not None:
            peer.client_id, peer.number = like.client_id, like.number
        peer.socket = client
        reply = peer.hello()
        assert reply.error is None, reply.error
        peer.welcome = reply.body
        return peer

    yield connected
    for client in sockets:
        client.close()


@pytest.fixture
def peer(bench):
    return bench.peer()


@pytest.fixture
def address(peer):  # of eight float32 numbers
    return peer.create("w").body.address
