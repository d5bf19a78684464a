from __future__ import annotations

import pytest

from smbox.errors import RemoteProtocolError
from smbox_torch.launching.frames import (
    BEGIN,
    FRAME_NBYTES_MAX,
    Frames,
    Kind,
    Ready,
    decode,
    encode,
    frame,
)

STREAM = (
    b"Welcome!\n" + BEGIN + encode(Kind.EXIT, 7, -9) + frame(Kind.OUTPUT, 8, b"\x00" + BEGIN)
)


class Greeting:
    """Takes what comes before the frames."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.is_ended = False

    def feed(self, chunk: bytes) -> None:
        self.heard += chunk

    def end(self) -> None:
        self.is_ended = True


@pytest.mark.parametrize("step", [1, 2, 13, len(STREAM)])
def test_frames_arrive_whole_wherever_bytes_are_cut(step: int):
    taken: list[tuple[Kind, int, bytes]] = []
    greeting = Greeting()
    frames = Frames(lambda *each: taken.append(each), greeting)
    for at in range(0, len(STREAM), step):
        frames.feed(STREAM[at : at + step])
    assert taken == [(Kind.EXIT, 7, b"-9"), (Kind.OUTPUT, 8, b"\x00" + BEGIN)]
    assert greeting.heard == b"Welcome!\n"
    assert greeting.is_ended
    assert frames.is_begun


@pytest.mark.parametrize(
    "wrong",
    [bytes(13), frame(Kind.EXIT, 1, b"")[:5] + (FRAME_NBYTES_MAX + 1).to_bytes(8, "little")],
)
def test_what_is_no_frame_is_refused(wrong: bytes):
    with pytest.raises(RemoteProtocolError):
        Frames(lambda *each: None).feed(wrong)


def test_half_a_frame_is_dropped_at_the_end():
    frames = Frames(lambda *each: pytest.fail("no frame"))
    frames.feed(frame(Kind.OUTPUT, 1, b"word")[:-1])
    frames.end()


@pytest.mark.parametrize("text", [b"no", BEGIN[:-1], b"Permission denied\nno end" + BEGIN[:5]])
def test_all_that_comes_instead_of_an_agent_is_given_on(text: bytes):
    greeting = Greeting()
    frames = Frames(lambda *each: pytest.fail("no frame"), greeting)
    for at in range(len(text)):
        frames.feed(text[at : at + 1])
    frames.end()
    assert greeting.heard == text
    assert greeting.is_ended
    assert not frames.is_begun


@pytest.mark.parametrize("wrong", [b"", b"x", b"\xff", b'"7"', b"{}", b"[" * 5000])
def test_a_value_of_another_form_is_refused(wrong: bytes):
    assert decode(b"7", int) == 7
    for form in (int, Ready):
        with pytest.raises(RemoteProtocolError):
            decode(wrong, form)
