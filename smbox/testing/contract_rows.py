"""The contract of sparse rows."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np

from smbox.dtypes import by_name
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    LayoutMismatchError,
    RegionFreedError,
)
from smbox.testing.contract_tools import (
    DTYPES,
    STRIPE,
    in_threads,
    raises,
    region_of,
    same,
    values,
)

F32 = by_name("float32")
WIDE = 24
"""Elements of a row of 96 bytes: every stripe ends inside a row."""
WRITES_BESIDE = 300
"""Commits of each stripe while rows are read beside them."""


def check_rows_of_every_dtype(box: Any) -> None:
    """Getting, putting and adding rows does what numpy's indexing does."""
    index = np.array([[4, 0], [4, 5]])
    for dtype in DTYPES:
        before = values(18, dtype, 1).reshape(6, 3)
        x = values(12, dtype, 2).reshape(2, 2, 3)
        with region_of(box, before) as region:
            rows = region.rows(index)
            assert (rows.shape, rows.dtype, len(rows)) == ((2, 2, 3), dtype.numpy, 4)
            same(rows.get(), before[index])
            rows.accumulate(x)
            added = before.copy()
            np.add.at(added, index, x)
            same(region.get(), added)
            rows.put(x)
            added[index.reshape(-1)] = x.reshape(4, 3)
            same(region.get(), added)
            out = np.empty_like(x)
            assert rows.get(out=out) is out
            same(out, added[index])


def check_rows_across_stripes(box: Any) -> None:
    """Rows in any place and order, repeated or across stripe boundaries, behave as in numpy."""
    count = 3 * STRIPE // WIDE + 7
    before = values(count * WIDE, F32).reshape(count, WIDE)
    torn = [STRIPE // WIDE, 2 * STRIPE // WIDE]
    picked = np.random.default_rng(7).integers(0, count, 300)
    index = np.concatenate([torn, picked, torn, picked[:50]])
    x = values(index.size * WIDE, F32, 3).reshape(-1, WIDE)
    with region_of(box, before) as region:
        same(region.rows(index).get(), before[index])
        region.rows(index).accumulate(x, scale=0.5)
        wanted = before.copy()
        np.add.at(wanted, index, x * np.float32(0.5))
        same(region.get(), wanted)
        region.rows(index).put(x)
        wanted[index] = x
        same(region.get(), wanted)
        part = region[5:-3]
        same(part.rows(torn).get(), wanted[5:-3][torn])
        part.rows([0, 0]).accumulate(np.ones((2, WIDE), np.float32))
        wanted[5] += 2
        same(region.get(), wanted)


def check_rows_of_many_requests(box: Any) -> None:
    """More rows of one stripe than a request holds, and rows longer than a stripe."""
    index = np.tile(np.arange(100), 30)
    x = values(index.size * 128, F32).reshape(-1, 128)
    with region_of(box, np.zeros((100, 128), np.float32)) as region:
        region.rows(index).accumulate(x)
        wanted = np.zeros((100, 128), np.float32)
        np.add.at(wanted, index, x)
        same(region.get(), wanted)
        same(region.rows(index).get(), wanted[index])
    long = values(3 * (STRIPE + 9), F32).reshape(3, -1)
    with region_of(box, long) as region:
        region.rows([2, 0, 2]).accumulate(long)
        wanted = long.copy()
        np.add.at(wanted, [2, 0, 2], long)
        same(region.rows([0, 1, 2]).get(), wanted)


def check_rows_of_narrower_types(box: Any) -> None:
    """Rows of float32 accept float16 and bfloat16: widened exactly, rounded once."""
    count = STRIPE // WIDE + 7
    index = np.array([[count - 1, 0], [STRIPE // WIDE, 0]])
    before = values(count * WIDE, F32).reshape(count, WIDE)
    for name in ("float16", "bfloat16"):
        narrow = by_name(name).numpy
        x = values(4 * WIDE, F32, 3).astype(narrow).reshape(2, 2, WIDE)
        with region_of(box, before) as region:
            rows = region.rows(index)
            rows.accumulate(x, scale=0.5)
            wanted = before.copy()
            np.add.at(wanted, index, np.float32(0.5) * x.astype(np.float32))
            same(region.get(), wanted)
            out = np.empty(rows.shape, narrow)
            assert rows.get(out=out) is out
            same(out, wanted[index].astype(narrow))
            rows.put(x)
            wanted[index.reshape(-1)] = x.reshape(4, WIDE)
            same(region.get(), wanted)


def check_rows_beside_a_writer(box: Any) -> None:
    """The rows of a stripe are read from one commit, whatever their order in the index."""
    rows, wide = STRIPE // 128, 128
    index = np.random.default_rng(5).permutation(np.arange(0, 2 * rows, 2))
    is_over = threading.Event()
    with region_of(box, np.zeros((2 * rows, wide), np.float32)) as region:

        def write(_: int) -> None:
            for value in itertools.count(1):
                region.put(np.full(region.shape, value, np.float32))
                if is_over.is_set():
                    return

        def read() -> None:
            try:
                until = region.version + 2 * WRITES_BESIDE
                while region.version < until:
                    found = region.rows(index).get()
                    for stripe in range(2):
                        assert np.unique(found[index // rows == stripe]).size == 1
            finally:
                is_over.set()

        in_threads(2, lambda job: read() if job else write(job))


def check_rows_that_do_not_fit(box: Any) -> None:
    """Index and values are checked before anything is changed."""
    before = values(12, F32).reshape(4, 3)
    with region_of(box, before) as region:
        version = region.version
        for outside in ([4], [-1], [0, 1 << 40]):
            with raises(AddressRangeError) as caught:
                region.rows(outside)
            assert isinstance(caught[0], IndexError)
        with raises(TypeError):
            region.rows([0.5])
        with raises(TypeError):
            region.rows(np.array([True]))
        rows = region.rows([1, 2])
        for bad in (np.zeros((2, 3)), np.zeros((3, 3), np.float32)):
            for verb in (rows.put, rows.accumulate, rows.get):
                with raises(LayoutMismatchError):
                    verb(bad)
        empty = region.rows([])
        assert empty.get().shape == (0, 3)
        empty.put(np.zeros((0, 3), np.float32))
        assert region.version == version
        same(region.get(), before)
    with raises(RegionFreedError):
        rows.get()
    with raises(RegionFreedError):
        rows.put(np.zeros((2, 3), np.float32))
    with region_of(box, np.array(1, np.float32)) as region, raises(ConfigError):
        region.rows([0])


def check_row_handles(box: Any) -> None:
    """Verbs of rows take effect in program order with the other verbs of their thread."""
    with region_of(box, np.zeros((4, 2), np.float32)) as region:
        ones = np.ones((2, 2), np.float32)
        handles = [region.rows([3, 3]).accumulate_nb(ones) for _ in range(5)]
        handles.append(region.rows([3]).put_nb(np.full((1, 2), 9, np.float32)))
        handles.append(region.rows([3, 0]).accumulate_nb(ones, 2.0))
        found = region.rows([3, 0]).get_nb()
        for handle in handles:
            handle.wait(timeout_s=60.0)
        assert found.result().tolist() == [[11, 11], [2, 2]]


def check_concurrent_rows(box: Any) -> None:
    """No row of many threads is lost or doubled."""
    count = STRIPE // WIDE + 3
    with region_of(box, np.zeros((count, WIDE), np.int64)) as region:

        def job(seed: int) -> None:
            generator = np.random.default_rng(seed)
            for _ in range(5):
                index = generator.integers(0, count, 40)
                region.rows(index).accumulate(np.ones((40, WIDE), np.int64))

        in_threads(4, job)
        assert int(region.get().sum()) == 4 * 5 * 40 * WIDE


def check_rows_without_locks(box: Any) -> None:
    """A region without locks has rows too."""
    with region_of(box, np.zeros((5, 2), np.float32), "none") as region:
        region.rows([1, 1]).accumulate(np.ones((2, 2), np.float32))
        assert region.rows([1, 0]).get().tolist() == [[2, 2], [0, 0]]
