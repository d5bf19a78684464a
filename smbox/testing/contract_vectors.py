"""The contract of regions that compute with each other: accumulate_from, scale and dot."""

from __future__ import annotations

from typing import Any

import numpy as np

from smbox.dtypes import TABLE, by_name
from smbox.errors import ConfigError, LayoutMismatchError, RegionFreedError
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.testing import kernels
from smbox.testing.contract_tools import (
    COUNTS,
    STRIPE,
    in_threads,
    raises,
    region_of,
    same,
    values,
)
from smbox.wire.ops import cut

F32 = by_name("float32")
F64 = by_name("float64")


def check_accumulate_from(box: Any) -> None:
    """A region is combined with another one's contents, by every op, at any offset."""
    count = 2 * STRIPE + 9
    a, b = values(count, F32, 1), values(count, F32, 2)
    with region_of(box, a) as to, region_of(box, b) as source:
        version = to.version
        to.accumulate_from(source, scale=0.5)
        wanted = a + b * np.float32(0.5)
        same(to.get(), wanted)
        assert to.version == version + 3
        to[3:-4].accumulate_from(source[7:], op="max")
        wanted[3:-4] = np.maximum(wanted[3:-4], b[7:])
        same(to.get(), wanted)
        handle = to.accumulate_from_nb(source, op="replace")
        later = to.get_nb()
        handle.wait()
        same(later.result(), b)
        to[:5].accumulate_from(to[5:10])
        same(to[:5].get(), b[:5] + b[5:10])
        to[3:3].accumulate_from(source[:0])


def check_accumulate_from_what_does_not_fit(box: Any) -> None:
    """Dtype, size, op and scale are checked; a freed source is an error."""
    a = values(6, F32)
    with region_of(box, a) as to:
        for other in (np.zeros(6), np.zeros(5, np.float32)):
            with region_of(box, other) as source, raises(LayoutMismatchError):
                to.accumulate_from(source)
        with region_of(box, a) as source:
            to.accumulate_from(source, op="replace")
        with raises(RegionFreedError):
            to.accumulate_from(source)
        with raises(ConfigError):
            to.accumulate_from(to, op="elastic")
        with raises(ConfigError):
            to.accumulate_from(to, scale=float("inf"))
        same(to.get(), a)


def check_scale(box: Any) -> None:
    """Every number is multiplied once, in every dtype; bools are refused."""
    for dtype in TABLE:
        x = values(9, dtype, 3)
        with region_of(box, x) as region:
            if dtype.kind == "bool":
                with raises(ConfigError):
                    region.scale(1)
                continue
            factor = 0.3 if dtype.kind == "float" else 3
            region.scale(factor)
            by = kernels.native_scale(KernelCode.SCALE, dtype, factor)
            wanted = kernels.changed(KernelCode.SCALE, x, x[:0], by)
            same(region.get(), wanted)
    for count in COUNTS:
        with region_of(box, np.ones(count, np.float32)) as region:
            region.scale(0.5)
            region.scale_nb(6).wait()
            region[2:].scale(2.0)
            wanted = np.full(count, 3, np.float32)
            wanted[2:] = 6
            same(region.get(), wanted)


def check_scale_by_zeros(box: Any) -> None:
    """The sign of a factor of zero counts, whatever the previous factor was."""
    for name in ("float16", "float32", "float64"):
        with region_of(box, np.ones(3, name)) as region:
            for factor in (0.0, -0.0, 0.0):
                region.put(np.ones(3, name))
                region.scale(factor)
                same(region.get(), np.full(3, factor, name))
                assert (np.signbit(region.get()) == np.signbit(factor)).all(), (name, factor)
                region.put(np.full(3, -0.0, name))
                region.accumulate(np.ones(3, name), factor)
                assert (np.signbit(region.get()) == np.signbit(factor)).all(), (name, factor)


def check_scale_that_makes_no_sense(box: Any) -> None:
    """A factor that the dtype cannot hold, or a freed region, fails and changes nothing."""
    with region_of(box, np.arange(5)) as region:
        for factor in (0.5, 1 << 70, float("nan"), "2"):
            with raises(ConfigError):
                region.scale(factor)
        same(region.get(), np.arange(5))
    with raises(RegionFreedError):
        region.scale(2)
    with region_of(box, np.ones(5, np.float32), "none") as region:
        region.scale(2.0)  # without locks, too
        same(region.get(), np.full(5, 2, np.float32))


def check_concurrent_scales(box: Any) -> None:
    """No factor of many threads is lost or doubled."""
    with region_of(box, np.ones(STRIPE + 5, np.int64)) as region:

        def job(_: int) -> None:
            for _ in range(5):
                region.scale(3)

        in_threads(4, job)
        same(region.get(), np.full(STRIPE + 5, 3**20))


def check_dot(box: Any) -> None:
    """The sum of products is exact if float64 can hold it, at every call."""
    for count in COUNTS:
        a, b = values(count, F32, 1), values(count, F32, 2)
        with region_of(box, a) as left, region_of(box, b) as right:
            wanted = float(a.astype(float) @ b.astype(float))
            assert left.dot(right) == right.dot(left) == wanted
            handles = [left.dot_nb(right), left.dot_nb(left)]
            assert handles[0].result() == wanted
            assert handles[1].result() == float(a.astype(float) @ a.astype(float))
    x = np.array([1.0, np.inf, 0.0])
    with region_of(box, x) as left, region_of(box, np.zeros(3)) as right:
        assert left.dot(left) == np.inf
        assert np.isnan(left.dot(right))


def check_dot_bits(box: Any) -> None:
    """For every float dtype and offset, the bits follow the promised order of additions."""
    count = 2 * STRIPE + 9
    generator = np.random.default_rng(5)
    for name in ("float16", "bfloat16", "float32", "float64"):
        dtype = by_name(name).numpy
        a, b = (generator.standard_normal(count).astype(dtype) for _ in range(2))
        with region_of(box, a) as left, region_of(box, b) as right:
            for first, begin in ((0, 0), (3, 0), (0, 7)):
                size = count - max(first, begin)
                x, y = a[first : first + size], b[begin : begin + size]
                wanted, base = 0.0, first * x.itemsize
                for at, end in cut(base, base + x.nbytes, STRIPE_NBYTES):
                    part = slice((at - base) // x.itemsize, (end - base) // x.itemsize)
                    wanted += kernels.dot(x[part], y[part])
                found = left[first : first + size].dot(right[begin : begin + size])
                assert found == wanted, (name, first, begin, found, wanted)


def check_dot_beside_writers(box: Any) -> None:
    """Each stripe of both regions is read as it was between two commits."""
    count = STRIPE // 2
    with (
        region_of(box, np.ones(count, np.float32)) as region,
        region_of(box, np.ones(count, np.float32)) as one,
    ):

        def job(index: int) -> None:
            if index:
                for value in (2, 1) * 20:
                    region.put(np.full(count, value, np.float32))
            else:
                assert {region.dot(one) for _ in range(40)} <= {count, 2 * count}

        in_threads(2, job)


def check_dot_of_what_does_not_fit(box: Any) -> None:
    """Dtype, size and kind are checked; a freed region is an error; nothing is changed."""
    a = values(6, F64)
    with region_of(box, a) as left:
        version = left.version
        for other in (np.zeros(6, np.float32), np.zeros(5)):
            with region_of(box, other) as right, raises(LayoutMismatchError):
                left.dot(right)
        with region_of(box, np.arange(6)) as whole, raises(ConfigError):
            whole.dot(whole)
        with raises(TypeError):
            left.dot(a)
        with region_of(box, a) as right:
            left.dot(right)
        with raises(RegionFreedError):
            left.dot(right)
        assert left.version == version
        same(left.get(), a)
