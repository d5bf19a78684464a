from __future__ import annotations

import secrets

import numpy as np
import pytest

from smbox.errors import OutOfMemoryError, SegmentError
from smbox.memory import segment
from smbox.memory.segment import Segment


@pytest.fixture
def name():
    name = f"smbox.{secrets.token_hex(4)}"
    yield name
    segment.unlink(name)


def test_two_mappings_are_one_memory(name):
    one = Segment.create(name, 8192)
    two = Segment.attach(name)
    one.words(4096, 2)[1] = 7
    assert two.words(4096, 2)[1] == 7
    assert not two.bytes[:4096].any()


def test_a_view_outlives_close(name):
    made = Segment.create(name, 4096)
    view = made.bytes
    made.close()
    view[0] = 5
    assert Segment.attach(name).bytes[0] == 5


def test_a_name_is_made_once(name):
    Segment.create(name, 4096)
    with pytest.raises(SegmentError, match="exists"):
        Segment.create(name, 4096)


def test_attach_needs_a_whole_segment(name):
    with pytest.raises(SegmentError, match="no segment"):
        Segment.attach(name)
    (segment.DIRECTORY / name).touch()
    with pytest.raises(SegmentError, match="empty"):
        Segment.attach(name)


def test_more_than_there_is_leaves_nothing(name):
    with pytest.raises(OutOfMemoryError, match="shm-size"):
        Segment.create(name, segment.room_nbytes() + (1 << 30))
    assert name not in segment.listing("smbox.")


def test_punched_pages_read_zero_and_names_move(name):
    with Segment.create(name, 8192) as made:
        made.bytes[:] = 1
        made.punch(4096)
        assert made.bytes[:4096].all()
        assert not np.any(made.bytes[4096:])
        made.rename(name + ".b")
        assert segment.listing(name) == [name + ".b"]
        made.unlink()
        made.unlink()
    assert segment.listing(name) == []
