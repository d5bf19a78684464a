"""The header: one layout, every field, no surprise."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given, settings, strategies as st

from smbox.errors import LocalProtocolError, RemoteProtocolError, VersionMismatchError
from smbox.wire import header
from smbox.wire.codec import Header

WORD = st.integers(0, 2**64 - 1)
BYTE = st.integers(0, 255)


@settings(max_examples=50, deadline=None)
@given(
    st.tuples(BYTE, BYTE, BYTE, WORD, WORD, WORD, WORD),
    st.binary(min_size=8, max_size=8),
    st.tuples(WORD, BYTE, st.integers(0, 2**32 - 1), BYTE),
)
def test_round_trip(before, scale, behind):
    fields = (*before, scale, *behind)
    op, kernel, status, request, number, address, nbytes, scale, version, *rest = fields
    numbers, generation, operand = rest
    frame = Header(
        op,
        kernel=kernel,
        status=status,
        request=request,
        number=number,
        address=address,
        nbytes=nbytes,
        scale=scale,
        version=version,
        numbers=numbers,
        generation=generation,
        operand=operand,
    ).pack()
    assert len(frame) == header.HEADER_NBYTES
    assert header.unpack(memoryview(frame)) == (header.MAGIC, header.PROTOCOL, *fields)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_typed_error(frame):
    with pytest.raises(RemoteProtocolError):
        header.unpack(frame)


def test_cut_at_every_byte():
    frame = Header(16).pack()
    for length in range(header.HEADER_NBYTES):
        with pytest.raises(RemoteProtocolError, match="a program other than smbox"):
            header.unpack(frame[:length])
    with pytest.raises(RemoteProtocolError):
        header.unpack(frame + b"\0")


def test_another_version_is_named():
    frame = bytearray(Header(1).pack())
    frame[4] = 2
    with pytest.raises(VersionMismatchError) as caught:
        header.unpack(frame)
    assert caught.value.facts == {"peer": 2, "ours": 1}


@pytest.mark.parametrize("changed", [{"number": -1}, {"address": 1 << 64}, {"kernel": 256}])
def test_a_field_that_does_not_fit_is_our_bug(changed):
    with pytest.raises(LocalProtocolError):
        Header(1, **changed).pack()


@pytest.mark.parametrize(
    ("scale", "kind"),
    [(-1, "i"), (2**63 - 1, "i"), (2**64 - 1, "u"), (1, "b"), (0.1, "f"), (3, "f")],
)
def test_scales_are_exact(scale, kind):
    assert header.unpack_scale(header.pack_scale(scale, kind), kind) == scale


def test_not_a_number_is_a_scale():
    assert math.isnan(header.unpack_scale(header.pack_scale(math.nan, "f"), "f"))


def test_size_of_the_layout():
    assert struct.calcsize("<4sBBBBQQQQ8sQBIB2x") == header.HEADER_NBYTES
