from __future__ import annotations

from pathlib import Path
from types import ModuleType

from smbox.memory import layout
from smbox.memory.layout import STRIPE_NBYTES, RegionHeader, Ring, Slot


def test_a_region_has_its_header_table_and_data_on_pages():
    assert layout.stripe_count(0) == 1
    assert layout.stripe_count(STRIPE_NBYTES) == 1
    assert layout.stripe_count(STRIPE_NBYTES + 1) == 2
    for nbytes in (0, 1, STRIPE_NBYTES, 100 * STRIPE_NBYTES + 1):
        assert layout.data_offset(nbytes) % layout.PAGE_NBYTES == 0
        assert layout.segment_nbytes(nbytes) >= layout.data_offset(nbytes) + nbytes


def test_another_size_of_stripes_is_another_format():
    source = Path(layout.__file__).read_text()
    sizes = "STRIPE_NBYTES: Final = 512 * 1024", "STRIPE_NBYTES: Final = 256 * 1024"
    assert source.count(sizes[0]) == 1
    other = ModuleType("other")
    exec(source.replace(*sizes), vars(other))
    assert other.STRIPE_NBYTES == STRIPE_NBYTES // 2
    assert other.FORMAT != layout.FORMAT


def test_names_tell_their_node_and_sort_by_address():
    names = [layout.region_name("n", offset) for offset in (4096, 65536, 1 << 40)]
    assert names == sorted(names)
    assert all(name.startswith("smbox.n.region.") for name in names)
    assert layout.slot_name("n", 1) == "smbox.n.slot.0000000000000001"


def test_a_header_has_room_for_the_longest_name():
    assert RegionHeader.NAME_AT + layout.NAME_NBYTES_MAX <= RegionHeader.NBYTES
    assert Slot.OLD_AT + Slot.EXTENTS_MAX * STRIPE_NBYTES == Slot.NBYTES
    assert Slot.WORDS * layout.WORD_NBYTES <= Slot.OLD_AT
    assert Ring.ENTRIES * Ring.HEAD_WORDS * layout.WORD_NBYTES <= Ring.OLD_OFFSET


def test_a_ring_is_named_by_its_channel_and_the_size_of_its_entries():
    ring = layout.ring_id(77, 4096)
    assert layout.ring_entry_nbytes(ring) == 4096
    assert layout.ring_name("n", ring) != layout.ring_name("n", layout.ring_id(77, 8192))
    assert layout.ring_nbytes(4096) == Ring.OLD_OFFSET + Ring.ENTRIES * 4096
