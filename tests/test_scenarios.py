"""Plays the transcripts of tests/scenarios: the session's rules as stories.

connect applied=N [forgotten] [expires]   a fresh connection is greeted
begin NAME OP [NUMBERS]                   the caller wants a request
sends NAME=NUMBER ...                     all that goes out now, in order
gives-out NAME                            one goes out, and an interrupt strikes
node NAME STATUS [applied=N]              the node answers NAME's last copy
done NAME STATUS / open NAME / acknowledged N / idle / needs-hello
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from smbox.errors import RemoteError, SessionExpiredError
from smbox.testing.welcome import welcome
from smbox.wire.call import Call
from smbox.wire.codec import Reply, Request, decode_request, encode_reply
from smbox.wire.messages import Hello
from smbox.wire.ops import Op
from smbox.wire.refusal import refuse
from smbox.wire.session import ClientSession
from smbox.wire.status import Status

STORIES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def applied_in(words: tuple[str, ...]) -> int:
    return next((int(word.split("=")[1]) for word in words if "=" in word), 0)


class Story:
    """One session, and the names of its requests."""

    def __init__(self) -> None:
        self.session = ClientSession(Hello(client_id=bytes(16), channel=1))
        self.calls: dict[str, Call] = {}
        self.copies: dict[str, Request] = {}  # as last sent

    def connect(self, *words: str) -> None:
        asked = decode_request(self.session.hello())
        body = welcome(
            stripe_nbytes=1,
            request_nbytes_max=2,
            window=16,
            ring_entries=32,
            applied=applied_in(words),
            resumed="forgotten" not in words,
        )
        frames = encode_reply(Reply(Op.HELLO, request=asked.request, body=body))
        if "expires" not in words:
            self.session.receive(frames)
            return
        with pytest.raises(SessionExpiredError):
            self.session.receive(frames)

    def begin(self, name: str, op: str, numbers: str = "0") -> None:
        count = int(numbers)
        request = Request(Op[op], nbytes=count, payload=bytes(count))
        self.calls[name] = self.session.begin(request, count)

    def sends(self, *wanted: str) -> None:
        found = []
        while (call := self.session.next_to_send()) is not None:
            found.append(self._copy(call))
            self.session.sent()
        assert found == list(wanted)

    def gives_out(self, name: str) -> None:
        call = self.session.next_to_send()
        assert call is self.calls[name]

    def node(self, name: str, status: str, *words: str) -> None:
        sent = self.copies[name]
        reply = Reply(sent.op, request=sent.request, number=sent.number, nbytes=sent.nbytes)
        reply.payload = bytes(sent.nbytes)
        if status != "OK":
            applied = applied_in(words)
            reply = refuse(sent, RemoteError("no"), applied=applied, status=Status[status])
        self.session.receive(encode_reply(reply))

    def done(self, name: str, status: str) -> None:
        reply = self.calls[name].reply
        assert reply is not None
        assert reply.status is Status[status]

    def open(self, name: str) -> None:
        assert self.calls[name].reply is None

    def acknowledged(self, number: str) -> None:
        assert self.session.acknowledged == int(number)

    def idle(self) -> None:
        assert self.session.is_all_sent
        assert not self.session.is_unanswered

    def needs_hello(self) -> None:
        assert self.session.needs_hello

    def _copy(self, call: Call) -> str:
        name = next(name for name, each in self.calls.items() if each is call)
        self.copies[name] = decode_request(call.frames())
        return f"{name}={self.copies[name].number}"


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
