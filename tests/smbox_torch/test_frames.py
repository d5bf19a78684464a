from __future__ import annotations

import pytest

from smbox.errors import RemoteProtocolError
from smbox_torch.frames import BEGIN, FRAME_NBYTES_MAX, Frames, Kind, frame, told

STREAM = b"Welcome!\n" + BEGIN + told(Kind.EXIT, 7, -9) + frame(Kind.OUTPUT, 8, b"\x00" + BEGIN)


@pytest.mark.parametrize("step", [1, 2, 13, len(STREAM)])
def test_frames_arrive_whole_wherever_bytes_are_cut(step: int):
    taken: list[tuple[Kind, int, bytes]] = []
    greeting = bytearray()
    frames = Frames(lambda *each: taken.append(each), greeting.extend)
    for at in range(0, len(STREAM), step):
        frames.feed(STREAM[at : at + step])
    assert taken == [(Kind.EXIT, 7, b"-9"), (Kind.OUTPUT, 8, b"\x00" + BEGIN)]
    assert greeting == b"Welcome!\n"


@pytest.mark.parametrize(
    "wrong",
    [bytes(13), frame(Kind.EXIT, 1, b"")[:5] + (FRAME_NBYTES_MAX + 1).to_bytes(8, "little")],
)
def test_what_is_no_frame_is_refused(wrong: bytes):
    with pytest.raises(RemoteProtocolError):
        Frames(lambda *each: None).feed(wrong)


def test_the_end_is_told_once_and_half_a_frame_is_dropped():
    ended: list[int] = []
    frames = Frames(lambda *each: pytest.fail("no frame"), None, lambda: ended.append(1))
    frames.feed(frame(Kind.OUTPUT, 1, b"word")[:-1])
    frames.end()
    assert ended == [1]
