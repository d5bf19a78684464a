from __future__ import annotations

import numpy as np
import pytest

from smbox.memory.layout import STRIPE_NBYTES
from smbox.memory.locks import LockFile
from smbox.wire import operands
from smbox.wire.ops import Op, Status

STRIPE = STRIPE_NBYTES // 4


@pytest.fixture
def address(peer):
    return peer.create("w", (3 * STRIPE,), init=1.0).body.address


def test_a_get_crosses_stripes(bench, peer, address):
    region = bench.memory.regions[address]
    region.array()[:] = np.arange(3 * STRIPE, dtype=np.float32)
    found = peer.get(address, 2 * STRIPE_NBYTES)
    np.testing.assert_array_equal(found, np.arange(2 * STRIPE, dtype=np.float32))
    found = peer.get(address + STRIPE_NBYTES - 8, 16)
    assert found.tolist() == [STRIPE - 2, STRIPE - 1, STRIPE, STRIPE + 1]


def test_a_reply_is_a_private_copy(bench, peer, address):
    reply = peer.ask(Op.GET, address=address, nbytes=STRIPE_NBYTES)
    bench.memory.regions[address].array()[:] = 7
    assert np.frombuffer(reply.payload, np.float32).max() == 1


@pytest.mark.parametrize(
    ("offset", "nbytes", "status"),
    [
        (3 * STRIPE_NBYTES - 4, 8, Status.ADDRESS_RANGE),
        (1 << 30, 4, Status.ADDRESS_RANGE),
        (0, 0, Status.BAD_MESSAGE),
        (4, 2 * STRIPE_NBYTES, Status.BAD_MESSAGE),
    ],
)
def test_ranges_that_are_refused(peer, address, offset, nbytes, status):
    reply = peer.ask(Op.GET, address=address + offset, nbytes=nbytes)
    assert reply.status is status


def test_a_read_waits_for_a_commit_in_the_making(bench, peer, address):
    region = bench.memory.regions[address]
    locks = LockFile(bench.name)
    assert region.try_lock(1, locks)
    region.table[1, 0] += 1  # odd: a commit is open, and its writer lives
    request = peer.begin(Op.GET, address=address, nbytes=2 * STRIPE_NBYTES)
    assert bench.waiting(peer)
    region.table[1, 0] += 1
    region.unlock(1, locks)
    locks.close()
    reply = peer.reply()
    assert (reply.request, reply.status) == (request.request, Status.OK)


def gather(peer, address, places, row_nbytes, **fields):
    raw = np.array(places, np.int64).tobytes()
    nbytes = fields.pop("nbytes", len(places) * row_nbytes)
    payload = operands.pack_gather(row_nbytes, raw)
    return peer.ask(Op.GATHER, address=address, nbytes=nbytes, payload=payload)


@pytest.mark.parametrize(("first", "row_nbytes"), [(0, 3), (0, 6), (2, 4)])
def test_rows_that_cut_elements_are_refused(peer, first, row_nbytes):
    address = peer.create("halves", (100,), "float32").body.address
    payload = operands.pack_gather(row_nbytes, np.array([0, 1], np.int64).tobytes())
    reply = peer.ask(Op.GATHER, address=address + first, nbytes=2 * row_nbytes, payload=payload)
    assert reply.status is Status.LAYOUT_MISMATCH


def test_rows_are_gathered_from_anywhere(bench, peer, address):
    bench.memory.regions[address].array()[:] = np.arange(3 * STRIPE, dtype=np.float32)
    across = STRIPE // 3
    reply = gather(peer, address + 4, [across, 0, STRIPE - 2, 0], 12)
    rows = np.frombuffer(reply.payload, np.float32).reshape(4, 3)
    wanted = [1 + 3 * across, 1, 1 + 3 * (STRIPE - 2), 1]
    assert rows[:, 0].tolist() == wanted
    assert rows[:, 2].tolist() == [first + 2 for first in wanted]


def test_rows_that_are_refused(peer, address):
    for places, row, status in (
        ([-1], 12, Status.ADDRESS_RANGE),
        ([STRIPE], 12, Status.ADDRESS_RANGE),
        ([2**62], 12, Status.ADDRESS_RANGE),
        ([0], 0, Status.BAD_MESSAGE),
        ([0], (1 << 20) + 4, Status.BAD_MESSAGE),
        ([], 12, Status.BAD_MESSAGE),
    ):
        assert gather(peer, address, places, row).status is status
    assert gather(peer, address, [0], 12, nbytes=8).status is Status.BAD_MESSAGE
