"""The client's session against a model of the node that refuses, drops and is interrupted.

The model is the rules of docs/protocol.md, "Numbers", as short as they can be written. Whatever
goes wrong in between: each change happens exactly as its reply says, in program order.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings, strategies as st

import smbox.wire
from smbox.errors import RegionFreedError
from smbox.testing.welcome import welcome
from smbox.wire.call import Call
from smbox.wire.codec import (
    Reply,
    Request,
    decode_request,
    encode_reply,
    encode_request,
    reply_to,
)
from smbox.wire.messages import Hello
from smbox.wire.ops import CHANGES, Op
from smbox.wire.plain import expected_head, plain_payload
from smbox.wire.refusal import refuse
from smbox.wire.session import ClientSession
from smbox.wire.status import Status

FREED = RegionFreedError("gone")
WIRE = str(Path(smbox.wire.__file__).parent)


def change(session: ClientSession, op: Op, numbers: int) -> Call:
    return session.begin(Request(op, nbytes=numbers, payload=bytes(numbers)), numbers)


@dataclass
class ModelNode:
    """Rules 1-7 of docs/protocol.md, for one channel; ``log`` is what really happened."""

    applied: int = 0
    log: list[tuple[int, int]] = field(default_factory=list)  # (request, part); reads: -1
    inbox: deque[Request] = field(default_factory=deque)
    outbox: deque[list] = field(default_factory=deque)
    known: bool = False

    def hello(self, frames) -> None:
        asked = decode_request(frames)
        self.inbox.clear()
        self.outbox.clear()
        body = welcome(applied=self.applied, resumed=self.known)
        self.known = True
        self.outbox.append(encode_reply(Reply(Op.HELLO, request=asked.request, body=body)))

    def step(self, refuses_at: int) -> None:
        """Execute the next request; refuse its commit ``refuses_at`` if it is a new one."""
        if not self.inbox:
            return
        request = self.inbox.popleft()
        self.outbox.append(encode_reply(self._reply(request, refuses_at)))

    def _reply(self, request: Request, refuses_at: int) -> Reply:
        changes = request.op in CHANGES
        if request.number > self.applied + changes:
            return refuse(request, FREED, applied=self.applied, status=Status.GAP)
        if not changes:
            self.log.append((request.request, -1))
        for part in range(request.nbytes if changes else 0):
            if request.number + part <= self.applied:
                continue
            if part == refuses_at:
                return refuse(request, FREED, applied=self.applied)
            self.applied += 1
            self.log.append((request.request, part))
        payload = b"" if request.op is Op.PUT else bytes(request.nbytes)
        return Reply(
            request.op,
            request=request.request,
            number=request.number,
            nbytes=request.nbytes,
            payload=payload,
        )


ACTIONS = [
    *("put", "put two", "fetch two", "get", "pipeline"),
    *("send", "send", "send", "full", "lost in the hand", "sent unknown"),
    *("work", "work", "work", "refuse first", "refuse second"),
    *("reply", "reply", "reply", "drop reply", "reconnect"),
    *("lone", "lone late", "lone lined up", "lone refused", "lone full", "lone cut off"),
    "perhaps lone",
]
PIPELINE = {"pipeline": ("put", "put two", "get", "send", "send", "send", "refuse first")}
BEGINS = {
    "put": lambda session: change(session, Op.PUT, 1),
    "put two": lambda session: change(session, Op.PUT, 2),
    "fetch two": lambda session: change(session, Op.FETCH, 2),
    "get": lambda session: session.begin(Request(Op.GET, nbytes=1)),
}


def act(action: str, session: ClientSession, node: ModelNode) -> Call | None:
    if action in BEGINS:
        return BEGINS[action](session)
    if action.startswith("lone"):
        drain(session, node)
        return ask(action, session, node)
    if action == "perhaps lone":
        return ask(action, session, node)
    if action in {"work", "refuse first", "refuse second"}:
        node.step({"work": -1, "refuse first": 0, "refuse second": 1}[action])
    elif action == "reply" and node.outbox:
        session.receive(node.outbox.popleft())
    elif action == "drop reply" and node.outbox:
        node.outbox.popleft()
    elif action == "reconnect":
        node.hello(session.hello())
    elif action in {"send", "full", "lost in the hand", "sent unknown"}:
        hand_over(action, session, node)
    return None


def ask(action: str, session: ClientSession, node: ModelNode) -> Call | None:
    """Change something by a request that is alone, if it is; one cut off has no reply."""
    request = Request(Op.PUT, nbytes=1, payload=b"x")
    if not session.offer_lone(request, 1):
        return None
    call = Call(request, 1)
    if action == "lone full":
        session.unsent()
        return None
    node.inbox.append(decode_request(encode_request(request)))
    if action == "lone late":
        node.step(-1)
    if action in {"lone late", "lone lined up"}:
        session.line_up_lone(call)
        return call
    node.step(0 if action == "lone refused" else -1)
    if action == "lone cut off":
        return call
    frames = node.outbox.popleft()
    if plain_payload(request, expected_head(request), frames) is None:
        session.line_up_lone(call)
        session.receive(frames)
    else:
        session.settle_lone(request)
        call.reply = reply_to(request)
    return call


def hand_over(action: str, session: ClientSession, node: ModelNode) -> None:
    call = session.next_to_send()
    if call is None:
        return
    if action in {"send", "sent unknown"}:
        node.inbox.append(decode_request(call.frames()))
    if action == "send":
        session.sent()
    elif action == "full":
        session.unsent()


def drain(session: ClientSession, node: ModelNode) -> None:
    for _ in range(1000):
        if session.is_all_sent and not (session.is_unanswered or session.needs_hello):
            return
        if session.needs_hello or not (node.inbox or node.outbox or session.next_to_send()):
            node.hello(session.hello())
        else:
            session.unsent()
        for action in ("send", "work", "reply"):
            act(action, session, node)
    raise AssertionError("never idle")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), min_size=60, max_size=120))
def test_every_change_happens_exactly_as_its_reply_says(actions):
    session = ClientSession(Hello(client_id=bytes(16), channel=1))
    node = ModelNode()
    node.hello(session.hello())
    steps = [step for action in actions for step in PIPELINE.get(action, (action,))]
    calls = [call for step in steps if (call := act(step, session, node))]
    drain(session, node)
    wanted = [
        (call.request.request, part)
        for call in calls
        if call.is_change
        for part in range(call.done if call.reply else (call.request.request, 0) in node.log)
    ]
    assert [entry for entry in node.log if entry[1] >= 0] == wanted
    assert all(call.reply for call in calls if call.offers), "but who was cut off"
    assert session.acknowledged == node.applied == len(wanted)
    check_reads(calls, node.log)


def check_reads(calls: list[Call], log: list[tuple[int, int]]) -> None:
    """Every read was done, and behind every change that was begun before it."""
    assert all(call.is_change or (call.request.request, -1) in log for call in calls)
    assert all(call.reply.payload for call in calls if call.done == 2 and call.needs_answer)
    for at, entry in enumerate(log):
        if entry[1] == -1:
            assert all(request > entry[0] for request, part in log[at:] if part >= 0)


STEPS = [
    *("put", "send", "put two", "send", "get", "send", "fetch two", "send", "work", "reply"),
    *("refuse second", "reply", "work", "reply", "put", "send", "work", "work", "reply"),
    *("reconnect", "reply", "send", "send", "work", "reply"),
    *("lone", "lone", "lone refused", "lone lined up", "work", "reply", "lone late", "reply"),
    *("lone", "put", "send", "work", "reply", "reconnect", "reply"),
]


def interrupt_at(line: int) -> Iterator[int]:
    """Trace the session's code; raise KeyboardInterrupt at its ``line``-th line."""
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if not frame.f_code.co_filename.startswith(WIRE):
            return None
        seen += event == "line"
        if seen == line and event == "line":
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


def play(line: int) -> bool:
    """Play STEPS with one interrupt; return whether it struck."""
    session, node = ClientSession(Hello(client_id=bytes(16), channel=1)), ModelNode()
    node.hello(session.hello())
    calls, struck = [], False
    with contextlib.contextmanager(interrupt_at)(line):
        for step in STEPS:
            try:
                call = act(step, session, node)
            except KeyboardInterrupt:
                call, struck = None, True
            calls += [call] if call else []
    drain(session, node)
    changes = [entry for entry in node.log if entry[1] >= 0]
    assert len(set(changes)) == len(changes) == session.acknowledged
    for call in calls:
        parts = [part for request, part in changes if request == call.request.request]
        assert parts == list(range(call.done if call.is_change else 0))
    return struck


def test_interrupt_at_any_line_of_the_session():
    line = 1
    while play(line):
        line += 1
    assert line > 100
