from __future__ import annotations

import threading

import numpy as np
import pytest

from smbox.errors import (
    LayoutMismatchError,
    RegionExistsError,
    RegionNotFoundError,
    RequestTimeoutError,
)
from smbox.testing.model_box import Entry, ModelBox


def test_one_of_two_creates_wins():
    box = ModelBox()
    box.create("r", shape=2, init=np.array([1, 2], np.float32))
    again = box.create("r", shape=2, init=9.0, exist_ok=True)
    assert again.get().tolist() == [1, 2]
    with pytest.raises(RegionExistsError):
        box.create("r", shape=2)
    with pytest.raises(LayoutMismatchError):
        box.create("r", shape=3, exist_ok=True)


def test_attach_waits_for_the_region():
    box, found = ModelBox(), []
    thread = threading.Thread(target=lambda: found.append(box.attach("r").shape))
    thread.start()
    box.create("r", shape=(2, 3))
    thread.join()
    assert found == [(2, 3)]
    with pytest.raises(RegionNotFoundError):
        box.attach("other", timeout_s=0.0)


def test_clients_share_the_memory_and_the_log_tells_them_apart():
    box = ModelBox()
    region = box.client("a").create("r", shape=1)
    box.client("b").attach("r").accumulate(np.ones(1, np.float32))
    region.get()
    assert box.log == [Entry("b", "accumulate", "r"), Entry("a", "get", "r")]
    assert box.order("r", "accumulate") == ["b"]


def test_counters():
    counter = ModelBox().counter("steps", 5)
    assert counter.add(2) == 5
    assert counter.value == 7
    assert not counter.compare_and_swap(5, 0)
    assert counter.compare_and_swap(7, 1)
    assert counter.wait(1) == 1
    with pytest.raises(RequestTimeoutError):
        counter.wait(2, timeout_s=0.0)


def test_a_barrier_opens_round_by_round():
    box, rounds = ModelBox(), []

    def meet() -> None:
        rounds.extend(box.barrier("b", 2) for _ in range(3))

    threads = [threading.Thread(target=meet) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rounds) == [0, 0, 1, 1, 2, 2]
    for _ in range(2):  # an arrival that timed out does not count
        with pytest.raises(RequestTimeoutError):
            box.barrier("lonely", 2, timeout_s=0.0)


def test_adds_of_many_threads_are_exact():
    box = ModelBox()
    region = box.create("r", shape=3, dtype="int64", init=0)

    def work() -> None:
        for _ in range(100):
            region.accumulate(np.ones(3, np.int64))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert region.get().tolist() == [400] * 3


def test_regions_come_and_go():
    with ModelBox() as box:
        box.create("b", shape=1)
        box.create("a", shape=1)
        assert [region.name for region in box.regions()] == ["a", "b"]
        box.free("a")
        box.flush()
        assert [region.name for region in box.regions()] == ["b"]
        with pytest.raises(RegionNotFoundError):
            box.free("a")
