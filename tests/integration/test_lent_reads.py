"""Tests of zero-copy reads over tcp while others change or free the region."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import smbox
from smbox.memory.layout import STRIPE_NBYTES

pytestmark = pytest.mark.shares

NBYTES = 48 * STRIPE_NBYTES  # 24 MiB: lent by default
READS = 4

WRITES = """
region = box.attach("w")
for value in range(1, 1_000_000):
    region.put(np.full(region.shape, value, np.int64))
    if value == 1:
        print("ready", flush=True)
"""


@pytest.mark.parametrize("is_greeted", [False, True], ids=["in line", "ahead of it"])
def test_no_half_of_a_commit_is_seen(place, is_greeted):
    local = place.box()
    local.create("w", NBYTES // 8, "int64")
    local.create("other", 1, "int64")
    before = requests(local)
    writer = place.script(WRITES, "shm")
    assert writer.stdout.readline() == "ready\n"
    last = np.zeros(NBYTES // STRIPE_NBYTES, np.int64)
    for _ in range(READS):  # each client is new and does not know of contention
        with smbox.connect(place.address("tcp"), transport="tcp", timeout_s=60.0) as box:
            if is_greeted:
                box.attach("other").get()
            stripes = box.attach("w").get().reshape(last.size, -1)
        assert (np.ptp(stripes, axis=1) == 0).all()
        assert (stripes[:, 0] >= last).all()
        last = stripes[:, 0].copy()
    after = requests(local)
    lent, again = (after.get(op, 0) - before.get(op, 0) for op in ("LEND", "GET"))
    copied = READS * (2 + is_greeted)  # 2 MiB at each end, and the other region
    assert lent >= READS * (NBYTES - (2 << 20)) // (2 << 20)
    assert again > copied  # otherwise nothing was validated and read again


def test_a_region_is_freed_under_a_stopped_reader(place, reads_on):
    box = place.box()
    region = box.create("w", 8 * NBYTES, "uint8")
    reader = place.script(reads_on, "tcp")
    assert reader.stdout.readline() == "ready\n"
    time.sleep(0.3)
    os.kill(reader.pid, signal.SIGSTOP)
    box.free(region)
    assert box.stats()["used_nbytes"] < NBYTES  # immediately
    fresh = box.create("w", 1000, "uint8")  # the node still serves
    fresh.put(np.full(1000, 3, np.uint8))
    os.kill(reader.pid, signal.SIGCONT)
    assert reader.stdout.readline() == "freed\n"
    assert (fresh.get() == 3).all()


def requests(box):
    counts = box.stats()
    return {op: counts.get(f"requests.{op}", 0) for op in ("LEND", "GET")}
