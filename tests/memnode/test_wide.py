"""WIDE and SNAPSHOT: whole ranges at once, parked without being in anybody's way."""

from __future__ import annotations

import numpy as np
import pytest

from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Consistency
from smbox.memory.locks import LockFile
from smbox.wire import operands
from smbox.wire.header import pack_scale
from smbox.wire.operands import Wide
from smbox.wire.ops import Op
from smbox.wire.status import Status

STRIPE = STRIPE_NBYTES // 4
COUNT = 4 * STRIPE
NBYTES = 4 * COUNT


@pytest.fixture
def peer(bench):
    return bench.peer()


@pytest.fixture
def whole(peer):
    return peer.create("w", (COUNT,), init=1.0, consistency=Consistency.REGION).body.address


@pytest.fixture
def plain(peer):
    return peer.create("p", (COUNT,), init=1.0).body.address


@pytest.fixture
def stage(bench, peer):
    address = peer.create("stage", (2 * COUNT,), publish=False).body.address
    bench.memory.regions[address].array()[:COUNT] = np.arange(COUNT)
    return address


@pytest.fixture
def held(bench):
    """A local writer that holds one stripe until it is told to let go."""
    files = []

    def hold(address, stripe):
        locks = LockFile(bench.name)
        files.append(locks)
        assert locks.try_lock(bench.memory.regions[address].lock_byte(stripe))
        return locks

    yield hold
    for locks in files:
        locks.close()


def is_held(bench, address, stripe):
    region = bench.memory.regions[address]
    return bench.memory.writer.locks.is_held(region.lock_byte(stripe))


def wide(address, source, old=0, **fields):
    more = {"kernel": int(KernelCode.SUM), "scale": pack_scale(0.5, "f")}
    payload = operands.pack_wide(Wide(source, old))
    known = {"address": address, "nbytes": NBYTES, "number": 1, "numbers": 1}
    return more | known | {"payload": payload} | fields


def copy_to(address, target, **fields):
    payload = operands.pack_address(target)
    return {"address": address, "nbytes": NBYTES, "payload": payload} | fields


def test_a_wide_changes_all_and_keeps_the_old(bench, peer, whole, stage):
    reply = peer.ask(Op.WIDE, **wide(whole, stage, stage + NBYTES))
    assert reply.status is Status.OK
    assert bench.memory.regions[whole].version() == 4
    found = bench.memory.regions[whole].array()
    np.testing.assert_array_equal(found, 1 + np.arange(COUNT, dtype=np.float32) / 2)
    assert (bench.memory.regions[stage].array()[COUNT:] == 1).all()


def test_a_wide_that_waits_is_in_nobodys_way_and_leaves_no_lock(
    bench, peer, whole, plain, stage, held
):
    locks = held(whole, 2)
    peer.begin(Op.WIDE, **wide(whole, stage))
    assert bench.waiting(peer)
    assert [is_held(bench, whole, stripe) for stripe in range(4)] == [True, True, True, False]
    other = bench.peer()
    assert other.put(plain, np.ones(4, np.float32)).status is Status.OK
    second = bench.peer()
    bench.deliver((0, b"silent"), [])
    asked = second.create("s2", (COUNT,), publish=False).body.address
    second.begin(Op.WIDE, **wide(whole, asked))
    assert bench.waiting(second)
    locks.close()
    assert peer.reply().status is Status.OK
    assert second.reply().status is Status.OK
    assert bench.memory.regions[whole].version() == 8
    assert not any(is_held(bench, whole, stripe) for stripe in range(4))


@pytest.mark.parametrize("op", [Op.WIDE, Op.SNAPSHOT, Op.GET])
def test_a_channel_that_is_dropped_lets_its_stripes_go(bench, peer, whole, stage, held, op):
    held(whole, 2)
    bench.memory.regions[whole].table[3, 0] += 1  # no read passes without locks
    fields = {
        Op.WIDE: wide(whole, stage),
        Op.SNAPSHOT: copy_to(whole, stage),
        Op.GET: {"address": whole, "nbytes": 2 * STRIPE_NBYTES},
    }[op]
    peer.begin(op, **fields)
    assert bench.waiting(peer)
    assert is_held(bench, whole, 1)
    peer.hello()  # the former connection's requests are discarded
    assert not is_held(bench, whole, 1)
    bench.memory.regions[whole].table[3, 0] += 1


def test_a_wide_that_waits_learns_that_its_region_was_freed(bench, peer, whole, stage, held):
    held(whole, 2)
    peer.begin(Op.WIDE, **wide(whole, stage))
    assert bench.waiting(peer)
    lock_byte = bench.memory.regions[whole].lock_byte(1)
    bench.node._registry.free(whole)
    assert peer.reply().status is Status.REGION_FREED
    assert not bench.memory.writer.locks.is_held(lock_byte)


def test_what_a_wide_refuses(bench, peer, whole, plain, stage):
    other = bench.peer().create("s2", (2 * COUNT,), publish=False).body.address
    assert peer.ask(Op.WIDE, **wide(plain, stage)).status is Status.ERROR
    assert peer.ask(Op.WIDE, **wide(whole, whole)).status is Status.ERROR
    assert peer.ask(Op.WIDE, **wide(whole, stage, plain)).status is Status.ACCESS_DENIED
    assert peer.ask(Op.WIDE, **wide(whole, other, other)).status is Status.ACCESS_DENIED
    assert peer.ask(Op.WIDE, **wide(whole, plain, stage)).status is Status.ERROR
    assert peer.ask(Op.WIDE, **wide(whole, stage + 4, stage + NBYTES + 4)).status is (
        Status.ADDRESS_RANGE
    )
    scatter = wide(whole, stage, kernel=int(KernelCode.SCATTER_SUM))
    assert peer.ask(Op.WIDE, **scatter).status is Status.BAD_MESSAGE
    assert (bench.memory.regions[whole].array() == 1).all()
    assert peer.ask(Op.WIDE, **wide(whole, plain)).status is Status.OK


def test_a_snapshot_is_of_one_moment(bench, peer, plain, stage, held):
    locks = held(plain, 3)
    peer.begin(Op.SNAPSHOT, **copy_to(plain, stage + NBYTES))
    assert bench.waiting(peer)
    writer = bench.peer()
    ones = np.ones(1, np.float32)
    writer.begin(
        Op.PUT, kernel=1, address=plain, nbytes=4, number=1, numbers=1, payload=bytes(ones)
    )
    assert bench.waiting(writer)  # the first stripe is held already
    locks.close()
    assert peer.reply().status is Status.OK
    assert writer.reply().status is Status.OK
    assert (bench.memory.regions[stage].array()[COUNT:] == 1).all()


def test_what_a_snapshot_refuses(bench, peer, plain, stage):
    hogwild = peer.create("h", (COUNT,), consistency=Consistency.NONE).body.address
    public = peer.create("public", (COUNT,)).body.address
    other = bench.peer().create("s2", (2 * COUNT,), publish=False).body.address
    for address, target, status in (
        (hogwild, stage, Status.ERROR),
        (plain, public, Status.ACCESS_DENIED),
        (plain, other, Status.ACCESS_DENIED),
        (plain, stage + NBYTES + 4, Status.ADDRESS_RANGE),
        (plain + 4, stage, Status.ADDRESS_RANGE),
    ):
        assert peer.ask(Op.SNAPSHOT, **copy_to(address, target)).status is status
