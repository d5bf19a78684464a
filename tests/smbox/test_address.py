"""Arithmetic and bounds of global addresses."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from smbox.address import NODE_MAX, OFFSET_MAX, GlobalAddress
from smbox.errors import AddressRangeError

NODES = st.integers(0, NODE_MAX)
OFFSETS = st.integers(0, OFFSET_MAX)


@settings(max_examples=50, deadline=None)
@given(NODES, OFFSETS, OFFSETS)
def test_parts_and_arithmetic(node, first, second):
    address = GlobalAddress.at(node, first)
    assert (address.node, address.offset) == (node, first)
    assert address == node << 48 | first
    moved = address + (second - first)
    assert type(moved) is GlobalAddress
    assert (moved.node, moved.offset) == (node, second)
    assert moved - address == second - first
    assert moved - (second - first) == address


def test_an_int_may_come_first():
    assert type(1 + GlobalAddress.at(2, 3)) is GlobalAddress
    assert 1 + GlobalAddress.at(2, 3) == GlobalAddress.at(2, 4)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16])
def test_integers_of_numpy_do_not_overflow(kind):
    address = GlobalAddress.at(kind(30_000), kind(7))
    assert (address.node, address.offset) == (30_000, 7)
    far = GlobalAddress.at(NODE_MAX, 1 << 40)
    assert far + kind(7) == far + 7
    assert far - kind(7) == far - 7


def test_a_number_with_a_fraction_is_no_address_and_no_distance():
    address = GlobalAddress.at(2, 8)
    for wrong in (
        lambda: GlobalAddress(8.0),
        lambda: GlobalAddress.at(2.0, 8),
        lambda: address + 1.5,
        lambda: address - 1.5,
    ):
        with pytest.raises(TypeError):
            wrong()


@pytest.mark.parametrize("bits", [-1, 1 << 64])
def test_only_64_bits(bits):
    with pytest.raises(AddressRangeError) as caught:
        GlobalAddress(bits)
    assert caught.value.facts == {"address": bits}


@pytest.mark.parametrize(
    ("node", "offset"), [(-1, 0), (NODE_MAX + 1, 0), (0, -1), (0, OFFSET_MAX + 1)]
)
def test_parts_in_their_bits(node, offset):
    with pytest.raises(AddressRangeError) as caught:
        GlobalAddress.at(node, offset)
    assert caught.value.facts == {"node": node, "offset": offset}


def test_arithmetic_never_reaches_another_node():
    with pytest.raises(AddressRangeError):
        GlobalAddress.at(1, OFFSET_MAX) + 1
    with pytest.raises(AddressRangeError):
        GlobalAddress.at(1, 0) - 1
    a, b = GlobalAddress.at(1, 0), GlobalAddress.at(2, 0)
    with pytest.raises(AddressRangeError) as caught:
        a - b
    assert caught.value.facts == {"a": a, "b": b}


def test_it_is_an_int_that_pickles_packs_and_prints():
    address = GlobalAddress.at(3, 4096)
    copy = pickle.loads(pickle.dumps(address))
    assert type(copy) is GlobalAddress
    assert copy == address
    assert {address: 1}[int(address)] == 1
    assert struct.unpack("<Q", struct.pack("<Q", address)) == (address,)
    assert repr(address) == str(address) == "GlobalAddress(node=3, offset=0x1000)"
