from __future__ import annotations

import numpy as np
import pytest

from memnode.handlers import WAITS_MAX
from smbox.memory.layout import Stripe
from smbox.memory.mapped import MappedRegion
from smbox.wire.codec import encode_request
from smbox.wire.messages import Free
from smbox.wire.ops import Op, Status


def begin_wait(peer, address, version, timeout_ms=5000):
    return peer.begin(Op.WAIT, address=address, version=version, nbytes=timeout_ms)


def waits_now(bench):
    return bench.node.context.facts()["waits_now"]


def test_a_reached_version_is_answered_at_once(peer, address):
    peer.put(address, np.ones(1, np.float32))
    begin_wait(peer, address, 1)
    assert peer.reply().version == 1


def test_a_wait_ends_when_somebody_writes(bench, peer, address):
    request = begin_wait(peer, address, 1)
    assert bench.waiting(peer)
    assert bench.node.poll_s == pytest.approx(0.001)
    bench.peer().put(address, np.ones(1, np.float32))
    reply = peer.reply()
    assert (reply.op, reply.request, reply.version) == (Op.WAIT, request.request, 1)


def test_a_local_writer_ends_a_wait_too(bench, peer, address):
    begin_wait(peer, address, 1)
    # what a commit of a local client counts
    bench.memory.regions[address].table[0, Stripe.SEQUENCE] += 1 << Stripe.COMMITS_SHIFT
    assert peer.reply().version == 1


def test_a_wait_has_its_timeout(bench, peer, address):
    begin_wait(peer, address, 1, timeout_ms=500)
    bench.tick(after_s=0.4)
    assert bench.waiting(peer)
    bench.tick(after_s=0.2)
    reply = peer.reply()
    assert reply.status is Status.TIMEOUT
    assert reply.error.facts == {"timeout_s": 0.5, "version": 0}
    assert waits_now(bench) == 0
    assert bench.node.is_idle


def test_a_reached_version_wins_over_a_passed_deadline(bench, peer, address):
    begin_wait(peer, address, 1, timeout_ms=500)
    bench.peer().put(address, np.ones(1, np.float32))
    bench.tick(after_s=0.6)
    assert peer.reply().status is Status.OK


def test_a_freed_region_ends_its_waits(bench, peer, address):
    waits = [begin_wait(peer, address, 1), begin_wait(peer, address, 2)]
    bench.peer().ask(Op.FREE, body=Free(address=address))
    replies = [peer.reply() for _ in waits]
    assert [reply.request for reply in replies] == [each.request for each in waits]
    assert {reply.status for reply in replies} == {Status.REGION_FREED}


def test_a_region_is_looked_at_once_however_many_wait(bench, peer, address, monkeypatch):
    for each in (peer, bench.peer()):
        for _ in range(3):
            begin_wait(each, address, 1)
    looks, version = [], MappedRegion.version
    with monkeypatch.context() as patch:
        patch.setattr(MappedRegion, "version", lambda one: looks.append(1) or version(one))
        bench.tick()
    assert len(looks) == 1


def test_the_waits_of_a_lost_connection_are_dropped(bench, peer, address):
    begin_wait(peer, address, 1)
    begin_wait(bench.peer(), address, 1)
    assert waits_now(bench) == 2
    peer.hello()
    assert waits_now(bench) == 1
    bench.peer().put(address, np.ones(1, np.float32))
    assert bench.waiting(peer) is False  # the other one has its answer
    assert not bench.inbox[0, b"peer-1"]


def test_a_repeated_wait_counts_once(bench, peer, address):
    first = begin_wait(peer, address, 1)
    first.version = 2
    peer.send(encode_request(first))
    assert waits_now(bench) == 1
    bench.peer().put(address, np.ones(1, np.float32))
    bench.tick()
    assert waits_now(bench) == 1  # the later one counts


def test_one_connection_cannot_wait_without_end(bench, peer, address):
    first = begin_wait(peer, address, 1)
    for _ in range(WAITS_MAX - 1):
        begin_wait(peer, address, 1)
    begin_wait(peer, address, 1)
    assert peer.reply().status is Status.LIMIT
    peer.send(encode_request(first))  # it replaces itself
    assert bench.waiting(peer)
    begin_wait(bench.peer(), address, 1)
    assert waits_now(bench) == WAITS_MAX + 1


def test_others_pass_a_wait(peer, address):
    waiting = begin_wait(peer, address, 1)
    assert peer.ask(Op.GET, address=address, nbytes=4).status is Status.OK
    peer.put(address, np.ones(1, np.float32))
    assert peer.reply().request == waiting.request


def test_waiting_at_no_region_is_refused(peer):
    begin_wait(peer, 1 << 30, 1)
    assert peer.reply().status is Status.ADDRESS_RANGE
