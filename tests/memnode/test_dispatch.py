from __future__ import annotations

import os
import secrets

import numpy as np
import pytest

from memnode.flow import ALONE_MIB, FIRST_MIB, LEAST_MIB, RECENT_MAX, UNSENT_NBYTES_MAX
from memnode.node import HOUSEKEEPING_S, PARKED_AFTER_S, PARKED_INTERVAL_S, QUEUE_MAX
from smbox.memory.journal import Writer
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Ring, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.mapped import SLICE_NBYTES, MappedRegion
from smbox.wire.header import pack_scale
from smbox.wire.messages import Create, Empty, Free
from smbox.wire.ops import Op, Status


def floats(*values):
    return np.array(values, np.float32)


@pytest.fixture
def held(bench, address):
    """The region's stripe, held as a stopped local client would hold it."""
    locks = LockFile(bench.name)
    assert bench.memory.regions[address].try_lock(0, locks)
    yield locks
    locks.close()


def begin_put(peer, address, source, number):
    return peer.begin(
        Op.PUT,
        kernel=int(KernelCode.REPLACE),
        address=address,
        nbytes=source.nbytes,
        number=number,
        numbers=1,
        payload=source.tobytes(),
    )


def test_the_reply_to_a_long_change_tells_its_channel_its_credit(bench, peer):
    others = [bench.peer() for _ in range(7)]
    assert peer.hello().body.sources_nbytes == FIRST_MIB << 20
    source = np.ones(STRIPE_NBYTES // 4, np.float32)
    at = peer.create("long", shape=source.shape).body.address
    assert peer.put(at, source).numbers == ALONE_MIB
    assert [other.put(at, source).numbers for other in others][-1] == LEAST_MIB
    assert [peer.put(at, source).numbers for _ in range(RECENT_MAX)][-1] == ALONE_MIB
    assert peer.put(at, source[:8]).numbers == 0
    assert peer.ask(Op.GET, address=at, nbytes=source.nbytes, number=peer.number).numbers == 0


def test_a_held_stripe_parks_its_channel_and_no_other(bench, peer, address, held):
    parked = begin_put(peer, address, floats(5), 1)
    assert bench.waiting(peer)
    assert bench.node.context.metrics.parked == 1
    other = bench.peer()
    elsewhere = other.create("v").body.address
    other.put(elsewhere, floats(6))
    assert other.get(elsewhere, 4).tolist() == [6]
    held.close()
    assert peer.reply().request == parked.request
    assert peer.get(address, 4).tolist() == [5]


def test_what_is_behind_a_parked_change_waits_for_it(bench, peer, address, held):
    requests = [
        begin_put(peer, address, floats(5), 1),
        begin_put(peer, address, floats(6), 2),
        peer.begin(Op.GET, address=address, nbytes=4, number=2),
    ]
    assert bench.waiting(peer)
    held.close()
    replies = [peer.reply() for _ in requests]
    assert [reply.request for reply in replies] == [each.request for each in requests]
    assert np.frombuffer(replies[2].payload, np.float32).tolist() == [6]


def test_who_waits_is_told_who_holds_the_stripe(bench, peer, address):
    """A writer in the middle of a commit: stopped, so that its lock stays."""
    region, writer = bench.memory.regions[address], Writer.create(bench.name)
    row = region.table[0]
    assert region.try_lock(0, writer.locks)
    row[Stripe.WRITER] = writer.slot_id
    row[Stripe.SEQUENCE] += Stripe.OPEN
    request = begin_put(peer, address, floats(5), 1)
    bench.tick(after_s=PARKED_AFTER_S / 2)
    assert bench.waiting(peer)
    bench.tick(after_s=PARKED_AFTER_S)
    notice = peer.reply()
    assert (notice.status, notice.request, notice.number) == (Status.PARKED, request.request, 1)
    assert notice.error.facts == {"region": "w", "stripe": 0, "holder_pid": os.getpid()}
    assert bench.waiting(peer)
    bench.tick(after_s=PARKED_INTERVAL_S)
    assert peer.reply().status is Status.PARKED
    row[Stripe.SEQUENCE] -= Stripe.OPEN
    region.unlock(0, writer.locks)
    assert peer.reply().status is Status.OK
    assert "refusals.PARKED" not in bench.node.context.facts()
    writer.close()


def test_who_is_told_of_a_later_request_is_told_of_no_earlier_one(bench, peer, address, held):
    """A node that was kept from its work: all of this happens between two looks."""
    begin_put(peer, address, floats(5), 1)
    peer.begin(Op.FREE, number=1, body=Free(address=address))
    fields = {"dtype": "float32", "token": secrets.token_bytes(16)}
    create = Create(name="large", shape=(SLICE_NBYTES,), **fields)
    peer.begin(Op.CREATE, number=1, body=create)
    held.close()
    bench.tick(after_s=2 * PARKED_AFTER_S)
    replies = [peer.reply() for _ in range(4)]
    found = [(reply.op, reply.status) for reply in replies]
    done = [(op, Status.OK) for op in (Op.PUT, Op.FREE, Op.CREATE)]
    assert found == [*done[:2], (Op.CREATE, Status.PARKED), done[2]]
    assert replies[2].error.facts == {}


def test_a_creator_that_asks_again_waits_for_what_it_began_before(bench, peer):
    fields = {"shape": (SLICE_NBYTES,), "dtype": "float32", "exist_ok": True}
    first, again = (
        Create(name="large", token=secrets.token_bytes(16), **fields) for _ in range(2)
    )
    peer.begin(Op.CREATE, body=first)
    assert peer.hello().error is None
    made = peer.ask(Op.CREATE, body=again).body.address
    assert list(bench.memory.regions) == [made] == [bench.memory.superblock.first_address]


def test_a_new_connection_discards_what_is_parked(bench, peer, address, held):
    begin_put(peer, address, floats(5), 1)
    assert bench.waiting(peer)
    again = bench.peer(hello=False)
    again.client_id = peer.client_id
    welcome = again.hello().body
    assert (welcome.resumed, welcome.applied) == (True, 0)
    held.close()
    assert bench.waiting(again)
    assert again.get(address, 4).tolist() == [0]
    assert peer.ask(Op.GET, address=address, nbytes=4).status is Status.NO_SESSION


def test_a_read_never_overtakes_a_change(peer, address):
    reply = peer.ask(Op.GET, address=address, nbytes=4, number=1)
    assert reply.status is Status.GAP
    peer.put(address, floats(1))
    assert peer.ask(Op.GET, address=address, nbytes=4, number=1).status is Status.OK


def test_a_channel_cannot_queue_without_end(bench, peer, address, held):
    for number in range(1, QUEUE_MAX + 5):
        begin_put(peer, address, floats(number), number)
    held.close()
    assert [peer.reply().number for _ in range(QUEUE_MAX)] == list(range(1, QUEUE_MAX + 1))
    assert bench.waiting(peer)
    assert peer.get(address, 4).tolist() == [QUEUE_MAX]


def test_a_node_is_at_rest_unless_something_is_parked(bench, peer, address, held):
    assert bench.node.is_idle
    begin_put(peer, address, floats(1), 1)
    assert not bench.node.is_idle
    assert bench.node.poll_s == pytest.approx(0.001)
    held.close()
    assert peer.reply().status is Status.OK
    assert bench.node.is_idle


def test_parked_channels_are_tried_in_turn(bench, address, held):
    """Each gets its stripe, whoever sends most."""
    peers = [bench.peer() for _ in range(3)]
    for peer in peers:
        for number in (1, 2, 3):
            begin_put(peer, address, floats(number), number)
    assert bench.node.context.facts()["parked_now"] == 3
    held.close()
    for peer in peers:
        assert [peer.reply().number for _ in range(3)] == [1, 2, 3]
    assert bench.memory.regions[address].version() == 9


def test_duplicates_are_counted_once_however_often_they_are_tried(bench, peer, address):
    peer.put(address, floats(1), number=1)
    assert bench.node.context.metrics.duplicates == 0
    peer.put(address, floats(1), number=1)
    assert bench.node.context.metrics.duplicates == 1


def test_an_unexpected_failure_is_answered_and_the_node_lives(
    bench, peer, address, monkeypatch, caplog
):
    with monkeypatch.context() as patch:
        patch.setattr(MappedRegion, "version", lambda _: 1 / 0)
        reply = peer.ask(Op.WAIT, address=address, version=1, nbytes=100)
    assert reply.status is Status.ERROR
    assert "request failed" in caplog.text
    caplog.clear()  # its traceback holds mappings
    assert peer.put(address, floats(1)).status is Status.OK


def test_a_restarted_node_goes_on_where_it_was(bench, peer, address):
    peer.put(address, floats(5), number=1)
    answer = peer.fetch_add(address, floats(1), number=2)
    bench.restart()
    welcome = peer.hello().body
    assert (welcome.applied, welcome.resumed) == (2, True)
    again = peer.fetch_add(address, floats(1), number=2)
    assert bytes(again.payload) == bytes(answer.payload)
    assert peer.put(address, floats(7), number=1).status is Status.OK
    assert peer.get(address, 4).tolist() == [6]
    assert peer.add(address, floats(1), number=3).status is Status.OK
    assert peer.get(address, 4).tolist() == [7]


def test_a_channel_whose_answers_are_not_sent_waits_without_being_tried(bench, peer):
    nbytes = 1 << 20
    address = peer.create("large", (nbytes // 4,), init=2.0).body.address
    unsent = []
    bench.sort = unsent.extend  # the frames as they are: whoever keeps them is sending them
    for _ in range(UNSENT_NBYTES_MAX // nbytes + 2):
        peer.begin(Op.GET, address=address, nbytes=nbytes)
    assert len(unsent) == UNSENT_NBYTES_MAX // nbytes
    peer.begin(Op.PING, body=Empty())  # in its turn, behind those
    assert len(unsent) == UNSENT_NBYTES_MAX // nbytes
    assert bench.node.poll_s == HOUSEKEEPING_S
    del unsent[0]
    bench.tick()
    assert len(unsent) == UNSENT_NBYTES_MAX // nbytes
    unsent.clear()
    bench.tick()
    assert len(unsent) == 2
    assert bench.node.context.metrics.parked == 1


def test_answers_that_the_ring_keeps_are_sent_from_there_and_hold_nobody_up(bench, peer):
    nbytes = 2 * STRIPE_NBYTES
    address = peer.create("large", (nbytes // 4,), init=2.0).body.address
    sent = []
    bench.sort = sent.extend  # kept, as by somebody who sends them
    ones = np.ones(nbytes // 4, np.float32)
    few = Ring.ENTRIES // 2 - 1
    for number in range(1, 1 + 2 * few, 2):
        peer.begin(
            Op.FETCH,
            address=address,
            nbytes=nbytes,
            number=number,
            numbers=2,
            kernel=int(KernelCode.SUM),
            scale=pack_scale(1.0, "f"),
            payload=ones.tobytes(),
        )
    assert len(sent) == few > UNSENT_NBYTES_MAX // nbytes
    for done, (_, (_, answer)) in enumerate(sent):
        assert (np.frombuffer(answer, np.float32) == 2.0 + done).all()
    assert bench.node.context.metrics.parked == 0
