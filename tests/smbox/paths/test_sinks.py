"""Sinks give the same result when an interrupt makes their last piece come twice."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.paths.sinks import DeltaSink, MoveSink, OldSink

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
def test_x_moves_once(times):
    x = X.copy()
    feed(MoveSink(FIRST, x, RATE), times)
    assert x.tolist() == [3, 5, 3, 2]


def test_x_is_whole_before_it_changes(monkeypatch):
    """An interrupt in the arithmetic leaves x as it was; the piece comes again."""
    x = X.copy()
    sink = MoveSink(FIRST, x, RATE)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("smbox.paths.sinks.elastic_delta", interrupted)
        with pytest.raises(KeyboardInterrupt):
            feed(sink, 1)
    assert (x == X).all()
    feed(sink, 1)
    assert x.tolist() == [3, 5, 3, 2]
