"""The layouts of smbox/native/native.h and smbox/memory/layout.py are equal."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest

from smbox import dtypes
from smbox.memory import layout, orders
from smbox.memory.kernels import KernelCode, OptimizerCode
from smbox.memory.layout import (
    Channel,
    Consistency,
    RegionHeader,
    RegionState,
    Ring,
    Slot,
    SlotState,
    Stripe,
)
from smbox.native import compiling
from smbox.testing.kernels import scale_bytes

WORD = layout.WORD_NBYTES

IN_ORDER = {  # words that smbox/memory fills by place
    "region": "header table data nbytes address stripe_nbytes dtype consistency",
    "writer": "slot holder block_nbytes",
    "channel": "row index ring ring_base ring_offset entry_nbytes",
    "order": "kernel operand output extents region+4 first limit source source_nbytes scale"
    " parameters output_to channel number done result blocked stripe",
    "reading": "region first limit places count row_nbytes out operand done result stripe",
}


def words_of(kind, nbytes, members):
    """Return the size, then the offset of each member: the words of ``kind`` by their names."""
    found = {f"sizeof {kind.__name__}": nbytes}
    return found | {
        f"{kind.__name__}.{name}": getattr(kind, name) * WORD for name in members.split()
    }


def filled(name):
    """Return the same for consecutive words."""
    found, at = {}, 0
    for member in IN_ORDER[name].split():
        word, _, count = member.partition("+")
        found[f"{name}.{word}"] = at
        at += WORD * int(count or 1)
    return {f"sizeof {name}": at} | found


EXPECTED = (
    {"format": layout.FORMAT_NUMBER}
    | words_of(Stripe, Stripe.NBYTES, "SEQUENCE WRITER HOLDER")
    | words_of(RegionHeader, 3 * WORD, "MAGIC FORMAT STATE")
    | words_of(
        Slot,
        Slot.WORDS * WORD,
        "MAGIC FORMAT ID PID PID_STARTED STATE STRIPE FIRST PROGRESS EXTENTS"
        " REGION CHANNEL SERIAL NUMBER RING RING_OFFSET",
    )
    | words_of(
        Channel,
        Channel.NBYTES,
        "CLIENT_LOW CLIENT_HIGH CHANNEL APPLIED USED GENERATION SERIAL",
    )
    | words_of(Ring, Ring.HEAD_WORDS * WORD, "NUMBER ANSWER_NBYTES")
    | filled("region")
    | filled("writer")
    | filled("channel")
    | filled("order")
    | filled("reading")
    | {
        "ring entries": Ring.ENTRIES,
        "extents": Slot.EXTENTS_MAX,
        "sequence open": Stripe.OPEN,
        "sequence undone": Stripe.OPEN << 1,
        "sequence undone mask": (1 << Stripe.COMMITS_SHIFT) - 1 - Stripe.OPEN,
        "sequence commit": 1 << Stripe.COMMITS_SHIFT,
        "slot free": SlotState.FREE,
        "slot armed": SlotState.ARMED,
        "slot committed": SlotState.COMMITTED,
        "slot state": SlotState.MASK,
        "slot commits": 1 << SlotState.BITS,
        "slot page": Slot.OLD_AT,
        "region freed": RegionState.FREED,
        "stripe by stripe": Consistency.STRIPE,
        "without locks": Consistency.NONE,
    }
    | {
        f"dtype {dtype.name}": dtype.code
        for dtype in sorted(dtypes.TABLE, key=lambda each: each.code)
    }
    | {f"kernel {code.name}": code for code in (*KernelCode, *OptimizerCode)}
    | {f"output {code.name}": code for code in orders.Output}
    | {f"result {code.name}": code for code in orders.Result}
)


def test_every_word_and_number_of_the_library_is_that_of_the_layout(tmp_path):
    folder, target = tmp_path / "native", tmp_path / "layout.so"
    folder.mkdir()
    for source in (compiling.FOLDER / "native.h", Path(__file__).with_name("layout.c")):
        shutil.copy(source, folder)
    compiler = compiling.system_compiler() or compiling.zig_compiler()
    compiling.compile_library(target, compiler, folder=folder)
    words = ctypes.c_uint64 * len(EXPECTED)
    found = list(words.in_dll(ctypes.CDLL(str(target)), "smbox_layout"))
    assert dict(zip(EXPECTED, found, strict=True)) == EXPECTED


def test_an_order_and_a_reading_are_as_long_as_their_words():
    assert EXPECTED["sizeof order"] == orders.ORDER_NBYTES
    assert EXPECTED["sizeof reading"] == orders.READING_NBYTES
    assert EXPECTED["order.done"] == orders.ORDER_DONE * WORD
    assert EXPECTED["reading.done"] == orders.READING_DONE * WORD


@pytest.mark.parametrize("scale", [7, 7.0])
def test_an_order_is_written_where_the_library_reads_it(scale):
    at = {
        name: EXPECTED[f"order.{name}"] // WORD for name in map(bare, IN_ORDER["order"].split())
    }
    names = ["kernel", "operand", "output", "first", "limit", "source", "source_nbytes"]
    more = ["parameters", "output_to", "channel", "number", "done"]
    values = {name: 100 + place for place, name in enumerate(names + more)}
    block, regions = orders.Block(orders.ORDER_NBYTES), [orders.block_of(1) for _ in range(2)]
    first = [values[name] for name in names[:3]]
    rest = [values[name] for name in names[3:]]
    tail = [values[name] for name in more]
    extents, packed = orders.extents_of(regions), scale_bytes(scale)
    orders.write_order(block.bytes, 0, *first, extents, *rest, packed, *tail)
    assert {name: block.words[at[name]] for name in values} == values
    assert block.words[at["extents"]] == 2
    assert [block.words[at["region"] + place] for place in range(2)] == [
        each.address for each in regions
    ]
    assert block.bytes[8 * at["scale"] :][:8] == np.array([scale]).tobytes()


def test_a_reading_is_written_where_the_library_reads_it():
    at = {name: EXPECTED[f"reading.{name}"] // WORD for name in IN_ORDER["reading"].split()}
    names = IN_ORDER["reading"].split()[:9]
    values = {name: 100 + place for place, name in enumerate(names)}
    block = orders.Block(orders.READING_NBYTES)
    orders.write_reading(block.bytes, 0, *values.values())
    assert {name: block.words[at[name]] for name in names} == values


def bare(member):
    return member.partition("+")[0]


def test_the_extents_regions_have_a_word_each():
    assert Slot.CHANNEL - Slot.REGION == Slot.EXTENTS_MAX
