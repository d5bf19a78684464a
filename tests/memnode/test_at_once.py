"""What the short way does is what the lane does: byte for byte, and in memory."""

from __future__ import annotations

import itertools
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from memnode import at_once
from memnode.at_once import READ_NBYTES_MAX
from memnode.lane import Lane
from memnode.unsent import UNSENT_NBYTES_MAX
from smbox.memory import accel
from smbox.memory.kernels import KernelCode
from smbox.memory.layout import STRIPE_NBYTES, Consistency, Ring
from smbox.memory.locks import LockFile
from smbox.wire import header
from smbox.wire.codec import Request, encode_request
from smbox.wire.header import LONG_NBYTES_MAX, pack_scale
from smbox.wire.messages import Empty
from smbox.wire.ops import Op
from smbox.wire.status import Status

COUNT = 2 * STRIPE_NBYTES // 4
REPLACE, SUM, MIN = int(KernelCode.REPLACE), int(KernelCode.SUM), int(KernelCode.MIN)
ELASTIC = int(KernelCode.ELASTIC)
FLOAT, WHOLE = pack_scale(0.5, "f"), pack_scale(3, "i")
LONG = STRIPE_NBYTES + 8
REGION_NBYTES = LONG_NBYTES_MAX + STRIPE_NBYTES  # of both sides


@pytest.fixture(autouse=True)
def compiled(engine, monkeypatch):
    for name in ("prepare", "loaded"):
        monkeypatch.setattr(accel, name, lambda *_: engine)


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


FAR = np.arange(STRIPE_NBYTES // 4 + 1, dtype=np.float32)  # over two stripes


EXCHANGE = {
    "kernel": ELASTIC,
    "scale": FLOAT,
    "nbytes": FAR.nbytes,
    "numbers": 2,
    "payload": FAR.tobytes(),
}


def exchange(peer, address, x):
    return floats_in(peer.change(Op.ELASTIC, ELASTIC, address, x, scale=FLOAT, numbers=2))


def floats_in(reply):
    return np.frombuffer(reply.payload, np.float32).tolist()


@pytest.fixture
def channel(bench, peer):
    (found,) = bench.node._lane._channels.values()
    return found


@pytest.fixture
def ring(peer, address, channel, submitted):
    """The channel's ring of answers, which its first exchange has made."""
    assert exchange(peer, address, np.ones_like(FAR)) == [1] * len(FAR)
    assert submitted == [Op.ELASTIC]
    submitted.clear()
    return channel.ring


def test_nor_do_long_changes_exchanges_and_loans(bench, peer, address, ring, submitted):
    assert peer.put(address, FAR, numbers=2).status is Status.OK
    assert peer.add(address, FAR, numbers=2).status is Status.OK
    assert exchange(peer, address, 6 * FAR) == [*(2 * FAR)]
    lent = peer.ask(Op.LEND, number=8, address=address, nbytes=FAR.nbytes)
    assert floats_in(lent) == [*(4 * FAR)]
    assert not submitted
    facts = bench.node.facts()
    assert facts["received_nbytes"] == 4 * FAR.nbytes
    assert facts["sent_nbytes"] >= 3 * FAR.nbytes
    assert (facts["requests.LEND"], facts["requests.ELASTIC"]) == (1, 2)


def test_an_exchange_is_answered_out_of_the_ring(bench, peer, address, ring):
    sent = []
    bench._sort = sent.extend  # kept, as by somebody who sends it
    peer.begin(Op.ELASTIC, number=3, address=address, **EXCHANGE)
    ((_, (_, answer)),) = sent
    assert np.shares_memory(np.frombuffer(answer, np.uint8), ring.segment.bytes)


def test_others_do(peer, address, submitted):
    peer.fetch_add(address, floats(1))
    peer.get(address, READ_NBYTES_MAX + 4)
    peer.ask(Op.PING, number=1, body=Empty())
    assert submitted == [Op.FETCH, Op.GET, Op.PING]


@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize(("first", "number"), [(4, 3), (0, Ring.ENTRIES)])
def test_an_answer_in_pieces_is_the_lanes(
    bench, peer, address, channel, submitted, first, number
):
    channel.row.applied, peer.number = number - 1, number
    assert exchange(peer, address + first, FAR) == [1] * len(FAR)
    assert submitted == [Op.ELASTIC]
    assert bench.node.metrics.duplicates == 0


@pytest.mark.usefixtures("ring")
def test_what_a_held_stripe_cuts_off_the_lane_goes_on_with(bench, peer, address, submitted):
    region = bench.memory.regions[address]
    version = region.version()
    with closing(LockFile(bench.name)) as locks:
        assert locks.try_lock(region.lock_byte(1))
        peer.begin(Op.ELASTIC, number=3, address=address, **EXCHANGE)
        assert bench.waiting(peer)
        assert region.version() == version + 1
    assert floats_in(peer.reply()) == [1] * len(FAR)
    assert peer.get(address, 8, number=4).tolist() == [0.5, 1.0]
    assert region.version() == version + 2


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


@pytest.mark.usefixtures("ring")
@pytest.mark.parametrize(
    ("op", "fields"), [(Op.GET, {"nbytes": 4}), (Op.ELASTIC, EXCHANGE | {"number": 3})]
)
def test_who_does_not_read_gets_nothing_at_once(
    bench, peer, address, channel, submitted, op, fields
):
    unread = np.empty(UNSENT_NBYTES_MAX, np.uint8)
    channel.unsent.add(unread)
    peer.begin(op, address=address, **fields)
    assert submitted == [op]
    assert bench.waiting(peer)
    del unread
    assert peer.reply().op is op


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


FIELDS = {
    "op": [Op.PUT, Op.ACCUMULATE, Op.GET, Op.ELASTIC, Op.LEND],
    "kernel": [REPLACE, SUM, MIN, ELASTIC, 0, 77],
    "offset": [
        0,
        4,
        2,
        STRIPE_NBYTES - 4,
        2 * STRIPE_NBYTES - 4,
        REGION_NBYTES - 4,
        -4,
        1 << 40,
    ],
    "nbytes": [4, 8, 0, 6, READ_NBYTES_MAX + 4, LONG, LONG_NBYTES_MAX, REGION_NBYTES],
    "body": ["fits", "none", "short", "and another"],
    "number": ["next", "the last", "a later", 0],
    "numbers": [1, 0, 2, 4, 5],
    "scale": [FLOAT, WHOLE, pack_scale(float("nan"), "f")],
    "dtype": ["float32", "int64", "bool", "uint64", "int8", "float16", "float64"],
    "consistency": [Consistency.STRIPE, Consistency.NONE],
    "status": [0, 3],
}
USUAL = {name: values[0] for name, values in FIELDS.items()}


def variants():
    """All that differ from a usual request in at most two fields."""
    usual = [
        USUAL,
        USUAL | {"op": Op.ACCUMULATE, "kernel": SUM},
        USUAL | {"op": Op.GET, "body": "none"},
        USUAL | {"op": Op.ELASTIC, "kernel": ELASTIC, "nbytes": LONG, "numbers": 2},
        USUAL | {"op": Op.LEND, "nbytes": LONG, "body": "none"},
    ]
    for base, (one, other) in itertools.product(usual, itertools.combinations(FIELDS, 2)):
        for first, second in itertools.product(FIELDS[one], FIELDS[other]):
            yield base | {one: first, other: second}


def frames_of(fields, address, applied):
    number = {"next": applied + 1, "the last": applied, "a later": applied + 4, 0: 0}
    is_read = fields["op"] in {Op.GET, Op.LEND}
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
    fits, short = body[: fields["nbytes"]], body[: max(0, fields["nbytes"] - 4)]
    more = {"fits": [fits], "none": [], "short": [short], "and another": [fits, b""]}
    return [head, *more[fields["body"]]]


def test_it_answers_and_does_as_the_lane(sides):
    short, long, came = sides
    for fields in variants():
        asked = (fields["dtype"], fields["consistency"]), partial(frames_of, fields)
        assert short.ask(*asked) == long.ask(*asked), fields
    at_once = sum(each is not None for each in came)
    assert 100 < at_once < len(came) - 100
