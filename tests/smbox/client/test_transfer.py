from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from msgspec.structs import replace

from smbox.address import GlobalAddress
from smbox.client.changes import op_of
from smbox.dtypes import by_name
from smbox.errors import RegionFreedError
from smbox.memory.kernels import ONE, KernelCode, packed_scale
from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.requests import Operation, RegionInfo
from smbox.wire.codec import decode_request, encode_reply, refuse
from smbox.wire.header import NO_SCALE, unpack_scale
from smbox.wire.ops import Op

MIB = 1 << 20


def sink(first, limit, old):
    pass


def operation(element, kernel):
    info = RegionInfo("r", element, (1,), address=GlobalAddress(0), node_uuid=bytes(16))
    return Operation(info, "test", kernel, NO_SCALE, 0, 1, np.zeros(1, np.uint8))


@pytest.mark.parametrize(
    ("kernel", "plain", "answering"),
    [
        (KernelCode.REPLACE, Op.PUT, Op.FETCH),
        (KernelCode.SUM, Op.ACCUMULATE, Op.FETCH),
        (KernelCode.ELASTIC, Op.ELASTIC, Op.ELASTIC),
        (KernelCode.COMPARE_SWAP, Op.ACCUMULATE, Op.FETCH),
    ],
)
def test_the_op_follows_from_the_kernel_and_whether_old_bytes_are_wanted(
    kernel, plain, answering
):
    wanted = operation(by_name("int64"), kernel)
    assert op_of(wanted) is plain
    assert op_of(replace(wanted, sink=sink)) is answering


@pytest.mark.parametrize(
    ("dtype", "scale"), [("float32", 0.5), ("int32", -3), ("uint8", 2), ("bool", 1)]
)
def test_the_scale_is_written_as_the_elements_want_it(dtype, scale):
    element = by_name(dtype)
    packed = packed_scale(KernelCode.SUM, element, float(scale))
    assert unpack_scale(packed, element.kind[0]) == scale
    assert packed_scale(KernelCode.MIN, element, 1.0) == NO_SCALE
    assert unpack_scale(ONE[element.kind], element.kind[0]) == 1


def data_requests(node):
    requests = [decode_request(frames) for frames in node.seen]
    return [request for request in requests if request.op >= Op.GET]


def test_a_range_is_cut_at_the_regions_mebibytes(node, client):
    info = client.create(5 * MIB, "uint8")
    x, half = np.arange(4 * MIB, dtype=np.uint64).astype(np.uint8), MIB // 2
    client.finish(client.change(info, x, KernelCode.REPLACE, first=half))
    assert np.array_equal(client.get(info)[half : half + 4 * MIB], x)
    found = [(r.address - info.address, r.nbytes, r.numbers) for r in data_requests(node)]
    assert found[:3] == [(half, 3 * half, 3), (2 * MIB, 2 * MIB, 4), (4 * MIB, half, 1)]
    assert found[3:] == [(at * MIB, MIB, 0) for at in range(5)]


def test_the_sink_is_called_in_order_once_for_each_piece(client):
    info = client.create(9 * MIB, "uint8", init=9)
    seen = []

    def keep(first, limit, old):
        seen.append((first, limit))
        assert (old == 9).all()
        assert old.size == limit - first

    client.finish(client.change(info, np.ones(8 * MIB + 5, np.uint8), first=7, sink=keep))
    edges = [7, 2 * MIB, 4 * MIB, 6 * MIB, 8 * MIB, 8 * MIB + 12]
    assert seen == list(itertools.pairwise(edges))


def test_a_sink_that_was_interrupted_gets_the_same_piece_again(client):
    info = client.create(4 * MIB, "uint8")
    seen = []

    def interrupted_once(first, limit, old):
        seen.append((first, limit))
        if len(seen) == 1:
            raise KeyboardInterrupt

    work = client.change(info, np.ones(4 * MIB, np.uint8), sink=interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        client.finish(work)
    client.finish(work)
    assert seen == [(0, 2 * MIB), (0, 2 * MIB), (2 * MIB, 4 * MIB)]
    assert (client.get(info) == 1).all()


def test_an_empty_work_is_done(client):
    work = client.batch([])
    assert work.advance(0.0)
    assert (work.outcome(), work.ranges_done()) == ("all", [])


def test_what_is_known_of_the_effect(node, client):
    info = client.create(20 * MIB, "uint8")
    client.get(info)
    x = np.ones(20 * MIB, np.uint8)
    node.is_down = True
    work = client.change(info, x)
    assert not work.advance(0.0)
    assert (work.outcome(), work.ranges_done()) == ("unknown", [])
    later = client.change(info, x)
    assert later.outcome() == "none"
    reading = client.begun(client.read(info, x[:MIB]))
    assert reading.outcome() == "none"
    assert "silent_s" in work.facts()
    node.is_down = False
    client.finish(later)
    assert (work.outcome(), work.ranges_done()) == ("all", [(0, 20 * MIB)])


def test_a_refusal_half_way_gives_what_was_done(node, client, monkeypatch):
    info = client.create(MIB, "uint8", init=4)
    client.get(info)
    taken = []

    def half(connection, frames, *, now_s):
        request = decode_request(frames)
        error = RegionFreedError("freed meanwhile")
        old = bytes(STRIPE_NBYTES)
        reply = refuse(request, error, applied=request.number, old=old)
        return [(connection, encode_reply(reply))]

    monkeypatch.setattr(node.node, "receive", half)
    work = client.change(
        info, np.ones(MIB, np.uint8), sink=lambda *piece: taken.append(piece[:2])
    )
    with pytest.raises(RegionFreedError):
        work.advance(time.monotonic() + 30)
    assert taken == [(0, STRIPE_NBYTES)]
    assert work.ranges_done() == [(0, STRIPE_NBYTES)]
    monkeypatch.undo()
