"""Items of a batch that are alike, and stripes of a request: one call, and still one by one."""

from __future__ import annotations

import itertools
import struct
from functools import partial

import numpy as np
import pytest

from smbox.memory import accel
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Consistency
from smbox.memory.locks import LockFile
from smbox.wire import header
from smbox.wire.batch import Item
from smbox.wire.header import pack_scale
from smbox.wire.messages import Free
from smbox.wire.ops import Op
from smbox.wire.status import Status

STRIPE = STRIPE_NBYTES // 4  # elements
ITEM = struct.Struct("<BB2xIQQ8s")  # op, kernel, source bytes, address, nbytes, scale
REPLACE, SUM, MIN = int(KernelCode.REPLACE), int(KernelCode.SUM), int(KernelCode.MIN)
FLOAT, WHOLE = pack_scale(0.5, "f"), pack_scale(3, "i")
LONG = STRIPE_NBYTES - 8  # so that the reply tells of room


def floats(*values):
    return np.array(values, np.float32)


@pytest.fixture
def peer(bench):
    return bench.peer()


@pytest.fixture
def address(peer):
    return peer.create("w", (4 * STRIPE,), init=1.0).body.address


def item(op, kernel, address, source, scale_by=1.0):
    raw = pack_scale(scale_by, "f")
    return Item(op, int(kernel), address, source.nbytes, source.tobytes(), raw)


def batch(peer, number, *items):
    return peer.ask(Op.BATCH, number=number, numbers=len(items), nbytes=len(items), items=items)


@pytest.fixture
def runs(engine, monkeypatch):
    """Which bytes each call of the engine, loaded for this test, has committed."""
    reached = []

    def commit_stripes(*args):
        limit = engine.commit_stripes(*args)
        reached.append((args[6], limit))
        return limit

    loaded = engine._replace(commit_stripes=commit_stripes)
    monkeypatch.setattr(accel, "prepare", lambda _nbytes: loaded)
    monkeypatch.setattr(accel, "loaded", lambda: loaded)
    return reached


@pytest.fixture
def compiled(engine, monkeypatch):
    """How many items each call of the engine, loaded for this test, has committed."""
    counts = []

    def commit_items(*args):
        counts.append(engine.commit_items(*args))
        return counts[-1]

    loaded = engine._replace(commit_items=commit_items)
    monkeypatch.setattr(accel, "loaded", lambda: loaded)
    return counts


@pytest.mark.parametrize("applied", [0, 1, 2, 3, 4])
def test_items_that_are_alike_are_committed_together_each_once(
    bench, peer, address, compiled, applied
):
    items = (
        item(Op.ACCUMULATE, KernelCode.SUM, address, floats(1, 2)),
        item(Op.ACCUMULATE, KernelCode.SUM, address + 4, floats(10), 0.5),
        item(Op.ACCUMULATE, KernelCode.SUM, address + 2 * STRIPE_NBYTES, floats(7)),
        item(Op.PUT, KernelCode.REPLACE, address + 8, floats(9)),
    )
    if applied:  # the node was killed in the middle of it
        assert batch(peer, 1, *items[:applied]).error is None
        compiled.clear()
    assert batch(peer, 1, *items).error is None
    # A whole batch that is alike at once, which this is not; then what is alike of the rest.
    expected = {0: [0, 3], 1: [2], 2: [1], 3: [1], 4: []}
    assert compiled == expected[applied]
    assert batch(peer, 1, *items).error is None
    assert peer.get(address, 12, number=4).tolist() == [2, 8, 9]
    assert peer.get(address + 2 * STRIPE_NBYTES, 4, number=4).tolist() == [8]
    assert bench.memory.regions[address].version() == 4
    assert bench.node.metrics.duplicates == 4 + 4 * (applied == 4)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    ("offset", "source", "scale_by", "status"),
    [
        (4 * STRIPE_NBYTES, floats(1), 1, Status.ADDRESS_RANGE),
        (-4, floats(1), 1, Status.ADDRESS_RANGE),
        (-4, floats(1, 1), 1, Status.ADDRESS_RANGE),  # its last byte is in the region
        (2, floats(1), 1, Status.LAYOUT_MISMATCH),
        (STRIPE_NBYTES - 4, floats(1, 1), 1, Status.BAD_MESSAGE),
        (0, floats(1), float("nan"), Status.ERROR),
        (0, floats(), 1, Status.BAD_MESSAGE),
    ],
)
def test_items_before_a_wrong_one_are_done(peer, address, offset, source, scale_by, status):
    good = item(Op.ACCUMULATE, KernelCode.SUM, address, floats(1))
    wrong = item(Op.ACCUMULATE, KernelCode.SUM, address + offset, source, scale_by)
    reply = batch(peer, 1, good, good, wrong, good)
    assert reply.status is status
    assert reply.error.applied == 2
    assert peer.get(address, 4, number=2).tolist() == [3]


def test_a_batch_of_alike_items_waits_for_a_held_stripe(bench, peer, address, compiled):
    items = [item(Op.PUT, KernelCode.REPLACE, address, floats(5))]
    items += [item(Op.PUT, KernelCode.REPLACE, address + STRIPE_NBYTES, floats(6))] * 2
    locks = LockFile(bench.name)
    assert locks.try_lock(bench.memory.regions[address].lock_byte(1))
    peer.begin(Op.BATCH, number=1, numbers=3, nbytes=3, items=tuple(items))
    assert bench.waiting(peer)
    assert bench.memory.regions[address].version() == 1
    assert compiled[:2] == [1, 0]
    locks.close()
    assert peer.reply().error is None
    assert bench.memory.regions[address].version() == 3


@pytest.mark.usefixtures("compiled")
def test_a_batch_of_alike_items_on_a_freed_region_is_refused(peer, address):
    peer.ask(Op.FREE, body=Free(address=address))
    items = [item(Op.PUT, KernelCode.REPLACE, address, floats(5))] * 2
    assert batch(peer, 1, *items).status is Status.REGION_FREED


@pytest.mark.parametrize("applied", [0, 1, 2, 3, 4])
def test_stripes_of_a_request_are_committed_together_each_once(
    bench, peer, address, runs, applied
):
    x = np.arange(4 * STRIPE, dtype=np.float32)
    first = STRIPE // 2  # so that the first one is cut
    for number, end in enumerate((1, 2, 3, 4)[:applied], 1):
        begin = max(first, (end - 1) * STRIPE)
        peer.add(address + 4 * begin, x[begin : end * STRIPE], number=number)
    runs.clear()
    reply = peer.add(address + 4 * first, x[first:], number=1, numbers=4)
    assert reply.error is None
    begin = 4 * max(first, applied * STRIPE)
    assert runs == ([(begin, 16 * STRIPE)] if applied < 4 else [])
    assert bench.memory.regions[address].version() == 4
    half = 2 * STRIPE
    expected = np.where(np.arange(4 * STRIPE) < first, 1, 1 + x).astype(np.float32)
    for at in (0, half):  # a GET is shorter
        found = peer.get(address + 4 * at, 4 * half, number=4)
        np.testing.assert_array_equal(found, expected[at : at + half])


def test_old_bytes_of_stripes_that_were_committed_together_are_kept(peer, address, runs):
    x = np.arange(2 * STRIPE, dtype=np.float32)
    peer.put(address, x, number=1, numbers=2)
    answers = [peer.fetch_add(address, x, number=3, numbers=2) for _ in range(2)]
    assert runs == [(0, 8 * STRIPE)] * 2
    for answer in answers:
        np.testing.assert_array_equal(np.frombuffer(answer.payload, np.float32), x)
    np.testing.assert_array_equal(peer.get(address, 8 * STRIPE, number=4), 2 * x)


def test_stripes_wait_for_one_that_is_held(bench, peer, address, runs):
    x = np.full(4 * STRIPE, 5, np.float32).data.cast("B")
    region, locks = bench.memory.regions[address], LockFile(bench.name)
    assert locks.try_lock(region.lock_byte(2))
    peer.begin(
        Op.PUT, number=1, numbers=4, address=address, nbytes=x.nbytes, kernel=1, payload=x
    )
    assert bench.waiting(peer)
    assert region.version() == 2
    assert runs[0] == (0, 8 * STRIPE)
    locks.close()
    assert peer.reply().error is None
    assert region.version() == 4
    assert (region.array() == 5).all()


@pytest.mark.parametrize(
    ("numbers", "nbytes"), [(3, 16 * STRIPE), (4, 12 * STRIPE), (4, 16 * STRIPE + 8)]
)
def test_stripes_that_are_counted_wrong_are_refused_whole(
    bench, peer, address, runs, numbers, nbytes
):
    reply = peer.put(address, np.zeros(nbytes, np.uint8), number=1, numbers=numbers)
    assert reply.status in {Status.BAD_MESSAGE, Status.ADDRESS_RANGE}
    assert bench.memory.regions[address].version() == 0
    assert runs == []


ITEMS = {
    "op": [Op.PUT, Op.ACCUMULATE, Op.FETCH],
    "kernel": [REPLACE, SUM, MIN],
    "offset": [8, 2, STRIPE_NBYTES - 4, 2 * STRIPE_NBYTES, -8],
    "nbytes": [8, 0, 4, LONG],
    "source": [8, 0, 4, LONG],
    "scale": [FLOAT, WHOLE, pack_scale(float("inf"), "f")],
    "frame": ["whole", "cut off", "too long"],
    "count": [3, 2, 4, 0],
    "numbers": [3, 2],
    "number": [1, 0, 5],
    "dtype": ["float32", "int64", "bool"],
    "consistency": [Consistency.STRIPE, Consistency.NONE],
}
ALIKE = {name: values[0] for name, values in ITEMS.items()}


def batches():
    """All of three items whose second one, or whose frame, is not as usual in two things."""
    usual = [ALIKE, ALIKE | {"op": Op.ACCUMULATE, "kernel": SUM}]
    for base, (one, other) in itertools.product(usual, itertools.combinations(ITEMS, 2)):
        for first, second in itertools.product(ITEMS[one], ITEMS[other]):
            yield base, base | {one: first, other: second}


def batch_of(base, fields, address, applied):
    orders = [base, fields, base]
    heads = [
        ITEM.pack(
            *(each["op"], each["kernel"], each["source"], max(0, address + each["offset"])),
            *(each["nbytes"], each["scale"]),
        )
        for each in orders
    ]
    sources = sum(each["source"] for each in orders)
    body = b"".join(heads) + (bytes(range(1, 251)) * (sources // 250 + 1))[:sources]
    count = fields["count"]
    head = header.pack(
        Op.BATCH,
        request=2000,
        number=applied + fields["number"],
        nbytes=count,
        numbers=count if fields["numbers"] == 3 else 2,
    )
    return [
        head,
        {
            "whole": body,
            "cut off": body[:-1],
            "too long": body + b"x",
        }[fields["frame"]],
    ]


@pytest.mark.usefixtures("runs")
def test_a_batch_is_answered_at_once_as_the_lane_answers_it(sides):
    short, long, came = sides
    for base, fields in batches():
        asked = (fields["dtype"], fields["consistency"]), partial(batch_of, base, fields)
        assert short.ask(*asked) == long.ask(*asked), fields
    at_once = sum(each is not None for each in came)
    assert 50 < at_once < len(came) - 100


@pytest.mark.usefixtures("runs")
def test_nor_does_a_batch_bring_more_than_it_may(sides):
    short, long, came = sides
    large = ALIKE | {"nbytes": LONG, "source": LONG}
    asked = ("float32", Consistency.STRIPE), partial(batch_of, large, large)
    assert short.ask(*asked) == long.ask(*asked)
    assert came[-1] is None
