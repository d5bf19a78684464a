"""A client's channel against a model of the node that refuses, drops and is interrupted.

The model is the rules of docs/protocol.md, "Numbers", as short as they can be written. Whatever
goes wrong in between: each change happens exactly as reported to its caller, in program order.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings, strategies as st

import smbox.client
from smbox.errors import RegionFreedError
from smbox.testing.script_node import Scripted, ScriptNode, Wire
from smbox.testing.welcome import welcome
from smbox.wire.codec import Reply, Request, refuse
from smbox.wire.ops import CHANGES, Op, Status

FREED = RegionFreedError("gone")
CLIENT = str(Path(smbox.client.__file__).parent)
REGION_NBYTES = 1 << 30


@dataclass
class ModelNode:
    """Rules 1-7 of docs/protocol.md, for one channel; ``log`` is what really happened."""

    applied: int = 0
    generation: int = 0
    log: list[tuple[int, int]] = field(default_factory=list)  # (transfer, part); reads: -1
    outbox: deque[tuple[Wire, Reply]] = field(default_factory=deque)

    def hello(self, wire: Wire) -> None:
        """Welcome a connection that has said HELLO; what is held of earlier ones goes."""
        if wire.greeting is not None:
            wire.welcome(welcome(applied=self.applied, resumed=self.generation > 0))
            self.generation = wire.generation
            self.outbox.clear()

    def step(self, wires: list[Wire], refuses_at: int = -1) -> None:
        """Run the next request; refuse its commit ``refuses_at`` if it is a new one."""
        for wire in wires:
            if wire.generation != self.generation:
                wire.sent.clear()
            elif wire.sent:
                self.outbox.append((wire, self._reply(wire.sent.popleft(), refuses_at)))

    def _reply(self, request: Request, refuses_at: int) -> Reply:
        changes = request.op in CHANGES
        transfer = request.address // REGION_NBYTES
        if request.number > self.applied + changes:
            return refuse(request, FREED, applied=self.applied, status=Status.GAP)
        if not changes:
            self.log.append((transfer, -1))
        before = request.address % REGION_NBYTES - Scripted.FIRST
        for part in range(request.numbers if changes else 0):
            if request.number + part <= self.applied:
                continue
            if part == refuses_at:
                old = b"" if request.op is Op.PUT else bytes(part)
                return refuse(request, FREED, applied=self.applied, old=old)
            self.applied += 1
            self.log.append((transfer, before + part))
        payload = b"" if request.op is Op.PUT else bytes(request.nbytes)
        return Reply(
            request.op,
            request=request.request,
            number=request.number,
            nbytes=request.nbytes,
            payload=payload,
        )

    def reply(self, script: ScriptNode) -> None:
        """Let the client receive the next reply."""
        if self.outbox:
            wire, reply = self.outbox.popleft()
            wire.reply(reply)
            script.move()

    def lose(self, script: ScriptNode) -> None:
        """Let the client see that its connection is not known."""
        refusal = refuse(Request(Op.PING), FREED, status=Status.NO_SESSION)
        script.wire.reply(refusal)
        script.move()


class Player:
    """A client and a node, and what the client's program has begun."""

    def __init__(self) -> None:
        self.script, self.node = ScriptNode(), ModelNode()
        self.begun: list = []
        self.cut_off: list = []  # by an interrupt in their beginning: they may not go on
        self.act("hello")

    def act(self, action: str) -> None:
        """Do one thing; what strikes meanwhile is the caller's."""
        op, *words = action.split()
        script, node = self.script, self.node
        if op.isupper():
            transfer = script.transfer(len(self.begun) * REGION_NBYTES, Op[op], len(words) + 1)
            self.begun.append(transfer)
            try:
                transfer.begin()
            except KeyboardInterrupt:
                self.cut_off.append(transfer)
                raise
        elif op == "work":
            node.step(script.wires[-1:])
        elif op == "late":  # messages on lost connections are handled first
            node.step(script.wires)
        elif op == "refuse":
            node.step(script.wires[-1:], {"first": 0, "second": 1}[words[0]])
        elif op == "hello":
            node.hello(script.wire)
            script.move()
        elif op == "leave":
            waiting = [each for each in self.begun if not (each.is_done or each.is_cancelled)]
            for transfer in waiting[:1]:
                transfer.cancel()
        elif op == "interrupt":
            script.wire.strike = words[0]
        elif op == "full":
            script.wire.is_full = not script.wire.is_full
            script.move()
        elif op == "drop":
            node.outbox.popleft() if node.outbox else None
        else:
            {"reply": node.reply, "lose": node.lose}[op](script)

    def play(self, actions) -> bool:
        """Act, and go on behind an interrupt; tell whether one struck."""
        struck = False
        for action in actions:
            try:
                self.act(action)
            except KeyboardInterrupt:
                struck = True
        return struck

    def drain(self) -> None:
        """Let all come to its end."""
        script, node = self.script, self.node
        for turn in range(400):
            script.wire.is_full, script.wire.strike = False, ""
            script.move()
            if script.channel.is_idle:
                return
            node.hello(script.wire)
            for _ in range(20):
                node.step(script.wires)
                node.reply(script)
            if turn % 4 == 3:  # a reply was lost: the client's patience ends
                node.lose(script)
        raise AssertionError("never idle")

    def check(self) -> None:
        """Compare the effects with the outcomes that the callers saw."""
        log = self.node.log
        changes = [entry for entry in log if entry[1] >= 0]
        wanted = []
        for index, transfer in enumerate(self.begun):
            if isinstance(transfer, Scripted):
                wanted += [(index, part) for part in range(transfer.done)]
                check_told(transfer, ended=transfer not in self.cut_off)
            elif not (transfer.is_cancelled or transfer in self.cut_off):
                assert transfer.reply is not None
                at = max(at for at, entry in enumerate(log) if entry == (index, -1))
                assert all(later > index for later, part in log[at:] if part >= 0)
        assert changes == wanted
        assert self.node.applied == len(wanted)


def check_told(transfer: Scripted, *, ended: bool) -> None:
    """Check that a change ended, and that its old bytes came."""
    assert transfer.is_done or not ended
    if ended and transfer.error is None and not transfer.is_cancelled:
        assert transfer.outcome() == "all"
    if transfer.answers and not transfer.is_cancelled:
        assert sorted(transfer.old) == list(range(transfer.done))


ACTIONS = [
    *("PUT", "PUT two", "FETCH two", "GET", "pipeline"),
    *("work", "work", "work", "refuse first", "refuse second", "late"),
    *("reply", "reply", "reply", "drop", "lose", "hello", "hello", "hello"),
    *("full", "interrupt before", "interrupt after", "leave"),
]
PIPELINE = {"pipeline": ("PUT", "PUT two", "GET", "FETCH two", "refuse first")}


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), min_size=5, max_size=100))
def test_every_change_happens_exactly_as_its_caller_is_told(actions):
    player = Player()
    player.play(step for action in actions for step in PIPELINE.get(action, (action,)))
    player.drain()
    player.check()


STEPS = [
    *("PUT", "PUT two", "GET", "FETCH two", "work", "reply", "refuse second", "reply"),
    *("hello", "work", "reply", "PUT", "work", "work", "reply", "reply", "hello"),
    *("FETCH", "work", "lose", "hello", "work", "reply", "work", "reply"),
    *("PUT two", "work", "leave", "hello", "PUT", "work", "reply", "FETCH", "work", "reply"),
]


@functools.cache
def takes_a_lock(path: str, number: int) -> bool:
    """Return True for a with line: no signal is handled between it and its block."""
    return linecache.getline(path, number).lstrip().startswith("with ")


@contextlib.contextmanager
def interrupt_at(line: int) -> Iterator[None]:
    """Trace the client's code; raise KeyboardInterrupt at its ``line``-th line.

    Lines that take a lock are left out.
    """
    left = line

    def trace(frame, event, _):
        return strike if frame.f_code.co_filename.startswith(CLIENT) else None

    def strike(frame, event, _):
        nonlocal left
        if event == "line" and not takes_a_lock(frame.f_code.co_filename, frame.f_lineno):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt  # which ends the tracing
        return strike

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_an_interrupt_may_strike_at_any_line_of_the_client():
    line, struck = 0, True
    while struck:
        line += 3 if line > 300 else 1  # of the rest, every third
        player = Player()
        with interrupt_at(line):
            struck = player.play(STEPS)
        player.drain()
        player.check()
    assert line > 300
