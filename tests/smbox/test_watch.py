"""How long an observer has seen a lease word stay the same, without a region."""

from __future__ import annotations

import numpy as np

from smbox.watch import Watch


def observe(watch, word, now_s):
    return bool(watch.observe(np.array([word]), np.array([1.0]), now_s=now_s)[0])


def test_a_word_expires_when_it_stood_still_for_its_lease():
    watch = Watch(1)
    assert [observe(watch, 7, at_s) for at_s in (0.0, 0.5, 1.0, 1.5)] == [False] * 3 + [True]
    assert not observe(watch, 8, 1.6)


def test_a_read_that_took_longer_than_the_lease_begins_anew():
    """The node did not answer it, and answered no renewal either."""
    watch = Watch(1)
    assert not observe(watch, 7, 0.0)
    assert not observe(watch, 7, 5.5)
    assert not observe(watch, 7, 5.6)
    assert not observe(watch, 7, 6.4)
    assert observe(watch, 7, 6.6)


def test_an_observer_that_was_stopped_begins_anew():
    watch = Watch(1)
    assert not observe(watch, 7, 0.0)
    assert not observe(watch, 7, 1.1)
    assert not observe(watch, 7, 2.0)
    assert observe(watch, 7, 2.2)


def test_a_failed_look_begins_anew():
    watch = Watch(1)
    assert not observe(watch, 7, 0.0)
    watch.forget()
    assert not observe(watch, 7, 0.9)
    assert not observe(watch, 7, 1.8)
    assert observe(watch, 7, 2.0)
