from __future__ import annotations

import numpy as np
import pytest

from smbox.dtypes import by_name
from smbox.errors import LayoutMismatchError, RegionFreedError, RequestTimeoutError
from smbox.memory.layout import STRIPE_NBYTES
from smbox.testing.model_box import ModelBox
from smbox.testing.model_region import ModelRegion


def region(shape=4, dtype="float32", init=0.0) -> ModelRegion:
    return ModelBox().create("r", shape=shape, dtype=dtype, init=init)


def ones(size: int = 4) -> np.ndarray:
    return np.ones(size, np.float32)


def test_put_and_get():
    r = region()
    r.put(np.arange(4, dtype=np.float32))
    out = ones()
    assert r.get(out) is out
    assert out.tolist() == r.get().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("op", "scale", "found"), [("sum", 2.0, 7), ("min", 1, 1), ("max", 1, 5), ("replace", 1, 1)]
)
def test_accumulate_and_fetch_by_every_op(op: str, scale: float, found: int):
    r, s = region(init=5.0), region(init=5.0)
    r.accumulate(ones(), scale, op)
    assert s.fetch_and_op(ones(), op, scale).tolist() == [5.0] * 4
    assert r.get().tolist() == s.get().tolist() == [found] * 4


def test_elastic_moves_both_or_tells_the_move():
    r, x, delta = region(), ones(), np.zeros(4, np.float32)
    assert r.elastic(x, 0.25) is None
    assert (x[0], r.get()[0]) == (0.75, 0.25)
    assert r.elastic(x, 0.5, delta) is delta
    assert (x[0], delta[0], r.get()[0]) == (0.75, 0.25, 0.5)


def test_slices_change_their_part():
    r = region(shape=(4, 2))
    part = r[1:3]
    part[0:1].put(np.ones((1, 2), np.float32))
    part.accumulate(np.ones((2, 2), np.float32))
    assert r.get()[:, 0].tolist() == [0, 2, 1, 0]
    assert (len(part), part.shape, part.nbytes) == (2, (2, 2), 16)


def test_versions_count_stripes():
    size = 2 * STRIPE_NBYTES
    r = region(shape=size, dtype="uint8", init=0)
    r.put(np.zeros(size, np.uint8))
    r[STRIPE_NBYTES - 1 : STRIPE_NBYTES + 1].put(np.ones(2, np.uint8))
    r[:1].put(np.ones(1, np.uint8))
    assert r.version == 2 + 2 + 1
    assert r.wait(5) == 5
    with pytest.raises(RequestTimeoutError):
        r.wait(6, timeout_s=0.0)


def test_region_to_region():
    box = ModelBox()
    a, b = box.create("a", shape=2, init=1.0), box.create("b", shape=2, init=3.0)
    a.accumulate_from(b, 2.0)
    assert a.get().tolist() == [7, 7]


def test_twins_are_done_at_once():
    r = region()
    for handle in (r.put_nb(ones()), r.accumulate_nb(ones()), r.elastic_nb(ones(), 0.5)):
        assert handle.done()
    assert r.get_nb().result().tolist() == [1.5] * 4  # 1 + 1, and half way to 1
    assert r.fetch_and_op_nb(ones()).result().tolist() == [1.5] * 4


def test_wrong_layouts_and_freed_regions_are_refused():
    box = ModelBox()
    r = box.create("r", shape=4)
    for wrong in (ones(3), np.ones(4)):
        with pytest.raises(LayoutMismatchError):
            r.put(wrong)
    box.free("r")
    with pytest.raises(RegionFreedError):
        r.get()


def test_a_scalar_region():
    r = region(shape=())
    r.accumulate(2.0)
    assert r.get() == 2.0
    assert r.version == 1


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_float32_region_takes_narrower_operands(name: str):
    r, x = region(init=1.0), ones().astype(by_name(name).numpy)
    r.accumulate(x, 0.5)
    r.elastic(x, 0.25)
    assert r.get().tolist() == [1.375] * 4
    assert x.astype(np.float32).tolist() == [1.125] * 4
    with pytest.raises(LayoutMismatchError):
        region(dtype="float64").put(x)


def test_half_floats_are_computed_in_float32_and_rounded_once():
    r = region(shape=1, dtype="float16", init=2048.0)
    r.accumulate(np.array([3], np.float16), 0.5)  # 1.5 is not lost before the sum
    assert r.get().tolist() == [2050.0]
