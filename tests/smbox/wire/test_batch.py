"""Items of a batch, packed and taken apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from smbox.errors import RemoteProtocolError
from smbox.wire.header import REQUEST_NBYTES_MAX
from smbox.wire.operands import (
    ITEM_NBYTES,
    ITEMS_MAX,
    PAYLOAD_NBYTES_MAX,
    Item,
    pack_items,
    unpack_items,
)
from smbox.wire.ops import Op

OPS = st.sampled_from([Op.PUT, Op.ACCUMULATE, Op.ELASTIC, Op.FETCH])
ITEMS = st.lists(
    st.builds(
        lambda op, address, source: Item(op, 2, address, len(source), source, b"12345678"),
        OPS,
        st.integers(0, 2**64 - 1),
        st.binary(max_size=20),
    ),
    min_size=1,
    max_size=6,
)
SWAP = Item(Op.FETCH, 6, 64, 8, bytes(16))
PUT = Item(Op.PUT, 1, 0, 2, b"ab")


@settings(max_examples=60, deadline=None)
@given(ITEMS)
def test_round_trip(items):
    assert list(unpack_items(len(items), pack_items(items))) == items


def test_cut_anywhere_or_too_long():
    frame = pack_items([PUT, SWAP])
    for length in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            unpack_items(2, frame[:length])
    for count, body in ((2, frame + b"\0"), (1, frame), (3, frame), (0, frame)):
        with pytest.raises(RemoteProtocolError):
            unpack_items(count, body)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 5), st.binary(max_size=200))
def test_noise_is_items_or_a_typed_error(count, body):
    try:
        items = unpack_items(count, body)
    except RemoteProtocolError:
        return
    assert len(items) == count


def test_answers_are_counted_together():
    assert sum(item.answer_nbytes for item in (SWAP, PUT, SWAP)) == 16


HALF = REQUEST_NBYTES_MAX // 2 + 1


@pytest.mark.parametrize(
    "items",
    [
        [],
        [PUT] * (ITEMS_MAX + 1),
        [Item(Op.GET, 0, 0, 0, b"")],
        [Item(Op.PUT, 1, 0, 4, b"ab", operand=12)],
        [Item(Op.PUT, 1, 0, HALF, bytes(HALF))] * 2,
        [Item(Op.FETCH, 6, 0, HALF, b"")] * 2,
    ],
)
def test_illegal_batches_are_refused(items):
    with pytest.raises(RemoteProtocolError):
        unpack_items(len(items), pack_items(items))


def test_unknown_op_and_answers_beyond_the_limit_are_the_peers_fault():
    frame = bytearray(pack_items([PUT]))
    frame[0] = 99
    with pytest.raises(RemoteProtocolError):
        unpack_items(1, frame)
    huge = bytearray(pack_items([SWAP]))
    huge[16:24] = (REQUEST_NBYTES_MAX + 1).to_bytes(8, "little")
    with pytest.raises(RemoteProtocolError):
        unpack_items(1, huge)


def test_the_largest_batch_fits():
    items = [Item(Op.PUT, 1, 0, REQUEST_NBYTES_MAX // ITEMS_MAX, bytes(1 << 15))] * ITEMS_MAX
    nbytes = len(pack_items(items))
    assert nbytes == PAYLOAD_NBYTES_MAX[Op.BATCH] == ITEMS_MAX * ITEM_NBYTES + (1 << 20)
