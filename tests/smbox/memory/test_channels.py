from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import LimitError
from smbox.memory.channels import ChannelTable, RingFile
from smbox.memory.layout import (
    CHANNEL_ROWS,
    STRIPE_NBYTES,
    Channel,
    Ring,
    building_name,
    ring_name,
)
from smbox.memory.segment import DIRECTORY, listing

CLIENT = (1 << 100) + 17


def test_rows_survive_their_table(memory):
    memory.channels.claim(CLIENT, 0).applied = 41
    memory.channels.claim(CLIENT, 1)
    again = ChannelTable.open(memory.name)
    assert again.find(CLIENT, 0).applied == 41
    assert again.find(CLIENT, 1).applied == 0
    assert again.find(CLIENT + 1, 0) is None
    assert len(again.rows()) == len(again) == 2
    again.close()


def test_a_released_row_starts_anew(memory):
    row = memory.channels.claim(CLIENT, 0)
    row.applied = 9
    memory.channels.release(row, memory.name)
    assert memory.channels.find(CLIENT, 0) is None
    assert memory.channels.claim(CLIENT, 0).applied == 0


def test_a_full_table_says_so(memory):
    memory.channels._rows[:, Channel.USED] = 1
    with pytest.raises(LimitError, match=str(CHANNEL_ROWS)):
        memory.channels.claim(CLIENT, 0)


def test_a_ring_answers_what_it_still_has(memory):
    row = memory.channels.claim(CLIENT, 0)
    ring = RingFile.open(memory.name, row.index)
    ring.old(5)[:3] = [1, 2, 3]
    ring.header(5)[Ring.NUMBER] = 5
    ring.header(5)[Ring.RESULT_NBYTES] = 3
    again = RingFile.open(memory.name, row.index)
    assert again.answers(5).tolist() == [1, 2, 3]
    assert again.answers(5 + Ring.ENTRIES) is None
    assert again.answers(6) is None
    again.close()


def test_answers_of_whole_stripes_lie_side_by_side(memory):
    ring = RingFile.open(memory.name, memory.channels.claim(CLIENT, 0).index)
    for number, nbytes in ((4, STRIPE_NBYTES), (5, 3), (6, STRIPE_NBYTES)):
        ring.old(number)[:nbytes] = number
        ring.header(number)[Ring.NUMBER] = number
        ring.header(number)[Ring.RESULT_NBYTES] = nbytes
    both = ring.answers(4, 2)
    assert both.tolist() == [4] * STRIPE_NBYTES + [5] * 3
    assert np.shares_memory(both, ring.segment.bytes)  # nothing is copied
    assert ring.answers(4, 3) is None  # a gap behind 5
    assert ring.answers(3, 2) is None  # 3 had none
    assert ring.answers(4 + Ring.ENTRIES, 2) is None
    ring.close()


def test_answers_at_the_end_of_a_ring_do_not_lie_side_by_side(memory):
    ring = RingFile.open(memory.name, memory.channels.claim(CLIENT, 0).index)
    for number in (Ring.ENTRIES, Ring.ENTRIES + 1):
        ring.header(number)[Ring.NUMBER] = number
        ring.header(number)[Ring.RESULT_NBYTES] = STRIPE_NBYTES
    assert (
        ring.answers(Ring.ENTRIES).size == ring.answers(Ring.ENTRIES + 1).size == STRIPE_NBYTES
    )
    assert ring.answers(Ring.ENTRIES, 2) is None
    ring.close()


def test_a_ring_whose_maker_was_killed_is_made_again(memory):
    row = memory.channels.claim(CLIENT, 0)
    (DIRECTORY / ring_name(memory.name, row.index)).touch()
    ring = RingFile.open(memory.name, row.index)
    assert ring.answers(5) is None
    assert listing(building_name(memory.name, 0)[:-16]) == []
