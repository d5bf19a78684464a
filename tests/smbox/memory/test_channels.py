from __future__ import annotations

import os

import numpy as np
import pytest

from smbox.errors import LimitError
from smbox.memory.channels import Answers, ChannelTable, rings_of
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import (
    CHANNEL_ROWS,
    STRIPE_NBYTES,
    Channel,
    Ring,
    name_of,
    ring_name,
)
from smbox.memory.orders import Output
from smbox.memory.segment import listing
from smbox.testing.regions import commit

CLIENT = bytes(range(16))


@pytest.fixture
def row(memory):
    return memory.channels.claim(CLIENT, 0)


@pytest.fixture
def region(make):
    return make(np.zeros(3 * STRIPE_NBYTES, np.uint8))


def answered(memory, region, answers, number: int, nbytes: int) -> None:
    """Add 1; the old contents are the answer of a number."""
    block, one = answers.block_for(nbytes), np.ones(nbytes, np.uint8)
    how = {"output": Output.OLD, "channel": block, "number": number}
    commit(memory.writer, (region,), KernelCode.SUM, 0, nbytes, one, **how)


def test_rows_survive_their_table(memory, row):
    row.applied = 41
    row.generation = 7
    memory.channels.claim(CLIENT, 1)
    again = ChannelTable(memory.name)
    found = again.find(CLIENT, 0)
    assert (found.applied, found.generation, found.serial) == (41, 7, row.serial)
    assert again.find(CLIENT, 1).applied == 0
    assert again.find(CLIENT[::-1], 0) is None
    assert len(again.rows()) == 2


def test_a_row_that_is_used_again_has_another_serial_and_nothing_applied(memory, row):
    serial, index, row.applied = row.serial, row.index, 9
    row.generation = 7
    memory.channels.release(row)
    assert memory.channels.find(CLIENT, 0) is None
    again = memory.channels.claim(CLIENT, 0)
    assert (again.index, again.applied, again.generation) == (index, 0, 0)
    assert again.serial > serial


def test_a_full_table_says_so(memory):
    memory.channels._rows[:, Channel.USED] = 1
    with pytest.raises(LimitError, match=str(CHANNEL_ROWS)):
        memory.channels.claim(CLIENT, 0)


def test_a_number_of_another_serial_is_not_taken(memory, row):
    memory.channels.apply_committed(row.index, row.serial + 1, 5)
    assert row.applied == 0
    memory.channels.apply_committed(row.index, row.serial, 5)
    memory.channels.apply_committed(row.index, row.serial, 3)
    assert row.applied == 5


def test_a_ring_answers_what_it_still_has_after_a_restart_too(memory, region, row):
    answers = Answers(row)
    for number in (5, 6):
        answered(memory, region, answers, number, 3)
    for found in (answers, Answers(row)):
        assert found.find(5).tolist() == [0, 0, 0]
        assert found.find(6).tolist() == [1, 1, 1]
        assert found.find(7) is None
        assert found.find(5 + Ring.ENTRIES) is None


def test_a_ring_is_as_large_as_its_answers_need(memory, region, row):
    answers = Answers(row)
    small = memory.used_nbytes()
    answered(memory, region, answers, 1, 8)
    assert memory.used_nbytes() - small < 16 * 1024


def test_a_larger_ring_has_the_answers_of_the_former_one(memory, region, row):
    answers = Answers(row)
    answered(memory, region, answers, 1, 8)
    sent = answers.find(1)
    answered(memory, region, answers, 2, STRIPE_NBYTES)
    assert len(rings_of(memory.name, row.serial)) == 1
    assert sent.tolist() == [0] * 8
    for found in (answers, Answers(row)):
        assert found.find(1).tolist() == [0] * 8
        assert found.find(2).tolist() == [1] * 8 + [0] * (STRIPE_NBYTES - 8)
        assert found.find(1, 2) is None  # they do not lie side by side
    answered(memory, region, answers, 1 + Ring.ENTRIES, 8)
    assert answers.find(1) is None


def test_a_smaller_ring_that_a_kill_left_goes(memory, region, row):
    answers = Answers(row)
    answered(memory, region, answers, 1, 8)
    (small,) = rings_of(memory.name, row.serial)
    left = f"/dev/shm/{ring_name(memory.name, small)}"
    with open(left, "rb") as file:
        contents = file.read()
    answered(memory, region, answers, 2, STRIPE_NBYTES)
    with open(left, "xb") as file:
        file.write(contents)
    os.chmod(left, 0o600)
    found = Answers(row)
    assert found.ring == answers.ring
    assert rings_of(memory.name, row.serial) == [answers.ring]
    assert found.find(1).tolist() == [0] * 8


def test_answers_of_whole_stripes_lie_side_by_side(memory, region, row):
    answers = Answers(row)
    for number, nbytes in ((4, STRIPE_NBYTES), (5, 3), (6, STRIPE_NBYTES)):
        answers.block_for(STRIPE_NBYTES)
        answered(memory, region, answers, number, nbytes)
    both = answers.find(4, 2)
    assert both.tobytes() == bytes(STRIPE_NBYTES) + b"\1\1\1"
    assert answers.find(4, 3) is None  # a gap behind 5
    assert answers.find(3, 2) is None  # 3 had none
    assert answers.find(4 + Ring.ENTRIES, 2) is None


def test_answers_at_the_end_of_a_ring_do_not_lie_side_by_side(memory, region, row):
    answers = Answers(row)
    for number in (Ring.ENTRIES, Ring.ENTRIES + 1):
        answered(memory, region, answers, number, 64)
    assert answers.find(Ring.ENTRIES).size == answers.find(Ring.ENTRIES + 1).size == 64
    assert answers.find(Ring.ENTRIES, 2) is None


def test_a_channels_rings_go_with_it(memory, region, row):
    answers = Answers(row)
    answered(memory, region, answers, 1, 8)
    memory.channels.release(row)
    assert rings_of(memory.name, row.serial) == []
    assert listing(name_of(memory.name, "building.")) == []
