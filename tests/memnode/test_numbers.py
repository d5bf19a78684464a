"""The rules of numbers, for every op that takes them."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.memory.kernels import KernelCode, OptimizerCode
from smbox.wire import operands
from smbox.wire.header import pack_scale
from smbox.wire.ops import CHANGES, Op, Status

ONES = np.ones(4, np.float32)


def numbered(peer, op):
    """A region of four ones, and a function that sends one change of it by number."""
    address = peer.create(f"r-{op.name}", (4,), init=1.0).body.address
    other = peer.create(f"o-{op.name}", (4,), init=1.0).body.address
    kernel, operand = {
        Op.FROM: (KernelCode.SUM, operands.pack_address(other)),
        Op.UPDATE: (OptimizerCode.MOMENTUM, operands.pack_update([other], [1, 0], ONES)),
    }[op]

    def send(number, **fields):
        more = {"kernel": int(kernel), "nbytes": 16, "numbers": 1, "payload": operand}
        raw = pack_scale(1.0, "f")
        return peer.ask(
            op, **({"address": address, "scale": raw, "number": number} | more | fields)
        )

    return address, send


@pytest.fixture(params=[Op.FROM, Op.UPDATE], ids=lambda op: op.name)
def op(request):
    return request.param


def test_the_ops_without_sources_are_all_here():
    sourced = {Op.PUT, Op.ACCUMULATE, Op.ELASTIC, Op.FETCH, Op.BATCH}
    assert CHANGES - sourced == {Op.FROM, Op.UPDATE}


def test_a_change_happens_once_under_its_number(bench, peer, op):
    address, send = numbered(peer, op)
    assert send(1).status is Status.OK
    after = peer.get(address, 16)
    assert (after != 1).all()
    assert send(1).status is Status.OK  # a duplicate
    assert np.array_equal(peer.get(address, 16), after)
    gap = send(3)
    assert (gap.status, gap.error.applied) == (Status.GAP, 1)
    bench.restart()
    assert peer.hello().body.applied == 1
    assert send(1).status is Status.OK
    assert np.array_equal(peer.get(address, 16), after)
    assert send(2).status is Status.OK
    assert not np.array_equal(peer.get(address, 16), after)


def test_a_refusal_takes_no_number(peer, op):
    address, send = numbered(peer, op)
    for wrong in ({"numbers": 2}, {"payload": bytes(3)}, {"kernel": 99}, {"nbytes": 20}):
        assert send(1, **wrong).error.applied == 0
    assert peer.get(address, 16).tolist() == [1] * 4
    assert send(1).status is Status.OK
