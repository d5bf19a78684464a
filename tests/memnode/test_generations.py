"""Frames of a closed connection, wherever they lingered, take no effect any more."""

from __future__ import annotations

import numpy as np

from smbox.memory.kernels import KernelCode
from smbox.memory.locks import LockFile
from smbox.wire.messages import Empty
from smbox.wire.ops import Op, Status


def put(peer, address, value, number, **fields):
    payload = np.full(1, value, np.float32).tobytes()
    more = {"kernel": int(KernelCode.REPLACE), "nbytes": 4, "numbers": 1, "payload": payload}
    return peer.ask(Op.PUT, address=address, number=number, **more, **fields)


def test_a_request_of_another_generation_has_no_session(peer, address):
    assert put(peer, address, 5, 1).status is Status.OK
    old = peer.generation
    assert peer.hello().body.applied == 1
    for generation in (old, peer.generation + 1, 0):
        assert put(peer, address, 6, 2, generation=generation).status is Status.NO_SESSION
        late = put(peer, address, 5, 1, generation=generation)  # a duplicate, too
        assert late.status is Status.NO_SESSION
    ping = peer.ask(Op.PING, body=Empty(), generation=old)
    assert ping.status is Status.NO_SESSION
    assert peer.get(address, 4).tolist() == [5]
    assert put(peer, address, 7, 2).status is Status.OK


def test_a_hello_that_was_delayed_ends_no_later_session(bench, peer, address):
    peer.hello()
    late = bench.peer(hello=False)
    late.client_id = peer.client_id
    assert late.hello().status is Status.NO_SESSION  # generation 1, and the channel has 2
    assert put(peer, address, 5, 1).status is Status.OK
    bench.restart()
    again = bench.peer(hello=False)
    again.client_id = peer.client_id
    assert again.hello().status is Status.NO_SESSION
    assert peer.hello().status is Status.OK


def test_what_is_parked_goes_before_a_later_hello_is_answered(bench, peer, address):
    locks = LockFile(bench.name)
    assert bench.memory.regions[address].try_lock(0, locks)
    fields = {"kernel": 1, "nbytes": 4, "numbers": 1, "payload": bytes(4)}
    for number in (1, 2):
        peer.begin(Op.PUT, address=address, number=number, **fields)
    assert bench.waiting(peer)
    welcome = peer.hello().body
    assert (welcome.applied, welcome.resumed) == (0, True)
    locks.close()
    assert bench.waiting(peer)
    assert bench.memory.regions[address].version() == 0
    assert bench.node.is_idle


def test_a_client_without_generations_is_of_generation_0(bench):
    peer = bench.peer(hello=False)
    assert peer.hello(generation=0).status is Status.OK
    peer.generation = 0
    assert peer.ask(Op.PING, body=Empty()).status is Status.OK
    assert peer.hello(generation=0).status is Status.OK
