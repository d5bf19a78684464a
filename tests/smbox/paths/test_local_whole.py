from __future__ import annotations

import sys

import numpy as np
import pytest

from smbox.errors import PeerLostError, RequestTimeoutError
from smbox.memory import accel, commit, hold, kernels, wide
from smbox.memory.layout import STRIPE_NBYTES, RegionHeader, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.segment import listing
from smbox.paths import local_whole
from smbox.paths.special import Lease
from smbox.testing.solo import solo_box

STRIPE = STRIPE_NBYTES // 4
COUNT = 2 * STRIPE + 3
FILES = {module.__file__ for module in (commit, hold, wide, local_whole)}


@pytest.fixture
def region(box):
    return box.create("w", shape=COUNT, init=1.0, consistency="region")


@pytest.fixture
def mapped(solo):
    return lambda region: solo.control.memory.regions[int(region.info.address)]


def stripes_held(solo, mapped, region):
    locks = solo.control.memory.superblock.locks
    return [locks.is_held(mapped(region).lock_byte(stripe)) for stripe in range(3)]


def test_a_held_stripe_delays_all_of_it(solo, region, held, mapped):
    with held(region, 1):
        handle = region.accumulate_nb(np.ones(COUNT, np.float32))
        assert not handle.done()
        assert handle._work.outcome() == "not-sent"
        assert (region.local() == 1).all()
        assert stripes_held(solo, mapped, region) == [False, True, False]
    handle.wait()
    assert (region.get() == 2).all()
    assert stripes_held(solo, mapped, region) == [False] * 3


def test_what_nobody_waits_for_is_in_nobodys_way(solo, region, held, mapped):
    """Its owner computes: whoever comes meanwhile passes, and it goes on when it is driven."""
    ones = np.ones(COUNT, np.float32)
    with held(region, 1):
        handle = region.accumulate_nb(ones)
        snapshot = region.get_nb()
    with solo_box(solo) as other:
        other.attach("w").put(np.full(COUNT, 5, np.float32), timeout_s=10.0)
        assert (mapped(region).array() == 5).all()
    with held(region, 1):
        for look in (handle.done, snapshot.done, lambda: handle._work.advance(0.0)):
            assert not look()
            assert stripes_held(solo, mapped, region) == [False, True, False]
        with pytest.raises(RequestTimeoutError) as error:
            handle.wait(0.001)
        assert error.value.facts["holder_pid"] == 0
        assert stripes_held(solo, mapped, region) == [False, True, False]
    handle.wait()
    assert (snapshot.result() == 6).all()


def test_what_is_waited_for_keeps_what_it_has(solo, region, held, mapped, monkeypatch):
    seen = []
    with held(region, 1):
        handle = region.accumulate_nb(np.ones(COUNT, np.float32))
        looking = lambda _: seen.append(stripes_held(solo, mapped, region))  # noqa: E731
        monkeypatch.setattr("smbox.paths.lane.time.sleep", looking)
        with pytest.raises(RequestTimeoutError):
            handle.wait(0.01)
    assert seen[0] == [True, True, False]
    handle.wait()


def test_what_is_cancelled_lets_its_stripes_go(solo, region, held, mapped):
    with held(region, 1):
        handle = region.accumulate_nb(np.ones(COUNT, np.float32))
        handle._work.cancel()
        assert stripes_held(solo, mapped, region) == [False, True, False]
    assert (region.get() == 1).all()


def test_staging_that_the_node_took_back_is_made_anew(solo, region):
    ones = np.ones(COUNT, np.float32)
    region.accumulate(ones)
    memory = solo.control.memory
    for staging in [each for each in memory.regions.values() if each.spec.name != "w"]:
        memory.free(staging)
    handle = region.accumulate_nb(ones)
    handle.wait()
    assert (region.get() == 3).all()


def test_staging_taken_back_while_the_change_waits_keeps_its_operand(solo, region, held):
    memory = solo.control.memory
    with held(region, 1):
        handle = region.put_nb(np.full(COUNT, 7, np.float32))
        (staging,) = [each for each in memory.regions.values() if each.spec.name != "w"]
        name = staging.segment.name
        memory.free(staging)
    handle.wait()
    assert (region.get() == 7).all()
    memory.sweep_slots()
    assert listing(name) == []
    region.put(np.full(COUNT, 8, np.float32))
    assert (region.get() == 8).all()


def test_staging_taken_back_before_the_change_is_looked_at_is_told(solo, region, held):
    """Behind another one in line its operand is not staged yet: it never is, then."""
    ones = np.ones(COUNT, np.float32)
    memory = solo.control.memory
    with held(region, 1):
        first = region.accumulate_nb(ones)
        known = set(memory.regions)
        second = region.accumulate_nb(ones)
        (address,) = set(memory.regions) - known
        memory.free(memory.regions[address])
    first.wait()
    with pytest.raises(PeerLostError) as error:
        second.wait()
    assert error.value.facts["outcome"] == "not-sent"
    assert (region.get() == 2).all()


def test_a_snapshot_waits_for_what_is_open(box, held, mapped):
    region = box.create("r", shape=COUNT, init=1.0)
    with held(region, 1):
        mapped(region).table[1, Stripe.SEQ] += 1
        with pytest.raises(RequestTimeoutError) as error:
            region.get(snapshot=True, timeout_s=0.01)
        mapped(region).table[1, Stripe.SEQ] += 1
    assert (error.value.handle.result() == 1).all()


def test_an_interrupt_among_waiting_writers_leaves_all_changed_and_comes_through(
    box, solo, region, mapped, monkeypatch
):
    """Whoever waits for the stripe of the interrupted commit does not get it before the end."""
    waiting, taken = LockFile(solo.control.memory.name), []
    journaled, unlock, seen = accel.journaled, LockFile.unlock, []

    def interrupted(*arguments):
        seen.append(1)
        journaled(*arguments)
        if len(seen) == 2:
            raise KeyboardInterrupt

    def unlocking(locks, byte, count=1):
        unlock(locks, byte, count)
        if waiting.try_lock(mapped(region).lock_byte(1)):
            taken.append(mapped(region).header[RegionHeader.WIDE])
            unlock(waiting, mapped(region).lock_byte(1))

    monkeypatch.setattr(accel, "journaled", interrupted)
    monkeypatch.setattr(LockFile, "unlock", unlocking)
    with pytest.raises(KeyboardInterrupt):
        region.put(np.full(COUNT, 7, np.float32))
    assert set(taken) == {0}
    assert mapped(region).array().tolist() == [7] * COUNT
    other = box.create("other", shape=COUNT, consistency="region")
    other.put(np.full(COUNT, 9, np.float32))
    assert (region.get() == 7).all()
    waiting.close()


def test_what_could_not_end_is_ended_and_not_begun_again(region, held, mapped, monkeypatch):
    with held(region, 1):
        handle = region.accumulate_nb(np.ones(COUNT, np.float32))
    with monkeypatch.context() as patch:
        patch.setattr(wide, "commit_held", None)
        with pytest.raises(TypeError):
            handle.wait()
    assert mapped(region).header[RegionHeader.WIDE] != 0
    handle.wait()
    assert (region.get() == 2).all()
    assert mapped(region).header[RegionHeader.WIDE] == 0


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


def test_x_moves_exactly_when_the_whole_does_wherever_it_is_interrupted(
    box, solo, region, mapped, monkeypatch
):
    monkeypatch.setattr(accel, "journaled", kernels.journaled)
    line, moved, struck = 1, set(), True
    while struck:
        region.put(np.ones(COUNT, np.float32))
        x = np.full(COUNT, 5, np.float32)
        struck = interrupted_at(line, lambda x=x: region.elastic(x, 0.5))
        found = region.get()
        assert (found == found[0]).all()
        assert (x == x[0]).all()
        assert (found[0], x[0]) in {(1, 5), (3, 3)}, line
        assert stripes_held(solo, mapped, region) == [False] * 3
        moved.add(float(x[0]))
        line += 1 if line < 40 else 3
    assert moved == {5, 3}
    assert line > 80


def test_old_contents_are_handed_on_while_the_staging_is_ours(region, held, monkeypatch):
    give = Lease.give

    def struck(lease):
        give(lease)
        raise KeyboardInterrupt

    with held(region, 1):
        handle = region.fetch_and_op_nb(np.ones(COUNT, np.float32))
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "give", struck)
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
    handle._work._stage.data[:] = 0xFF  # as the next operation of that size does
    assert (handle.result() == 1).all()
