from __future__ import annotations

import inspect

import pytest

from smbox.box import Box
from smbox.region import Region
from smbox.sync import Counter
from smbox.testing.model_box import ModelBox, ModelCounter
from smbox.testing.model_region import ModelRegion
from smbox_torch.boxes import BoxLike, CounterLike, RegionLike

KINDS = [
    (BoxLike, Box),
    (BoxLike, ModelBox),
    (RegionLike, ModelRegion),
    (CounterLike, Counter),
    (CounterLike, ModelCounter),
    (RegionLike, Region),
]


@pytest.mark.parametrize(("protocol", "kind"), KINDS)
def test_a_memory_has_the_verbs_with_the_arguments_that_are_used(protocol: type, kind: type):
    for name in set(vars(protocol)) - set(vars(RegionLike.__base__)) - {"__parameters__"}:
        wanted = getattr(protocol, name)
        if name.startswith("_") and name != "__getitem__":
            continue
        found = getattr(kind, name, None)
        assert found is not None, name
        if inspect.isfunction(wanted) and name != "__getitem__":
            assert set(inspect.signature(wanted).parameters) <= set(
                inspect.signature(found).parameters
            ), name
