"""The head of a striped region: recognition and contents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from smbox.dtypes import DType, by_name
from smbox.errors import ConfigError
from smbox.head import Head, HeadPart, encode, read

UINT8 = by_name("uint8")


@dataclass
class Info:
    shape: tuple[int, ...]
    name: str = "w"
    dtype: DType = UINT8


def head_of(count):
    parts = tuple(
        HeadPart(i, bytes([i]) * 16, i << 48 | 4096, 10 * i, 10) for i in range(count)
    )
    return Head("float32", (10 * count, 3), 1, "w#0123456789ab0000", parts)


def asked(contents, info=None):
    """Return the head that was read, and the numbers of bytes that were requested."""
    sizes = []

    def get(nbytes):
        sizes.append(nbytes)
        return contents[:nbytes]

    return read(info or Info(contents.shape), get), sizes


@pytest.mark.parametrize("count", [1, 3, 200])
def test_a_head_is_read_as_it_was_written(count):
    contents = encode(head_of(count))
    assert (contents.dtype, contents.size % 4096) == (np.uint8, 0)
    assert asked(contents)[0] == head_of(count)


def test_only_a_page_is_read_of_a_region_that_is_no_head():
    found, sizes = asked(np.zeros(1 << 20, np.uint8))
    assert (found, sizes) == (None, [4096])


@pytest.mark.parametrize(
    "info",
    [
        Info((4095,)),
        Info((0,)),
        Info((4096, 2)),
        Info(()),
        Info((4096,), dtype=by_name("int8")),
    ],
)
def test_other_regions_are_not_read_at_all(info):
    assert asked(encode(head_of(1)), info) == (None, [])


@pytest.mark.parametrize("begin", [20, 68])
def test_an_overwritten_head_is_told(begin):
    """Its msgpack, or a text in it."""
    contents = encode(head_of(2))
    contents[begin : begin + 4] = 255
    with pytest.raises(ConfigError, match="overwritten"):
        asked(contents)
