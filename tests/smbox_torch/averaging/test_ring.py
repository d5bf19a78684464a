from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import zmq

from smbox.errors import ConfigError, RemoteProtocolError, WorkerLostError
from smbox_torch.averaging.ring import HEADER, Ring

LONG_S = 60.0


def exchange(size: int) -> Callable[[int], Callable[[str], list[str]]]:
    """Addresses of workers that are threads."""
    addresses: list[str] = [""] * size
    met = threading.Barrier(size)

    def of(rank: int) -> Callable[[str], list[str]]:
        def tell(address: str) -> list[str]:
            addresses[rank] = address
            met.wait(LONG_S)
            return addresses

        return tell

    return of


def run(size: int, work, *, timeout_s: float = LONG_S) -> list:
    of = exchange(size)

    def one(rank: int):
        ring = Ring(rank, size, of(rank), timeout_s=timeout_s)
        try:
            return work(ring)
        finally:
            ring.close()

    with ThreadPoolExecutor(size) as pool:
        return [each.result() for each in [pool.submit(one, rank) for rank in range(size)]]


def drawn(rank: int, n: int, dtype: object = np.float32) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(n).astype(dtype)


def replay(arrays: list[np.ndarray]) -> np.ndarray:
    """The sum in the ring's order: part p is summed from rank p on."""
    size = len(arrays)
    split = [np.array_split(array, size) for array in arrays]
    parts = []
    for p in range(size):
        total = split[p][p].copy()
        for turn in range(1, size):
            total = total + split[(p + turn) % size][p]
        parts.append(total)
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("size", "n", "dtype"),
    [
        (1, 5, np.float32),
        (2, 1000, np.float32),
        (3, 100_003, np.float64),
        (4, 2, np.float32),
        (3, 50, ml_dtypes.bfloat16),
    ],
)
def test_the_sum_is_the_replays_bit_for_bit(size: int, n: int, dtype: object):
    def work(ring: Ring) -> np.ndarray:
        array = drawn(ring.rank, n, dtype)
        ring.sum(array)
        return array

    results = run(size, work)
    expected = replay([drawn(rank, n, dtype) for rank in range(size)])
    assert {each.tobytes() for each in results} == {expected.tobytes()}


@pytest.mark.parametrize("n", [7, 500_000])  # ZeroMQ copies small messages in any case
def test_many_rounds_do_not_mix(n: int):
    def work(ring: Ring) -> list[float]:
        found = []
        for number in range(20):
            array = np.full(n, ring.rank + number, np.float32)
            ring.sum(array)
            low, high = float(array.min()), float(array.max())
            array += 1000  # what was sent must not change any more
            found.append(low if low == high else np.nan)
        return found

    assert run(3, work) == [[3.0 * number + 3.0 for number in range(20)]] * 3


@pytest.mark.parametrize("source", [0, 1, 2])
def test_broadcast_gives_everybody_the_sources(source: int):
    def work(ring: Ring) -> bytes:
        array = drawn(ring.rank, 33)
        ring.broadcast(array, source)
        return array.tobytes()

    assert set(run(3, work)) == {drawn(source, 33).tobytes()}


def test_a_worker_that_left_is_named_by_all_others():
    def work(ring: Ring) -> str:
        if ring.rank == 1:
            return ""
        with pytest.raises(WorkerLostError) as caught:
            ring.sum(np.ones(9, np.float32))
        assert caught.value.facts["rank"] == 1
        return str(caught.value)

    found = run(4, work)
    assert "died or left" in found[2]
    assert "given up" in found[3]
    assert "given up" in found[0]


def test_a_worker_that_says_nothing_is_named_by_all_others():
    done = threading.Barrier(3)

    def work(ring: Ring) -> int:
        if ring.rank == 2:
            done.wait(LONG_S)
            return 2
        with pytest.raises(WorkerLostError) as caught:
            ring.sum(np.ones(9, np.float32))
        done.wait(LONG_S)
        return caught.value.facts["rank"]

    assert run(3, work, timeout_s=1.0) == [2, 2, 2]


def test_a_worker_that_is_stopped_for_too_long_is_named_and_gets_no_sum_when_it_continues():
    done = threading.Barrier(3)

    def work(ring: Ring) -> int:
        wait = ring._wait
        if ring.rank == 1:
            ring._wait = lambda: (done.wait(LONG_S), setattr(ring, "_wait", wait), wait())[-1]
        with pytest.raises(WorkerLostError) as caught:
            ring.sum(np.ones(9, np.float32))
        if ring.rank != 1:
            done.wait(LONG_S)
        return caught.value.facts["rank"]

    assert run(3, work, timeout_s=1.0) == [1, 0, 1]


def test_workers_that_are_stopped_together_continue_together(monkeypatch):
    """As by Ctrl-Z; each one found that its neighbour had said nothing for hours."""
    clock, waits, after = time.monotonic, iter([None]), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + after[0])

    def work(ring: Ring) -> list[float]:
        wait = ring._wait

        def stopped() -> object:
            ring._wait = wait
            after[0] = 10_000.0
            return next(waits)  # the messages that have come since are not there yet

        if ring.rank == 1:
            ring._wait = stopped
        array = np.ones(2, np.float32)
        ring.sum(array)
        return array.tolist()

    assert run(2, work) == [[2.0] * 2] * 2


def test_workers_with_different_models_are_an_error():
    def work(ring: Ring) -> None:
        with pytest.raises((RemoteProtocolError, WorkerLostError)):
            ring.sum(np.ones(10 + 10 * ring.rank, np.float32))

    run(2, work)


@pytest.mark.parametrize("frames", [[b"hello"], [b"x" * HEADER.size] * 3, [b"", b""]])
def test_a_stranger_is_refused(frames: list[bytes]):
    addresses = []

    def tell(address: str) -> list[str]:
        addresses.append(address)
        return [address, address]

    ring = Ring(0, 2, tell, timeout_s=LONG_S)
    with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
        stranger.connect(addresses[0])
        stranger.send_multipart(frames)
        with pytest.raises(RemoteProtocolError):
            ring.broadcast(np.ones(1, np.float32), source=1)
    for _ in range(2):  # an interrupt may have come after the first
        ring.close()


def test_impossible_places_are_refused():
    with pytest.raises(ConfigError):
        Ring(2, 2, lambda address: [address])


@pytest.mark.parametrize("other", ["tcp://10.0.0.6:7", "tcp://[fd00::6]:7", "tcp://b:7"])
def test_a_worker_on_loopback_among_workers_of_other_hosts_is_an_error(other: str):
    """Debian resolves a host's own name to 127.0.1.1; the others waited for the timeout."""
    for own in ("tcp://127.0.1.1:7", "tcp://[::1]:7", "tcp://localhost:7"):
        with pytest.raises(ConfigError, match="MASTER_ADDR") as caught:
            Ring(1, 3, lambda _, own=own: [other, other, own])
        assert caught.value.facts["rank"] == 2
        assert caught.value.facts["address"] == own


def test_workers_of_one_host_may_all_be_on_loopback():
    addresses = ["tcp://127.0.0.1:7", "tcp://[::1]:7", "tcp://localhost:7"]
    Ring(0, 3, lambda _: addresses).close()


def test_a_ring_that_finds_nobody_leaves_its_port():
    asked = []

    def fail(address: str) -> list[str]:
        asked.append(address)
        raise KeyError

    with pytest.raises(KeyError) as caught:
        Ring(0, 2, fail)
    with zmq.Context() as context, context.socket(zmq.PULL) as other:
        other.bind(asked[0])
    assert caught.tb is not None  # its frames hold the ring


def test_what_a_worker_sent_before_it_left_is_received(monkeypatch):
    poll = zmq.Poller.poll

    def sees_departures_first(poller: zmq.Poller, timeout_ms: int) -> list:
        ready = poll(poller, timeout_ms)
        is_of_both = len(poller.sockets) > 1
        return [each for each in ready if each[0].type != zmq.PULL or not is_of_both]

    monkeypatch.setattr(zmq.Poller, "poll", sees_departures_first)

    def work(ring: Ring) -> list[float]:
        array = np.full(3, ring.rank, np.float32)
        ring.broadcast(array, 1)
        return array.tolist()

    assert run(2, work) == [[1.0] * 3] * 2
