"""``flush`` on mapped memory: changes of all threads, their errors, and closed queues."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from smbox.errors import PeerLostError, RegionFreedError
from smbox.paths.local_queue import LocalQueue
from smbox.testing.contract_tools import in_threads


def test_flush_drives_what_other_threads_have_in_line(box, paths, held):
    region = box.create("some", shape=(4,))
    with held(region):
        in_threads(2, lambda _: region.accumulate_nb(np.ones(4, np.float32)))
        assert not paths.data().flush(0.0)
    box.flush(timeout_s=60.0)
    assert region.get().tolist() == [2, 2, 2, 2]


def test_flush_tells_what_failed_unseen(box, held):
    kept, freed = box.create("kept", shape=(4,)), box.create("freed", shape=(4,))
    ones = np.ones(4, np.float32)
    box.free(freed)
    freed.put_nb(ones)
    kept.put_nb(ones)
    with pytest.raises(RegionFreedError):
        box.flush()
    box.flush()
    assert kept.get().tolist() == [1, 1, 1, 1]


def test_flush_says_nothing_of_what_a_call_has_raised(box):
    freed, ones = box.create("freed", shape=(4,)), np.ones(4, np.float32)
    box.free(freed)
    for call in (lambda: freed.put(ones), lambda: freed.put_nb(ones).wait()):
        with pytest.raises(RegionFreedError):
            call()
        box.flush()


def test_the_arrays_of_failed_changes_are_not_kept_for_flush(box):
    freed, arrays = box.create("freed", shape=(4,)), [np.ones(4, np.float32) for _ in range(2)]
    box.free(freed)
    for array in arrays:
        freed.put_nb(array)
    kept = [weakref.ref(array) for array in arrays]
    del array, arrays
    gc.collect()
    assert [each() for each in kept] == [None, None]
    with pytest.raises(RegionFreedError):
        box.flush()


def test_flush_waits_for_no_read(box, held):
    region = box.create("some", shape=(4,))
    with held(region):
        read = region.get_nb(snapshot=True)
        box.flush(timeout_s=0.0)
    assert read.result().tolist() == [0, 0, 0, 0]


def test_flush_tells_what_failed_before_a_change_whose_error_was_raised(box):
    first, second = box.create("first", shape=(4,)), box.create("second", shape=(4,))
    ones = np.ones(4, np.float32)
    for region in (first, second):
        box.free(region)
    first.put_nb(ones)
    with pytest.raises(RegionFreedError, match="second"):
        second.put(ones)
    with pytest.raises(RegionFreedError, match="first"):
        box.flush()
    box.flush()


def test_a_request_that_is_done_makes_no_progress_with_those_behind_it(box, held):
    """Else a wait for several requests would not time out while others are done."""
    region, ones = box.create("some", shape=(4,)), np.ones(4, np.float32)
    with held(region):
        first, second = (region.accumulate_nb(ones) for _ in range(2))
    first.wait()
    progress = first.work.progress()
    second.wait()
    region.accumulate_nb(ones).wait()
    with held(region):
        third = region.accumulate_nb(ones)
    third.wait()
    assert first.work.progress() == progress


def test_flush_tells_what_failed_in_a_thread_that_has_ended(box):
    kept, freed = box.create("kept", shape=(4,)), box.create("freed", shape=(4,))
    ones = np.ones(4, np.float32)
    box.free(freed)
    for region in (freed, kept):
        in_threads(1, lambda _, region=region: region.put_nb(ones))
    with pytest.raises(RegionFreedError):
        box.flush()
    box.flush()
    assert kept.get().tolist() == [1, 1, 1, 1]


def test_one_thread_takes_over_the_queue_of_a_thread_that_has_ended(box, held):
    region, ones = box.create("some", shape=(4,)), np.ones(4, np.float32)
    in_threads(1, lambda _: region.get())
    begin, begun = threading.Barrier(2), []

    def change(_):
        region.get()
        begin.wait()
        begun.append(region.accumulate_nb(ones))

    with held(region):
        in_threads(2, change)
    assert begun[0].work.queue is not begun[1].work.queue
    box.flush()


def test_flush_finds_done_what_another_flush_did_before_a_new_thread_took_over(
    box, held, monkeypatch
):
    """It said that the box was closed: a new thread had closed the queue of one that ended."""
    region, ones = box.create("some", shape=(4,)), np.ones(4, np.float32)
    with held(region):
        in_threads(1, lambda _: [region.accumulate_nb(ones) for _ in range(2)])
    drive = LocalQueue.drive

    def drive_all_and_begin_a_thread(queue, work, deadline_s):
        is_done = drive(queue, work, deadline_s)  # the work behind it, too
        in_threads(1, lambda _: region.get())
        return is_done

    monkeypatch.setattr(LocalQueue, "drive", drive_all_and_begin_a_thread)
    box.flush()
    assert region.get().tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("is_late", [False, True])
def test_flush_of_a_queue_that_is_closed_meanwhile_completes_the_others(box, held, is_late):
    region, ones, begun = box.create("some", shape=(4,)), np.ones(4, np.float32), []
    with held(region):
        for _ in range(2):
            in_threads(1, lambda _: begun.append(region.accumulate_nb(ones)))
    closed = begun[0].work.queue
    if is_late:  # after flush has read what is pending
        closed.drive = lambda work, deadline_s: (
            closed.close(),
            type(closed).drive(closed, work, deadline_s),
        )[1]
    else:
        closed.close()
    with pytest.raises(PeerLostError, match="closed"):
        box.flush()
    assert [handle.work.is_done for handle in begun] == [True, True]
    assert [handle.work.outcome() for handle in begun] == ["none", "all"]


def test_a_wait_for_a_version_ends_once_its_region_is_freed(box, paths):
    region = box.create("some", shape=(4,))
    wait = paths.data().wait_version(region.info, 1)
    assert not wait.advance(0.0)
    box.free(region)
    with pytest.raises(RegionFreedError):
        wait.advance(0.0)


def test_flush_of_a_box_that_was_closed_meanwhile_raises(box, paths):
    box.create("some", shape=(4,)).put_nb(np.ones(4, np.float32))
    path = paths.data()
    box.close()
    with pytest.raises(PeerLostError, match="closed"):
        path.flush(0.0)
