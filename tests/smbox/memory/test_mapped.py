from __future__ import annotations

import numpy as np
import pytest

from smbox.address import OFFSET_MAX
from smbox.errors import RegionFreedError, SegmentError, SystemLimitError
from smbox.memory import layout
from smbox.memory.layout import STRIPE_NBYTES, RegionHeader, Stripe
from smbox.memory.mapped import MappedRegion
from smbox.memory.segment import Segment


def test_two_mappings_show_one_array(memory, make):
    region = make(np.arange(12, dtype=np.int32).reshape(3, 4))
    other = MappedRegion.attach(memory.name, region.address & OFFSET_MAX)
    region.array()[1, 2] = -1
    assert other.array()[1, 2] == -1
    assert other.array().shape == (3, 4)


def test_a_version_is_the_sum_of_its_stripes(make):
    region = make(np.zeros(STRIPE_NBYTES + 1, np.uint8))
    assert region.stripe_count == 2
    undone = 6 << 1
    region.table[:, Stripe.SEQUENCE] = [3 << 16 | undone, 4 << 16]
    assert region.version() == 7


def test_nothing_is_attached_where_nothing_is(memory):
    with pytest.raises(RegionFreedError):
        MappedRegion.attach(memory.name, 123)


def test_a_view_outlives_its_region(memory, make):
    region = memory.regions.pop(make(np.ones(3, np.float32)).address)
    view = region.array()
    region.segment.unlink()
    del region
    assert view.sum() == 3


def test_a_region_at_anothers_address_is_told(memory, make):
    region, other = make(np.ones(3, np.float32)), make(np.ones(3, np.float32), name="other")
    region.words[RegionHeader.ADDRESS] = other.address
    with pytest.raises(SegmentError, match="another address"):
        MappedRegion.attach(memory.name, region.offset)


def test_a_shape_that_does_not_fit_the_segment_is_told(memory, make):
    region = make(np.ones(3, np.float32))
    region.words[RegionHeader.SHAPE] = layout.PAGE_NBYTES
    region.words[RegionHeader.DATA_NBYTES] = layout.PAGE_NBYTES * 4
    with pytest.raises(SegmentError, match="size of its header"):
        MappedRegion.attach(memory.name, region.offset)


def test_what_cannot_be_mapped_is_not_taken_for_freed(memory, make, monkeypatch):
    region = make(np.ones(3, np.float32))

    def full(name):
        raise SystemLimitError("too many open files")

    monkeypatch.setattr(Segment, "attach", full)
    with pytest.raises(SystemLimitError, match="too many"):
        MappedRegion.attach(memory.name, region.offset)
