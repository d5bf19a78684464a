"""The contract of the verbs of a region: results bit for bit, sizes, dtypes, slices, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from smbox.dtypes import by_name
from smbox.errors import ConfigError, LayoutMismatchError
from smbox.memory.kernels import KernelCode
from smbox.testing.contract_tools import (
    COUNTS,
    DTYPES,
    STRIPE,
    raises,
    region_of,
    same,
    values,
)
from smbox.testing.kernels import changed, exchange, native_scale
from smbox.verbs import KERNEL_OF

F32 = by_name("float32")


def check_put_then_get(box: Any) -> None:
    """A get returns what was put, for every size; into ``out`` too."""
    for count in COUNTS:
        x = values(count, F32)
        with region_of(box, np.zeros(count, np.float32)) as region:
            region.put(x)
            same(region.get(), x)
            out = np.full(count, 9, np.float32)
            assert region.get(out=out) is out
            same(out, x)


def check_every_dtype(box: Any) -> None:
    """Each element type keeps its bits through create, put, get and fetch_and_op."""
    for dtype in DTYPES:
        first, second = values(7, dtype, 1), values(7, dtype, 2)
        with region_of(box, first) as region:
            assert region.dtype == dtype.numpy
            same(region.get(), first)
            same(region.fetch_and_op(second, op="replace"), first)
            same(region.get(), second)


def check_every_op(box: Any) -> None:
    """Accumulate equals the numpy kernel, for each op and dtype."""
    for dtype in DTYPES:
        before, x = values(33, dtype, 3), values(33, dtype, 4)
        for op, code in KERNEL_OF.items():
            wanted = changed(code, before, x)
            with region_of(box, before) as region:
                region.accumulate(x, op=op)
                same(region.get(), wanted)
                same(region.fetch_and_op(before, op="replace"), wanted)
                same(region.fetch_and_op(x, op=op), before)
                same(region.get(), wanted)


def check_sums_into_an_array(box: Any) -> None:
    """``out`` receives the sum right after the change; x is unchanged."""
    for dtype in DTYPES:
        for scale in (1, 1 if dtype.kind == "bool" else 3):
            for count in (0, 1, 2 * STRIPE + 3):
                before, x = values(count, dtype, 3), values(count, dtype, 4)
                factor = native_scale(KernelCode.SUM, dtype, scale)
                wanted = changed(KernelCode.SUM, before, x, factor)
                kept, out = x.copy(), np.zeros_like(x)
                with region_of(box, before) as region:
                    assert region.accumulate(kept, scale, out=out) is out
                    same(region.get(), wanted)
                    same(out, wanted)
                    same(kept, x)
                    again = region.accumulate_nb(kept, scale, out=np.zeros_like(x))
                    same(again.result(), changed(KernelCode.SUM, wanted, x, factor))
    with region_of(box, np.zeros((2, 3), np.float32)) as region:
        x = np.ones((2, 3), np.float32)
        with raises(ConfigError):
            region.accumulate(x, out=x)
        with raises(ConfigError):
            region.accumulate(x, op="max", out=np.zeros_like(x))
        with raises(LayoutMismatchError):
            region.accumulate(x, out=np.zeros(6, np.float32))
        same(region.get(), np.zeros_like(x))


def check_accumulate_sizes(box: Any) -> None:
    """Scaled sums of every size are exact; the version counts one commit for each stripe."""
    for count in COUNTS:
        x = values(count, F32)
        with region_of(box, np.ones(count, np.float32)) as region:
            version = region.version
            region.accumulate(x, scale=0.5)
            same(region.get(), np.float32(1) + np.float32(0.5) * x)
            assert region.version == version + math.ceil(count / STRIPE)


def check_elastic(box: Any) -> None:
    """The region gains what x loses, bit for bit; with delta, x is unchanged."""
    for name in ("float16", "bfloat16", "float32", "float64"):
        dtype = by_name(name)
        for count in (1, 5, 2 * STRIPE + 3):
            center, x = values(count, dtype, 5), values(count, dtype, 6)
            wanted = exchange(center, x, native_scale(KernelCode.ELASTIC, dtype, 0.3))
            with region_of(box, center) as region:
                moved = x.copy()
                assert region.elastic(moved, 0.3) is None
                same(moved, wanted.x)
                same(region.get(), wanted.c)
                region.put(center)
                out, kept = np.empty_like(x), x.copy()
                assert region.elastic(kept, 0.3, delta=out) is out
                same(out, wanted.d)
                same(kept, x)


def check_slices(box: Any) -> None:
    """A slice along axis 0 has the same verbs, on its own bytes only."""
    rows = STRIPE // 4 + 10
    whole = values(rows * 8, F32).reshape(rows, 8)
    with region_of(box, whole) as region:
        part = region[3 : rows - 2]
        assert (part.shape, part.nbytes) == ((rows - 5, 8), (rows - 5) * 32)
        assert part.address - region.address == 3 * 32
        same(part.get(), whole[3:-2])
        part.accumulate(np.ones(part.shape, np.float32))
        part[:2].put(np.zeros((2, 8), np.float32))
        wanted = whole.copy()
        wanted[3:-2] += 1
        wanted[3:5] = 0
        same(region.get(), wanted)
        same(region[-1:].get(), wanted[-1:])
        assert region[5:5].get().shape == (0, 8)
        with raises(TypeError):
            region[::2]


def check_handles(box: Any) -> None:
    """Each ``_nb`` verb gives the same result; many in flight take effect in their order."""
    x = values(STRIPE + 9, F32)
    with region_of(box, np.zeros_like(x)) as region:
        handles = [region.put_nb(x * np.float32(k)) for k in range(1, 6)]
        handles.append(region.accumulate_nb(x))
        read = region.get_nb()
        old = region.fetch_and_op_nb(x)
        for handle in handles:
            handle.wait(timeout_s=60.0)
            assert handle.done()
        same(read.result(), x * np.float32(6))
        same(old.result(), x * np.float32(6))
        region.put(x)
        moved = np.zeros_like(x)
        region.elastic_nb(moved, 0.5).wait()
        same(moved, np.float32(0.5) * x)
        out = np.empty_like(x)
        assert region.get_nb(out).result() is out


def check_arrays_that_do_not_fit(box: Any) -> None:
    """Shape, dtype, scale and op are checked before anything is changed."""
    center = values(6, F32)
    with region_of(box, center) as region:
        version = region.version
        for bad in (np.zeros(6), np.zeros(5, np.float32), np.zeros((2, 3), np.float32)):
            for verb in (region.put, region.accumulate, region.fetch_and_op, region.put_nb):
                with raises(LayoutMismatchError):
                    verb(bad)
            with raises(LayoutMismatchError):
                region.get(out=bad)
        frozen = center.copy()
        frozen.flags.writeable = False
        with raises(LayoutMismatchError):
            region.elastic(frozen, 0.5)
        for scale in (math.inf, np.array([1.0]), np.array([1.0, 2.0]), 1 + 0j, "1"):
            with raises(ConfigError):
                region.accumulate(center, scale)
        with raises(ConfigError):
            region.accumulate(center, op="product")
        with raises(TypeError):
            region.put("text")
        assert region.version == version
        same(region.get(), center)
    with region_of(box, np.zeros(3, np.int32)) as region, raises(ConfigError):
        region.elastic(np.zeros(3, np.int32), 0.5)
    with region_of(box, np.zeros(3, np.int32)) as region, raises(ConfigError):
        region.accumulate(np.zeros(3, np.int32), scale=0.5)


def check_sources_of_all_kinds(box: Any) -> None:
    """Lists, buffers, strided and read-only arrays can be put."""
    with region_of(box, np.zeros(4, np.float32)) as region:
        frozen = np.arange(4, dtype=np.float32)
        frozen.flags.writeable = False
        for x in ([0, 1, 2, 3], frozen, np.arange(8, dtype=np.float32)[::2] / 2):
            region.put(np.zeros(4, np.float32))
            region.put(x)
            same(region.get(), np.arange(4, dtype=np.float32))
    with region_of(box, np.zeros(3, np.uint8)) as region:
        region.put(b"abc")
        assert bytes(region.get()) == b"abc"


def check_batch(box: Any) -> None:
    """A batch applies its changes in order when its block ends; none if the block raises."""
    x = values(10, F32)
    with region_of(box, np.zeros(10, np.float32)) as one, region_of(box, x) as two:
        moved = x.copy()
        with box.batch() as batch:
            batch.put(one, x)
            batch.accumulate(one, x, scale=2.0)
            batch.accumulate(two[2:4], np.ones(2, np.float32))
            old = batch.fetch_and_op(one, x)
            batch.elastic(two[:2], moved[:2], 0.5)
        same(one.get(), x * np.float32(4))
        same(old, x * np.float32(3))
        assert two.get()[2:4].tolist() == (x[2:4] + 1).tolist()
        with raises(ZeroDivisionError), box.batch() as batch:
            batch.put(one, np.zeros(10, np.float32))
            batch.accumulate(one, np.zeros(10, np.float32), scale=1 / _zero())
        same(one.get(), x * np.float32(4))
        with box.batch():
            pass


def check_lock_free_regions(box: Any) -> None:
    """A region without locks has the same verbs, for a single worker with the same results."""
    x = values(STRIPE + 5, F32)
    with region_of(box, x, "none") as region:
        sums = region.accumulate(x, scale=2.0, out=np.zeros_like(x))
        same(sums, x * np.float32(3))
        same(region.get(), sums)
        same(region.fetch_and_op(x), sums)
        moved = np.zeros_like(x)
        region.elastic(moved, 0.5)
        same(moved, x * np.float32(2))
        assert region.version > 0


def _zero() -> int:
    return 0


def check_flush(box: Any) -> None:
    """After a flush all earlier operations are visible, to other readers too."""
    with region_of(box, np.zeros(STRIPE, np.float32)) as region:
        for _ in range(10):
            region.accumulate_nb(np.ones(STRIPE, np.float32))
        box.flush()
        assert region.get()[[0, -1]].tolist() == [10, 10]


def check_narrower_operands(box: Any) -> None:
    """A float32 region accepts float16 and bfloat16: widened exactly, rounded once."""
    for name in ("float16", "bfloat16"):
        narrow = by_name(name).numpy
        for count in (1, 5, 2 * STRIPE + 3):
            center, wide = values(count, F32, 5), values(count, F32, 6).astype(narrow)
            x = wide.astype(np.float32)
            with region_of(box, center) as region:
                region.accumulate(wide, scale=0.5)
                total = center + np.float32(0.5) * x
                same(region.get(), total)
                region.put(center)
                same(region.accumulate(wide, scale=0.5, out=np.zeros_like(x)), total)
                same(region.get(out=np.empty(count, narrow)), total.astype(narrow))
                same(region.fetch_and_op(wide, op="replace"), total)
                same(region.get(), x)
                region.put(center)
                rate = np.float32(0.3)
                delta = rate * (x - center)
                moved = wide.copy()
                region.elastic(moved, 0.3)
                same(moved, (x - delta).astype(narrow))
                same(region.get(), center + delta)
                region.put(center)
                out = np.empty(count, np.float32)
                region.elastic(wide, 0.3, delta=out)
                same(out, delta)
                with box.batch() as batch:
                    batch.put(region, wide)
                    batch.elastic(region, wide, 0.0)
                same(region.get(), x)
                same(wide.astype(np.float32), x)
