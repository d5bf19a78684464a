"""Plays the transcripts of tests/scenarios: the rules of a channel as stories.

connect applied=N [forgotten]             the connection breaks; a fresh one is greeted
begin NAME OP [NUMBERS]                   the caller wants a request
sends NAME=NUMBER ...                     all that goes out now, in order
interrupts NAME OP NUMBERS [sent]         begin, and an interrupt in sending: before, or after
leaves NAME                               its caller gives up
node NAME STATUS [applied=N]              the node answers NAME's last copy
done NAME STATUS / open NAME / expired NAME / outcome NAME WORD / idle
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from smbox.client.channel import Channel
from smbox.client.message import Message
from smbox.client.transfer import ChannelWork
from smbox.config import ClientConfig
from smbox.errors import RemoteError, SessionExpiredError
from smbox.testing.welcome import welcome
from smbox.wire.codec import Reply, Request, decode_request, encode_reply
from smbox.wire.messages import Hello
from smbox.wire.ops import CHANGES, Op
from smbox.wire.refusal import refuse
from smbox.wire.status import Status

STORIES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
CONFIG = ClientConfig("inproc://story", resend_after_s=1e6, resend_after_max_s=1e6)


def applied_in(words: tuple[str, ...]) -> int:
    return next((int(word.split("=")[1]) for word in words if "=" in word), 0)


class Named(ChannelWork):
    """One request of so many numbers, which are its units."""

    def __init__(self, channel: Channel, op: Op, numbers: int) -> None:
        super().__init__(channel, 0, max(1, numbers))
        self.is_change = op in CHANGES
        self.op, self.numbers = op, numbers
        self.message: Message | None = None

    def next_message(self) -> Message:
        first = self.cut
        self.message = Message(
            self.op,
            nbytes=self.numbers,
            payload=bytes(self.numbers),
            numbers=self.numbers,
            transfer=self,
            first=first,
            limit=self.limit,
        )
        return self.message


class Wire:
    """The only connection there is: keeps what is sent, gives what the story says."""

    name = "inproc"

    def __init__(self) -> None:
        self.sent: list[Request] = []
        self.inbox: deque[list] = deque()
        self.strikes: str = ""

    def send(self, frames, *, lent=False) -> bool:
        strikes, self.strikes = self.strikes, ""
        if strikes != "before":
            self.sent.append(decode_request(frames))
        if strikes:
            raise KeyboardInterrupt
        return True

    def receive(self, timeout_s):
        return self.inbox.popleft() if self.inbox else None

    def close(self) -> None:
        self.inbox.clear()

    def is_released(self, timeout_s) -> bool:
        return True


class Story:
    """One channel, and the names of its works."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.channel = Channel(1, lambda: self.wire, self, CONFIG)
        self.works: dict[str, Named] = {}
        self.copies: dict[str, Request] = {}  # as last sent
        self.newest = 0  # generation

    def hello(self, channel: int, generation: int) -> Hello:
        assert generation > self.newest
        self.newest = generation
        return Hello(client_id=bytes(16), channel=channel, generation=generation)

    def admit(self, found) -> None:
        pass

    def look(self) -> None:
        """Let the channel do what it can."""
        never = Named(self.channel, Op.PING, 0)
        never.is_begun = True
        self.channel.drive(never, 0.0)
        self.failed = never.error

    def connect(self, *words: str) -> None:
        if self.newest:
            gone = encode_reply(Reply(Op.PING, Status.NO_SESSION, error=None))
            self.wire.inbox.append(gone)
        self.look()
        self.look()
        asked = next(each for each in reversed(self.wire.sent) if each.op is Op.HELLO)
        body = welcome(
            stripe_nbytes=1,
            request_nbytes_max=2,
            window=16,
            ring_entries=32,
            applied=applied_in(words),
            resumed="forgotten" not in words,
        )
        self.wire.sent.clear()
        reply = Reply(Op.HELLO, request=asked.request, body=body)
        self.wire.inbox.append(encode_reply(reply))
        self.look()

    def begin(self, name: str, op: str, numbers: str = "0") -> None:
        self.works[name] = Named(self.channel, Op[op], int(numbers))
        self.works[name].begin()

    def sends(self, *wanted: str) -> None:
        self.look()
        found = [self._copy(each) for each in self.wire.sent if each.op is not Op.HELLO]
        self.wire.sent.clear()
        assert found == list(wanted)

    def interrupts(self, name: str, op: str, numbers: str, *words: str) -> None:
        self.wire.strikes = "after" if "sent" in words else "before"
        with pytest.raises(KeyboardInterrupt):
            self.begin(name, op, numbers)

    def leaves(self, name: str) -> None:
        self.works[name].cancel()

    def node(self, name: str, status: str, *words: str) -> None:
        sent = self.copies[name]
        reply = Reply(sent.op, request=sent.request, number=sent.number, nbytes=sent.nbytes)
        reply.payload = bytes(sent.nbytes)
        if status != "OK":
            applied = applied_in(words)
            reply = refuse(sent, RemoteError("no"), applied=applied, status=Status[status])
        self.wire.inbox.append(encode_reply(reply))
        self.look()

    def done(self, name: str, status: str) -> None:
        work = self.works[name]
        assert work.is_done
        error = work.error
        assert (status == "OK") == (error is None)
        assert error is None or error.facts["status"] == status

    def expired(self, name: str) -> None:
        assert isinstance(self.works[name].error, SessionExpiredError)

    def open(self, name: str) -> None:
        assert not self.works[name].is_done

    def outcome(self, name: str, word: str) -> None:
        assert self.works[name].outcome() == word

    def idle(self) -> None:
        assert self.channel.is_idle

    def _copy(self, sent: Request) -> str:
        def is_its(work: Named) -> bool:
            return work.message is not None and work.message.request == sent.request

        name = next(name for name, work in self.works.items() if is_its(work))
        self.copies[name] = sent
        return f"{name}={sent.number}"


def test_there_are_stories():
    assert len(STORIES) >= 5


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
