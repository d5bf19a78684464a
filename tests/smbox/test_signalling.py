"""Puts with a signal on mapped memory, and of counters of other boxes."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.errors import ConfigError, RequestTimeoutError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.testing.solo import solo_box, solo_boxes

COUNT = 2 * STRIPE_NBYTES // 8 + 4


@pytest.fixture
def counter(box):
    return box.counter("signal")


def test_a_held_stripe_keeps_the_signal_back(solo, region, counter, held):
    with solo_box(solo) as other, held(region, 1):
        handle = region.put_nb(np.full(COUNT, 2.0), signal=counter)
        with pytest.raises(RequestTimeoutError):
            handle.wait(timeout_s=0.05)
        assert handle.outcome() == "partial"
        assert other.counter("signal").value == 0
    handle.wait()
    assert handle.ranges_done() == [(0, 8 * COUNT)]
    assert counter.value == 1
    assert (region.get() == 2).all()


def test_a_held_counter_leaves_the_data_without_the_signal(region, counter, held):
    with held(counter):
        with pytest.raises(RequestTimeoutError) as caught:
            region.put(np.full(COUNT, 2.0), signal=counter, timeout_s=0.05)
        waiting = region.put_nb(np.full(COUNT, 3.0), signal=counter)
        assert not waiting.done()
    given_up = caught.value.handle
    assert given_up.outcome() == "partial"
    assert given_up.ranges_done() == [(0, 8 * COUNT)]
    waiting.wait()
    assert counter.value == 1
    assert (region.get() == 3).all()


def test_a_timeout_that_is_no_number_is_told_before_anything_is_done(region, counter):
    region.put(np.full(COUNT, 1.0))  # the first call has one-time work
    before = region.version
    with solo_boxes() as elsewhere, solo_box(elsewhere) as other:
        for signal in (None, counter, other.counter("far")):
            with pytest.raises(ConfigError):
                region.put(np.full(COUNT, 2.0), signal=signal, timeout_s=float("nan"))
        with pytest.raises(ConfigError):
            region.scale(2.0, timeout_s=float("nan"))
    assert region.version == before


def test_a_flush_completes_a_signal_that_nobody_waits_for(box, region, counter, held):
    with held(counter):
        region.put_nb(np.full(COUNT, 2.0), signal=counter)
        with pytest.raises(RequestTimeoutError):
            box.flush(timeout_s=0.05)
    box.flush()
    assert counter.value == 1


def test_a_handle_interrupted_at_any_line_counts_exactly_once(
    region, counter, held, interrupted
):
    lines, was_struck, total = 0, True, 0
    while was_struck:
        lines, total = lines + 1, total + 1
        with held(counter):  # so that it stops between put and signal
            handle = region.put_nb(np.full(COUNT, float(total)), signal=counter)
        _, was_struck = interrupted(lines, handle.wait)
        handle.wait()
        assert counter.value == total, lines
    assert lines > 15
    assert (region.get() == total).all()


def test_a_blocking_put_interrupted_at_any_line_counts_at_most_once(
    region, counter, interrupted
):
    lines, was_struck, counted = 0, True, 0
    while was_struck:
        lines += 1
        before, x = counter.value, np.full(COUNT, float(lines))
        _, was_struck = interrupted(lines, lambda x=x: region.put(x, signal=counter))
        counted = counter.value - before
        assert counted in {0, 1}
        if counted:
            assert (region.get() == lines).all()
    assert counted == 1
    assert lines > 15


def test_a_counter_of_another_box_of_the_same_memory(solo, box, region):
    with solo_box(solo) as other:
        theirs = other.counter("theirs")
        region.put(np.full(COUNT, 2.0), signal=theirs)
        assert theirs.value == 1
        assert (region.get() == 2).all()


def test_a_closed_box_takes_no_signal_and_nothing_is_put(solo, box, region):
    with solo_box(solo) as other:
        theirs = other.counter("theirs")
    for put in (region.put, region.put_nb):
        with pytest.raises(ConfigError, match="closed"):
            put(np.full(COUNT, 2.0), signal=theirs)
    assert (region.get() == 1).all()


def test_an_empty_put_signals_too(region, counter):
    region[3:3].put(np.zeros(0), signal=counter)
    handle = region[3:3].put_nb(np.zeros(0), signal=counter)
    handle.wait()
    assert handle.outcome() == "all"
    assert counter.value == 2


def test_no_time_that_is_no_number(region, counter):
    with pytest.raises(ConfigError):
        region.put(np.zeros(COUNT), signal=counter, timeout_s=float("nan"))
    assert (region.get() == 1).all()
    assert counter.value == 0
