"""The two homes of the layout agree: smbox/native/native.h and smbox/memory/layout.py."""

from __future__ import annotations

import ctypes

from smbox.memory import layout, orders
from smbox.memory.layout import Channel, RegionHeader, Ring, Slot, Stripe
from smbox.native import library

WORD = layout.WORD_NBYTES

EXPECTED = {
    "format": layout.FORMAT,
    "sizeof stripe": Stripe.NBYTES,
    "stripe.sequence": Stripe.SEQUENCE * WORD,
    "stripe.writer": Stripe.WRITER * WORD,
    "region_header.state": RegionHeader.STATE * WORD,
    "slot.magic": Slot.MAGIC * WORD,
    "slot.format": Slot.FORMAT * WORD,
    "slot.id": Slot.ID * WORD,
    "slot.pid": Slot.PID * WORD,
    "slot.pid_started": Slot.PID_STARTED * WORD,
    "slot.state": Slot.STATE * WORD,
    "slot.kernel": Slot.KERNEL * WORD,
    "slot.stripe": Slot.STRIPE * WORD,
    "slot.first": Slot.FIRST * WORD,
    "slot.limit": Slot.LIMIT * WORD,
    "slot.progress": Slot.PROGRESS * WORD,
    "slot.extents": Slot.EXTENTS * WORD,
    "slot.region": Slot.REGION * WORD,
    "slot.channel": Slot.CHANNEL * WORD,
    "slot.serial": Slot.SERIAL * WORD,
    "slot.number": Slot.NUMBER * WORD,
    "slot.ring": Slot.RING * WORD,
    "slot.ring_offset": Slot.RING_OFFSET * WORD,
    "sizeof channel_row": Channel.NBYTES,
    "channel_row.applied": Channel.APPLIED * WORD,
    "channel_row.serial": Channel.SERIAL * WORD,
    "sizeof ring_entry": Ring.HEAD_WORDS * WORD,
    "ring_entry.number": Ring.NUMBER * WORD,
    "ring_entry.nbytes": Ring.ANSWER_NBYTES * WORD,
    "ring entries": Ring.ENTRIES,
    "sizeof region": 9 * WORD,
    "sizeof writer": 7 * WORD,
    "sizeof channel": 6 * WORD,
    "sizeof order": orders.ORDER_NBYTES,
    "sizeof reading": orders.READING_NBYTES,
    "end": 0,
}


def test_every_offset_of_the_library_is_that_of_the_layout():
    words = ctypes.c_uint64 * len(EXPECTED)
    found = list(words.in_dll(library.load().long, "smbox_layout"))
    assert dict(zip(EXPECTED, found, strict=True)) == EXPECTED


def test_the_extents_regions_have_a_word_each():
    assert Slot.CHANNEL - Slot.REGION == Slot.EXTENTS_MAX
