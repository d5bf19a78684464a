from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import smbox
from smbox.errors import ConfigError, RequestTimeoutError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.pair import PathPair
from smbox.rows import Rows

ROW = 96  # bytes: every stripe ends inside a row
COUNT = 2 * STRIPE_NBYTES // ROW + 40


@pytest.fixture
def region(box):
    return box.create("r", shape=(COUNT, ROW // 4), dtype="int32")


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_an_index_of_any_kind_is_copied(region, dtype):
    index = np.array([3, 1], dtype)
    rows = region.rows(index)
    index[:] = 0
    rows.put(np.full((2, 24), 5, np.int32))
    assert np.flatnonzero(region.get()[:, 0]).tolist() == [1, 3]
    assert isinstance(rows, Rows)
    assert smbox.Rows is Rows
    assert region.rows(2).get().shape == (24,)
    assert region.rows(range(3)).shape == (3, 24)
    assert "shape=(2, 24)" in repr(rows)


def test_a_row_has_1_byte_to_1_mib(box):
    for name, length in (("empty", 0), ("long", (1 << 20) + 1)):
        with pytest.raises(ConfigError, match="1 byte to 1 MiB"):
            box.create(name, shape=(2, length), dtype="uint8").rows([1])
    with pytest.raises(ConfigError, match="along axis 0"):
        box.create("scalar", shape=()).rows([0])
    longest = box.create("longest", shape=(2, 1 << 20), dtype="uint8").rows([1])
    longest.put(np.ones(longest.shape, np.uint8))
    assert longest.get().all()


@pytest.mark.parametrize("index", [[], [1]])
def test_a_scale_that_does_not_fit_is_refused_for_any_number_of_rows(region, index):
    with pytest.raises(ConfigError, match="whole number"):
        region.rows(index).accumulate(np.ones((len(index), 24), np.int32), 0.5)


def test_values_may_change_at_once(region):
    values = np.ones((1, 24), np.int32)
    handle = region.rows([7]).accumulate_nb(values)
    values[:] = 9
    handle.wait()
    assert (region.get()[7] == 1).all()


def test_a_held_stripe_stops_only_what_needs_it(region, held):
    ones = np.ones((2, 24), np.int32)
    with held(region, 1):
        with pytest.raises(RequestTimeoutError) as error:
            region.rows([0, COUNT // 2]).accumulate(ones, timeout_s=0.01)
        assert region.rows([0]).get_nb() is not None
    assert error.value.handle.outcome() == "partial"
    assert region.get()[[0, COUNT // 2], 0].tolist() == [1, 0]


def test_each_verb_has_its_own_timeout(region, monkeypatch):
    rows, values, given = region.rows([1]), np.ones((1, 24), np.int32), []
    monkeypatch.setattr(
        PathPair, "finish", lambda _, request, wait_s: given.append((request.op, wait_s))
    )
    rows.get(timeout_s=1.0)
    rows.put(values, timeout_s=2.0)
    rows.accumulate(values, timeout_s=3.0)
    assert given == [("get", 1.0), ("put", 2.0), ("accumulate", 3.0)]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_as_numpy_does(region, data):
    near = [0, 5461, 5462, 10922, 10923, COUNT - 1]  # rows at the stripes' ends
    places = st.one_of(st.sampled_from(near), st.integers(0, COUNT - 1))
    index = np.array(data.draw(st.lists(places, min_size=1, max_size=12)))
    values = np.arange(index.size * 24, dtype=np.int32).reshape(-1, 24) + 1
    wanted = region.get()
    if data.draw(st.booleans()):
        region.rows(index).accumulate(values, scale=3)
        np.add.at(wanted, index, 3 * values)
    else:
        region.rows(index).put(values)
        wanted[index] = values
    assert np.array_equal(region.get(), wanted)
    assert np.array_equal(region.rows(index).get(), wanted[index])
