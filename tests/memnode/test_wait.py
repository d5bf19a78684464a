from __future__ import annotations

import numpy as np
import pytest

from smbox.memory.layout import Stripe
from smbox.wire.messages import Free
from smbox.wire.ops import Op
from smbox.wire.status import Status


def begin_wait(peer, address, version, timeout_ms=5000):
    return peer.begin(Op.WAIT, address=address, version=version, nbytes=timeout_ms)


def test_a_reached_version_is_answered_at_once(peer, address):
    peer.put(address, np.ones(1, np.float32))
    begin_wait(peer, address, 1)
    assert peer.reply().version == 1


def test_a_wait_ends_when_somebody_writes(bench, peer, address):
    request = begin_wait(peer, address, 1)
    assert bench.waiting(peer)
    assert bench.node.patience_s == pytest.approx(0.001)
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
    assert reply.error.facts["timeout_s"] == 0.5


def test_a_freed_region_ends_its_waits(bench, peer, address):
    begin_wait(peer, address, 1)
    bench.peer().ask(Op.FREE, body=Free(address=address))
    assert peer.reply().status is Status.REGION_FREED


def test_others_pass_a_wait(peer, address):
    waiting = begin_wait(peer, address, 1)
    assert peer.ask(Op.GET, address=address, nbytes=4).status is Status.OK
    peer.put(address, np.ones(1, np.float32))
    assert peer.reply().request == waiting.request


def test_waiting_at_no_region_is_refused(peer):
    begin_wait(peer, 1 << 30, 1)
    assert peer.reply().status is Status.ADDRESS_RANGE
