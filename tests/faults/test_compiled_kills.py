"""SIGKILL inside the compiled commit: no line can be named there, so it strikes at random."""

from __future__ import annotations

import os
import random
import secrets
import signal
import time

import numpy as np
import pytest

from smbox import dtypes
from smbox.memory import accel
from smbox.memory.building import build
from smbox.memory.change import Change, Receipt
from smbox.memory.channels import RingFile
from smbox.memory.item_run import commit_items
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Ring, Stripe
from smbox.memory.node_memory import NodeMemory
from smbox.memory.region_header import RegionSpec
from smbox.memory.stripe_run import commit_run

COUNT = 2 * STRIPE_NBYTES // 4  # two stripes of float32
KILLS = 15
WAIT_S = 30.0
LATEST_S = 2e-3


@pytest.fixture
def memory():
    pytest.importorskip("numba", reason="without it nothing is compiled")
    engine = accel.load()
    if engine is None or engine.commit_stripes is None:
        pytest.skip("SMBOX_ACCEL=0, or this machine may reorder stores: it has no runs")
    memory = NodeMemory.open(f"k{secrets.token_hex(4)}", 64 << 20)
    yield memory
    memory.close(keep=False)


def add_run(writer, region, row, ring):
    """Add 1 to both stripes by one run of stripes; returns whether anything was done."""
    change = Change(KernelCode.SUM, np.ones(COUNT, np.float32))
    receipt = Receipt(row, row.applied + 1, ring)
    return commit_run(writer, region, 0, region.nbytes, change, receipt=receipt) > 0


def add_items(writer, region, row, _ring):
    """Add 1 to both stripes by one run of items, which answer nothing."""
    source = np.ones(COUNT, np.float32).view(np.uint8)
    one = int(np.float64(1).view(np.uint64))
    orders = [
        (STRIPE_NBYTES << 32, region.address + first, STRIPE_NBYTES, one)
        for first in (0, STRIPE_NBYTES)
    ]
    run = (KernelCode.SUM, np.array(orders, np.uint64), 0, source)
    return commit_items(writer, region, *run, Receipt(row, row.applied + 1)) > 0


def add_for_ever(memory, region, row, add):
    """In a child: add 1 to both stripes, again and again, each time by one compiled call."""
    writer, ring = Writer.create(memory.name), RingFile.open(memory.name, row.index)
    while add(writer, region, row, ring):
        pass
    os._exit(1)


def kill_while_adding(memory, region, row, add, after_s):
    """Start the child, let it commit at least once, and kill it."""
    before = row.applied
    child = os.fork()
    if not child:
        try:
            add_for_ever(memory, region, row, add)
        finally:
            os._exit(1)
    deadline_s = time.monotonic() + WAIT_S
    while row.applied == before and time.monotonic() < deadline_s:
        time.sleep(1e-4)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child met an obstacle"
    assert row.applied > before


@pytest.mark.parametrize("add", [add_run, add_items])
def test_every_numbered_commit_is_whole_and_counted(memory, add):
    spec = RegionSpec("r", dtypes.by_name("float32"), (COUNT,))
    region = build(memory.name, spec, memory.superblock.take_address(spec.nbytes))
    memory.add(region)
    row = memory.channels.claim(7, 0)
    torn = 0
    chance = random.Random(5)
    for kills in range(1, KILLS + 1):
        kill_while_adding(memory, region, row, add, chance.uniform(0, LATEST_S))
        torn += int((region.table[:, Stripe.SEQ] & 1).any())
        memory.sweep_slots()
        applied = row.applied
        first, second = (set(half) for half in np.split(region.array(), 2))
        assert len(first) == len(second) == 1
        first, second = first.pop(), second.pop()
        assert first + second == applied == region.version()
        assert 0 <= first - second <= kills  # a kill between its stripes leaves one ahead
        if add is add_run:
            with_answer = RingFile.open(memory.name, row.index)
            answer = with_answer.answers(applied).view(np.float32)
            assert set(answer) <= {first - 1, second - 1}
            assert len(set(answer)) == 1
            with_answer.close()
        assert not (region.table[:, Stripe.SEQ] & 1).any()
    assert torn > 0, "no kill struck inside a commit: nothing was shown"
    assert applied > Ring.ENTRIES
