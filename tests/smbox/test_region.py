"""Regions on mapped memory: tests beyond the contract (tests/contracts)."""

from __future__ import annotations

import _thread
import threading

import numpy as np
import pytest

from smbox.errors import ConfigError, LayoutMismatchError, RequestTimeoutError
from smbox.region import Region


def test_a_region_describes_itself(box):
    region = box.create("some", shape=(4, 2), dtype="float64")
    assert (region.name, region.shape, region.nbytes, len(region)) == ("some", (4, 2), 64, 4)
    assert region.dtype == np.float64
    assert repr(region).startswith("Region('some', shape=(4, 2), dtype=float64")
    assert len(region[1:3]) == 2


def test_a_region_without_axes_holds_one_element(box):
    region = box.create("one", shape=(), dtype="int32", init=3)
    region.accumulate(4)
    assert region.get() == 7
    assert region.get().shape == ()
    with pytest.raises(TypeError):
        len(region)
    with pytest.raises(TypeError):
        region[:1]


@pytest.mark.parametrize("index", [0, (slice(0, 1), slice(0, 1)), slice(None, None, 2), "a"])
def test_only_slices_of_axis_0_are_regions(box, index):
    region = box.create("some", shape=(4, 2))
    with pytest.raises(TypeError, match=r"slice a:b, .* get\(\) returns an array"):
        region[index]


def test_slices_of_slices_add_up(box):
    region = box.create("some", init=np.arange(10, dtype=np.int64))
    part = region[2:9][1:-1][2:]
    assert part.get().tolist() == [5, 6, 7]
    assert part.address - region.address == 5 * 8
    assert part.version == region.version


def test_elastic_does_not_take_its_own_delta(box):
    region = box.create("some", shape=(4,))
    x = np.zeros(4, np.float32)
    with pytest.raises(ConfigError, match="share memory"):
        region.elastic(x, 0.5, delta=x)


def test_min_takes_no_scale(box):
    region = box.create("some", shape=(4,))
    with pytest.raises(ConfigError, match="scale"):
        region.accumulate(np.zeros(4, np.float32), scale=2.0, op="min")


def test_nothing_is_kept_of_a_source_once_the_verb_returns(box):
    region = box.create("some", shape=(4,), dtype="int64")
    x = np.ones(4, np.int64)
    region.put(x)
    x[:] = 5
    assert region.get().tolist() == [1, 1, 1, 1]


def test_a_blocking_verb_that_timed_out_is_over(box, held):
    region = box.create("some", shape=(4,), dtype="int64")
    x = np.ones(4, np.int64)
    with held(region):
        with pytest.raises(RequestTimeoutError) as caught:
            region.accumulate(x, timeout_s=0.01)
        assert caught.value.facts["outcome"] == "none"
        assert caught.value.facts["region"] == "some"
        assert "holder_pid" in caught.value.facts
    assert caught.value.handle.outcome() == "none"
    for ask in (caught.value.handle.wait, caught.value.handle.result):
        with pytest.raises(ConfigError, match="outcome"):
            ask()
    assert region.get().tolist() == [0, 0, 0, 0]


def test_a_handle_goes_on_after_a_timeout(box, held):
    region = box.create("some", shape=(4,), dtype="int64")
    with held(region):
        handle = region.accumulate_nb(np.ones(4, np.int64))
        with pytest.raises(RequestTimeoutError):
            handle.wait(timeout_s=0.01)
    handle.wait()
    handle.wait()
    assert handle.outcome() == "all"
    assert region.get().tolist() == [1, 1, 1, 1]


def test_an_interrupt_while_waiting_leaves_memory_and_x_alone(box, held):
    region = box.create("some", shape=(4,))
    x = np.full(4, 8, np.float32)
    with held(region):
        timer = threading.Timer(0.05, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            region.elastic(x, 0.5)
        timer.join()
    assert x.tolist() == [8, 8, 8, 8]
    assert region.get().tolist() == [0, 0, 0, 0]
    region.elastic(x, 0.5)
    assert x.tolist() == region.get().tolist() == [4, 4, 4, 4]


def test_a_closed_box_is_an_error_and_its_views_live_on(box):
    region = box.create("some", shape=(4,), init=2.0)
    view = region.local()
    box.close()
    assert view.tolist() == [2, 2, 2, 2]
    for call in (region.get, lambda: region.version, lambda: region.put_nb(view)):
        with pytest.raises(ConfigError, match="closed"):
            call()


def test_an_unfit_array_is_told_apart(box):
    region = box.create("some", shape=(4,))
    with pytest.raises(LayoutMismatchError) as caught:
        region.put(np.zeros(4))
    assert caught.value.facts == {"given": "float64", "region": "float32"}
    assert isinstance(region, Region)


def test_a_version_is_a_whole_number(box):
    region = box.create("w", shape=4)
    assert region.wait(np.int64(0)) == 0
    with pytest.raises(TypeError):
        region.wait(0.5)
