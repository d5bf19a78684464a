"""Names, sizes and layouts that regions may have."""

from __future__ import annotations

import pytest

from smbox import dtypes
from smbox.errors import ConfigError, LayoutMismatchError, LimitError
from smbox.memory.layout import Consistency
from smbox.memory.region_header import RegionSpec
from smbox.memory.region_limits import check_limits, check_name, check_same_layout

FLOAT32 = dtypes.by_name("float32")
SPEC = RegionSpec("w", FLOAT32, (1024,))


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
    check_same_layout(SPEC, RegionSpec("other name", FLOAT32, (1024,)))
    for wanted in (
        RegionSpec("w", FLOAT32, (512, 2)),
        RegionSpec("w", dtypes.by_name("int32"), (1024,)),
        RegionSpec("w", FLOAT32, (1024,), consistency=Consistency.NONE),
    ):
        with pytest.raises(LayoutMismatchError, match="another layout"):
            check_same_layout(SPEC, wanted)
