"""DOT, and ACCUMULATE with SCALE: what the node computes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.locks import LockFile
from smbox.wire import operands
from smbox.wire.header import REQUEST_NBYTES_MAX, pack_scale
from smbox.wire.ops import Op, Status

STRIPE = STRIPE_NBYTES // 4


def region_of(peer, name, count=3 * STRIPE, **fields):
    return peer.create(name, (count,), **({"init": 2.0} | fields)).body.address


def dot(peer, address, other, nbytes):
    payload = operands.pack_address(other)
    return peer.ask(Op.DOT, address=address, nbytes=nbytes, payload=payload)


def sums(reply):
    assert reply.status is Status.OK
    return np.frombuffer(reply.payload, np.float64).tolist()


def test_a_sum_is_answered_for_each_stripe(peer):
    a, b = region_of(peer, "a"), region_of(peer, "b", init=3.0)
    assert sums(dot(peer, a, b + 40, REQUEST_NBYTES_MAX)) == [6 * STRIPE] * 2
    assert sums(dot(peer, a + STRIPE_NBYTES - 8, a, 16)) == [8, 8]
    assert sums(dot(peer, a, a, 4)) == [4]


def test_what_dot_refuses(peer):
    a, short = region_of(peer, "a"), region_of(peer, "short", 16)
    other = region_of(peer, "other", dtype="float64")
    whole = region_of(peer, "whole", dtype="int32", init=2)
    for address in (short + 8, short + 2, other, 1 << 40):
        assert dot(peer, a, address, 64).status is not Status.OK
    assert dot(peer, a + 2, a, 64).status is Status.LAYOUT_MISMATCH
    assert dot(peer, whole, whole, 64).status is Status.ERROR
    assert dot(peer, a + 4, a, REQUEST_NBYTES_MAX).status is Status.BAD_MESSAGE  # in pieces
    assert peer.ask(Op.DOT, address=a, nbytes=64, payload=b"x").status is Status.BAD_MESSAGE
    assert peer.ask(Op.FREE, body=peer_free(short)).status is Status.OK
    assert dot(peer, a, short, 64).status is Status.REGION_FREED


def peer_free(address):
    from smbox.wire.messages import Free

    return Free(address=address)


@pytest.mark.parametrize("held", ["a", "b"])
def test_it_waits_for_a_commit_in_the_making(bench, peer, held):
    at = {name: region_of(peer, name) for name in ("a", "b")}
    region = bench.memory.regions[at[held]]
    locks = LockFile(bench.name)
    assert region.try_lock(1, locks)
    region.table[1, 0] += 1  # odd: a commit is open, and its writer lives
    payload = operands.pack_address(at["b"])
    peer.begin(Op.DOT, address=at["a"], nbytes=2 * STRIPE_NBYTES, payload=payload)
    assert bench.waiting(peer)
    region.data[STRIPE_NBYTES:].view(np.float32)[:] = 5
    region.table[1, 0] += 1
    locks.close()
    assert sums(peer.reply()) == [4 * STRIPE, 10 * STRIPE]


def scale(peer, address, factor, nbytes, **fields):
    raw = pack_scale(factor, "f")
    more = {"kernel": int(KernelCode.SCALE), "address": address, "nbytes": nbytes, "scale": raw}
    return peer.ask(Op.ACCUMULATE, payload=b"", **more, **fields)


def test_a_duplicate_scales_once(peer):
    a = region_of(peer, "a")
    for _ in range(2):
        reply = scale(peer, a + STRIPE_NBYTES - 4, 3.0, 8, number=1, numbers=2)
        assert reply.status is Status.OK
    assert peer.get(a + STRIPE_NBYTES - 8, 16, number=2).tolist() == [2, 6, 6, 2]


def test_what_scale_refuses(peer):
    a = region_of(peer, "a")
    raw = pack_scale(3.0, "f")
    for op in (Op.PUT, Op.ELASTIC, Op.FETCH):
        fields = {"kernel": 11, "address": a, "nbytes": 8, "scale": raw, "payload": b""}
        assert peer.ask(op, number=1, numbers=1, **fields).status is Status.BAD_MESSAGE
    assert scale(peer, a, float("nan"), 8, number=1, numbers=1).status is Status.ERROR
    assert scale(peer, a + 2, 3.0, 8, number=1, numbers=1).status is Status.LAYOUT_MISMATCH
    assert peer.get(a, 8).tolist() == [2, 2]
