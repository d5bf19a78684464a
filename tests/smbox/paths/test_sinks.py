"""Sinks give the same result when an interrupt makes their last piece come twice."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.sinks import DeltaSink, MoveSink, OldSink, SumSink

OLD = np.array([1, 2, 3, 4], np.float32)
X = np.array([5, 8, 3, 0], np.float32)
RATE = np.float32(0.5)
FIRST = 16
"""Byte of the region's data where the change begins."""


def feed(sink, times):
    for first, limit in ((0, 8), (8, 16)):
        for _ in range(times):
            sink(FIRST + first, FIRST + limit, OLD.view(np.uint8)[first:limit])


@pytest.mark.parametrize("times", [1, 2])
def test_old_bytes_are_kept(times):
    out = np.zeros(4, np.float32)
    feed(OldSink(FIRST, out.view(np.uint8)), times)
    assert (out == OLD).all()


@pytest.mark.parametrize("times", [1, 2])
def test_delta_is_what_the_region_gained(times):
    x, delta = X.copy(), np.zeros(4, np.float32)
    feed(DeltaSink(FIRST, x, RATE, delta), times)
    assert delta.tolist() == [2, 3, 0, -2]
    assert (x == X).all()


@pytest.mark.parametrize("times", [1, 2])
def test_sum_is_what_the_region_holds(times):
    x, out = X.copy(), np.zeros(4, np.float32)
    feed(SumSink(FIRST, x, RATE, out), times)
    assert out.tolist() == [3.5, 6, 4.5, 4]
    assert (x == X).all()


def test_what_overflows_does_so_without_a_warning():
    x, old = np.full(2, 3e38, np.float32), np.full(2, -3e38, np.float32)
    delta = np.zeros(2, np.float32)
    DeltaSink(0, x, np.float32(1), delta)(0, 8, old.view(np.uint8))
    sums = np.zeros(2, np.float32)
    SumSink(0, x, np.float32(1), sums)(0, 8, x.view(np.uint8))
    assert sums.tolist() == [np.inf, np.inf]
    MoveSink(0, x, np.float32(1), x.itemsize)(0, 8, old.view(np.uint8))
    assert delta.tolist() == [np.inf, np.inf]
    assert x.tolist() == [-np.inf, -np.inf]


@pytest.mark.parametrize("times", [1, 2])
def test_x_moves_once(times):
    x = X.copy()
    feed(MoveSink(FIRST, x, RATE, x.itemsize), times)
    assert x.tolist() == [3, 5, 3, 2]


def test_a_narrow_x_takes_what_the_node_has_moved():
    x, moved = np.zeros(6, np.float16), np.arange(4, dtype=np.float16)
    sink = MoveSink(FIRST, x, RATE, 4)
    for at in (0, 2):
        sink(FIRST + 4 * at, FIRST + 4 * (at + 2), moved[at : at + 2].view(np.uint8))
    assert x.tolist() == [0, 1, 2, 3, 0, 0]


def test_x_does_not_change_before_the_delta_is_whole(monkeypatch):
    """An interrupt in the arithmetic leaves x as it was; the piece comes again."""
    x = X.copy()
    sink = MoveSink(FIRST, x, RATE, x.itemsize)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("smbox.paths.sinks.elastic_delta", interrupted)
        with pytest.raises(KeyboardInterrupt):
            feed(sink, 1)
    assert (x == X).all()
    feed(sink, 1)
    assert x.tolist() == [3, 5, 3, 2]


def interrupt_at(instruction):
    """Trace so that the given instruction of a sink's call, counted from 0, is not reached."""
    seen = itertools.count()
    sys._getframe().f_trace_opcodes = True  # Python 3.12.3 wants one before ``settrace``

    def trace(frame, event, _):
        if frame.f_code is not MoveSink.__call__.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(seen) == instruction:
            raise KeyboardInterrupt
        return trace

    return trace


def test_x_moves_once_wherever_it_is_interrupted():
    for instruction in itertools.count():
        x, tracing = X.copy(), sys.gettrace()
        sink = MoveSink(FIRST, x, RATE, x.itemsize)
        sink(FIRST, FIRST + 8, OLD.view(np.uint8)[:8])
        sys.settrace(interrupt_at(instruction))
        try:
            sink(FIRST + 8, FIRST + 16, OLD.view(np.uint8)[8:])
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracing)
        sink(FIRST + 8, FIRST + 16, OLD.view(np.uint8)[8:])
        assert x.tolist() == [3, 5, 3, 2], instruction
    assert instruction > 20


def test_an_interrupt_leaves_each_stripe_of_x_moved_or_not():
    count = 2 * STRIPE_NBYTES // 4
    begin = STRIPE_NBYTES - 8  # so two elements of the first stripe, and a part of the third
    old = np.zeros(count, np.float32)
    for instruction in itertools.count():
        x, tracing = np.full(count, 8, np.float32), sys.gettrace()
        sink = MoveSink(begin, x, RATE, x.itemsize)
        sys.settrace(interrupt_at(instruction))
        try:
            sink(begin, begin + x.nbytes, old.view(np.uint8))
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracing)
        stripes = np.split(x, [2, 2 + STRIPE_NBYTES // 4])
        assert [len(np.unique(stripe)) for stripe in stripes] == [1, 1, 1], instruction
    assert instruction > 40
    assert (x == 4).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sinks_give_the_bits_of_the_native_library(dtype, box):
    x, old = np.random.default_rng(3).standard_normal((2, 1003)).astype(dtype)
    rate = np.float64(0.3) if dtype is np.float64 else np.float32(0.3)  # where it is computed
    sunk, delta, total, native = x.copy(), np.zeros_like(x), np.zeros_like(x), x.copy()
    MoveSink(0, sunk, rate, x.itemsize)(0, x.nbytes, old.view(np.uint8))
    DeltaSink(0, x, rate, delta)(0, x.nbytes, old.view(np.uint8))
    SumSink(0, x, rate, total)(0, x.nbytes, old.view(np.uint8))
    native_delta, native_total = np.zeros_like(x), np.zeros_like(x)
    box.create("center", init=old).elastic(native, 0.3)
    box.create("second", init=old).elastic(x.copy(), 0.3, delta=native_delta)
    box.create("third", init=old).accumulate(x, 0.3, out=native_total)
    assert sunk.tobytes() == native.tobytes()
    assert delta.tobytes() == native_delta.tobytes()
    assert total.tobytes() == native_total.tobytes()


def test_what_came_back_as_a_message_may_be_read_only():
    x = X.copy()
    MoveSink(0, x, RATE, x.itemsize)(0, 16, np.frombuffer(OLD.tobytes(), np.uint8))
    assert x.tolist() == [3, 5, 3, 2]
