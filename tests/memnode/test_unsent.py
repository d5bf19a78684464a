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
    assert unsent.is_full()
    frame = sending.data
    del sending
    assert unsent.is_full()
    assert not woken
    del frame
    assert woken == [True]
    assert not unsent.is_full()


def test_nobody_is_woken_who_does_not_wait(unsent, woken):
    sending = answer()
    unsent.add(sending)
    del sending
    assert not unsent.is_full()
    assert not woken


def test_answers_add_up(unsent):
    sending = [answer(UNSENT_NBYTES_MAX // 2), answer(UNSENT_NBYTES_MAX // 2 + 1)]
    unsent.add(sending[0])
    assert not unsent.is_full()
    unsent.add(sending[1])
    assert unsent.is_full()
    del sending[0]
    assert not unsent.is_full()


def test_after_the_end_nobody_is_woken(unsent, woken):
    sending = answer()
    unsent.add(sending)
    assert unsent.is_full()
    unsent.close()
    del sending
    assert not woken
