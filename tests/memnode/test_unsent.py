"""memnode/unsent.py: how many bytes of answers are on their way is told by their memory."""

from __future__ import annotations

import numpy as np
import pytest

from memnode.unsent import UNSENT_NBYTES_MAX, Unsent


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
    assert not unsent.ask_for_room()
    frame = sending.data
    del sending
    assert not unsent.ask_for_room()
    assert not woken
    del frame
    assert woken == [True]
    assert unsent.ask_for_room()


def test_nobody_is_woken_who_does_not_wait(unsent, woken):
    sending = answer()
    unsent.add(sending)
    del sending
    assert unsent.ask_for_room()
    assert not woken


def test_answers_add_up(unsent):
    sending = [answer(UNSENT_NBYTES_MAX // 2), answer(UNSENT_NBYTES_MAX // 2 + 1)]
    unsent.add(sending[0])
    assert unsent.ask_for_room()
    unsent.add(sending[1])
    assert not unsent.ask_for_room()
    del sending[0]
    assert unsent.ask_for_room()


def test_after_the_end_nobody_is_woken(unsent, woken):
    sending = answer()
    unsent.add(sending)
    assert not unsent.ask_for_room()
    unsent.close()
    del sending
    assert not woken
