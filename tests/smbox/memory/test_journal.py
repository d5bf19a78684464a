from __future__ import annotations

import os

import numpy as np
import pytest

from smbox.errors import SegmentError
from smbox.memory import journal, layout
from smbox.memory.journal import Writer
from smbox.memory.segment import Segment, listing


def test_a_slot_lives_as_long_as_its_writer(memory):
    writer = Writer.create(memory.name)
    assert memory.superblock.locks.is_alive(writer.slot_id)
    assert journal.pid_of(memory.name, writer.slot_id) == os.getpid()
    writer.close()
    assert not memory.superblock.locks.is_alive(writer.slot_id)
    assert journal.pid_of(memory.name, writer.slot_id) == 0
    assert layout.slot_name(memory.name, writer.slot_id) not in listing("smbox.")


def test_the_slot_of_a_dead_writer_stays(memory):
    writer = Writer.create(memory.name)
    writer.locks.close()
    assert layout.slot_name(memory.name, writer.slot_id) in listing("smbox.")
    assert memory.sweep_slots() == 1


@pytest.mark.parametrize("step", ["allocate", "rename"])
def test_a_slot_is_made_beside_a_node_that_starts(memory, monkeypatch, step):
    """A start removes incomplete segments, which may be those of a living client."""
    starts = iter([lambda made: made.unlink()])
    original = getattr(Segment, step)

    def beside_a_start(segment, *arguments):
        next(starts, lambda made: None)(segment)
        original(segment, *arguments)

    monkeypatch.setattr(Segment, step, beside_a_start)
    writer = Writer.create(memory.name)
    assert journal.is_alive(memory.name, writer.slot_id)
    assert not listing(f"smbox.{memory.name}.building.")
    writer.close()


def test_there_is_no_slot_without_memory():
    with pytest.raises(SegmentError):
        Writer.create("no-such-node")
    with pytest.raises(SegmentError):
        journal.attach_slot("no-such-node", 1)


def test_slots_are_listed_with_who_lives(memory):
    alive, dead = Writer.create(memory.name), Writer.create(memory.name)
    dead.locks.close()
    ids = journal.slot_ids(memory.name)
    assert {slot_id: journal.is_alive(memory.name, slot_id) for slot_id in ids} == {
        memory.writer.slot_id: True,
        alive.slot_id: True,
        dead.slot_id: False,
    }
    assert not journal.is_alive(memory.name, 5)
    assert not journal.is_alive("no-such-node", 5)
    alive.close()
    memory.sweep_slots()
    assert journal.slot_ids(memory.name) == [memory.writer.slot_id]


@pytest.mark.parametrize("changed", [1, 1 << 40])  # the format number, the layout's hash
def test_a_slot_of_another_format_is_refused_and_stays(memory, changed):
    name = layout.slot_name(memory.name, memory.writer.slot_id)
    segment = Segment.attach(name)
    words = segment.words(0, layout.Slot.WORDS)
    words[layout.Slot.FORMAT] ^= np.uint64(changed)
    with pytest.raises(SegmentError, match="of this format"):
        journal.attach_slot(memory.name, memory.writer.slot_id)
    assert name in listing("smbox.")
    words[layout.Slot.FORMAT] ^= np.uint64(changed)
