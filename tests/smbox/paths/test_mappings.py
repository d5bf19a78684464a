"""Freed regions are dropped when another one is mapped, in linear time for many regions."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

from smbox.address import GlobalAddress
from smbox.dtypes import by_name
from smbox.errors import RegionFreedError
from smbox.memory.layout import RegionState
from smbox.memory.mapped import MappedRegion
from smbox.paths import mappings
from smbox.paths.requests import RegionInfo

REGIONS = 1000


@pytest.fixture
def looks(monkeypatch):
    """Replace mapped regions by stubs; return a counter of the looks at their states."""
    number = count()

    class Region:
        is_freed = False

        @property
        def state(self):
            next(number)
            return RegionState.FREED if self.is_freed else RegionState.LIVE

    monkeypatch.setattr(MappedRegion, "attach", lambda *_: Region())
    monkeypatch.setattr(mappings, "check_still_shared", lambda _: None)
    return number


def use(known, numbers):
    """Use regions, one after the other; return their mappings."""
    dtype = by_name("float32")
    infos = [
        RegionInfo("r", dtype, (1,), address=GlobalAddress(4096 * at), node_uuid=b"")
        for at in numbers
    ]
    return [known.region(info) for info in infos]


def test_the_first_use_of_a_region_does_not_look_at_all_others(looks):
    use(mappings.Mappings(SimpleNamespace(name="n")), range(REGIONS))
    assert next(looks) < REGIONS**2 / 4


@pytest.mark.parametrize("regions", [1, 200, REGIONS])
def test_a_freed_region_is_dropped_at_one_of_the_next_first_uses(looks, regions):
    known = mappings.Mappings(SimpleNamespace(name="n"))
    use(known, range(regions))[0].is_freed = True
    use(known, range(regions, regions + 1 + regions // 256))
    assert known.mapped(0) is None


def test_the_next_use_of_a_freed_region_drops_it_among_however_many(looks, monkeypatch):
    def attach(*_):
        raise RegionFreedError("the region was freed")

    known = mappings.Mappings(SimpleNamespace(name="n"))
    use(known, range(REGIONS))[0].is_freed = True
    monkeypatch.setattr(MappedRegion, "attach", attach)
    with pytest.raises(RegionFreedError):
        use(known, [0])
    assert known.mapped(0) is None
