"""Tests of puts with a signal while processes are killed: no signal without its data."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest

from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.locks import LockFile
from smbox.memory.mapped import MappedRegion

pytestmark = pytest.mark.shares

COUNT = 3 * STRIPE_NBYTES // 8 + 5
KILLS = 4
SIGNALS = 20
PUTTING_FOR_EVER = """
region, counter = box.attach("w"), box.counter("signal")
k = counter.value
print("ready", flush=True)
while True:
    k += 1
    region.put(np.full(region.shape, k), signal=counter)
"""


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_killed_writer_leaves_no_signal_without_its_data(place, transport):
    box = place.box("shm")
    region = box.create("w", shape=(COUNT,), dtype="int64", init=0)
    counter = box.counter("signal")
    for _ in range(KILLS):
        writer = place.script(PUTTING_FOR_EVER, transport)
        assert writer.stdout.readline() == "ready\n"
        counter.wait(at_least=counter.value + SIGNALS, timeout_s=60.0)
        writer.kill()
        writer.wait()
        seen, found = counter.value, region.get()
        assert found.min() >= seen
        assert found.max() <= seen + 1  # one may be in flight


def test_readers_in_other_processes_see_the_data_of_every_signal(place):
    box = place.box("shm")
    box.create("w", shape=(COUNT,), dtype="int64", init=0)
    counter = box.counter("signal")
    place.script(PUTTING_FOR_EVER, "tcp")
    remote = place.box("tcp")
    wrong = []

    def read(region, counter):
        seen = 0
        while seen < 10 * SIGNALS:
            seen = counter.wait(at_least=seen + 1, timeout_s=60.0)
            if region.get().min() < seen:
                wrong.append(seen)

    readers = [
        threading.Thread(target=read, args=(each.attach("w"), each.counter("signal")))
        for each in (box, remote)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60.0)
    assert wrong == []
    assert counter.value >= 10 * SIGNALS


@contextlib.contextmanager
def held_up(place, region, stripe):
    """Lock a stripe, so that a put is certainly in progress."""
    mapped, locks = MappedRegion.attach(place.name, int(region.address)), LockFile(place.name)
    assert mapped.try_lock(stripe, locks)
    try:
        yield
    finally:
        locks.close()


@pytest.mark.parametrize("stripe", [0, 2, "the counter"])
def test_a_node_killed_in_the_middle_signals_once(place, stripe):
    box = place.box("tcp")
    region = box.create("w", shape=(COUNT,), dtype="int64", init=0)
    counter = box.counter("signal")
    target, stripe = (counter.info, 0) if stripe == "the counter" else (region, stripe)
    with held_up(place, target, stripe):
        handle = region.put_nb(np.full(COUNT, 7), signal=counter)
        with pytest.raises(TimeoutError):
            handle.wait(0.5)
        place.restart()
    handle.wait()
    assert counter.value == 1
    assert (region.get() == 7).all()
