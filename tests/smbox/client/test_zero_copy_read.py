"""Zero-copy reads: validated by stamps, and read again where a writer was active."""

from __future__ import annotations

import time

import numpy as np
import pytest
from msgspec.structs import replace

from smbox.client.reads import ZeroCopyRead
from smbox.client.remote import COPIED_READS, ContendedRegions
from smbox.dtypes import by_name
from smbox.errors import RegionFreedError, RemoteProtocolError
from smbox.memory.layout import STRIPE_NBYTES, Consistency, Stripe
from smbox.paths.requests import Reading
from smbox.wire.codec import decode_reply, decode_request, encode_reply
from smbox.wire.header import LONG_NBYTES_MAX, STAMPED_NBYTES_MAX
from smbox.wire.ops import Op

NBYTES = 4 * LONG_NBYTES_MAX + 12
COUNT = NBYTES // 4


@pytest.fixture
def client(clients):
    return clients(lend_from_nbytes=1)


def ops(node):
    found = [decode_request(frames).op for frames in node.seen]
    return [op for op in found if op in {Op.GET, Op.LEND, Op.STAMPS, Op.ACCUMULATE}]


def begin(client, info, out):
    return client.begun(client.read(info, out))


def filled(node, client):
    info = client.create(COUNT)
    x = np.arange(COUNT, dtype=np.float32)
    client.finish(client.change(info, x))
    node.seen.clear()
    return info, x


def between(node, monkeypatch, op, act):
    """Do something when the first request of ``op`` arrives, before it is answered."""
    handle = node.handle
    acted = []

    def watched(connection, frames):
        if frames and not acted and decode_request(frames).op is op:
            acted.append(op)
            act()
        return handle(connection, frames)

    monkeypatch.setattr(node.hub, "handler", watched)


def test_a_quiet_region_is_read_without_a_copy(node, client):
    info, x = filled(node, client)
    assert np.array_equal(client.get(info), x)
    assert ops(node) == [Op.LEND] * 5 + [Op.STAMPS]


def test_a_part_is_read_at_its_place(node, client):
    info, x = filled(node, client)
    out = np.empty(LONG_NBYTES_MAX // 2, np.float32)
    first = LONG_NBYTES_MAX - 8
    client.finish(client.read(info, out, first))
    assert np.array_equal(out, x[first // 4 : first // 4 + out.size])


def test_what_was_changed_meanwhile_is_read_again(node, client, monkeypatch):
    info, x = filled(node, client)
    region = node.memory.regions[int(info.address)]

    def change():  # as a local client would
        for stripe in (4, 5):
            region.table[stripe, Stripe.SEQUENCE] += 1 << Stripe.COMMITS_SHIFT
            region.data[stripe * STRIPE_NBYTES : (stripe + 1) * STRIPE_NBYTES] = 7

    between(node, monkeypatch, Op.STAMPS, change)
    wanted = x.copy()
    wanted.view(np.uint8)[4 * STRIPE_NBYTES : 6 * STRIPE_NBYTES] = 7
    assert np.array_equal(client.get(info), wanted)
    assert ops(node) == [Op.LEND] * 5 + [Op.STAMPS] + [Op.GET] * 2


def test_a_commit_that_is_open_at_both_looks_is_not_trusted(node, client, monkeypatch):
    info, x = filled(node, client)
    region = node.memory.regions[int(info.address)]

    def close():
        region.table[0, Stripe.SEQUENCE] &= ~np.uint64(Stripe.OPEN)

    region.table[0, Stripe.SEQUENCE] |= np.uint64(Stripe.OPEN)
    between(node, monkeypatch, Op.GET, close)
    assert np.array_equal(client.get(info), x)
    assert ops(node) == [Op.LEND] * 5 + [Op.STAMPS] + [Op.GET] * 2


def test_later_requests_wait_until_nothing_can_be_read_again(node, client):
    info, x = filled(node, client)
    out = np.empty(COUNT, np.float32)
    read = begin(client, info, out)
    change = client.change(info, np.full(COUNT, 5, np.float32))
    client.finish(change)
    client.finish(read)
    assert np.array_equal(out, x)
    assert ops(node) == [Op.LEND] * 5 + [Op.STAMPS] + [Op.ACCUMULATE] * 5
    assert np.array_equal(client.get(info), x + 5)


def test_after_a_restart_of_the_node_all_is_there(node, client, monkeypatch):
    info, x = filled(node, client)
    between(node, monkeypatch, Op.STAMPS, node.restart)
    assert np.array_equal(client.get(info), x)


def test_a_region_that_is_freed_meanwhile_is_an_error(node, client, monkeypatch):
    info, _ = filled(node, client)
    between(
        node,
        monkeypatch,
        Op.STAMPS,
        lambda: node.node.context.registry.free(int(info.address)),
    )
    out = np.empty(COUNT, np.float32)
    work = begin(client, info, out)
    with pytest.raises(RegionFreedError):
        client.finish(work)
    assert work.ranges_done() == []


@pytest.mark.parametrize("missing", [8, 3, -3])
def test_too_few_stamps_are_no_answer(node, client, monkeypatch, missing):
    info, _ = filled(node, client)
    deliver = node.hub.deliver

    def shortened(connection, frames):
        deliver(connection, frames)
        inbox = node.hub.inbox(connection)
        if inbox and decode_reply(inbox[-1]).op is Op.STAMPS:
            reply = decode_reply(inbox[-1])
            reply.payload = (bytes(reply.payload) + bytes(8))[: -8 - missing]
            inbox[-1] = [bytes(frame) for frame in encode_reply(reply)]

    monkeypatch.setattr(node.hub, "deliver", shortened)
    with pytest.raises(RemoteProtocolError):
        client.get(info)


def test_nothing_is_certain_before_the_look(node, client):
    info, _ = filled(node, client)
    node.is_down = True
    work = begin(client, info, np.empty(COUNT, np.float32))
    assert not work.advance(time.monotonic() + 0.05)
    assert (work.outcome(), work.ranges_done()) == ("none", [])
    node.is_down = False
    client.finish(work)


def test_a_restless_region_is_read_by_copies_for_a_while(node, client, monkeypatch):
    info, x = filled(node, client)
    region = node.memory.regions[int(info.address)]

    def change():
        region.table[:, Stripe.SEQUENCE] += 1 << Stripe.COMMITS_SHIFT

    between(node, monkeypatch, Op.STAMPS, change)
    client.get(info)
    for _ in range(COPIED_READS):
        del node.seen[:]
        assert np.array_equal(client.get(info), x)
        assert set(ops(node)) == {Op.GET}
    del node.seen[:]
    client.get(info)
    assert set(ops(node)) == {Op.LEND, Op.STAMPS}


def test_a_look_that_was_interrupted_is_forgotten(node, client, monkeypatch):
    info, x = filled(node, client)
    region, looks = node.memory.regions[int(info.address)], []
    handle, compare = node.handle, ZeroCopyRead._compare

    def changed(connection, frames):
        if frames and decode_request(frames).op is Op.STAMPS:
            stripe = [5, 0][len(looks)]
            region.table[stripe, Stripe.SEQUENCE] += 1 << Stripe.COMMITS_SHIFT
            region.data[stripe * STRIPE_NBYTES : (stripe + 1) * STRIPE_NBYTES] = 7
        return handle(connection, frames)

    def struck(self, payload):
        compare(self, payload)
        looks.append(payload)
        if len(looks) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(node.hub, "handler", changed)
    monkeypatch.setattr(ZeroCopyRead, "_compare", struck)
    out = np.empty(COUNT, np.float32)
    work = begin(client, info, out)
    with pytest.raises(KeyboardInterrupt):
        client.finish(work)
    client.finish(work)
    wanted = x.copy()
    for stripe in (5, 0):
        wanted.view(np.uint8)[stripe * STRIPE_NBYTES : (stripe + 1) * STRIPE_NBYTES] = 7
    assert np.array_equal(out, wanted)


def test_which_reads_are_lent(node, client):
    info, _ = filled(node, client)
    contended = ContendedRegions(100)
    out = np.empty(0, np.uint8)

    def allows_zero_copy(nbytes, info=info):
        return contended.allows_zero_copy(Reading(info, 0, nbytes, out))

    assert allows_zero_copy(100)
    assert not allows_zero_copy(99)
    assert not allows_zero_copy(STAMPED_NBYTES_MAX + 1)
    assert not allows_zero_copy(100, replace(info, consistency=Consistency.NONE))
    assert not contended.allows_zero_copy(Reading(info, 0, 100, out, by_name("float16").code))
    contended.note_torn(info, torn=1, count=8)
    assert allows_zero_copy(100)
    contended.note_torn(info, torn=2, count=8)
    for _ in range(COPIED_READS):
        assert not allows_zero_copy(100)
    assert allows_zero_copy(100)
