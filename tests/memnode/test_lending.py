"""Reads without a copy: what is sent is the region itself, and stamps tell if it changed."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.memory.layout import STRIPE_NBYTES, Consistency, Stripe
from smbox.wire.header import LONG_NBYTES_MAX
from smbox.wire.messages import Free
from smbox.wire.ops import Op, Status

NBYTES = 2 * LONG_NBYTES_MAX + STRIPE_NBYTES


@pytest.fixture
def address(peer):
    return peer.create("w", (NBYTES // 4,), init=1.0).body.address


def stamps(peer, address, nbytes=NBYTES):
    reply = peer.ask(Op.STAMPS, address=address, nbytes=nbytes)
    assert reply.status is Status.OK
    return np.frombuffer(reply.payload, np.uint64).tolist()


def test_what_is_sent_is_the_region_itself(bench, peer, address):
    kept = []
    bench.sort = kept.extend  # as by somebody who sends it
    peer.begin(Op.LEND, address=address, nbytes=LONG_NBYTES_MAX)
    ((_, (_, answer)),) = kept
    region = bench.memory.regions[address]
    assert np.shares_memory(np.frombuffer(answer, np.uint8), region.data)


def test_the_stamp_of_a_loan_is_that_of_its_piece(bench, peer, address):
    replies = [
        peer.ask(Op.LEND, address=address + first, nbytes=min(LONG_NBYTES_MAX, NBYTES - first))
        for first in range(0, NBYTES, LONG_NBYTES_MAX)
    ]
    assert [reply.version for reply in replies] == stamps(peer, address)
    assert all((np.frombuffer(each.payload, np.float32) == 1).all() for each in replies)
    peer.add(address + LONG_NBYTES_MAX, np.ones(1, np.float32))
    now = stamps(peer, address)
    assert [old.version == new for old, new in zip(replies, now, strict=True)] == [
        True,
        False,
        True,
    ]
    bench.memory.regions[address].table[-1, Stripe.SEQUENCE] += 1
    assert stamps(peer, address)[-1] == 0
    assert peer.ask(Op.LEND, address=address + NBYTES - 4, nbytes=4).version == 0
    bench.memory.regions[address].table[-1, Stripe.SEQUENCE] += 1


def test_stamps_of_a_part_are_of_the_regions_pieces(peer, address):
    whole = stamps(peer, address)
    assert stamps(peer, address + LONG_NBYTES_MAX, LONG_NBYTES_MAX) == whole[1:2]
    assert len(stamps(peer, address + LONG_NBYTES_MAX - 1, 2)) == 2


def test_who_does_not_take_loans_holds_up_nobody(bench, peer, address):
    kept = []
    bench.sort = kept.extend
    for _ in range(16):
        peer.begin(Op.LEND, address=address, nbytes=LONG_NBYTES_MAX)
    assert len(kept) == 16
    assert bench.node.context.metrics.parked == 0


@pytest.mark.parametrize("op", [Op.LEND, Op.STAMPS])
@pytest.mark.parametrize(
    ("offset", "nbytes", "status"),
    [
        (NBYTES - 4, 8, Status.ADDRESS_RANGE),
        (1 << 30, 4, Status.ADDRESS_RANGE),
        (0, 0, Status.BAD_MESSAGE),
        (0, 1 << 63, Status.ADDRESS_RANGE),
    ],
)
def test_ranges_that_are_refused(peer, address, op, offset, nbytes, status):
    assert peer.ask(op, address=address + offset, nbytes=nbytes).status is status


def test_a_loan_is_one_aligned_piece(peer, address):
    reply = peer.ask(Op.LEND, address=address + 4, nbytes=LONG_NBYTES_MAX)
    assert reply.status is Status.BAD_MESSAGE


@pytest.mark.parametrize("op", [Op.LEND, Op.STAMPS])
def test_what_changes_without_stamps_is_not_lent(peer, op):
    other = peer.create("other", (8,), consistency=Consistency.NONE).body.address
    assert peer.ask(op, address=other, nbytes=32).status is Status.ERROR


def test_what_is_sent_of_a_freed_region_stays_as_it_was(bench, peer, address):
    kept = []
    sort, bench.sort = bench.sort, kept.extend
    peer.begin(Op.LEND, address=address, nbytes=LONG_NBYTES_MAX)
    bench.sort = sort
    ((_, (_, answer)),) = kept
    assert bench.peer().ask(Op.FREE, body=Free(address=address)).status is Status.OK
    assert (np.frombuffer(answer, np.float32) == 1).all()
    assert peer.ask(Op.STAMPS, address=address, nbytes=NBYTES).status is Status.REGION_FREED
