"""The fast way gives the bits of the slow way, or leaves the work to it."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.memory import accel
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.base import Operation
from smbox.paths.local_now import commit_now
from smbox.paths.sinks import DeltaSink, MoveSink, OldSink

COUNT = 2 * STRIPE_NBYTES // 4 + 6
RATE = np.float32(0.3)


@pytest.fixture(scope="module", autouse=True)
def has_engine():
    if accel.load() is None:
        pytest.skip("numba is not installed: nothing runs the fast way")


def data(seed):
    return np.random.default_rng(seed).normal(size=COUNT).astype(np.float32)


def sinks(x):
    """Sinks of each kind with the kernel they are for and the array they fill."""
    old, delta = np.zeros(COUNT, np.float32), np.zeros(COUNT, np.float32)
    return {
        "old": (KernelCode.SUM, 1, OldSink(0, old.view(np.uint8)), old),
        "move": (KernelCode.ELASTIC, 0.3, MoveSink(0, x, RATE), x),
        "delta": (KernelCode.ELASTIC, 0.3, DeltaSink(0, x, RATE, delta), delta),
        "none": (KernelCode.SUM, 0.3, None, x),
    }


@pytest.mark.parametrize("kind", ["old", "move", "delta", "none"])
@pytest.mark.parametrize("skipped", [0, STRIPE_NBYTES])
def test_the_bits_are_those_of_the_slow_way(box, kind, skipped):
    path, results = box._paths.data(), []
    for how in ("fast", "slow"):
        region, x = box.create(how, init=data(1)), data(2)
        version = region.version
        kernel, scale, sink, filled = sinks(x)[kind]
        operation = Operation("test", kernel, scale, 0, region.nbytes, x.view(np.uint8))
        if how == "fast":
            lane = path._lane()
            mapped = path._map(region.info)
            assert commit_now(lane.writer, mapped, operation, sink, skipped) == region.nbytes
        else:
            rest = Operation(
                "test", kernel, scale, skipped, region.nbytes, operation.source[skipped:]
            )
            wrapped = sink and (lambda *piece, sink=sink: sink(*piece))
            path.change(region.info, rest, wrapped).advance(0.0)
        results.append((region.get().tobytes(), filled.tobytes(), region.version - version))
    assert results[0] == results[1]
    assert results[0][2] == 3 - skipped // STRIPE_NBYTES


def test_what_an_earlier_commit_left_is_settled_first(box, solo):
    """Two exceptions in a row can leave a commit unlocked by nobody."""
    path, region = box._paths.data(), box.create("some", init=data(1))
    writer, mapped = path._lane().writer, path._map(region.info)
    left = mapped.lock_byte(2)
    assert writer.locks.try_lock(left)

    def unlock():
        writer.locks.unlock(left)
        writer.unsettled = None

    writer.unsettled = unlock
    region[:4].put(data(2)[:4])
    assert writer.unsettled is None
    assert not solo.control.memory.superblock.locks.is_held(left)


def test_a_held_stripe_stops_it(box, held):
    path, region = box._paths.data(), box.create("some", init=data(1))
    source = data(2).view(np.uint8)
    operation = Operation("test", KernelCode.SUM, 1, 0, region.nbytes, source)
    writer, mapped = path._lane().writer, path._map(region.info)
    with held(region, 1):
        assert commit_now(writer, mapped, operation, None, 0) == STRIPE_NBYTES
        assert commit_now(writer, mapped, operation, None, STRIPE_NBYTES) == STRIPE_NBYTES


def test_an_unknown_sink_is_left_to_the_slow_way(box):
    path, region = box._paths.data(), box.create("some", init=data(1))
    operation = Operation("test", KernelCode.SUM, 1, 0, region.nbytes, data(2).view(np.uint8))
    writer, mapped = path._lane().writer, path._map(region.info)
    assert commit_now(writer, mapped, operation, lambda *_: None, 0) == 0
