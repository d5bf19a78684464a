"""The contract of names and addresses: create, attach, free, raw memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from smbox.errors import (
    AddressRangeError,
    ConfigError,
    LayoutMismatchError,
    LimitError,
    OutOfMemoryError,
    RegionExistsError,
    RegionFreedError,
    RegionNotFoundError,
)
from smbox.testing.contract_tools import STRIPE, fresh, in_threads, raises, region_of, same


def check_create_and_attach(box: Any) -> None:
    """A region begins with zeros or its init, and is found by name."""
    name = fresh("created")
    with raises(RegionNotFoundError):
        box.attach(name, timeout_s=0.0)
    region = box.create(name, shape=(3, 2), dtype="int16")
    same(region.get(), np.zeros((3, 2), np.int16))
    region.put(np.full((3, 2), 7, np.int16))
    found = box.attach(name)
    assert (found.shape, found.dtype, found.nbytes) == ((3, 2), np.dtype("int16"), 12)
    assert (found.name, found.address) == (name, region.address)
    same(found.get(), region.get())
    assert [info.name for info in box.regions()].count(name) == 1
    box.free(name)
    for init in (True, 3, -0.25):
        dtype = {True: "bool", 3: "uint8", -0.25: "float64"}[init]
        region = box.create(fresh("filled"), shape=(STRIPE + 1,), dtype=dtype, init=init)
        assert (region.get() == init).all()
        box.free(region)


def check_create_again(box: Any) -> None:
    """Creating a name again fails or returns the region; layout and contents never change."""
    first = np.arange(6, dtype=np.float32)
    with region_of(box, first) as region:
        for init in (None, first, 1.0):
            with raises(RegionExistsError):
                box.create(region.name, shape=(6,), init=init)
            again = box.create(region.name, shape=(6,), init=init, exist_ok=True)
            assert again.address == region.address
            same(again.get(), first)
        for shape, dtype in (((5,), "float32"), ((6,), "float64"), ((2, 3), "float32")):
            for contents in (None, np.zeros(shape, dtype)):
                with raises(LayoutMismatchError):
                    box.create(region.name, shape, dtype, contents, exist_ok=True)


def check_create_race(box: Any) -> None:
    """If many create one name with contents, one succeeds; all get the same complete region."""
    name, count = fresh("race"), STRIPE + 3
    found: list[Any] = []

    def job(index: int) -> None:
        init = np.full(count, index, np.float32)
        region = box.create(name, init=init, exist_ok=True)
        contents = region.get()
        assert (contents == contents[0]).all()
        found.append((region.address, contents[0]))

    in_threads(4, job)
    assert len(set(found)) == 1
    box.free(name)


def check_create_nonsense(box: Any) -> None:
    """Invalid arguments are refused before anything is created."""
    for arguments in (
        {"shape": (-1,)},
        {"shape": None},
        {"shape": (2,), "dtype": "complex64"},
        {"shape": (2,), "consistency": "region"},
    ):
        with raises(ConfigError):
            box.create(fresh("bad"), **arguments)
    with raises(LayoutMismatchError):
        box.create(fresh("bad"), shape=(3,), init=np.zeros(2, np.float32))
    with raises(LayoutMismatchError):
        box.create(fresh("bad"), shape=(3,), dtype="uint8", init=-1)


def check_out_of_memory(box: Any) -> None:
    """A region that is too large is refused; the error names it, and nothing is left."""
    count = len(box.regions())
    with raises(OutOfMemoryError, LimitError):
        box.create(fresh("huge"), shape=(1 << 44,), dtype="uint8")
    assert len(box.regions()) == count


def check_free(box: Any) -> None:
    """Every verb on a freed region fails, for every size, and its name can be used again."""
    for count in (0, 1, STRIPE + 1):
        x = np.zeros(count, np.float32)
        region = box.create(fresh("freed"), init=x)
        kept = region[:0]
        region.put(x)
        box.free(region.name)
        for call in _calls(region, x):
            with raises(RegionFreedError):
                call()
        for call in (kept.get, partial(box.free, region)):
            with raises(RegionFreedError):
                call()
        again = box.create(region.name, init=x)
        assert again.address != region.address
        box.free(again)
    with raises(RegionNotFoundError):
        box.free(fresh("never"))


def _calls(region: Any, x: Any) -> list[Callable[[], Any]]:
    """Return a call of every verb."""
    return [
        partial(region.put, x),
        region.get,
        partial(region.accumulate, x),
        partial(region.elastic, x, 0.5),
        partial(region.fetch_and_op, x),
        lambda: region.put_nb(x).wait(),
        lambda: region.get_nb().result(),
        lambda: region.version,
        partial(region.wait, 0),
    ]


def check_raw_addresses(box: Any) -> None:
    """Bytes are written and read by address, inside one region only."""
    with region_of(box, np.arange(8, dtype=np.int32)) as region:
        box.put(region.address + 8, np.array([70, 80], np.int32))
        assert region.get().tolist() == [0, 1, 70, 80, 4, 5, 6, 7]
        assert box.get(region.address + 4, 8).view(np.int32).tolist() == [1, 70]
        for address, nbytes in ((region.address + 28, 8), (region.address + 2, 4)):
            with raises(AddressRangeError):
                box.get(address, nbytes)
            with raises(AddressRangeError):
                box.put(address, np.zeros(nbytes, np.uint8))
        with raises(AddressRangeError):
            box.get(1, 4)
        assert region.get().tolist() == [0, 1, 70, 80, 4, 5, 6, 7]
        address = region.address
    with raises(RegionFreedError, AddressRangeError):
        box.get(address, 4)


def check_local_view(box: Any) -> None:
    """A mapped region has a view of its memory; otherwise the error gives the reason."""
    with region_of(box, np.arange(6, dtype=np.float32)) as region:
        assert region.is_local == (box.transport == "shm")
        if not region.is_local:
            with raises(ConfigError):
                region.local()
            return
        view = region[2:4].local()
        same(view, np.array([2, 3], np.float32))
        view[:] = 9
        assert region.get().tolist() == [0, 1, 9, 9, 4, 5]
