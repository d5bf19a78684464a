"""Local requests: whole and exactly once, wherever an interrupt or a held stripe stops them."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import smbox.memory
import smbox.paths
from smbox.errors import ConfigError, OutOfMemoryError, RequestTimeoutError, SegmentError
from smbox.memory.journal import Writer
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.mapped import MappedRegion
from smbox.memory.reading import Reader
from smbox.testing.interrupts import interrupted
from smbox.testing.solo import solo_box

COUNT = 2 * STRIPE_NBYTES // 8 + 4
ONES = np.ones(COUNT)
SOME = np.arange(0, COUNT, 128)
TRACED = tuple(os.path.dirname(module.__file__) for module in (smbox.paths, smbox.memory))


def stripes_of(array):
    return [array[at : at + STRIPE_NBYTES // 8] for at in range(0, COUNT, STRIPE_NBYTES // 8)]


def test_a_verb_interrupted_at_any_line_leaves_whole_stripes_and_no_lock(solo, box, region):
    with solo_box(solo) as other:
        seen = other.attach("some")
        region.accumulate(ONES)  # what the first call does once is done
        nth, was_struck = 0, True
        while was_struck:
            nth, before = nth + 1, seen.get()
            was_struck = interrupted(nth, lambda: region.accumulate(ONES), TRACED)
            for old, new in zip(stripes_of(before), stripes_of(seen.get()), strict=True):
                assert len(np.unique(new - old)) == 1
                assert new[0] - old[0] in {0, 1}
            seen.accumulate(ONES, timeout_s=5.0)  # no stripe stayed locked
            region.accumulate(ONES, timeout_s=5.0)
    assert nth > 50


def test_a_handle_interrupted_at_any_line_goes_on_exactly_once(box, region, held):
    def begun():
        with held(region, 1):  # so that it stops in the middle
            return region.accumulate_nb(ONES)

    nth, was_struck = 0, True
    while was_struck:
        nth, before = nth + 1, region.get()
        handle = begun()
        was_struck = interrupted(nth, handle.wait, TRACED)
        handle.wait()
        assert (region.get() - before == 1).all(), nth
    assert nth > 50


def test_an_exchange_interrupted_at_any_line_moves_x_as_far_as_the_center(box, region, held):
    def begun(x):
        with held(region, 1):
            return region.elastic_nb(x, 0.5)

    nth, was_struck = 0, True
    while was_struck:
        nth, x, before = nth + 1, np.full(COUNT, 3.0), region.get()
        handle = begun(x)
        was_struck = interrupted(nth, handle.wait, TRACED)
        handle.wait()
        assert (x + region.get() == 3.0 + before).all(), nth
    assert nth > 50


def test_reads_that_are_interrupted_one_behind_the_other_fill_all_of_their_arrays(
    box, region, held
):
    region.put(np.arange(COUNT, dtype=np.float64))

    def begun():
        with held(region, 1):
            region.accumulate_nb(np.zeros(COUNT))  # the reads wait behind it
            return [region.get_nb(np.zeros(COUNT)), region.rows([COUNT - 1, 3]).get_nb()]

    nth, was_struck = 0, True
    while was_struck:
        nth, handles = nth + 1, begun()
        was_struck = False
        for handle in handles:
            was_struck |= interrupted(nth, handle.wait, TRACED)
            handle.wait()
        whole, rows = [handle.result() for handle in handles]
        assert (whole == np.arange(COUNT)).all(), nth
        assert rows.tolist() == [COUNT - 1, 3], nth
    assert nth > 50


def batched(box, region, _):
    with box.batch(timeout_s=0.001) as batch:
        batch.accumulate(region, ONES)


BLOCKED = {
    "accumulate": lambda _, r, __: r.accumulate(ONES, timeout_s=0.001),
    "fetch": lambda _, r, __: r.fetch_and_op(ONES, timeout_s=0.001),
    "rows": lambda _, r, __: r.rows(SOME).accumulate(ONES[SOME], timeout_s=0.001),
    "from": lambda _, r, source: r.accumulate_from(source, timeout_s=0.001),
    "batch": batched,
}


@pytest.mark.parametrize("verb", BLOCKED)
def test_nothing_of_a_blocked_verb_happens_after_it_was_interrupted(box, region, held, verb):
    source = box.create("other", shape=(COUNT,), dtype="float64", init=1.0)
    region.accumulate_from(source)  # what the first call does once is done

    def blocked():
        with pytest.raises(RequestTimeoutError):
            BLOCKED[verb](box, region, source)

    nth, was_struck = 0, True
    while was_struck:
        nth += 1
        region.put(ONES)
        with held(region, 1):
            was_struck = interrupted(nth, blocked, TRACED)
            first = region[: STRIPE_NBYTES // 8].get()
        box.flush()
        after = region.get()
        assert (after[: STRIPE_NBYTES // 8] == first).all(), nth
        assert (after[STRIPE_NBYTES // 8 :] == 1).all(), nth
    assert nth > 50


@pytest.mark.parametrize(
    ("maker", "error"),
    [((Writer, "create"), OutOfMemoryError), ((MappedRegion, "attach"), SegmentError)],
)
def test_a_verb_that_failed_is_not_tried_again(box, region, monkeypatch, maker, error):
    other = box.create("other", shape=(4,))
    (other if error is SegmentError else region).get()  # what a first call does is done

    def refuse(*_):
        raise error("not just now")

    def refused():
        with pytest.raises(error):
            region.accumulate(ONES)

    nth, was_struck = 0, True
    while was_struck:
        nth += 1
        with monkeypatch.context() as patched:
            patched.setattr(*maker, refuse)
            was_struck = interrupted(nth, refused, TRACED)
        other.get()  # whatever is still queued is tried first
    assert region.get()[0] == 1.0
    assert nth > 50


def test_a_held_stripe_ends_a_verb_at_its_timeout_which_names_the_stripe(box, region, held):
    with held(region, 1), pytest.raises(RequestTimeoutError) as caught:
        region.accumulate(ONES, timeout_s=0.01)
    assert caught.value.facts["outcome"] == "partial"
    assert caught.value.facts["ranges_done"] == [(0, STRIPE_NBYTES)]
    assert (caught.value.facts["region"], caught.value.facts["stripe"]) == ("some", 1)
    assert caught.value.handle.outcome() == "partial"
    region.accumulate(ONES)
    first, second, _ = stripes_of(region.get())
    assert (first[0], second[0]) == (3, 2)  # the rest of the first one never happens


def test_a_change_from_a_region_that_stops_in_the_middle_goes_on_exactly_once(
    box, region, held
):
    source = box.create("source", init=ONES)
    region.accumulate_from(source)
    with held(region, 1):
        handle = region.accumulate_from_nb(source)
        assert not handle.done()
    handle.wait()
    assert (region.get() == 3).all()


def test_a_snapshot_holds_stripes_only_while_a_caller_waits(solo, box, region, held):
    with held(region, 1):
        handle = region.get_nb(snapshot=True)
        for _ in range(2):
            assert not handle.done()
            with solo_box(solo) as other:
                other.attach("some")[:1].put([7.0], timeout_s=5.0)
    assert handle.result()[0] == 7


def test_a_cancelled_request_leaves_the_queue(box, region, held):
    with held(region):
        work = region.put_nb(ONES).work
        work.cancel()
        assert work.queue.is_idle


def test_requests_of_a_thread_take_effect_in_their_order(box, region, held):
    with held(region):
        first = region.accumulate_nb(ONES)
        second = region.put_nb(ONES * 5)
        third = region.fetch_and_op_nb(ONES)
        assert not third.done()
    assert (third.result() == 5).all()
    assert first.done()
    assert second.done()


@pytest.mark.parametrize("verb", ["put", "fetch_and_op", "get"])
def test_a_blocking_verb_takes_its_turn_behind_what_is_queued(box, region, held, verb):
    with held(region):
        queued = region.accumulate_nb(ONES)  # 2, once somebody drives it
    if verb == "put":
        region.put(ONES * 5)
        assert (region.get() == 5).all()
    elif verb == "fetch_and_op":
        assert (region.fetch_and_op(ONES) == 2).all()
    else:
        assert (region.get() == 2).all()
    assert queued.work.is_done


@pytest.mark.parametrize("verb", ["put", "elastic", "accumulate"])
def test_what_the_first_call_leaves_goes_on_once_the_stripe_is_free(box, region, held, verb):
    x = ONES * 3
    with held(region, 1):
        handle = {
            "put": lambda: region.put_nb(x),
            "elastic": lambda: region.elastic_nb(x, 0.5),
            "accumulate": lambda: region.accumulate_nb(ONES),
        }[verb]()
        assert not handle.done()
        assert handle.ranges_done() == [(0, STRIPE_NBYTES)]
    handle.wait()
    assert handle.ranges_done() == [(0, ONES.nbytes)]
    assert (region.get() == {"put": 3, "elastic": 2, "accumulate": 2}[verb]).all()
    assert (x == (2 if verb == "elastic" else 3)).all()


def test_a_verb_in_a_signal_handler_inside_a_verb_is_refused(region, monkeypatch):
    errors, read = [], Reader.read

    def handler(_number, _frame):
        try:
            region.get()
        except ConfigError as error:
            errors.append(error)

    def struck(*arguments):
        signal.raise_signal(signal.SIGUSR1)
        read(*arguments)

    monkeypatch.setattr(Reader, "read", struck)
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        region.get()
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert errors
    region.put(ONES)


def test_a_request_that_is_done_at_once_tells_so(box, region):
    region.put(ONES)  # the region is mapped now
    handle = region[1:3].put_nb(np.zeros(2))
    assert (handle.ranges_done(), handle.outcome()) == ([(8, 24)], "all")
    chained = handle.then(lambda _: None)
    assert chained.outcome() == "partial"  # the function was not called yet
