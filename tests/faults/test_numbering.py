"""The channel against a model of the node that refuses, drops and is interrupted.

The model is the rules of docs/protocol.md, "Numbers", as short as they can be written. Whatever
goes wrong in between: each change happens exactly as its reply says, in program order.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings, strategies as st

from smbox.client.channel import Channel
from smbox.client.reads import Read
from smbox.client.transfer import Change, ChannelWork
from smbox.config import ClientConfig
from smbox.errors import RegionFreedError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.testing.welcome import welcome
from smbox.wire.codec import Reply, Request, decode_request, encode_reply
from smbox.wire.messages import Hello
from smbox.wire.ops import CHANGES, Op
from smbox.wire.refusal import refuse
from smbox.wire.status import Status

FREED = RegionFreedError("gone")
CONFIG = ClientConfig("inproc://model", resend_after_s=1e-6, resend_after_max_s=1e-6)
REGION = 1 << 30  # bytes between the addresses of two requests: the address names the work


@dataclass
class ModelNode:
    """Rules 1-7 of docs/protocol.md, for one channel; ``log`` is what really happened.

    Attributes:
        fates: what happens to the messages to come: "refuse first", "drop reply", ...
    """

    applied: int = 0
    generation: int = 0
    log: list[tuple[int, int]] = field(default_factory=list)  # (work, stripe); reads: -1
    known: bool = False
    fates: deque[str] = field(default_factory=deque)

    def connect(self) -> ModelTransport:
        return ModelTransport(self)

    def hello(self, asked: Request) -> Reply:
        assert asked.generation > self.generation
        self.generation = asked.generation
        body = welcome(applied=self.applied, resumed=self.known)
        self.known = True
        return Reply(Op.HELLO, request=asked.request, body=body)

    def answer(self, request: Request, fate: str) -> Reply:
        if request.op is Op.HELLO:
            return self.hello(request)
        if request.generation != self.generation:
            return refuse(request, FREED, status=Status.NO_SESSION)
        changes = request.op in CHANGES
        if request.number > self.applied + changes:
            return refuse(request, FREED, applied=self.applied, status=Status.GAP)
        work, first = divmod(request.address, REGION)
        if not changes:
            self.log.append((work, -1))
        for part in range(request.numbers):
            if request.number + part <= self.applied:
                continue
            if fate == f"refuse {part}":
                old = bytes(part * STRIPE_NBYTES) if request.op is Op.FETCH else b""
                return refuse(request, FREED, applied=self.applied, old=old)
            self.applied += 1
            self.log.append((work, first // STRIPE_NBYTES + part))
        payload = b"" if request.op is Op.PUT else bytes(request.nbytes)
        reply = Reply(request.op, request=request.request, number=request.number)
        reply.nbytes, reply.payload = request.nbytes, payload
        return reply


class ModelTransport:
    """A connection of the model; "lose request" and "lose reply" cut it."""

    def __init__(self, node: ModelNode) -> None:
        self.name = "inproc"
        self._node = node
        self._inbox: deque[list] = deque()
        self._is_cut = False

    def send(self, frames, *, lent=False) -> bool:
        fate = self._node.fates.popleft() if self._node.fates else "well"
        if fate == "full":
            return False
        if fate == "interrupt before":
            raise KeyboardInterrupt
        self._is_cut = self._is_cut or fate == "lose request"
        if not self._is_cut:
            reply = self._node.answer(decode_request(frames), fate)
            self._is_cut = fate == "lose reply"
            if fate not in {"lose reply", "drop reply"}:
                self._inbox.append(encode_reply(reply))
        if fate == "interrupt after":
            raise KeyboardInterrupt
        return True

    def receive(self, timeout_s):
        return self._inbox.popleft() if self._inbox else None

    def close(self) -> None:
        self._inbox.clear()

    def is_released(self, timeout_s) -> bool:
        return True

    def abandon(self) -> None:
        self.close()


class Peer:
    def hello(self, channel, generation):
        return Hello(client_id=bytes(16), channel=channel, generation=generation)

    def admit(self, found):
        pass


FATES = [
    *("well", "well", "well", "full", "refuse 0", "refuse 1", "lose request", "lose reply"),
    *("drop reply", "interrupt before", "interrupt after"),
]
ACTIONS = ["put", "put two", "put many", "fetch two", "get", "drive", "drive", "leave"]
STRIPES = {"put": 1, "put two": 2, "put many": 9, "fetch two": 2}


def make(action: str, channel: Channel, name: int, handed: list) -> ChannelWork:
    """Make a work whose address says which one it is."""
    if action == "get":
        return Read(channel, Info(name * REGION), 0, 1, Sunk())
    op = Op.FETCH if action == "fetch two" else Op.PUT
    span = 0, STRIPES[action] * STRIPE_NBYTES

    def keep(first, limit, old):
        assert len(old) == limit - first
        handed.append((name, first))

    template = Request(op, kernel=1)
    sink = keep if op is Op.FETCH else None
    return Change(channel, name * REGION, span, template, lambda a, b: bytes(b - a), sink)


@dataclass
class Info:
    address: int


class Sunk:
    """An array that nobody looks at."""

    size = 1

    def __setitem__(self, *_):
        pass


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(ACTIONS), min_size=5, max_size=40),
    st.lists(st.sampled_from(FATES), min_size=5, max_size=120),
)
def test_every_change_happens_exactly_as_it_is_told(actions, fates):
    node, names, handed = ModelNode(fates=deque(fates)), itertools.count(1), []
    channel = Channel(1, node.connect, Peer(), CONFIG)
    works: dict[int, ChannelWork] = {}
    for action in actions:
        with contextlib.suppress(KeyboardInterrupt, RegionFreedError):
            if action == "drive" and works:
                next(reversed(works.values())).advance(0.0)
            elif action == "leave" and works:
                next(reversed(works.values())).cancel()
            elif action in STRIPES or action == "get":
                name = next(names)
                works[name] = make(action, channel, name, handed)
                works[name].begin()
    node.fates.clear()
    for work in works.values():
        if not work.is_begun:  # an interrupt came first
            continue
        with contextlib.suppress(RegionFreedError):
            assert work.advance(float("inf"))
    check(works, node, handed)


def check(works: dict[int, ChannelWork], node: ModelNode, handed: list) -> None:
    changes = [entry for entry in node.log if entry[1] >= 0]
    assert changes == sorted(set(changes)), "once, and in program order"
    assert len(changes) == node.applied
    for name, work in works.items():
        mine = [stripe for each, stripe in changes if each == name]
        assert mine == list(range(len(mine)))
        if work.is_change:
            assert work.at == len(mine) * STRIPE_NBYTES
            told = {0: "none", work.limit // STRIPE_NBYTES: "all"}.get(len(mine), "partial")
            assert work.outcome() == told
        elif work.is_done and not work.is_over:
            later = node.log[node.log.index((name, -1)) :]
            assert all(each > name for each, stripe in later if stripe >= 0)
    assert len(handed) == len(set(handed))
