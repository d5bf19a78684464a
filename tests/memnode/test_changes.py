from __future__ import annotations

import numpy as np
import pytest

from smbox.memory.kernels import KernelCode, scatter_operand
from smbox.memory.layout import STRIPE_NBYTES, Consistency, Ring
from smbox.wire.header import REQUEST_NBYTES_MAX, pack_scale
from smbox.wire.messages import Free
from smbox.wire.operands import Item
from smbox.wire.ops import Op, Status

STRIPE = STRIPE_NBYTES // 4  # elements


def floats(*values):
    return np.array(values, np.float32)


@pytest.fixture
def address(peer):
    return peer.create("w", (4 * STRIPE,), init=1.0).body.address


def test_put_accumulate_and_fetch(bench, peer, address):
    assert peer.put(address, floats(1, 2, 3)).status is Status.OK
    assert peer.add(address + 4, floats(10, 10), scale_by=0.5).status is Status.OK
    assert bench.memory.regions[address].version() == 2
    assert peer.get(address, 16).tolist() == [1, 7, 8, 1]
    reply = peer.fetch_add(address, floats(1, 1))
    assert np.frombuffer(reply.payload, np.float32).tolist() == [1, 7]
    assert peer.get(address, 8).tolist() == [2, 8]


@pytest.mark.parametrize(
    ("kernel", "expected"), [(KernelCode.MIN, [1, 0]), (KernelCode.MAX, [5, 1])]
)
def test_minimum_and_maximum(peer, address, kernel, expected):
    peer.change(Op.ACCUMULATE, kernel, address, floats(5, 0))
    assert peer.get(address, 8).tolist() == expected


def test_elastic_answers_the_old_center(peer, address):
    raw = pack_scale(0.25, "f")
    reply = peer.change(Op.ELASTIC, KernelCode.ELASTIC, address, floats(5, -3), scale=raw)
    assert np.frombuffer(reply.payload, np.float32).tolist() == [1, 1]
    assert peer.get(address, 8).tolist() == [2, 0]


@pytest.mark.parametrize("numbers", [1, 3, 4])
def test_a_request_under_the_numbers_of_others_gets_none_of_their_answers(
    peer, address, numbers
):
    for _ in range(3):
        assert peer.fetch_add(address, floats(1, 1, 1)).status is Status.OK
    raw = pack_scale(0.5, "f")
    more = {"number": 1, "numbers": numbers, "scale": raw}
    reply = peer.change(Op.ELASTIC, KernelCode.ELASTIC, address, floats(0), **more)
    assert reply.status is Status.BAD_MESSAGE
    assert reply.error.old == b""
    assert peer.get(address, 8).tolist() == [4, 4]


def test_a_request_over_two_stripes_takes_two_numbers(bench, peer, address):
    begin = address + STRIPE_NBYTES - 8
    assert peer.put(begin, floats(1, 2, 3, 4), numbers=2).error is None
    assert bench.memory.regions[address].version() == 2
    assert peer.put(address, floats(9), number=2).error is None  # a duplicate of its second
    assert peer.put(address, floats(9), number=3).error is None
    assert peer.get(address, 4).tolist() == [9]
    old = peer.change(
        Op.FETCH, KernelCode.REPLACE, begin, floats(0, 0, 0, 0), number=4, numbers=2
    )
    assert np.frombuffer(old.payload, np.float32).tolist() == [1, 2, 3, 4]


def test_a_duplicate_changes_nothing_and_gets_the_same_answer(peer, address):
    first = peer.fetch_add(address, floats(1, 2), number=1)
    again = peer.fetch_add(address, floats(1, 2), number=1)
    assert bytes(again.payload) == bytes(first.payload)
    assert peer.get(address, 8).tolist() == [2, 3]
    assert peer.put(address, floats(8), number=2).error is None
    peer.add(address, floats(1), number=3)
    assert peer.put(address, floats(8), number=2).error is None
    assert peer.get(address, 4).tolist() == [9]


def test_a_change_that_was_half_applied_is_finished(peer, address):
    begin = address + STRIPE_NBYTES - 4
    peer.fetch_add(begin, floats(1), number=1)  # as if only the first stripe had been done
    reply = peer.fetch_add(begin, floats(1, 1), number=1, numbers=2)
    assert np.frombuffer(reply.payload, np.float32).tolist() == [1, 1]
    assert peer.get(begin, 8).tolist() == [2, 2]


def test_a_number_too_high_is_a_gap(peer, address):
    reply = peer.put(address, floats(5), number=2)
    assert reply.status is Status.GAP
    assert reply.error.applied == 0
    assert peer.get(address, 4).tolist() == [1]


def test_a_change_without_number_is_refused(peer, address):
    assert peer.put(address, floats(5), number=0).status is Status.BAD_MESSAGE
    assert peer.get(address, 4).tolist() == [1]


def test_a_change_that_counts_its_numbers_wrong_is_refused(peer, address):
    for numbers in (0, 2):
        reply = peer.put(address, floats(5), number=1, numbers=numbers)
        assert reply.status is Status.BAD_MESSAGE
    assert peer.get(address, 4).tolist() == [1]


def test_a_refusal_takes_no_number(peer, address):
    assert peer.put(address, floats(5), number=1).error is None
    refused = peer.add(address + 2, floats(5), number=2)  # cuts an element
    assert refused.status is Status.LAYOUT_MISMATCH
    assert refused.error.applied == 1
    assert peer.put(address, floats(6), number=2).error is None
    assert peer.get(address, 4).tolist() == [6]


@pytest.mark.parametrize(
    ("offset", "nbytes", "status"),
    [
        (4 * STRIPE_NBYTES - 4, 8, Status.ADDRESS_RANGE),
        (4 * STRIPE_NBYTES, 4, Status.ADDRESS_RANGE),
        (1 << 30, 4, Status.ADDRESS_RANGE),
        (-64, 4, Status.ADDRESS_RANGE),
        (0, 0, Status.BAD_MESSAGE),
        (STRIPE_NBYTES, REQUEST_NBYTES_MAX, Status.BAD_MESSAGE),
    ],
)
def test_ranges_that_are_refused(bench, peer, address, offset, nbytes, status):
    reply = peer.put(address + offset, np.zeros(nbytes, np.uint8))
    assert reply.status is status
    assert bench.memory.regions[address].version() == reply.error.applied


def test_an_op_runs_its_own_kernels_only(peer, address):
    reply = peer.change(Op.PUT, KernelCode.SUM, address, floats(1))
    assert reply.status is Status.BAD_MESSAGE


def test_counters_compare_and_swap(peer):
    address = peer.create("c", (), "int64", kind=2).body.address

    def swap(old, new):
        reply = peer.change(
            Op.FETCH,
            KernelCode.COMPARE_SWAP,
            address,
            np.array([old, new], np.int64),
            nbytes=8,
        )
        return int(np.frombuffer(reply.payload, np.int64)[0])

    assert swap(0, 5) == 0
    assert swap(0, 9) == 5
    assert peer.get(address, 8, np.int64).tolist() == [5]


def test_barriers_open_for_the_last_member(peer):
    address = peer.create("b", (5,), "uint64", kind=3).body.address
    peer.put(address, np.array([0, 0, 2, 0, 0], np.uint64))

    def arrive(member):
        reply = peer.change(
            Op.FETCH, KernelCode.ARRIVE, address, np.array([member], np.uint64), nbytes=40
        )
        return int(np.frombuffer(reply.payload, np.uint64)[0])

    assert [arrive(7), arrive(7), arrive(8)] == [0, 0, 0]
    assert peer.get(address, 16, np.uint64).tolist() == [1, 0]


def test_a_duplicate_on_a_freed_region_was_done(peer, address):
    peer.put(address, floats(1), number=1)
    answer = peer.fetch_add(address, floats(1), number=2)
    peer.ask(Op.FREE, number=2, body=Free(address=address))
    assert peer.put(address, floats(1), number=1).status is Status.OK
    again = peer.fetch_add(address, floats(1), number=2)
    assert bytes(again.payload) == bytes(answer.payload)
    assert peer.put(address, floats(1), number=3).status is Status.REGION_FREED


def test_a_half_applied_change_of_a_freed_region_gives_what_it_has(peer, address):
    begin = address + STRIPE_NBYTES - 4
    peer.fetch_add(begin, floats(1), number=1)
    peer.ask(Op.FREE, number=1, body=Free(address=address))
    reply = peer.fetch_add(begin, floats(1, 1), number=1, numbers=2)
    assert reply.status is Status.REGION_FREED
    assert reply.error.applied == 1
    assert np.frombuffer(reply.error.old, np.float32).tolist() == [1]


def test_an_answer_that_is_kept_no_longer_is_no_silent_success(peer, address):
    peer.fetch_add(address, floats(1), number=1)
    for number in range(2, Ring.ENTRIES + 2):
        peer.fetch_add(address, floats(1), number=number)
    late = peer.fetch_add(address, floats(1), number=1)
    assert late.status is Status.SESSION_EXPIRED


def item(op, kernel, address, source, scale_by=1.0):
    raw = pack_scale(scale_by, "f")
    return Item(op, int(kernel), address, source.nbytes, source.tobytes(), raw)


def batch(peer, number, *items):
    return peer.ask(Op.BATCH, number=number, numbers=len(items), nbytes=len(items), items=items)


def test_a_batch_is_many_changes_with_consecutive_numbers(peer, address):
    other = address + 2 * STRIPE_NBYTES
    reply = batch(
        peer,
        1,
        item(Op.PUT, KernelCode.REPLACE, address, floats(3)),
        item(Op.FETCH, KernelCode.SUM, address, floats(1)),
        item(Op.ACCUMULATE, KernelCode.SUM, other, floats(4), 0.5),
        item(Op.FETCH, KernelCode.SUM, other, floats(1, 1)),
    )
    assert np.frombuffer(reply.payload, np.float32).tolist() == [3, 3, 1]
    assert peer.get(address, 4).tolist() == [4]
    assert peer.get(other, 8, number=4).tolist() == [4, 2]


def test_a_batch_that_is_refused_says_how_far_it_came(peer, address):
    items = (
        item(Op.FETCH, KernelCode.SUM, address, floats(1)),
        item(Op.PUT, KernelCode.REPLACE, address + (1 << 30), floats(1)),
        item(Op.FETCH, KernelCode.SUM, address, floats(1)),
    )
    reply = batch(peer, 1, *items)
    assert reply.status is Status.ADDRESS_RANGE
    assert reply.error.applied == 1
    assert np.frombuffer(reply.error.old, np.float32).tolist() == [1]
    again = batch(peer, 1, *items)
    assert again.error.old == reply.error.old
    assert peer.get(address, 4).tolist() == [2]


def test_a_repeated_batch_is_answered_from_the_ring(peer, address):
    items = (
        item(Op.FETCH, KernelCode.SUM, address, floats(1)),
        item(Op.ACCUMULATE, KernelCode.SUM, address, floats(1)),
        item(Op.FETCH, KernelCode.SUM, address, floats(1)),
    )
    first, again = batch(peer, 1, *items), batch(peer, 1, *items)
    assert np.frombuffer(first.payload, np.float32).tolist() == [1, 3]
    assert bytes(again.payload) == bytes(first.payload)
    assert peer.get(address, 4).tolist() == [4]


def test_an_item_lies_within_one_stripe(peer, address):
    across = item(Op.PUT, KernelCode.REPLACE, address + STRIPE_NBYTES - 4, floats(1, 1))
    assert batch(peer, 1, across).status is Status.BAD_MESSAGE


def test_lock_free_regions_answer_and_count_too(peer):
    address = peer.create("h", (8,), init=2.0, consistency=Consistency.NONE).body.address
    peer.add(address, floats(1))
    first = peer.fetch_add(address, floats(1), number=2)
    again = peer.fetch_add(address, floats(1), number=2)
    assert np.frombuffer(first.payload, np.float32).tolist() == [3]
    assert bytes(again.payload) == bytes(first.payload)
    assert peer.get(address, 4).tolist() == [4]


def test_rows_travel_with_their_places(peer, address):
    rows = scatter_operand(np.array([2, 0, 2]), floats(1, 2, 3, 4, 5, 6).reshape(3, 2))
    raw = pack_scale(2.0, "f")
    add = peer.change(
        Op.ACCUMULATE, KernelCode.SCATTER_SUM, address + 8, rows, nbytes=24, scale=raw
    )
    assert add.status is Status.OK
    assert peer.get(address, 40).tolist() == [1, 1, 7, 9, 1, 1, 13, 17, 1, 1]
    put = peer.change(Op.PUT, KernelCode.SCATTER_PUT, address, rows, nbytes=24)
    assert put.status is Status.OK
    assert peer.get(address, 24).tolist() == [3, 4, 7, 9, 5, 6]


def test_rows_that_are_refused(peer, address):
    rows = scatter_operand(np.array([2]), floats(1, 2).reshape(1, 2))
    end = address + STRIPE_NBYTES - 8
    tries = [
        (Op.PUT, KernelCode.SCATTER_PUT, address, rows, 16),  # outside the range
        (Op.PUT, KernelCode.SCATTER_PUT, end, rows, 24),  # across two stripes
        (Op.PUT, KernelCode.SCATTER_SUM, address, rows, 24),
        (Op.FETCH, KernelCode.SCATTER_SUM, address, rows, 24),
        (Op.ACCUMULATE, KernelCode.SCATTER_SUM, address, rows[:-2], 24),
        (Op.ACCUMULATE, KernelCode.SCATTER_SUM, address, rows[:-4], 24),
    ]
    for op, kernel, at, source, nbytes in tries:
        raw = pack_scale(1.0, "f")
        reply = peer.change(op, kernel, at, source, nbytes=nbytes, number=1, scale=raw)
        assert reply.status is not Status.OK
    assert peer.get(address, 24).tolist() == [1] * 6
