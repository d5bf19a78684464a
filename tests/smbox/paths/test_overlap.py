"""Operands and results that lie in the changed region, as views of mapped memory may."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from smbox.errors import ConfigError


@pytest.mark.parametrize("verb", ["put", "accumulate", "batch", "put_nb", "fetch"])
def test_an_operand_in_the_region_itself_is_copied_first(box, verb):
    count = 300_000  # of more than two stripes
    region = box.create("r", init=np.arange(count, dtype=np.int64))
    view = region.local()
    before = view.copy()
    source, target = view[:-1], region[1:]
    if verb == "batch":
        with box.batch() as batch:
            batch.put(target, source)
    elif verb == "put_nb":
        target.put_nb(source).wait()
    elif verb == "fetch":
        assert np.array_equal(target.fetch_and_op(source), before[1:])
    else:
        getattr(target, verb)(source)
    wanted = before[:-1] if verb in {"put", "put_nb", "batch"} else before[1:] + before[:-1]
    assert np.array_equal(view[1:], wanted)
    assert view[0] == before[0]


def overlapping(box):
    """Return a region of more than two stripes, its contents, and a view one element lower."""
    before = np.arange(300_000, dtype=np.float32)
    region = box.create("r", init=before)
    return region, before, region.local()[:-1]


def test_an_operand_in_the_region_itself_is_copied_before_its_difference_is_taken(box):
    region, before, source = overlapping(box)
    delta = np.empty_like(before[1:])
    region[1:].elastic(source, 0.5, delta=delta)
    assert (delta == -0.5).all()
    assert np.array_equal(region.get()[1:], before[1:] - np.float32(0.5))


def test_a_result_is_not_written_to_the_region_itself(box):
    region, before, _ = overlapping(box)
    version, x, own = region.version, np.ones(4, np.float32), region.local()[:4]
    for call in (
        partial(region[:4].elastic, x, 0.5, own),
        partial(region[4:8].accumulate, x, out=own),
    ):
        with pytest.raises(ConfigError, match="out or delta lies in the region"):
            call()
    assert (region.version, region.get().tolist()) == (version, before.tolist())


def test_a_region_is_not_exchanged_with_itself_in_place(box):
    region, before, source = overlapping(box)
    version = region.version
    with pytest.raises(ConfigError, match="x lies in the region"):
        region[1:].elastic(source, 0.5)
    assert np.array_equal(region.get(), before)
    assert region.version == version
