"""SIGKILL at each line of the lane's own changes: those whose operand lies at the node.

Whatever the kill left, the next node recovers it, and the request that is sent again happens
exactly once: its number moved together with the data, or not at all.
"""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from memnode import derived, numbered
from memnode.channel import Channel
from memnode.derived import FromTask, UpdateTask
from memnode.registry import Registry
from smbox import dtypes
from smbox.memory import accel, commit, kernels, update
from smbox.memory.building import build
from smbox.memory.journal import Writer
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.node_memory import NodeMemory
from smbox.memory.optimizers import OptimizerCode
from smbox.memory.region_header import RegionSpec
from smbox.testing.crash_points import killed_at
from smbox.wire import operands
from smbox.wire.codec import Request
from smbox.wire.header import pack_scale
from smbox.wire.ops import Op
from smbox.wire.status import Status

MODULES = (commit, update, derived, numbered)
FILES = {module.__file__ for module in MODULES}
COUNT = STRIPE_NBYTES // 4 + 9  # two stripes
CLIENT = 7


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setattr(accel, "journaled", kernels.journaled)
    monkeypatch.setattr(accel, "prepare", lambda _nbytes: None)  # lines need Python
    memory = NodeMemory.open(f"c{secrets.token_hex(4)}", 64 << 20)
    yield memory
    memory.close(keep=False)


def region_of(memory, name, value):
    spec = RegionSpec(name, dtypes.by_name("float32"), (COUNT,))
    region = build(memory.name, spec, memory.superblock.take_address(spec.nbytes))
    region.array()[:] = value
    memory.add(region)
    return region


def request_of(op, region, other):
    fields = {"address": region.address, "nbytes": region.nbytes, "number": 1, "numbers": 2}
    raw = pack_scale(1.0, "f")
    if op is Op.FROM:
        payload = operands.pack_address(other.address)
        return Request(op, 1, kernel=2, scale=raw, payload=payload, **fields)
    ones = np.ones(COUNT, np.float32)
    payload = operands.pack_update([other.address], [1, 0], ones)
    return Request(op, 1, kernel=int(OptimizerCode.MOMENTUM), payload=payload, **fields)


class Bench:
    """Runs one request on the memory, with writers of the calling process."""

    def __init__(self, memory, op):
        self.memory, self.op = memory, op
        self.region = region_of(memory, "r", 1)
        self.other = region_of(memory, "o", 1)
        self.row = memory.channels.claim(CLIENT, 0)

    def run(self, writer):
        registry = Registry(self.memory, 10)
        channel = Channel(self.memory.name, (0, b"x"), CLIENT, self.row)
        request = request_of(self.op, self.region, self.other)
        kind = FromTask if self.op is Op.FROM else UpdateTask
        reply = kind(request, channel, registry, writer).advance()
        assert reply.status is Status.OK

    def killed_at(self, line):
        """Run it in a child that is killed before the ``line``-th line."""

        def run():
            writer = Writer.create(self.memory.name)
            self.run(writer)
            writer.close()

        return killed_at(line, run, FILES)


@pytest.mark.parametrize("op", [Op.FROM, Op.UPDATE], ids=lambda op: op.name)
def test_a_change_of_the_lane_killed_anywhere_happens_once(memory, op):
    bench = Bench(memory, op)
    region, after = bench.region, 0.0 if op is Op.UPDATE else 2.0
    line, seen, killed = 1, set(), True
    while killed:
        region.array()[:] = 1
        bench.other.array()[:] = 0 if op is Op.UPDATE else 1
        bench.row.applied = 0
        killed = bench.killed_at(line)
        memory.sweep_slots()
        found = region.array()
        stripes = [float(found[0]), float(found[-1])]
        assert (found[: STRIPE_NBYTES // 4] == stripes[0]).all()
        done = stripes.count(after)
        assert set(stripes) <= {1.0, after}
        assert bench.row.applied == done, line
        bench.run(memory.writer)
        assert (region.array() == after).all()
        assert bench.row.applied == 2
        seen.add(done)
        line += 1 if line < 30 else 4
    assert {0, 2} <= seen
    assert line > 60
