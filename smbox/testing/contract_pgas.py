"""The contract of affinity, puts with a signal, and handles that chain (PGAS)."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from smbox.dtypes import by_name
from smbox.errors import ConfigError, LayoutMismatchError, RegionFreedError
from smbox.handle import when_all
from smbox.testing.contract_tools import (
    COUNTS,
    STRIPE,
    fresh,
    in_threads,
    raises,
    region_of,
    same,
    values,
)

F32 = by_name("float32")
ROUNDS = 12


def check_affinity(box: Any) -> None:
    """The parts cover the rows in order, and the local ones are the memory itself."""
    x = values(10, F32)
    with region_of(box, x) as region:
        assert region.parts[0].first_row == 0
        assert region.parts[-1].limit_row == 10
        for part, following in zip(region.parts, region.parts[1:], strict=False):
            assert part.limit_row == following.first_row
        assert region.is_local == all(part.is_local for part in region.parts)
        for part in region.parts:
            rows = region[part.first_row : part.limit_row]
            assert rows.parts == ((part.node, part.address, 0, len(rows), part.is_local),)
            if part.is_local:
                same(rows.local(), x[part.first_row : part.limit_row])
                rows.local()[0] += 100
                assert region.get()[part.first_row] == x[part.first_row] + 100
            else:
                with raises(ConfigError):
                    rows.local()


def check_affinity_of_a_freed_region(box: Any) -> None:
    """A freed region still returns the places of its rows."""
    with region_of(box, values(10, F32)) as region:
        parts, is_local = region.parts, region.is_local
        slices = region[2:5], region[2:5].parts
    with raises(RegionFreedError):
        region.get()
    assert (region.parts, region.is_local) == (parts, is_local)
    assert slices[0].parts == slices[1]


def check_put_signal(box: Any) -> None:
    """A put of any size with a signal replaces the contents and counts once."""
    for count in COUNTS:
        counter = box.counter(fresh("signal"), init=5)
        with region_of(box, np.zeros(count, np.float32)) as region:
            x = values(count, F32)
            region.put(x, signal=counter)
            assert counter.value == 6
            same(region.get(), x)
            handle = region.put_nb(x + 1, signal=counter)
            handle.wait()
            assert handle.outcome() == "all"
            assert counter.value == 7
            same(region.get(), x + 1)
            region[1:].put((x[1:] + 2).astype(np.float16), signal=counter)
            assert counter.value == 8
            same(region.get()[1:], x[1:] + 2)
        box.free(counter)


def check_flush_sends_signals(box: Any) -> None:
    """A flush completes puts with a signal whose handles were dropped."""
    counters = [box.counter(fresh("signal")) for _ in range(4)]  # on several nodes, by chance
    with region_of(box, np.zeros(STRIPE + 5, np.float32)) as region:
        x = values(STRIPE + 5, F32)
        for counter in counters:
            region.put_nb(x, signal=counter)
        box.flush()
        assert [counter.value for counter in counters] == [1] * 4
        same(region.get(), x)
    for counter in counters:
        box.free(counter)


def check_who_sees_the_counter_sees_the_data(box: Any) -> None:
    """A reader that sees the k-th signal reads no element older than the k-th put."""
    count = 2 * STRIPE + 5
    counter = box.counter(fresh("signal"))
    with region_of(box, np.zeros(count, np.int32)) as region:

        def job(index: int) -> None:
            for k in range(1, ROUNDS + 1):
                if index == 0:
                    region.put(np.full(count, k, np.int32), signal=counter)
                else:
                    seen = counter.wait(at_least=k, timeout_s=60.0)
                    assert region.get().min() >= seen

        in_threads(3, job)
        assert counter.value == ROUNDS
    box.free(counter)


def check_signals_of_many_writers(box: Any) -> None:
    """Each put of every thread counts exactly once."""
    counter = box.counter(fresh("signal"))
    with region_of(box, np.zeros((4, 7), np.int64)) as region:

        def job(index: int) -> None:
            for k in range(ROUNDS):
                mine = region[index : index + 1]
                handle = mine.put_nb(np.full((1, 7), k, np.int64), signal=counter)
                if k % 2:
                    handle.wait()
                mine.put(np.full((1, 7), k + 1, np.int64), signal=counter)

        in_threads(4, job)
        box.flush()
        assert counter.value == 4 * 2 * ROUNDS
        same(region.get(), np.full((4, 7), ROUNDS, np.int64))
    box.free(counter)


def check_put_signal_that_fails(box: Any) -> None:
    """A put that fails sends no signal; invalid arguments change nothing."""
    counter = box.counter(fresh("signal"))
    x = values(6, F32)
    with region_of(box, np.zeros(6, np.float32)) as region:
        with raises(TypeError):
            region.put(x, signal=region)
        with raises(TypeError):
            region.put_nb(x, signal=counter.name)
        with raises(LayoutMismatchError):
            region.put(x[1:], signal=counter)
        with box.batch() as batch, raises(TypeError):
            batch.put(region, x, signal=counter)
        assert not region.get().any()
        gone = box.counter(fresh("signal"))
        box.free(gone)
        with raises(RegionFreedError):
            region.put_nb(x, signal=gone).wait()
        same(region.get(), x)
    for freed in (region, region[2:2]):
        with raises(RegionFreedError):
            freed.put(freed.dtype.type(1) * np.ones(freed.shape, np.float32), signal=counter)
    box.flush()
    assert counter.value == 0
    box.free(counter)


def check_then(box: Any) -> None:
    """A chained function gets the result, runs once, and may return a handle to wait for."""
    counter = box.counter(fresh("then"))
    with region_of(box, np.zeros(8, np.float32)) as region:
        calls: list[int] = []

        def claim(ticket: int) -> Any:
            calls.append(ticket)
            return region[ticket : ticket + 1].put_nb(np.ones(1, np.float32))

        handle = counter.add_nb(3).then(claim)
        assert calls == []
        handle.wait()
        assert (handle.result(), handle.result(), calls) == (None, None, [0])
        claimed = counter.add_nb().then(claim).then(lambda _: region.get_nb())
        assert claimed.result().tolist() == [1, 0, 0, 1, 0, 0, 0, 0]
        assert region.get_nb().then(np.sum).result() == 2
        first = counter.add_nb()
        first.then(calls.append)
        with raises(ConfigError):
            first.then(calls.append)
        assert (first.result(), calls) == (4, [0, 3])
    failed = region.get_nb()
    chained = failed.then(calls.append)
    for handle in (failed, chained, chained):
        with raises(RegionFreedError):
            handle.result()
    assert calls == [0, 3]
    box.free(counter)


def check_when_all(box: Any) -> None:
    """One handle waits for several regions and counters, and has their results in order."""
    counter = box.counter(fresh("all"), init=3)
    x = values(STRIPE + 1, F32)
    with region_of(box, x) as one, region_of(box, x + 1) as two:
        found = when_all([one.get_nb(), counter.add_nb(), two.get_nb()]).result()
        same(found[0], x)
        same(found[2], x + 1)
        assert found[1] == 3
        put = one.put_nb(x + 2, signal=counter)
        both = when_all([put, two.put_nb(x)]).then(lambda _: counter.value)
        assert both.result() == 5
        assert when_all([]).result() == ()
        with raises(ConfigError):
            when_all([put, put])
        with raises(TypeError):
            when_all([one])
    done = counter.add_nb()
    with raises(RegionFreedError):
        when_all([one.get_nb(), done]).wait()
    assert done.result() == 5
    box.free(counter)


def check_await(box: Any) -> None:
    """An event loop awaits handles, side by side."""
    x = values(STRIPE + 1, F32)
    counter = box.counter(fresh("await"))
    with region_of(box, np.zeros_like(x)) as region:

        async def one(k: int) -> int:
            await region.put_nb(x + k, signal=counter)
            return int(await counter.add_nb())

        async def several() -> list[int]:
            return await asyncio.gather(*map(one, range(5)))

        found = asyncio.run(several())
        assert len(set(found)) == 5
        assert counter.value == 10
        handle = region.get_nb()
        assert asyncio.run(_wait_for(handle)) is handle.result()
        same(handle.result(), x + 4)
    box.free(counter)


async def _wait_for(handle: Any) -> Any:
    return await handle
