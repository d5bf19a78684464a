from __future__ import annotations

import numpy as np
import pytest

from smbox import dtypes
from smbox.errors import ConfigError, SegmentError
from smbox.memory import region_header
from smbox.memory.layout import Consistency, RegionHeader, RegionKind, RegionState
from smbox.memory.region_header import RegionSpec

SPEC = RegionSpec(
    "Gewichte/ä",
    dtypes.by_name("bfloat16"),
    (2, 3, 5),
    kind=RegionKind.ARRAY,
    consistency=Consistency.NONE,
    token=(1 << 127) + 5,
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
    ],
)
def test_a_damaged_word_is_told(word):
    damaged = page()
    damaged.view(np.uint64)[word] += 1000
    with pytest.raises(SegmentError):
        region_header.read(damaged)


def test_a_scalar_has_one_element():
    assert RegionSpec("s", dtypes.by_name("int64"), ()).nbytes == 8


@pytest.mark.parametrize("consistency", [0, 2, 4])
def test_a_consistency_that_is_unknown_is_told(consistency):
    strange = page()
    strange.view(np.uint64)[RegionHeader.CONSISTENCY] = consistency
    with pytest.raises(ConfigError, match="consistency is one of stripe, none"):
        region_header.read(strange)
