"""FROM and UPDATE: what they do, and what they refuse."""

from __future__ import annotations

import numpy as np

from smbox.memory.kernels import KernelCode, OptimizerCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.locks import LockFile
from smbox.wire import operands
from smbox.wire.header import REQUEST_NBYTES_MAX, pack_scale
from smbox.wire.ops import Op, Status

STRIPE = STRIPE_NBYTES // 4


def region_of(peer, name, count=3 * STRIPE, **fields):
    return peer.create(name, (count,), **({"init": 1.0} | fields)).body.address


def take(peer, address, source, nbytes, *, number, numbers, by=1.0, kernel=KernelCode.SUM):
    return peer.ask(
        Op.FROM,
        kernel=int(kernel),
        address=address,
        nbytes=nbytes,
        number=number,
        numbers=numbers,
        scale=pack_scale(by, "f"),
        payload=operands.pack_address(source),
    )


def test_a_region_takes_from_another_at_any_offset(bench, peer):
    to, source = region_of(peer, "to"), region_of(peer, "source")
    data = bench.memory.regions[source].array()
    data[:] = np.arange(data.size)
    reply = take(peer, to, source + 40, REQUEST_NBYTES_MAX, number=1, numbers=2, by=0.5)
    assert reply.status is Status.OK
    assert bench.memory.regions[to].version() == 2
    found = peer.get(to, REQUEST_NBYTES_MAX, number=2)
    np.testing.assert_array_equal(found, 1 + (np.arange(2 * STRIPE, dtype=np.float32) + 10) / 2)
    assert take(peer, to, to, 4, number=3, numbers=1).status is Status.OK  # from itself
    assert peer.get(to, 4, number=3).tolist() == [12]


def test_what_from_refuses(peer):
    to, source = region_of(peer, "to"), region_of(peer, "source", 16)
    other = region_of(peer, "other", dtype="float64")
    for address in (source + 8, source + 2, source + 64, other, 1 << 40):
        assert take(peer, to, address, 64, number=1, numbers=1).status is not Status.OK
    elastic = take(peer, to, source, 64, number=1, numbers=1, kernel=KernelCode.ELASTIC)
    assert elastic.status is Status.BAD_MESSAGE
    assert peer.get(to, 64).tolist() == [1] * 16


def test_from_waits_for_a_source_that_is_being_written(bench, peer):
    to, source = region_of(peer, "to"), region_of(peer, "source")
    region = bench.memory.regions[source]
    locks = LockFile(bench.name)
    assert region.try_lock(0, locks)
    region.table[0, 0] += 1
    raw = pack_scale(1.0, "f")
    fields = {"kernel": 2, "nbytes": 4, "number": 1, "numbers": 1, "scale": raw}
    peer.begin(Op.FROM, address=to, payload=operands.pack_address(source), **fields)
    assert bench.waiting(peer)
    region.data[:4].view(np.float32)[:] = 5
    region.table[0, 0] += 1
    locks.close()
    assert peer.reply().status is Status.OK
    assert peer.get(to, 4, number=1).tolist() == [6]


def step(peer, address, siblings, gradient, by=(0.5, 0.5), **fields):
    more = {"kernel": int(OptimizerCode.MOMENTUM), "number": peer.number, "numbers": 1}
    operand = operands.pack_update(siblings, by, gradient)
    fields = {"address": address, "nbytes": gradient.nbytes, "payload": operand} | more | fields
    reply = peer.ask(Op.UPDATE, **fields)
    peer.number += fields["numbers"] if reply.error is None else 0
    return reply


def test_an_update_steps_parameters_and_state_over_stripes(peer):
    p, m = region_of(peer, "p"), region_of(peer, "m", init=0.0)
    gradient = np.arange(8, dtype=np.float32)
    begin = STRIPE_NBYTES - 16
    assert step(peer, p + begin, [m], gradient, numbers=2).status is Status.OK
    assert peer.get(m + begin, 32, number=2).tolist() == gradient.tolist()
    assert peer.get(p + begin, 32, number=2).tolist() == (1 - gradient / 2).tolist()


def test_what_an_update_refuses(peer):
    p, m = region_of(peer, "p"), region_of(peer, "m", init=0.0)
    short = region_of(peer, "short", 8)
    g = np.ones(4, np.float32)
    for siblings in ([], [m + 4], [short], [p], [m, m], [1 << 40]):
        assert step(peer, p, siblings, g).status is not Status.OK
    assert step(peer, p, [m], g, by=(-1.0, 0.5)).status is Status.ERROR
    assert step(peer, p, [m], g, kernel=2).status is Status.BAD_MESSAGE
    assert step(peer, p + 2, [m], g).status is Status.LAYOUT_MISMATCH
    assert peer.get(p, 16).tolist() == [1] * 4
    assert step(peer, p, [m], g).status is Status.OK
