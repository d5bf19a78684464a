"""Operands there and back, cut, and with numbers that make no sense."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings, strategies as st

from smbox.errors import RemoteProtocolError
from smbox.memory.layout import Slot
from smbox.wire import operands
from smbox.wire.header import REQUEST_NBYTES_MAX

WORD = st.integers(0, 2**64 - 1)
HEAD_NBYTES = 64  # of an UPDATE


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 100), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9))
def test_gather(row_nbytes, places):
    raw = struct.pack(f"<{len(places)}q", *places)
    found = operands.unpack_gather(
        operands.pack_gather(row_nbytes, raw), row_nbytes * len(places)
    )
    assert (found[0], bytes(found[1])) == (row_nbytes, raw)


@pytest.mark.parametrize(
    ("operand", "nbytes"),
    [
        (b"", 8),
        (bytes(7), 8),
        (struct.pack("<QQ", 8, 0), 16),
        (struct.pack("<Q", 8), 0),
        (struct.pack("<QQ", 0, 0), 0),
        (struct.pack("<QI", 8, 0), 8),
        (struct.pack("<QQ", REQUEST_NBYTES_MAX + 1, 0), REQUEST_NBYTES_MAX + 1),
    ],
)
def test_a_gather_that_makes_no_sense(operand, nbytes):
    with pytest.raises(RemoteProtocolError):
        operands.unpack_gather(operand, nbytes)


@settings(max_examples=30, deadline=None)
@given(WORD)
def test_addresses(address):
    assert operands.unpack_address(operands.pack_address(address)) == address


@pytest.mark.parametrize("length", [0, 7, 9, 16])
def test_addresses_that_are_cut(length):
    with pytest.raises(RemoteProtocolError):
        operands.unpack_address(bytes(length))


@settings(max_examples=30, deadline=None)
@given(st.lists(WORD, max_size=3), st.lists(st.floats(-9, 9), max_size=4), st.binary())
def test_update(siblings, parameters, gradient):
    operand = operands.pack_update(siblings, parameters, gradient)
    found = operands.unpack_update(operand, len(gradient))
    assert list(found.siblings) == siblings
    assert list(found.parameters[: len(parameters)]) == parameters
    assert bytes(found.gradient) == gradient
    for length in (0, HEAD_NBYTES - 1, len(operand) - 1):
        with pytest.raises(RemoteProtocolError):
            operands.unpack_update(operand[:length], len(gradient))


def test_an_update_of_too_much():
    with pytest.raises(RemoteProtocolError):
        operands.unpack_update(struct.pack("<Q", 4) + bytes(56), 0)


def test_limits_are_the_memorys():
    assert operands.SIBLINGS_MAX == Slot.EXTENTS_MAX - 1
    assert len(operands.pack_update([], [], b"")) == HEAD_NBYTES
    most = operands.pack_gather(1, bytes(8 * operands.PLACES_MAX))
    assert REQUEST_NBYTES_MAX - 8 < len(most) <= REQUEST_NBYTES_MAX
