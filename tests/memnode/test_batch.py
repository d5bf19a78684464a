"""BATCH and changes of many stripes: one native call, and still each commit by itself."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Consistency
from smbox.memory.locks import LockFile
from smbox.wire.header import pack_scale
from smbox.wire.messages import Free
from smbox.wire.operands import Item
from smbox.wire.ops import Op, Status

STRIPE = STRIPE_NBYTES // 4  # elements


def floats(*values):
    return np.array(values, np.float32)


@pytest.fixture
def address(peer):
    return peer.create("w", (4 * STRIPE,), init=1.0).body.address


def item(op, kernel, address, source, scale_by=1.0):
    raw = pack_scale(scale_by, "f")
    return Item(op, int(kernel), address, source.nbytes, source.tobytes(), raw)


def batch(peer, number, *items):
    return peer.ask(Op.BATCH, number=number, numbers=len(items), nbytes=len(items), items=items)


@pytest.mark.parametrize("applied", [0, 1, 2, 3, 4])
def test_items_are_committed_each_once(bench, peer, address, applied):
    items = (
        item(Op.ACCUMULATE, KernelCode.SUM, address, floats(1, 2)),
        item(Op.ACCUMULATE, KernelCode.SUM, address + 4, floats(10), 0.5),
        item(Op.ACCUMULATE, KernelCode.SUM, address + 2 * STRIPE_NBYTES, floats(7)),
        item(Op.PUT, KernelCode.REPLACE, address + 8, floats(9)),
    )
    if applied:  # the node was killed in the middle of it
        assert batch(peer, 1, *items[:applied]).error is None
    assert batch(peer, 1, *items).error is None
    assert batch(peer, 1, *items).error is None
    assert peer.get(address, 12, number=4).tolist() == [2, 8, 9]
    assert peer.get(address + 2 * STRIPE_NBYTES, 4, number=4).tolist() == [8]
    assert bench.memory.regions[address].version() == 4
    assert bench.node.context.metrics.duplicates == 4 + 4 * (applied == 4)


@pytest.mark.parametrize(
    ("offset", "source", "scale_by", "status"),
    [
        (4 * STRIPE_NBYTES, floats(1), 1, Status.ADDRESS_RANGE),
        (-4, floats(1), 1, Status.ADDRESS_RANGE),
        (-4, floats(1, 1), 1, Status.ADDRESS_RANGE),  # its last byte is in the region
        (2, floats(1), 1, Status.LAYOUT_MISMATCH),
        (STRIPE_NBYTES - 4, floats(1, 1), 1, Status.BAD_MESSAGE),
        (0, floats(1), float("nan"), Status.ERROR),
        (0, floats(), 1, Status.BAD_MESSAGE),
    ],
)
def test_items_before_a_wrong_one_are_done(peer, address, offset, source, scale_by, status):
    good = item(Op.ACCUMULATE, KernelCode.SUM, address, floats(1))
    wrong = item(Op.ACCUMULATE, KernelCode.SUM, address + offset, source, scale_by)
    reply = batch(peer, 1, good, good, wrong, good)
    assert reply.status is status
    assert reply.error.applied == 2
    assert peer.get(address, 4, number=2).tolist() == [3]


def test_an_item_whose_source_does_not_fit_is_refused_in_its_turn(peer, address):
    good = item(Op.ACCUMULATE, KernelCode.SUM, address, floats(1))
    wrong = Item(Op.PUT, int(KernelCode.REPLACE), address, 8, floats(1).tobytes())
    reply = batch(peer, 1, good, wrong, good)
    assert (reply.status, reply.error.applied) == (Status.LAYOUT_MISMATCH, 1)
    assert peer.get(address, 8, number=1).tolist() == [2, 1]


def test_a_batch_waits_for_a_held_stripe(bench, peer, address):
    items = [item(Op.PUT, KernelCode.REPLACE, address, floats(5))]
    items += [item(Op.PUT, KernelCode.REPLACE, address + STRIPE_NBYTES, floats(6))] * 2
    locks = LockFile(bench.name)
    assert bench.memory.regions[address].try_lock(1, locks)
    peer.begin(Op.BATCH, number=1, numbers=3, nbytes=3, items=tuple(items))
    assert bench.waiting(peer)
    assert bench.memory.regions[address].version() == 1
    locks.close()
    assert peer.reply().error is None
    assert bench.memory.regions[address].version() == 3


def test_a_batch_on_a_freed_region_is_refused(peer, address):
    peer.ask(Op.FREE, body=Free(address=address))
    items = [item(Op.PUT, KernelCode.REPLACE, address, floats(5))] * 2
    assert batch(peer, 1, *items).status is Status.REGION_FREED


@pytest.mark.parametrize("applied", [0, 1, 2, 3, 4])
def test_stripes_of_a_request_are_committed_together_each_once(bench, peer, address, applied):
    x = np.arange(4 * STRIPE, dtype=np.float32)
    first = STRIPE // 2  # so that the first one is cut
    for number, end in enumerate((1, 2, 3, 4)[:applied], 1):
        begin = max(first, (end - 1) * STRIPE)
        peer.add(address + 4 * begin, x[begin : end * STRIPE], number=number)
    reply = peer.add(address + 4 * first, x[first:], number=1, numbers=4)
    assert reply.error is None
    assert bench.memory.regions[address].version() == 4
    half = 2 * STRIPE
    expected = np.where(np.arange(4 * STRIPE) < first, 1, 1 + x).astype(np.float32)
    for at in (0, half):  # a GET is shorter
        found = peer.get(address + 4 * at, 4 * half, number=4)
        np.testing.assert_array_equal(found, expected[at : at + half])


def test_old_bytes_of_stripes_that_were_committed_together_are_kept(peer, address):
    x = np.arange(2 * STRIPE, dtype=np.float32)
    peer.put(address, x, number=1, numbers=2)
    answers = [peer.fetch_add(address, x, number=3, numbers=2) for _ in range(2)]
    for answer in answers:
        np.testing.assert_array_equal(np.frombuffer(answer.payload, np.float32), x)
    np.testing.assert_array_equal(peer.get(address, 8 * STRIPE, number=4), 2 * x)


def test_stripes_wait_for_one_that_is_held(bench, peer, address):
    x = np.full(4 * STRIPE, 5, np.float32).data.cast("B")
    region, locks = bench.memory.regions[address], LockFile(bench.name)
    assert region.try_lock(2, locks)
    peer.begin(
        Op.PUT, number=1, numbers=4, address=address, nbytes=x.nbytes, kernel=1, payload=x
    )
    assert bench.waiting(peer)
    assert region.version() == 2
    locks.close()
    assert peer.reply().error is None
    assert region.version() == 4
    assert (region.array() == 5).all()


@pytest.mark.parametrize(
    ("numbers", "nbytes"), [(3, 16 * STRIPE), (4, 12 * STRIPE), (4, 16 * STRIPE + 8)]
)
def test_stripes_that_are_counted_wrong_are_refused_whole(
    bench, peer, address, numbers, nbytes
):
    reply = peer.put(address, np.zeros(nbytes, np.uint8), number=1, numbers=numbers)
    assert reply.status in {Status.BAD_MESSAGE, Status.ADDRESS_RANGE}
    assert bench.memory.regions[address].version() == 0


def test_items_of_many_regions_types_and_answers_go_together(peer):
    a = peer.create("a", (8,), init=1.0).body.address
    b = peer.create("b", (8,), "int64", init=5).body.address
    h = peer.create("h", (8,), init=2.0, consistency=Consistency.NONE).body.address
    by = pack_scale(-3, "i")
    items = (
        item(Op.FETCH, KernelCode.SUM, a, floats(1, 1)),
        Item(Op.FETCH, int(KernelCode.SUM), b, 8, np.array([2]).tobytes(), by),
        item(Op.FETCH, KernelCode.MAX, h + 4, floats(9)),
        item(Op.ELASTIC, KernelCode.ELASTIC, a, floats(4), 0.5),
    )
    first, again = batch(peer, 1, *items), batch(peer, 1, *items)
    assert bytes(again.payload) == bytes(first.payload)
    old = floats(1, 1).tobytes(), np.array([5]).tobytes(), floats(2, 2).tobytes()
    assert bytes(first.payload) == b"".join(old)
    assert peer.get(a, 8, number=4).tolist() == [3, 2]
    assert peer.get(b, 8, np.int64, number=4).tolist() == [-1]
    assert peer.get(h, 8, number=4).tolist() == [2, 9]


def test_a_batch_goes_on_after_a_dead_writer_where_it_was(bench, peer, address):
    """Its numbers outlive the node: a batch cut off by a kill is finished, not done twice."""
    items = [item(Op.FETCH, KernelCode.SUM, address, floats(1))] * 4
    assert batch(peer, 1, *items[:2]).error is None
    bench.restart()
    assert peer.hello().body.applied == 2
    reply = batch(peer, 1, *items)
    assert np.frombuffer(reply.payload, np.float32).tolist() == [1, 2, 3, 4]
    assert peer.get(address, 4, number=4).tolist() == [5]


def test_a_duplicate_that_counts_its_items_wrong_breaks_nothing(peer, address):
    items = [item(Op.FETCH, KernelCode.SUM, address, floats(1))] * 3
    assert batch(peer, 1, *items).error is None
    reply = peer.ask(Op.BATCH, number=1, numbers=3, nbytes=2, items=tuple(items[:2]))
    assert np.frombuffer(reply.payload, np.float32).tolist() == [1, 2]
