from __future__ import annotations

import pytest

from memnode.credit import (
    ALONE_MIB,
    FIRST_MIB,
    LEAST_MIB,
    LONG_NBYTES,
    RECENT_MAX,
    SHARED_MIB,
    Credit,
)
from smbox.config import WINDOW_MAX
from smbox.wire.header import LONG_NBYTES_MAX


def peer(number):
    return 0, bytes([number])


def told(shares, count, turns=RECENT_MAX):
    """What the last of ``turns`` requests is answered, where ``count`` peers take turns."""
    return [shares.after(peer(turn % count), LONG_NBYTES + 1) for turn in range(turns)][-1]


def test_a_short_request_says_nothing_and_counts_for_nothing():
    shares = Credit()
    assert shares.after(peer(1), LONG_NBYTES) == 0
    assert shares.after(peer(2), LONG_NBYTES + 1) == ALONE_MIB
    assert LONG_NBYTES * WINDOW_MAX <= FIRST_MIB << 20, "and needs no credit of its own"


def test_who_waits_behind_another_ones_window_still_counts():
    shares = Credit()
    shares.after(peer(1), LONG_NBYTES + 1)
    found = [shares.after(peer(2), LONG_NBYTES + 1) for _ in range(WINDOW_MAX)]
    assert set(found) == {SHARED_MIB // 2}


@pytest.mark.parametrize("count", range(1, RECENT_MAX + 1))
def test_all_that_send_share(count):
    credit = told(Credit(), count)
    assert LEAST_MIB <= credit <= ALONE_MIB
    assert credit == LEAST_MIB or credit * count <= SHARED_MIB


def test_who_stops_sending_leaves_its_share_to_the_others():
    shares = Credit()
    assert told(shares, 8) == LEAST_MIB
    assert told(shares, 2) == SHARED_MIB // 2
    assert told(shares, 1) == ALONE_MIB


def test_the_longest_request_always_has_room_and_a_window_is_enough_for_one():
    assert LEAST_MIB << 20 >= LONG_NBYTES_MAX
    assert LEAST_MIB <= FIRST_MIB <= ALONE_MIB <= WINDOW_MAX
