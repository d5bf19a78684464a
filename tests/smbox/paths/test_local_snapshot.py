from __future__ import annotations

import sys

import numpy as np
import pytest

from smbox.errors import ConfigError, RequestTimeoutError
from smbox.memory import hold
from smbox.memory.layout import STRIPE_NBYTES, Stripe
from smbox.paths import local_snapshot
from smbox.testing.solo import solo_box

STRIPE = STRIPE_NBYTES // 4
COUNT = 2 * STRIPE + 3
FILES = {module.__file__ for module in (hold, local_snapshot)}


@pytest.fixture
def region(box):
    return box.create("r", shape=COUNT, init=1.0)


@pytest.fixture
def mapped(solo):
    return lambda region: solo.control.memory.regions[int(region.info.address)]


def stripes_held(solo, mapped, region):
    locks = solo.control.memory.superblock.locks
    return [locks.is_held(mapped(region).lock_byte(stripe)) for stripe in range(3)]


def test_a_held_stripe_delays_it(solo, region, held, mapped):
    with held(region, 1):
        handle = region.get_nb(snapshot=True)
        assert not handle.done()
        assert handle._work.ranges_done() == []
        assert stripes_held(solo, mapped, region) == [False, True, False]
    assert (handle.result() == 1).all()
    assert stripes_held(solo, mapped, region) == [False] * 3


def test_it_holds_the_stripes_of_its_range_only(region, held):
    with held(region, 1):
        assert (region[:STRIPE].get(snapshot=True, timeout_s=10.0) == 1).all()


def test_what_nobody_waits_for_is_in_nobodys_way(solo, region, held, mapped):
    """Its owner computes: whoever comes meanwhile passes, and it goes on when it is driven."""
    with held(region, 1):
        handle = region.get_nb(snapshot=True)
    with solo_box(solo) as other:
        other.attach("r").put(np.full(COUNT, 5, np.float32), timeout_s=10.0)
    with held(region, 1):
        for look in (handle.done, lambda: handle._work.advance(0.0)):
            assert not look()
            assert stripes_held(solo, mapped, region) == [False, True, False]
        with pytest.raises(RequestTimeoutError) as error:
            handle.wait(0.001)
        assert error.value.facts["holder_pid"] == 0
        assert stripes_held(solo, mapped, region) == [False, True, False]
    assert (handle.result() == 5).all()


def test_what_is_waited_for_keeps_what_it_has(solo, region, held, mapped, monkeypatch):
    seen = []
    with held(region, 1):
        handle = region.get_nb(snapshot=True)
        looking = lambda _: seen.append(stripes_held(solo, mapped, region))  # noqa: E731
        monkeypatch.setattr("smbox.paths.lane.time.sleep", looking)
        with pytest.raises(RequestTimeoutError):
            handle.wait(0.01)
    assert seen[0] == [True, True, False]
    handle.wait()


def test_what_is_cancelled_lets_its_stripes_go(solo, region, held, mapped):
    with held(region, 1):
        handle = region.get_nb(snapshot=True)
        handle._work.cancel()
        assert stripes_held(solo, mapped, region) == [False, True, False]
    assert (region.get() == 1).all()


def test_it_waits_for_what_is_open(region, held, mapped):
    with held(region, 1):
        mapped(region).table[1, Stripe.SEQ] += 1
        with pytest.raises(RequestTimeoutError) as error:
            region.get(snapshot=True, timeout_s=0.01)
        mapped(region).table[1, Stripe.SEQ] += 1
    assert (error.value.handle.result() == 1).all()


def test_a_region_without_locks_has_none(box):
    hogwild = box.create("h", shape=COUNT, consistency="none")
    with pytest.raises(ConfigError, match="snapshots"):
        hogwild.get(snapshot=True)


def interrupted_at(line, run):
    """Run with a KeyboardInterrupt before the ``line``-th line; whether it struck."""
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if frame.f_code.co_filename not in FILES:
            return None
        seen += event == "line"
        if seen == line and event == "line":
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_anywhere_leaves_no_stripe_locked(solo, region, mapped):
    line, struck = 1, True
    while struck:
        struck = interrupted_at(line, lambda: region.get(snapshot=True))
        assert stripes_held(solo, mapped, region) == [False] * 3, line
        line += 1
    assert line > 20
    assert (region.get(snapshot=True) == 1).all()
