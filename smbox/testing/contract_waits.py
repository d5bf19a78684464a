"""The contract of concurrent use: exact sums, counters, versions, barriers, timeouts."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from smbox.errors import ConfigError, LayoutMismatchError, RequestTimeoutError
from smbox.testing.contract_tools import STRIPE, fresh, in_threads, raises, region_of, same

SHORT_S = 0.02
"""A timeout that is meant to pass."""


def check_concurrent_sums(box: Any) -> None:
    """No update of many threads is lost, doubled or torn."""
    count = STRIPE // 2 + 5
    with region_of(box, np.zeros(count, np.int64)) as region:
        x = np.ones(count, np.int64)

        def job(index: int) -> None:
            for _ in range(10):
                region.accumulate(x, scale=index + 1)
                seen = region.get()
                assert (seen[:10] == seen[0]).all()

        in_threads(4, job)
        same(region.get(), x * 100)


def check_concurrent_elastic(box: Any) -> None:
    """The region gains exactly what the workers lose, in a sum of integers."""
    count = STRIPE // 4
    with region_of(box, np.zeros(count, np.float64)) as region:
        workers = [np.full(count, 2.0**k, np.float64) for k in range(3)]

        def job(index: int) -> None:
            for _ in range(5):
                region.elastic(workers[index], 0.5)

        in_threads(3, job)
        same(region.get() + sum(workers), np.full(count, 7.0, np.float64))


def check_counter(box: Any) -> None:
    """A counter counts exactly, from any thread, and has a name of its own kind."""
    name = fresh("count")
    counter = box.counter(name, init=5)
    tickets: list[int] = []
    in_threads(4, lambda _: tickets.extend(counter.add() for _ in range(25)))
    assert sorted(tickets) == list(range(5, 105))
    assert box.counter(name, init=9).value == 105
    assert not counter.compare_and_swap(0, 1)
    assert counter.compare_and_swap(105, -(2**63))
    assert counter.add(2) == -(2**63)
    assert counter.add_nb(-2).result() == 2 - 2**63
    assert counter.compare_and_swap_nb(-(2**63), 0).result()
    assert counter.value == 0
    with raises(LayoutMismatchError):
        counter.add(2**63)
    with raises(TypeError):
        counter.add(0.5)
    box.create(name, shape=(1,))
    box.free(name)
    box.free(counter)


def check_counter_wait(box: Any) -> None:
    """A wait ends when another thread has reached the value; otherwise it times out."""
    counter = box.counter(fresh("wait"))
    with raises(RequestTimeoutError):
        counter.wait(at_least=1, timeout_s=SHORT_S)
    seen: list[int] = []
    waiter = threading.Thread(target=lambda: seen.append(counter.wait(3, timeout_s=60.0)))
    waiter.start()
    for _ in range(4):
        counter.add()
    waiter.join()
    assert seen in ([3], [4])
    assert counter.wait(at_least=2) == 4
    box.free(counter)


def check_version_wait(box: Any) -> None:
    """A region's version counts commits, and can be waited for."""
    with region_of(box, np.zeros(4, np.float32)) as region:
        version = region.version
        assert region.wait(version=version) == version
        with raises(RequestTimeoutError) as caught:
            region.wait(version=version + 1, timeout_s=SHORT_S)
        region.accumulate(np.ones(4, np.float32))
        assert caught[0].handle.outcome() == "none"  # type: ignore[attr-defined]
        with raises(ConfigError):
            caught[0].handle.wait()  # type: ignore[attr-defined]
        assert region.wait(version=version + 1) == version + 1
        seen: list[int] = []
        wanted = version + 3
        waiter = threading.Thread(
            target=lambda: seen.append(region.wait(wanted, timeout_s=60.0))
        )
        waiter.start()
        for _ in range(3):
            region.accumulate(np.ones(4, np.float32))
        waiter.join()
        assert wanted <= seen[0] <= version + 4


def check_barrier(box: Any) -> None:
    """All parties leave together, as often as they meet; each meeting has its number."""
    name, meetings = fresh("meet"), 4
    arrived: list[list[int]] = [[] for _ in range(meetings)]

    def job(index: int) -> None:
        for meeting, present in enumerate(arrived):
            present.append(index)
            assert box.barrier(name, parties=3, timeout_s=60.0) == meeting
            assert sorted(present) == [0, 1, 2]

    in_threads(3, job)
    with raises(LayoutMismatchError):
        box.barrier(name, parties=2)


def check_barrier_timeout(box: Any) -> None:
    """A caller that timed out does not count: the others still need all parties."""
    name = fresh("late")
    for _ in range(3):
        with raises(RequestTimeoutError) as caught:
            box.barrier(name, parties=2, timeout_s=SHORT_S)
        assert caught[0].facts["arrived"] == 1  # type: ignore[attr-defined]
    in_threads(2, lambda _: box.barrier(name, parties=2, timeout_s=60.0))
