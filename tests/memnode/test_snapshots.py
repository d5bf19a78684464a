"""SNAPSHOT: a range at one moment, parked without being in anybody's way."""

from __future__ import annotations

import numpy as np
import pytest

from memnode.reads import HELD_S, SLICE_NBYTES
from smbox.memory.layout import STRIPE_NBYTES, Consistency, RegionState, Stripe
from smbox.memory.locks import LockFile
from smbox.memory.segment import listing
from smbox.wire.messages import Empty, Free
from smbox.wire.ops import Op, Status

STRIPE = STRIPE_NBYTES // 4
COUNT = 4 * STRIPE
NBYTES = 4 * COUNT


@pytest.fixture
def plain(peer):
    return peer.create("p", (COUNT,), init=1.0).body.address


@pytest.fixture
def held(bench):
    """A local writer that holds one stripe until it is told to let go."""
    files = []

    def hold(address, stripe):
        locks = LockFile(bench.name)
        files.append(locks)
        assert bench.memory.regions[address].try_lock(stripe, locks)
        return locks

    yield hold
    for locks in files:
        locks.close()


def is_held(bench, address, stripe):
    region = bench.memory.regions[address]
    return bool(region.table[stripe, Stripe.HOLDER])


def range_of(address):
    return {"address": address, "nbytes": NBYTES}


def copies(bench):
    """The addresses of the copies at the node."""
    regions = bench.memory.regions.values()
    return [each.address for each in regions if each.state == RegionState.BUILDING]


def test_a_channel_that_is_dropped_lets_its_stripes_go(bench, peer, plain, held):
    held(plain, 2)
    peer.begin(Op.SNAPSHOT, **range_of(plain))
    assert bench.waiting(peer)
    held_now = [is_held(bench, plain, stripe) for stripe in range(4)]
    assert held_now == [True, True, True, False]
    peer.hello()  # the former connection's requests are discarded
    held_now = [is_held(bench, plain, stripe) for stripe in range(4)]
    assert held_now == [False, False, True, False]
    assert copies(bench) == []


def test_a_snapshot_that_waits_is_in_nobodys_way(bench, peer, plain, held):
    locks = held(plain, 2)
    other = peer.create("other", (4,)).body.address
    peer.begin(Op.SNAPSHOT, **range_of(plain))
    second = bench.peer()
    second.begin(Op.SNAPSHOT, **range_of(plain))
    assert bench.waiting(peer)
    assert bench.waiting(second)
    assert bench.peer().put(other, np.ones(4, np.float32)).status is Status.OK
    locks.close()
    assert peer.reply().status is Status.OK
    assert second.reply().status is Status.OK
    assert not any(is_held(bench, plain, stripe) for stripe in range(4))


def test_a_channel_takes_one_snapshot_after_another(peer, plain, held):
    locks = held(plain, 2)
    peer.begin(Op.SNAPSHOT, **range_of(plain))
    locks.close()
    first = peer.reply().version
    assert peer.ask(Op.SNAPSHOT, **range_of(plain)).version > first > 0


def test_a_snapshot_that_waits_learns_that_its_region_was_freed(bench, peer, plain, held):
    held(plain, 2)
    peer.begin(Op.SNAPSHOT, **range_of(plain))
    assert bench.waiting(peer)
    table = bench.memory.regions[plain].table
    assert bench.peer().ask(Op.FREE, body=Free(address=plain)).status is Status.OK
    assert peer.reply().status is Status.REGION_FREED
    assert not table[1, Stripe.HOLDER]


def test_a_snapshot_that_waits_for_long_gives_others_their_turn(bench, peer, plain, held):
    locks = held(plain, 2)
    peer.begin(Op.SNAPSHOT, **range_of(plain))
    assert bench.waiting(peer)
    bench.now_s += HELD_S
    bench.node.tick(now_s=bench.now_s)
    assert not is_held(bench, plain, 0)
    bench.node.tick(now_s=bench.now_s)
    assert is_held(bench, plain, 0)
    locks.close()
    assert peer.reply().status is Status.OK


def test_a_snapshot_is_of_one_moment(bench, peer, plain, held):
    locks = held(plain, 3)
    peer.begin(Op.SNAPSHOT, **range_of(plain))
    assert bench.waiting(peer)
    writer = bench.peer()
    ones = np.ones(1, np.float32)
    writer.begin(
        Op.PUT, kernel=1, address=plain, nbytes=4, number=1, numbers=1, payload=bytes(ones)
    )
    assert bench.waiting(writer)  # the first stripe is held already
    locks.close()
    copy = bench.memory.regions[peer.reply().version]
    assert writer.reply().status is Status.OK
    assert (copy.data.view(np.float32) == 1).all()


def test_a_long_snapshot_is_copied_in_slices_and_others_are_served(bench, peer):
    count = (2 * SLICE_NBYTES + 16) // 4
    long = peer.create("long", (count,), init=3.0).body.address
    peer.begin(Op.SNAPSHOT, address=long, nbytes=4 * count)
    assert bench.node.poll_s == 0.0
    while not is_held(bench, long, 0):  # the copy's region is created
        bench.tick()
    other = bench.peer()
    assert other.get(long + 4 * count - 4, 4).tolist() == [3]
    ones = np.ones(1, np.float32)
    other.begin(
        Op.PUT, kernel=1, address=long, nbytes=4, number=1, numbers=1, payload=bytes(ones)
    )
    copy = bench.memory.regions[peer.reply().version]
    assert (copy.data.view(np.float32) == 3).all()
    assert other.reply().status is Status.OK
    assert peer.get(long, 4).tolist() == [1]


def test_a_copy_whose_region_is_being_created_goes_with_its_channel(bench, peer):
    long = peer.create("long", (2 * SLICE_NBYTES // 4,)).body.address
    before = listing(f"smbox.{bench.name}.")
    peer.begin(Op.SNAPSHOT, address=long, nbytes=2 * SLICE_NBYTES)
    assert len(listing(f"smbox.{bench.name}.")) == len(before) + 1
    assert copies(bench) == []
    peer.hello()
    assert listing(f"smbox.{bench.name}.") == before


@pytest.mark.parametrize("ending", [Op.HELLO, Op.BYE])
def test_a_copy_goes_with_its_channel(bench, peer, plain, ending):
    assert peer.ask(Op.SNAPSHOT, **range_of(plain)).status is Status.OK
    named = peer.create("named").body.address
    if ending is Op.BYE:
        peer.ask(Op.BYE, body=Empty())
    else:
        peer.hello()
    assert copies(bench) == []
    assert named in bench.memory.regions


def test_a_copy_goes_when_its_channel_expires(bench, peer, plain):
    assert peer.ask(Op.SNAPSHOT, **range_of(plain)).status is Status.OK
    bench.tick(after_s=301)
    assert copies(bench) == []


def test_a_snapshot_whose_copy_is_freed_lets_its_stripes_go(bench, peer, plain, held):
    held(plain, 2)
    peer.begin(Op.SNAPSHOT, **range_of(plain))
    assert bench.waiting(peer)
    second = bench.peer()
    assert second.ask(Op.FREE, body=Free(address=copies(bench)[0])).status is Status.OK
    assert peer.reply().status is Status.REGION_FREED
    assert not is_held(bench, plain, 0)


def test_what_a_snapshot_refuses(bench, peer, plain):
    hogwild = peer.create("h", (COUNT,), consistency=Consistency.NONE).body.address
    for address, status in (
        (hogwild, Status.ERROR),
        (plain + 4, Status.ADDRESS_RANGE),
        (plain + 2, Status.ADDRESS_RANGE),
    ):
        assert peer.ask(Op.SNAPSHOT, **range_of(address)).status is status
    assert copies(bench) == []


def test_a_snapshot_needs_memory_for_its_copy(bench, peer, plain):
    bench.memory.superblock.memory_nbytes = bench.memory.used_nbytes() + NBYTES // 2
    assert peer.ask(Op.SNAPSHOT, **range_of(plain)).status is not Status.OK
    assert copies(bench) == []
