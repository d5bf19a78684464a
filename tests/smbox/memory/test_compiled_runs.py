"""Runs against other processes: torn reads, lost updates, kills in the middle.

What a run does when it is alone is tested through its doors, commit_run and read_run.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from smbox.memory import accel, recovery
from smbox.memory.accel import Engine
from smbox.memory.layout import STRIPE_NBYTES, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.read_run import read_run

pytest.importorskip("numba", reason="without it there are no runs")
STRIPES = 3
COUNT = STRIPES * STRIPE_NBYTES // 8
DEADLINE_S = 60.0

ADD_FOR_EVER = """
import os
import sys
import numpy as np
from smbox.memory import accel
from smbox.memory.change import Change
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.mapped import MappedRegion
from smbox.memory.stripe_run import commit_run

node, offset = sys.argv[1], int(sys.argv[2])
region, writer = MappedRegion.attach(node, offset), Writer.create(node)
assert accel.load() is not None
change = Change(KernelCode.SUM, np.ones(region.nbytes // 8, np.int64))
while True:
    at = 0
    while at < region.nbytes:
        source = change.source[at // 8 :]
        done = commit_run(writer, region, at, region.nbytes, Change(change.kernel, source))
        if done == at:
            os.sched_yield()  # another writer holds the stripe
        at = done
"""


@pytest.fixture(autouse=True)
def loaded(monkeypatch, engine: Engine) -> None:
    monkeypatch.setattr(accel, "prepare", lambda _nbytes: engine)
    monkeypatch.delenv("SMBOX_ACCEL", raising=False)  # the children's


def start(memory, region) -> subprocess.Popen:
    command = [sys.executable, "-c", ADD_FOR_EVER, memory.name, str(region.offset)]
    return subprocess.Popen(command)


def wait_for_version(region, version: int, *children: subprocess.Popen) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while region.version() < version:
        assert time.monotonic() < deadline
        assert all(child.poll() is None for child in children)
        time.sleep(0.001)


def kill(*children: subprocess.Popen) -> None:
    for child in children:
        child.send_signal(signal.SIGKILL)
    for child in children:
        child.wait()


def recover(memory, region) -> None:
    locks = LockFile(memory.name)
    for stripe in range(STRIPES):
        assert locks.try_lock(region.lock_byte(stripe))
        if region.table[stripe, Stripe.SEQ] & 1:
            recovery.recover_stripe(region, stripe, locks)
        locks.unlock(region.lock_byte(stripe))
    locks.close()


def assert_every_stripe_is_its_count(region) -> None:
    for stripe in range(STRIPES):
        found = region.typed(stripe * STRIPE_NBYTES, (stripe + 1) * STRIPE_NBYTES)
        assert (found == int(region.table[stripe, Stripe.COUNT])).all()


def test_kills_in_the_middle_leave_whole_stripes_and_exact_counts(memory, make):
    region = make(np.zeros(COUNT, np.int64))
    for _ in range(2):
        child = start(memory, region)
        wait_for_version(region, region.version() + 60, child)
        kill(child)
        recover(memory, region)
        assert_every_stripe_is_its_count(region)


def test_two_writers_lose_nothing_and_a_reader_sees_no_half_commit(memory, make):
    region, out = make(np.zeros(COUNT, np.int64)), np.zeros(COUNT, np.int64)
    children = [start(memory, region) for _ in range(2)]
    wait_for_version(region, 20, *children)
    whole = 0
    deadline = time.monotonic() + DEADLINE_S
    while whole < 20:
        assert time.monotonic() < deadline
        for stripe in range(STRIPES):
            first = stripe * STRIPE_NBYTES
            share = out[first // 8 : first // 8 + STRIPE_NBYTES // 8]
            if read_run(region, first, first + STRIPE_NBYTES, share) > first:
                assert (share == share[0]).all()
                whole += 1
    kill(*children)
    recover(memory, region)
    assert_every_stripe_is_its_count(region)
