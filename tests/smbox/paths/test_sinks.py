"""Sinks give the same result when an interrupt makes their last piece come twice."""

from __future__ import annotations

import itertools
import platform
import sys

import numpy as np
import pytest

from smbox.memory import accel
from smbox.memory.accel import Accel
from smbox.memory.kernels import KernelCode, run_kernel
from smbox.paths.sinks import DeltaSink, MoveSink, OldSink

OLD = np.array([1, 2, 3, 4], np.float32)
X = np.array([5, 8, 3, 0], np.float32)
RATE = np.float32(0.5)
FIRST = 16
"""Byte of the region's data where the change begins."""


@pytest.fixture(params=["compiled", "numpy"])
def arithmetic(request, monkeypatch):
    engine = None
    if request.param == "compiled":
        pytest.importorskip("numba", reason="without it nothing is compiled")
        engine = Accel({}, platform.machine()).load()
    monkeypatch.setattr(accel, "loaded", lambda: engine)


def feed(sink, times):
    for first, limit in ((0, 8), (8, 16)):
        for _ in range(times):
            sink(FIRST + first, FIRST + limit, OLD.view(np.uint8)[first:limit])


@pytest.mark.parametrize("times", [1, 2])
def test_old_bytes_are_kept(times):
    out = np.zeros(4, np.float32)
    feed(OldSink(FIRST, out.view(np.uint8)), times)
    assert (out == OLD).all()


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("times", [1, 2])
def test_delta_is_what_the_region_gained(times):
    x, delta = X.copy(), np.zeros(4, np.float32)
    feed(DeltaSink(FIRST, x, RATE, delta), times)
    assert delta.tolist() == [2, 3, 0, -2]
    assert (x == X).all()


@pytest.mark.usefixtures("arithmetic")
def test_what_overflows_does_so_without_a_warning():
    x, old = np.full(2, 3e38, np.float32), np.full(2, -3e38, np.float32)
    delta = np.zeros(2, np.float32)
    DeltaSink(0, x, np.float32(1), delta)(0, 8, old.view(np.uint8))
    MoveSink(0, x, np.float32(1))(0, 8, old.view(np.uint8))
    assert delta.tolist() == [np.inf, np.inf]
    assert x.tolist() == [-np.inf, -np.inf]


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("times", [1, 2])
def test_x_moves_once(times):
    x = X.copy()
    feed(MoveSink(FIRST, x, RATE), times)
    assert x.tolist() == [3, 5, 3, 2]


def test_a_piece_moved_by_numpy_is_not_moved_again_by_compiled_code(monkeypatch):
    """The kernels may have been loaded meanwhile."""
    pytest.importorskip("numba", reason="without it nothing is compiled")
    x, engine = X.copy(), Accel({}, platform.machine()).load()
    sink = MoveSink(FIRST, x, RATE)
    for each in (None, engine):
        monkeypatch.setattr(accel, "loaded", lambda each=each: each)
        sink(FIRST, FIRST + 16, OLD.view(np.uint8))
    assert x.tolist() == [3, 5, 3, 2]


def test_x_does_not_change_before_the_delta_is_whole(monkeypatch):
    """An interrupt in the arithmetic leaves x as it was; the piece comes again."""
    x = X.copy()
    sink = MoveSink(FIRST, x, RATE)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(accel, "loaded", lambda: None)
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

    def trace(frame, event, _):
        if frame.f_code is not MoveSink.__call__.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(seen) == instruction:
            raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.usefixtures("arithmetic")
def test_x_moves_once_wherever_it_is_interrupted():
    for instruction in itertools.count():
        x, tracing = X.copy(), sys.gettrace()
        sink = MoveSink(FIRST, x, RATE)
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


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", ["moved", "delta"])
def test_what_the_commit_kept_gives_the_same_bits(kind, times, monkeypatch):
    monkeypatch.setattr(accel, "loaded", lambda: None)
    x, old = np.random.default_rng(3).standard_normal((2, 1003)).astype(np.float32)
    found = []
    for is_kept in (True, False):
        moved, delta = x.copy(), np.zeros_like(x)
        sink = MoveSink(0, moved, RATE) if kind == "moved" else DeltaSink(0, x, RATE, delta)
        if is_kept:
            run_kernel(KernelCode.ELASTIC, old.copy(), x, RATE, sink.kept)
        for _ in range(times):
            sink(0, x.nbytes, old.view(np.uint8))
        found.append((moved.tobytes(), delta.tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_and_numpy_give_the_same_bits(dtype, monkeypatch):
    pytest.importorskip("numba", reason="without it nothing is compiled")
    engine = Accel({}, platform.machine()).load()
    x, old = np.random.default_rng(3).standard_normal((2, 1003)).astype(dtype)
    found = []
    for each in (engine, None):
        monkeypatch.setattr(accel, "loaded", lambda each=each: each)
        moved, delta = x.copy(), np.zeros_like(x)
        MoveSink(0, moved, dtype(0.3))(0, x.nbytes, old.view(np.uint8))
        DeltaSink(0, x, dtype(0.3), delta)(0, x.nbytes, old.view(np.uint8))
        found.append((moved.tobytes(), delta.tobytes()))
    assert found[0] == found[1]


def test_what_came_back_as_a_message_may_be_read_only():
    x = X.copy()
    MoveSink(0, x, RATE)(0, 16, np.frombuffer(OLD.tobytes(), np.uint8))
    assert x.tolist() == [3, 5, 3, 2]


def test_a_sink_never_waits_for_compiled_code(monkeypatch):
    """It runs while an interrupted exchange is settled, which has two seconds."""

    def load(*_):
        pytest.fail("this may take longer")

    for name in ("prepare", "load"):
        monkeypatch.setattr(accel, name, load)
    x = X.copy()
    feed(MoveSink(FIRST, x, RATE), 1)
    feed(DeltaSink(FIRST, X, RATE, np.zeros(4, np.float32)), 1)
    assert x.tolist() == [3, 5, 3, 2]
