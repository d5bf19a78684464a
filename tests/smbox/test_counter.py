"""Counters: tests beyond the contract (tests/contracts)."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.deadline import ANSWER_MIN_S
from smbox.errors import LayoutMismatchError, RegionFreedError, RequestTimeoutError
from smbox.paths.pair import PathPair


def test_a_counter_shares_its_number_and_not_its_name_with_regions(box):
    counter = box.counter("steps")
    box.create("steps", shape=(2,))
    assert repr(counter) == "Counter('steps')"
    assert counter.add(np.int32(5)) == 0
    assert box.counter("steps").value == 5


def test_a_timeout_of_wait_tells_of_which_operation(box):
    counter = box.counter("steps")
    with pytest.raises(RequestTimeoutError) as caught:
        counter.wait(1, timeout_s=0.0)
    told = {"op": "counter.wait", "value": 0, "at_least": 1, "timeout_s": 0.0}
    assert told.items() <= caught.value.facts.items()
    assert counter.wait(0, timeout_s=0.0) == 0


def test_a_wait_misses_no_count_just_behind_its_read(box, monkeypatch):
    counter, finish = box.counter("steps"), PathPair.finish

    def counted_behind(*arguments):
        finish(*arguments)
        monkeypatch.setattr(PathPair, "finish", finish)
        counter.add()

    monkeypatch.setattr(PathPair, "finish", counted_behind)
    assert counter.wait(1, timeout_s=5.0) == 1


def test_every_read_of_a_wait_ends_soon_after_its_time(box, monkeypatch):
    counter, finish, given_s = box.counter("steps"), PathPair.finish, []

    def noted(paths, request, timeout_s):
        given_s.append(timeout_s)
        finish(paths, request, timeout_s)

    monkeypatch.setattr(PathPair, "finish", noted)
    with pytest.raises(RequestTimeoutError):
        counter.wait(1, timeout_s=0.01)
    assert given_s
    assert all(wait_s <= 0.01 + ANSWER_MIN_S for wait_s in given_s)


def test_a_wait_for_a_freed_counter_ends(box):
    counter = box.counter("steps")
    box.free(counter)
    with pytest.raises(RegionFreedError):
        counter.wait(1)
    with pytest.raises(RegionFreedError):
        counter.add()


def test_numbers_beyond_64_bits_are_refused(box):
    counter = box.counter("steps")
    for call in (lambda: counter.add(1 << 63), lambda: counter.compare_and_swap(0, 1 << 64)):
        with pytest.raises(LayoutMismatchError):
            call()
    assert counter.value == 0


@pytest.mark.parametrize("number", [1.5, float("nan"), "3"])
def test_a_wait_is_for_a_whole_number(box, number):
    with pytest.raises(TypeError):
        box.counter("steps").wait(number)


def test_the_first_value_is_any_whole_number_of_64_bits(box):
    for number, init in enumerate((np.int64(-3), np.uint64(5), np.int8(3), True, -1 << 63)):
        assert box.counter(f"first-{number}", init).value == init
    for init, error in (
        (1 << 63, LayoutMismatchError),
        ((-1 << 63) - 1, LayoutMismatchError),
        ("a", TypeError),
        (10**400, LayoutMismatchError),
        (0.5, TypeError),
    ):
        with pytest.raises(error):
            box.counter("wrong", init)
    assert box.counter("wrong").value == 0


def test_a_held_counter_counts_once(box, held):
    counter = box.counter("steps")
    verbs = (counter.add, (3,)), (counter.compare_and_swap, (0, 3))
    for verb, numbers in verbs:
        with held(counter), pytest.raises(RequestTimeoutError) as caught:
            verb(*numbers, timeout_s=0.01)
        assert caught.value.handle.outcome() == "none"
        assert caught.value.facts["timeout_s"] == 0.01
    handle = counter.add_nb(3)
    handle.wait()
    assert counter.value == 3
