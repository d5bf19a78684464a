"""Runs the transcripts of tests/scenarios against a client's channel and a scripted node.

connect applied=N [forgotten]      the node answers the HELLO of a new connection
begin NAME OP [NUMBERS]            the caller begins a request, of so many numbers
sends NAME=NUMBER ...              exactly these requests are sent now, in this order
interrupt before|after             Ctrl-C comes before, or right after, the next request is sent
node NAME STATUS [applied=N]       the node answers the last copy of NAME
leave NAME                         the caller abandons NAME
done NAME STATUS / open NAME / outcome NAME WORD / fails NAME ERROR / idle / needs-hello
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from smbox.client.transfer import Transfer
from smbox.errors import RemoteError
from smbox.testing.script_node import ScriptNode
from smbox.testing.welcome import welcome
from smbox.wire.codec import Reply, Request, refuse
from smbox.wire.ops import Op, Status

STORIES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
REGION_NBYTES = 1 << 30


def applied_in(words: tuple[str, ...]) -> int:
    return next((int(word.split("=")[1]) for word in words if "=" in word), 0)


class Story:
    """A channel, and the requests of a transcript by name."""

    def __init__(self) -> None:
        self.script = ScriptNode()
        self.names: list[str] = []
        self.works: dict[str, Transfer] = {}
        self.copies: dict[str, Request] = {}  # as last sent

    def connect(self, *words: str) -> None:
        self.script.move()
        resumed = "forgotten" not in words
        body = welcome(window=16, ring_entries=32, applied=applied_in(words), resumed=resumed)
        assert self.script.wire.greeting is not None, "no fresh connection"
        self.script.wire.welcome(body)
        self.script.move()

    def begin(self, name: str, op: str, numbers: str = "0") -> None:
        address = REGION_NBYTES * len(self.names)
        self.names.append(name)
        work = self.works[name] = self.script.transfer(address, Op[op], int(numbers))
        strikes = bool(self.script.wire.strike)
        try:
            work.begin()
        except KeyboardInterrupt:
            assert strikes
        else:
            assert not strikes, "nothing was sent"

    def interrupt(self, moment: str) -> None:
        self.script.wire.strike = moment

    def sends(self, *wanted: str) -> None:
        self.script.move()
        found, wire = [], self.script.wire
        while wire.sent:
            request = wire.sent.popleft()
            assert request.generation == wire.generation == len(self.script.wires)
            name = self.names[request.address // REGION_NBYTES]
            self.copies[name] = request
            found.append(f"{name}={request.number}")
        assert found == list(wanted)

    def node(self, name: str, status: str, *words: str) -> None:
        sent = self.copies[name]
        reply = Reply(sent.op, request=sent.request, number=sent.number, nbytes=sent.nbytes)
        reply.payload = b"" if sent.op is Op.PUT else bytes(sent.nbytes)
        if status != "OK":
            applied = applied_in(words)
            reply = refuse(sent, RemoteError("no"), applied=applied, status=Status[status])
        self.script.wire.reply(reply)
        self.script.move()

    def leave(self, name: str) -> None:
        self.works[name].cancel()

    def done(self, name: str, status: str) -> None:
        work = self.works[name]
        assert work.is_done
        found = "OK" if work.error is None else work.error.facts.get("status")
        assert found == status

    def fails(self, name: str, error: str) -> None:
        assert type(self.works[name].error).__name__ == error

    def outcome(self, name: str, word: str) -> None:
        assert self.works[name].outcome() == word

    def open(self, name: str) -> None:
        assert not self.works[name].is_done

    def idle(self) -> None:
        assert self.script.channel.is_idle
        self.sends()

    def needs_hello(self) -> None:
        self.script.move()
        assert self.script.wire.greeting is not None


def test_there_are_stories():
    assert len(STORIES) >= 6


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path):
    story = Story()
    for at, line in enumerate(path.read_text().splitlines(), 1):
        verb, *words = line.split() or ["#"]
        if verb.startswith("#"):
            continue
        step: Callable[..., None] = getattr(story, verb.replace("-", "_"))
        try:
            step(*words)
        except AssertionError as error:
            raise AssertionError(f"{path.name}:{at}: {line}: {error}") from error
