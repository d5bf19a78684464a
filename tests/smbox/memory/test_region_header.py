from __future__ import annotations

import numpy as np
import pytest

from smbox import dtypes
from smbox.errors import ConfigError, LayoutMismatchError, LimitError, SegmentError
from smbox.memory import region_header
from smbox.memory.layout import Consistency, RegionHeader, RegionKind, RegionState
from smbox.memory.region_header import RegionSpec, check_limits, check_name, check_same_layout

FLOAT32 = dtypes.by_name("float32")
PLAIN = RegionSpec("w", FLOAT32, (1024,))
SPEC = RegionSpec(
    "Gewichte/ä",
    dtypes.by_name("bfloat16"),
    (2, 3, 5),
    kind=RegionKind.ARRAY,
    consistency=Consistency.NONE,
    token=bytes(range(16)),
)


def page() -> np.ndarray:
    page = np.zeros(4096, np.uint8)
    region_header.write(page, SPEC, 1 << 40, RegionState.LIVE)
    return page


def test_what_is_written_is_read():
    assert region_header.read(page()) == SPEC
    assert (SPEC.size, SPEC.nbytes) == (30, 60)


@pytest.mark.parametrize(
    "word",
    [
        RegionHeader.MAGIC,
        RegionHeader.FORMAT,
        RegionHeader.NDIM,
        RegionHeader.NAME_LENGTH,
        RegionHeader.DATA_NBYTES,
        RegionHeader.SHAPE,
    ],
)
def test_a_damaged_word_is_told(word):
    damaged = page()
    damaged.view(np.uint64)[word] += 1000
    with pytest.raises(SegmentError):
        region_header.read(damaged)


def test_a_name_that_is_no_text_is_told():
    damaged = page()
    damaged[RegionHeader.NAME_AT] = 0xFF
    with pytest.raises(SegmentError, match="UTF-8"):
        region_header.read(damaged)


def test_half_a_header_is_told():
    with pytest.raises(SegmentError, match="too short"):
        region_header.read(page()[:1001])


def test_a_scalar_has_one_element():
    assert RegionSpec("s", dtypes.by_name("int64"), ()).nbytes == 8


@pytest.mark.parametrize("consistency", [0, 2, 4])
def test_a_consistency_that_is_unknown_is_told(consistency):
    strange = page()
    strange.view(np.uint64)[RegionHeader.CONSISTENCY] = consistency
    with pytest.raises(ConfigError, match="consistency is one of stripe, none"):
        region_header.read(strange)


@pytest.mark.parametrize("name", ["w", "a/b.c 1", "größe", "x" * 200])
def test_names(name):
    check_name(name)


@pytest.mark.parametrize("name", ["", "x" * 201, "ü" * 101])
def test_names_of_the_wrong_length(name):
    with pytest.raises(LimitError):
        check_limits(RegionSpec(name, FLOAT32, (4,)))


@pytest.mark.parametrize("name", ["a\nb", "a\0", "\x1b[31m", "a\ud800"])
def test_names_that_cannot_be_printed(name):
    with pytest.raises(ConfigError):
        check_limits(RegionSpec(name, FLOAT32, (4,)))


def test_a_name_is_text():
    with pytest.raises(TypeError, match="not int"):
        check_name(7)


@pytest.mark.parametrize("shape", [(), (0,), (1,) * 8, ((1 << 45) - 1,)])
def test_shapes(shape):
    check_limits(RegionSpec("w", FLOAT32, shape))


@pytest.mark.parametrize("shape", [(1,) * 9, (1 << 45,), (1 << 40, 1 << 40), (0, 1 << 45)])
def test_shapes_beyond_every_limit(shape):
    with pytest.raises(LimitError):
        check_limits(RegionSpec("w", FLOAT32, shape))


def test_the_same_layout_is_shape_dtype_and_consistency():
    check_same_layout(PLAIN, RegionSpec("other name", FLOAT32, (1024,)))
    for wanted in (
        RegionSpec("w", FLOAT32, (512, 2)),
        RegionSpec("w", dtypes.by_name("int32"), (1024,)),
        RegionSpec("w", FLOAT32, (1024,), consistency=Consistency.NONE),
    ):
        with pytest.raises(LayoutMismatchError, match="another layout"):
            check_same_layout(PLAIN, wanted)
