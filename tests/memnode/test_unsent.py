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


def test_no_answer_is_begun_as_long_as_somebody_sends(unsent, woken):
    sending = answer()
    unsent.add(sending)
    assert not unsent.settle()
    frame = sending.data
    del sending
    assert not unsent.settle()
    assert not woken
    del frame
    assert woken == [True]
    assert unsent.settle()


def test_nobody_is_woken_who_does_not_wait(unsent, woken):
    sending = answer()
    unsent.add(sending)
    del sending
    assert unsent.settle()
    assert not woken


def test_answers_add_up(unsent):
    sending = [answer(UNSENT_NBYTES_MAX // 2), answer(UNSENT_NBYTES_MAX // 2 + 1)]
    unsent.add(sending[0])
    assert unsent.settle()
    unsent.add(sending[1])
    assert not unsent.settle()
    del sending[0]
    assert unsent.settle()


def test_after_the_end_nobody_is_woken(unsent, woken):
    sending = answer()
    unsent.add(sending)
    assert not unsent.settle()
    unsent.close()
    del sending
    assert not woken
