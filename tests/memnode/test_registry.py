from __future__ import annotations

import pytest

from memnode.registry import Registry, describe
from smbox import dtypes
from smbox.errors import (
    AddressRangeError,
    LayoutMismatchError,
    LimitError,
    RegionExistsError,
    RegionFreedError,
)
from smbox.memory.region_header import RegionSpec
from smbox.wire.messages import RegionBody

FLOAT32 = dtypes.by_name("float32")


@pytest.fixture
def registry(bench, monkeypatch):
    monkeypatch.setattr("smbox.memory.node_memory.REGIONS_MAX", 4)
    return Registry(bench.memory)


def spec(name="w", shape=(8,), token=0):
    return RegionSpec(name, FLOAT32, shape, token=token.to_bytes(16, "little"))


@pytest.fixture
def make(bench, registry):
    def made(wanted, *, publish=True, client=1):
        building = bench.memory.begin(wanted)
        while not building.step():
            pass
        return registry.finish(building, (client, 0), publish=publish)

    return made


def test_regions_are_found_by_name_and_by_any_address_in_them(registry, make):
    region = make(spec())
    assert registry.find(1, "w") is region
    assert registry.locate(region.address) is region
    assert registry.locate(region.address + 31) is region


def test_names_of_other_kinds_are_others(registry, make):
    make(spec())
    assert registry.find(2, "w") is None


def test_addresses_that_never_were(registry, make):
    region = make(spec())
    for address in (0, region.address + (1 << 30), 7 << 48):
        with pytest.raises(AddressRangeError):
            registry.locate(address)


def test_a_freed_address_stays_freed(registry, make):
    region = make(spec())
    address = region.address
    registry.free(address)
    with pytest.raises(RegionFreedError):
        registry.locate(address)
    assert registry.find(1, "w") is None
    with pytest.raises(RegionFreedError):
        registry.free(address)
    assert make(spec()).address > address


def test_free_names_the_first_byte(registry, make):
    region = make(spec())
    with pytest.raises(AddressRangeError):
        registry.free(region.address + 4)


def test_a_name_that_is_taken(registry, make):
    region = make(spec(token=1))
    make(spec("scratch"), publish=False)  # it has no token
    assert registry.existing(spec("other"), exist_ok=False) is None
    with pytest.raises(RegionExistsError):
        registry.existing(spec(token=2), exist_ok=False)
    assert registry.existing(spec(token=2), exist_ok=True) is region
    with pytest.raises(LayoutMismatchError):
        registry.existing(spec(shape=(9,)), exist_ok=True)


def test_a_repeated_create_finds_its_own_region(registry, make):
    named = make(spec(token=1))
    unnamed = make(spec("v", token=2), publish=False)
    assert registry.existing(spec(token=1), exist_ok=False) is named
    assert registry.existing(spec("v", token=2), exist_ok=False) is unnamed


def test_a_region_under_construction_has_an_address_but_no_name(registry, make):
    region = make(spec(), publish=False)
    assert registry.locate(region.address) is region
    assert registry.find(1, "w") is None
    for _ in range(2):
        registry.publish(region.address)
        assert registry.find(1, "w") is region


def test_the_first_to_publish_wins(registry, make):
    first = make(spec(token=1), publish=False, client=1)
    second = make(spec(token=2), publish=False, client=2)
    registry.publish(second.address)
    lost = first.address
    with pytest.raises(RegionExistsError):
        registry.publish(lost)
    assert registry.locate(lost) is first
    assert registry.find(1, "w") is second


def test_what_a_lost_client_did_not_publish_goes(registry, make):
    mine = make(spec("mine"), publish=False, client=1)
    address = mine.address
    other = make(spec("other"), publish=False, client=2)
    live = make(spec("live"), client=1)
    registry.discard(bytes(16), (1, 0), published=True)  # no token
    assert registry.locate(address) is mine
    registry.drop_unpublished((1, 0))
    with pytest.raises(RegionFreedError):
        registry.locate(address)
    assert registry.find(1, "live") is live
    assert registry.locate(other.address) is other


def test_there_are_only_so_many_regions(make):
    for name in "abcd":
        make(spec(name))
    with pytest.raises(LimitError):
        make(spec("e"))


def test_live_regions_are_listed_by_address(registry, make):
    a, b = make(spec("a")), make(spec("b"))
    make(spec("hidden"), publish=False)
    assert list(registry.live_after(-1)) == [a, b]
    assert list(registry.live_after(a.address)) == [b]


def test_what_is_said_of_a_region(registry, make):
    region = make(spec(shape=(4, 2)))
    assert describe(region) == RegionBody(
        address=region.address, name="w", kind=1, dtype="float32", shape=(4, 2), consistency=1
    )


def test_a_new_registry_knows_what_the_memory_holds(bench, registry, make):
    region = make(spec())
    assert Registry(bench.memory).find(1, "w") is region
