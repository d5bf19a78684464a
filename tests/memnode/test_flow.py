"""memnode/flow.py: what a channel may have in flight, both ways."""

from __future__ import annotations

import numpy as np
import pytest

from memnode.flow import (
    ALONE_MIB,
    FIRST_MIB,
    LEAST_MIB,
    LONG_NBYTES,
    RECENT_MAX,
    SHARED_MIB,
    UNSENT_NBYTES_MAX,
    Credit,
    Unsent,
)
from smbox.config import WINDOW_MAX
from smbox.wire.header import LONG_NBYTES_MAX


def peer(number):
    return 0, bytes([number])


def told(shares, count, turns=RECENT_MAX):
    """What the last of ``turns`` requests is answered, where ``count`` peers take turns."""
    return [shares.after(peer(turn % count)) for turn in range(turns)][-1]


def test_a_window_of_short_requests_needs_no_credit_of_its_own():
    assert LONG_NBYTES * WINDOW_MAX <= FIRST_MIB << 20
    assert Credit().after(peer(1)) == ALONE_MIB


def test_who_waits_behind_another_ones_window_still_counts():
    shares = Credit()
    shares.after(peer(1))
    found = [shares.after(peer(2)) for _ in range(WINDOW_MAX)]
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


@pytest.fixture
def woken():
    return []


@pytest.fixture
def unsent(woken):
    return Unsent(lambda: woken.append(True))


def answer(nbytes=UNSENT_NBYTES_MAX):
    return np.empty(nbytes, np.uint8)


def test_it_is_full_as_long_as_somebody_sends(unsent, woken):
    sending = answer()
    unsent.add(sending)
    assert not unsent.has_room()
    frame = sending.data
    del sending
    assert not unsent.has_room()
    assert not woken
    del frame
    assert woken == [True]
    assert unsent.has_room()


def test_nobody_is_woken_who_does_not_wait(unsent, woken):
    sending = answer()
    unsent.add(sending)
    del sending
    assert unsent.has_room()
    assert not woken


def test_answers_add_up(unsent):
    sending = [answer(UNSENT_NBYTES_MAX // 2), answer(UNSENT_NBYTES_MAX // 2 + 1)]
    unsent.add(sending[0])
    assert unsent.has_room()
    unsent.add(sending[1])
    assert not unsent.has_room()
    del sending[0]
    assert unsent.has_room()


def test_after_the_end_nobody_is_woken(unsent, woken):
    sending = answer()
    unsent.add(sending)
    assert not unsent.has_room()
    unsent.close()
    del sending
    assert not woken
