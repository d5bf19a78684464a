from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import astuple

from smbox import verbs
from smbox.errors import ConfigError, LayoutMismatchError
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.wire.header import NO_SCALE, pack_scale


@pytest.fixture
def extent(box):
    return box.create("r", shape=(4, 2), init=1.0)[1:3]


def test_an_extent_knows_its_bytes(extent):
    assert (extent.shape, extent.first, extent.limit) == ((2, 2), 8, 24)


def test_verbs_are_described(extent):
    x = np.ones((2, 2), np.float32)
    put, added = verbs.put(extent, x), verbs.accumulate(extent, x, 0.5, "sum")
    assert astuple(put)[:6] == (extent.info, "put", KernelCode.REPLACE, NO_SCALE, 8, 24)
    half = pack_scale(0.5, "f")
    assert astuple(added)[:6] == (extent.info, "accumulate", KernelCode.SUM, half, 8, 24)
    fetched = verbs.fetch(extent, x, "max", 1.0, np.empty_like(x))
    assert (fetched.op, fetched.kernel) == ("fetch_and_op", KernelCode.MAX)


def test_what_makes_no_sense_is_refused(extent):
    x = np.ones((2, 2), np.float32)
    with pytest.raises(ConfigError, match="op is one of"):
        verbs.accumulate(extent, x, 1.0, "product")
    with pytest.raises(ConfigError):
        verbs.elastic(extent, x, 0.5, x)
    with pytest.raises(LayoutMismatchError):
        verbs.put(extent, x[:1])


def test_a_copy_over_itself_is_within_one_stripe(box):
    """Over several, a stripe would be overwritten before it is read."""
    contents = np.arange(2 * STRIPE_NBYTES).astype(np.uint8)
    region = box.create("long", init=contents)
    version = region.version
    for target, source in ((region[1:], region[:-1]), (region[:-1], region[1:])):
        with pytest.raises(ConfigError, match="overlap"):
            target.accumulate_from(source, op="replace")
    assert region.version == version
    region[1:9].accumulate_from(region[:8], op="replace")
    assert region[:9].get().tolist() == [0, *range(8)]


def test_both_regions_lie_at_one_node(box, solo):
    from smbox.testing.solo import solo_box, solo_boxes

    mine = box.create("mine", shape=3)
    with solo_box(solo) as again:
        mine.accumulate_from(again.create("beside", shape=3, init=2.0))
    assert mine.get().tolist() == [2, 2, 2]
    with solo_boxes() as elsewhere, solo_box(elsewhere) as other:
        far = other.create("far", shape=3)
        for verb in (mine.accumulate_from, mine.dot, mine.dot_nb):
            with pytest.raises(ConfigError, match="one node"):
                verb(far)
