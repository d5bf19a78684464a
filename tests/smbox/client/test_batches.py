from __future__ import annotations

import time

import numpy as np
import pytest
from msgspec.structs import replace

from smbox.errors import RegionFreedError
from smbox.memory.kernels import ONE, KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.requests import Operation
from smbox.testing.faults import FaultScript
from smbox.wire.codec import decode_request
from smbox.wire.ops import Op

WAIT_S = 30.0


def item(info, value, at, sink=None):
    source = np.array([value], np.float32).view(np.uint8)
    return Operation(info, "test", KernelCode.SUM, ONE["float"], at, at + 4, source, sink=sink)


def batches(node):
    return [f for f in node.seen if decode_request(f).op is Op.BATCH]


def test_many_small_changes_take_few_requests(node, client):
    info = client.create(100)
    work = client.begun(client.batch([item(info, n, 4 * n) for n in range(100)]))
    client.finish(work)
    assert np.array_equal(client.get(info), np.arange(100))
    assert len(batches(node)) == 4
    assert work.ranges_done()[:2] == [(0, 4), (4, 8)]


def test_sinks_get_the_old_bytes_of_their_own_item(client):
    info = client.create(4, init=5)
    seen = []

    def keep(first, limit, old):
        seen.append((first, limit, old.view(np.float32)[0]))

    items = [item(info, 1, 0), item(info, 1, 0, keep), item(info, 1, 4, keep)]
    client.finish(client.batch(items))
    assert seen == [(0, 4, 6.0), (4, 8, 5.0)]


def test_large_items_share_requests_as_they_fit(node, client):
    info = client.create(STRIPE_NBYTES, "uint8")
    x = np.ones(STRIPE_NBYTES, np.uint8)
    client.finish(client.batch([client.operation(info, x)] * 5))
    assert (client.get(info) == 5).all()
    assert len(batches(node)) == 3


def test_the_first_refusal_is_raised_and_the_others_still_run(client):
    gone, info = client.create(4), client.create(4)
    client.control.free(gone.address, WAIT_S)
    seen = []
    items = [item(info, 1, 0), item(gone, 1, 0), item(info, 2, 4, lambda *p: seen.append(p))]
    work = client.begun(client.batch(items))
    for _ in range(2):
        with pytest.raises(RegionFreedError):
            work.advance(time.monotonic() + WAIT_S)
    assert np.array_equal(client.get(info), [1, 2, 0, 0])
    assert len(seen) == 1
    assert work.ranges_done() == [(0, 4), (4, 8)]
    assert work.outcome() == "partial"


@pytest.mark.parametrize("refused", [[0], [31], [32], [40, 41, 99], [5, 37, 69, 101, 133]])
def test_refusals_change_no_order_while_more_is_under_way(node, client, refused):
    gone, info = client.create(4), client.create(4)
    client.control.free(gone.address, WAIT_S)
    before = []

    def replacing(n):
        operation = item(info, n, 0, lambda *old: before.append(old[2].view("f4")[0]))
        return replace(operation, kernel=KernelCode.REPLACE)

    items = [item(gone, n, 0) if n in refused else replacing(n) for n in range(1, 150)]
    if 0 in refused:
        items.insert(0, item(gone, 0, 0))
    work = client.begun(client.batch(items))
    later = client.change(info, np.zeros(1, np.float32), KernelCode.REPLACE)
    client.finish(later)
    with pytest.raises(RegionFreedError):
        work.advance(0.0)
    kept = [n for n in range(1, 150) if n not in refused]
    assert before == [0, *kept[:-1]]
    assert client.get(info)[0] == 0
    assert max(map(len, map(unpacked, batches(node)))) <= 32


def unpacked(frames):
    return decode_request(frames).items


def test_later_works_do_not_overtake(client):
    info = client.create(100)
    work = client.begun(client.batch([item(info, 1, 4 * n) for n in range(100)]))
    later = client.change(info, np.zeros(100, np.float32), KernelCode.REPLACE)
    client.finish(later)
    assert work.advance(0.0)
    assert (client.get(info) == 0).all()


@pytest.mark.parametrize("side", ["request", "reply"])
def test_a_lost_batch_happens_once(node, clients, side):
    script = FaultScript().cut(Op.BATCH, nth=2, side=side)
    client = clients(script.around(node.connect))
    info = client.create(100)
    client.finish(client.batch([item(info, 1, 4 * n) for n in range(100)]))
    assert (client.get(info) == 1).all()
    assert script.is_over()


def test_no_more_answers_are_awaited_than_the_node_keeps(node, clients):
    """A lost reply is repeated from the ring, which has room for the answers of one batch."""
    script = FaultScript().drop(Op.BATCH, side="reply")
    client = clients(script.around(node.connect))
    info = client.create(100)
    seen = []
    items = [item(info, 1, 4 * n, lambda *piece: seen.append(piece[0])) for n in range(100)]
    client.finish(client.batch(items))
    assert (client.get(info) == 1).all()
    assert seen == [each.first for each in items]
    assert script.is_over()


def test_an_empty_batch_is_done(client):
    assert client.batch([]).advance(0.0)


def test_an_interrupt_in_handing_on_repeats_the_piece_it_struck_and_none_before(client):
    info = client.create(4)
    seen = []

    def strike(first, limit, old):
        seen.append(first)
        if seen == [0, 4]:
            raise KeyboardInterrupt

    work = client.begun(client.batch([item(info, 1, at, strike) for at in (0, 4, 8)]))
    with pytest.raises(KeyboardInterrupt):
        work.advance(time.monotonic() + WAIT_S)
    client.finish(work)
    assert seen == [0, 4, 4, 8]
    assert np.array_equal(client.get(info), [1, 1, 1, 0])
