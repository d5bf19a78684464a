"""What the short way does is what the lane does: byte for byte, and in memory."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest

from memnode import at_once
from memnode.at_once import READ_NBYTES_MAX
from memnode.lane import Lane
from memnode.unsent import UNSENT_NBYTES_MAX
from smbox import dtypes
from smbox.memory import accel
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Consistency
from smbox.wire import header
from smbox.wire.codec import Request, decode_reply, encode_request
from smbox.wire.header import pack_scale
from smbox.wire.messages import Empty
from smbox.wire.ops import Op
from smbox.wire.status import Status

COUNT = 2 * STRIPE_NBYTES // 4
ITEM = struct.Struct("<BB2xIQQ8s")  # op, kernel, source bytes, address, nbytes, scale
REPLACE, SUM, MIN = int(KernelCode.REPLACE), int(KernelCode.SUM), int(KernelCode.MIN)


@pytest.fixture(autouse=True)
def compiled():
    if accel.load() is None or accel.load().commit_stripes is None:
        pytest.skip("no compiled kernels here: everything goes the long way")


@pytest.fixture
def submitted(monkeypatch):
    """The requests that came to the lane."""
    found, submit = [], Lane.submit

    def noted(self, connection, request, *, now_s):
        found.append(request.op)
        return submit(self, connection, request, now_s=now_s)

    monkeypatch.setattr(Lane, "submit", noted)
    return found


@pytest.fixture
def peer(bench):
    return bench.peer()


@pytest.fixture
def address(peer, submitted):
    made = peer.create("w", (COUNT,), init=1.0).body.address
    submitted.clear()
    return made


def floats(*values):
    return np.array(values, np.float32)


def test_small_requests_do_not_come_to_the_lane(bench, peer, address, submitted):
    assert peer.put(address + 4, floats(5, 6)).status is Status.OK
    assert peer.add(address + 4, floats(1, 1), scale_by=0.5).status is Status.OK
    assert peer.get(address, 16).tolist() == [1, 5.5, 6.5, 1]
    assert not submitted
    facts = bench.node.facts()
    assert (facts["requests.PUT"], facts["requests.GET"]) == (1, 1)
    assert facts["received_nbytes"] >= 16
    assert facts["sent_nbytes"] >= 16


def test_others_do(peer, address, submitted):
    peer.put(address, np.ones(STRIPE_NBYTES // 4 + 1, np.float32), numbers=2)
    peer.fetch_add(address, floats(1))
    peer.get(address, READ_NBYTES_MAX + 4)
    peer.ask(Op.PING, number=3, body=Empty())
    assert submitted == [Op.PUT, Op.FETCH, Op.GET, Op.PING]


def test_nothing_passes_what_is_parked(bench, peer, address, submitted, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("memnode.changes.ChangeTask.advance", lambda _: None)
        request = encode_request(
            Request(
                Op.FETCH, 90, 1, address, 4, SUM, pack_scale(1.0, "f"), 0, b"\0" * 4, numbers=1
            )
        )
        peer.send(request)
        peer.begin(Op.GET, address=address, nbytes=4, number=1)
        assert bench.waiting(peer)
    assert submitted == [Op.FETCH, Op.GET]
    assert peer.reply().request == 90
    assert peer.reply().op is Op.GET


def test_who_does_not_read_gets_nothing_at_once(bench, peer, address, submitted):
    (channel,) = bench.node._lane._channels.values()
    unread = np.empty(UNSENT_NBYTES_MAX, np.uint8)
    channel.unsent.add(unread)
    peer.begin(Op.GET, address=address, nbytes=4)
    assert submitted == [Op.GET]
    assert bench.waiting(peer)
    del unread
    assert peer.reply().op is Op.GET


def test_whatever_goes_wrong_in_it_the_lane_answers(peer, address, submitted, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(at_once, "commit_on", lambda *_, **__: 1 / 0)
        assert peer.put(address, floats(7)).status is Status.OK
    assert submitted == [Op.PUT]
    assert peer.get(address, 4).tolist() == [7]


def test_a_client_that_only_asks_small_things_is_not_silent(bench, peer, address):
    for _ in range(4):
        bench.now_s += 200.0
        peer.get(address, 4)
        bench.tick()
    assert bench.node.metrics.sessions_expired == 0


FLOAT, WHOLE = pack_scale(0.5, "f"), pack_scale(3, "i")
FIELDS = {
    "op": [Op.PUT, Op.ACCUMULATE, Op.GET],
    "kernel": [REPLACE, SUM, MIN, 0, 77],
    "offset": [0, 4, 2, STRIPE_NBYTES - 4, 2 * STRIPE_NBYTES - 4, -4, 1 << 40],
    "nbytes": [4, 8, 0, 6, READ_NBYTES_MAX + 4],
    "body": ["fits", "none", "short"],
    "number": ["next", "the last", "a later", 0],
    "numbers": [1, 0, 2],
    "scale": [FLOAT, WHOLE, pack_scale(float("nan"), "f")],
    "dtype": ["float32", "int64", "bool", "uint64", "int8", "float16", "float64"],
    "consistency": [Consistency.STRIPE, Consistency.NONE, Consistency.REGION],
    "status": [0, 3],
}
USUAL = {name: values[0] for name, values in FIELDS.items()}


def variants():
    """All that differ from a usual put, add or get in at most two fields."""
    usual = [
        USUAL,
        USUAL | {"op": Op.ACCUMULATE, "kernel": SUM},
        USUAL | {"op": Op.GET, "body": "none"},
    ]
    for base, (one, other) in itertools.product(usual, itertools.combinations(FIELDS, 2)):
        for first, second in itertools.product(FIELDS[one], FIELDS[other]):
            yield base | {one: first, other: second}


def frames_of(fields, address, next_number):
    number = {
        "next": next_number,
        "the last": next_number - 1,
        "a later": next_number + 3,
        0: 0,
    }
    is_read = fields["op"] is Op.GET
    head = header.pack(
        fields["op"],
        kernel=fields["kernel"],
        status=fields["status"],
        request=1000,
        number=max(0, number[fields["number"]] - is_read),
        address=max(0, address + fields["offset"]),
        nbytes=fields["nbytes"],
        scale=fields["scale"],
        numbers=0 if is_read else fields["numbers"],
    )
    body = bytes(range(1, 251)) * (fields["nbytes"] // 250 + 1)
    length = {"fits": fields["nbytes"], "none": None, "short": max(0, fields["nbytes"] - 4)}
    return [head] if length[fields["body"]] is None else [head, body[: length[fields["body"]]]]


ITEMS = {
    "op": [Op.PUT, Op.ACCUMULATE, Op.FETCH],
    "kernel": [REPLACE, SUM, MIN],
    "offset": [8, 2, STRIPE_NBYTES - 4, 2 * STRIPE_NBYTES, -8],
    "nbytes": [8, 0, 4],
    "source": [8, 0, 4],
    "scale": [FLOAT, WHOLE, pack_scale(float("inf"), "f")],
    "frame": ["whole", "cut off", "too long"],
    "count": [3, 2, 4, 0],
    "numbers": [3, 2],
    "number": [1, 0, 5],
    "dtype": ["float32", "int64", "bool"],
    "consistency": [Consistency.STRIPE, Consistency.NONE, Consistency.REGION],
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
    body = b"".join(heads) + bytes(range(1, 1 + sum(each["source"] for each in orders)))
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
        {"whole": body, "cut off": body[:-1], "too long": body + b"x"}[fields["frame"]],
    ]


class Side:
    """A node with a region of each kind, and a peer of it."""

    def __init__(self, bench):
        self.bench, self.peer = bench, bench.peer()
        self.addresses = {
            (dtype, consistency): self.peer.create(
                f"{dtype}-{consistency}",
                (2 * STRIPE_NBYTES // dtypes.by_name(dtype).itemsize,),
                dtype,
                consistency=consistency,
            ).body.address
            for dtype, consistency in itertools.product(FIELDS["dtype"], FIELDS["consistency"])
        }

    def ask(self, fields):
        address = self.addresses[fields["dtype"], fields["consistency"]]
        return self.answer(address, frames_of(fields, address, self.applied() + 1))

    def ask_batch(self, base, fields):
        base = base | {name: fields[name] for name in ("dtype", "consistency")}
        address = self.addresses[fields["dtype"], fields["consistency"]]
        return self.answer(address, batch_of(base, fields, address, self.applied()))

    def applied(self):
        return next(iter(self.bench.node._lane._channels.values())).applied

    def answer(self, address, frames):
        """Reply to a request, and what its region holds then."""
        self.peer.send(frames)
        head, *body = self.peer.receive()
        fields = list(header.unpack(head))
        error = decode_reply([head, *body]).error
        said = (
            [bytes(each) for each in body] if error is None else (error.message, error.applied)
        )
        fields[7] -= address if fields[7] else 0
        region = self.bench.memory.regions[address]
        return fields, said, region.version(), region.data[:16].tobytes()


@pytest.fixture
def sides(bench, another_bench):
    """A node that answers at once, one that never does, and what the first one answered so."""
    short, long = Side(bench), Side(another_bench)
    long.bench.node._at_once.answer = lambda *_: None
    came, answer = [], short.bench.node._at_once.answer
    short.bench.node._at_once.answer = lambda *a: came.append(answer(*a)) or came[-1]
    return short, long, came


def test_it_answers_and_does_as_the_lane(sides):
    short, long, came = sides
    for fields in variants():
        assert short.ask(fields) == long.ask(fields), fields
    at_once = sum(each is not None for each in came)
    assert 100 < at_once < len(came) - 100


def test_so_it_does_with_batches(sides):
    short, long, came = sides
    for base, fields in batches():
        assert short.ask_batch(base, fields) == long.ask_batch(base, fields), fields
    at_once = sum(each is not None for each in came)
    assert 50 < at_once < len(came) - 100
