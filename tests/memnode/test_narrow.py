"""float16 and bfloat16 operands of float32 regions: the wire carries half of the bytes."""

from __future__ import annotations

import numpy as np
import pytest

from smbox import dtypes
from smbox.memory.kernels import KernelCode, OptimizerCode
from smbox.memory.layout import STRIPE_NBYTES
from smbox.wire import operands
from smbox.wire.header import pack_scale
from smbox.wire.messages import Free
from smbox.wire.operands import Item
from smbox.wire.ops import Op, Status

STRIPE = STRIPE_NBYTES // 4


@pytest.fixture(params=["float16", "bfloat16"])
def dtype(request):
    return dtypes.by_name(request.param)


@pytest.fixture
def address(peer):
    return peer.create("w", (3 * STRIPE,), init=1.0).body.address


def narrowed(dtype, values):
    return np.asarray(values, np.float32).astype(dtype.numpy)


def wide(array):
    return np.asarray(array).astype(np.float32)


def change(peer, op, kernel, address, x, dtype, by=1.0, numbers=1, **more):
    raw, source = pack_scale(by, "f"), x.view(np.uint8)
    more |= {"nbytes": 2 * source.size, "operand": dtype.code, "numbers": numbers, "scale": raw}
    return peer.change(op, kernel, address, source, **more)


def test_changes_widen_their_operand(peer, address, dtype):
    x = narrowed(dtype, [0.1, -3.3, 1e-3, 65000.0])
    assert change(peer, Op.PUT, KernelCode.REPLACE, address, x, dtype).status is Status.OK
    np.testing.assert_array_equal(peer.get(address, 16), wide(x))
    reply = change(peer, Op.ACCUMULATE, KernelCode.SUM, address, x, dtype, 0.5)
    assert reply.status is Status.OK
    expected = wide(x) + np.float32(0.5) * wide(x)
    np.testing.assert_array_equal(peer.get(address, 16), expected)
    old = change(peer, Op.FETCH, KernelCode.MIN, address, x, dtype)
    np.testing.assert_array_equal(np.frombuffer(old.payload, np.float32), expected)


def test_a_get_brings_the_type_that_is_asked_for(bench, peer, address, dtype):
    region = bench.memory.regions[address]
    region.array()[:] = np.linspace(-2, 2, region.spec.size, dtype=np.float32)
    begin, nbytes = STRIPE_NBYTES - 8, 24
    reply = peer.ask(Op.GET, address=address + begin, nbytes=nbytes, operand=dtype.code)
    expected = narrowed(dtype, region.data[begin : begin + nbytes].view(np.float32))
    assert bytes(reply.payload) == expected.tobytes()


def test_gathered_rows_too(bench, peer, address, dtype):
    region = bench.memory.regions[address]
    region.array()[:] = np.linspace(-2, 2, region.spec.size, dtype=np.float32)
    payload = operands.pack_gather(12, np.array([STRIPE // 3, 0]).tobytes())
    reply = peer.ask(Op.GATHER, address=address, nbytes=24, payload=payload, operand=dtype.code)
    rows = region.array().reshape(-1, 3)[[STRIPE // 3, 0]]
    assert bytes(reply.payload) == narrowed(dtype, rows).tobytes()


def test_an_exchange_is_answered_with_the_operand_moved(bench, peer, address, dtype):
    region = bench.memory.regions[address]
    region.array()[:] = np.linspace(-2, 2, region.spec.size, dtype=np.float32)
    begin, count = STRIPE - 3, STRIPE + 5
    c = region.array()[begin : begin + count].copy()
    x = narrowed(dtype, np.linspace(5, -5, count))
    ask = (peer, Op.ELASTIC, KernelCode.ELASTIC, address + 4 * begin, x, dtype, 0.3)
    first = change(*ask, numbers=3, number=1)
    d = np.float32(0.3) * (wide(x) - c)
    np.testing.assert_array_equal(region.array()[begin : begin + count], c + d)
    moved = narrowed(dtype, wide(x) - d)
    assert bytes(first.payload) == moved.tobytes()
    assert bytes(change(*ask, numbers=3, number=1).payload) == moved.tobytes()
    bench.restart()
    peer.hello()
    peer.ask(Op.FREE, number=3, body=Free(address=address))
    assert bytes(change(*ask, numbers=3, number=1).payload) == moved.tobytes()


def test_an_exchange_that_stops_half_way_gives_what_it_moved(bench, peer, address, dtype):
    begin = STRIPE - 2
    x = narrowed(dtype, [5, 5, 5, 5])
    ask = (peer, Op.ELASTIC, KernelCode.ELASTIC, address + 4 * begin)
    assert change(*ask, x[:2], dtype, 0.5, number=1).status is Status.OK
    peer.ask(Op.FREE, number=1, body=Free(address=address))
    reply = change(*ask, x, dtype, 0.5, numbers=2, number=1)
    assert (reply.status, reply.error.applied) == (Status.REGION_FREED, 1)
    assert reply.error.old == narrowed(dtype, [3, 3]).tobytes()


def test_a_fetch_by_the_same_kernel_gives_the_old_center(peer, address, dtype):
    x = narrowed(dtype, [3, -1])
    reply = change(peer, Op.FETCH, KernelCode.ELASTIC, address, x, dtype, 0.5)
    assert np.frombuffer(reply.payload, np.float32).tolist() == [1, 1]
    assert peer.get(address, 8).tolist() == [2, 0]


def test_items_of_a_batch_have_operands_of_their_own(peer, address, dtype):
    x, by = narrowed(dtype, [3, -1]), pack_scale(0.5, "f")
    kernel, source = int(KernelCode.ELASTIC), x.tobytes()
    ones = np.ones(2, np.float32).tobytes()
    items = (
        Item(Op.ELASTIC, kernel, address, 8, source, by, dtype.code),
        Item(Op.PUT, int(KernelCode.REPLACE), address + 8, 8, source, operand=dtype.code),
        Item(Op.FETCH, int(KernelCode.SUM), address, 8, ones, by),
    )
    for _ in range(2):
        reply = peer.ask(Op.BATCH, number=1, numbers=3, nbytes=3, items=items)
        moved, old = narrowed(dtype, [2, 0]), np.array([2, 0], np.float32)
        assert bytes(reply.payload) == moved.tobytes() + old.tobytes()
    assert peer.get(address, 16, number=3).tolist() == [2.5, 0.5, 3, -1]


@pytest.mark.parametrize("is_item", [False, True])
def test_an_exchange_under_the_number_of_a_longer_change_is_refused(
    peer, address, dtype, is_item
):
    whole, x = np.ones(STRIPE, np.float32), narrowed(dtype, [1, 2])
    assert peer.fetch_add(address, whole).status is Status.OK
    kernel, by = int(KernelCode.ELASTIC), pack_scale(0.5, "f")
    if is_item:
        item = Item(Op.ELASTIC, kernel, address, 8, x.tobytes(), by, dtype.code)
        reply = peer.ask(Op.BATCH, number=1, numbers=1, nbytes=1, items=(item,))
    else:
        reply = change(peer, Op.ELASTIC, kernel, address, x, dtype, 0.5, number=1)
    assert reply.status is Status.BAD_MESSAGE
    assert reply.error.old == b""
    assert peer.get(address, 8, number=1).tolist() == [2, 2]


def test_a_step_takes_a_narrow_gradient(peer, address, dtype):
    m = peer.create("m", (3 * STRIPE,)).body.address
    g = narrowed(dtype, [0.3, -7.7])
    reply = peer.ask(
        Op.UPDATE,
        address=address,
        nbytes=8,
        number=1,
        numbers=1,
        kernel=int(OptimizerCode.MOMENTUM),
        operand=dtype.code,
        payload=operands.pack_update([m], (0.5, 0.9), g.tobytes()),
    )
    assert reply.status is Status.OK
    np.testing.assert_array_equal(peer.get(m, 8, number=1), wide(g))


def test_operands_that_are_refused(peer, address, dtype):
    x = narrowed(dtype, [1, 1])
    other = peer.create("d", (8,), "float64").body.address
    whole = peer.create("c", (), "int64", kind=2).body.address
    put = (peer, Op.PUT, KernelCode.REPLACE)
    assert change(*put, other, x, dtype).status is Status.LAYOUT_MISMATCH
    assert change(*put, whole, x, dtype).status is Status.LAYOUT_MISMATCH
    assert change(*put, address + 2, x, dtype).status is Status.LAYOUT_MISMATCH
    assert change(*put, address, x, dtypes.by_name("float64")).status is Status.BAD_MESSAGE
    assert peer.ask(Op.LEND, address=address, nbytes=8, operand=dtype.code).error is not None
    get = {"address": address + 2, "nbytes": 8, "operand": dtype.code}
    assert peer.ask(Op.GET, **get).status is Status.LAYOUT_MISMATCH
    get = {"address": other, "nbytes": 8, "operand": dtype.code}
    assert peer.ask(Op.GET, **get).status is Status.LAYOUT_MISMATCH
    assert peer.get(address, 8).tolist() == [1, 1]


def test_the_answer_of_an_exchange_is_numpys_for_every_operand(bench, peer, address, dtype):
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    rng, rate = np.random.default_rng(4), np.float32(0.3)
    center = (rng.standard_normal(x.size) * 100).astype(np.float32)
    bench.memory.regions[address].array()[: x.size] = center
    reply = change(peer, Op.ELASTIC, KernelCode.ELASTIC, address, x, dtype, float(rate))
    found = np.frombuffer(reply.payload, np.uint8).view(dtype.numpy)
    with np.errstate(all="ignore"):
        wanted = (wide(x) - rate * (wide(x) - center)).astype(dtype.numpy)
    np.testing.assert_array_equal(wide(found), wide(wanted))


def test_an_exchange_of_a_lock_free_region_is_answered_too(peer, dtype):
    address = peer.create("free", (4,), init=1.0, consistency=3).body.address
    x = narrowed(dtype, [3, -1])
    reply = change(peer, Op.ELASTIC, KernelCode.ELASTIC, address, x, dtype, 0.5)
    assert bytes(reply.payload) == narrowed(dtype, [2, 0]).tobytes()
    assert peer.get(address, 8).tolist() == [2, 0]
