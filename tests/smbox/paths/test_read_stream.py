"""The loop of a stream, by itself: what it asks for, when it stops, and what it leaves."""

from __future__ import annotations

import math
from collections import deque

import pytest

from smbox.errors import SessionExpiredError
from smbox.paths.read_stream import (
    FAST_NBYTES,
    SLOW_NBYTES,
    Part,
    ReadStream,
    suited_nbytes,
)
from smbox.wire.codec import Reply, Request, decode_request, encode_reply, reply_to
from smbox.wire.messages import Hello, Welcome
from smbox.wire.ops import Op
from smbox.wire.session import ClientSession
from smbox.wire.status import Status

ADDRESS = 1 << 40
LENT_NBYTES = 16 << 20
DEPTH = LENT_NBYTES // FAST_NBYTES
COUNT = 3 * DEPTH
HELLO = Hello(client_id=bytes(16), channel=1, cookie=b"", pid=1, host="h")


def welcome(**changed):
    fields = {
        "node_name": "n",
        "node_uuid": bytes(16),
        "node_id": 1,
        "incarnation": 1,
        "memory_format": 1,
        "stripe_nbytes": 512 << 10,
        "request_nbytes_max": 1 << 20,
        "long_nbytes_max": 2 << 20,
        "window": 16,
        "ring_entries": 32,
        "answers_nbytes": 4 << 20,
        "sources_nbytes": 4 << 20,
        "lent_nbytes": LENT_NBYTES,
        "applied": 5,
        "resumed": False,
    }
    return Welcome(**fields | changed)


def greeted(**changed):
    session = ClientSession(HELLO)
    hello = decode_request(session.hello())
    session.receive(
        encode_reply(Reply(Op.HELLO, request=hello.request, body=welcome(**changed)))
    )
    return session


class Read:
    """A read of COUNT units; each is four bytes."""

    def __init__(self):
        self.taken = []
        self.waits_at = None

    op = Op.LEND

    def part_from(self, unit):
        if unit >= COUNT or (unit == self.waits_at and len(self.taken) < unit):
            return None
        return Part(self.op, 4 * unit, 4 * unit + 4, unit + 1)

    def take(self, part, version, payload):
        self.taken.append((part.first // 4, version, bytes(payload)))


class Node:
    """A transport: answers each LEND with its place, and keeps what is asked for."""

    def __init__(self, room=COUNT):
        self.asked, self.room, self.most = [], room, 0
        self.replies = deque()

    def send(self, frames, *, lent=False):
        if len(self.asked) == self.room:
            return False
        request = decode_request(frames)
        self.asked.append(request)
        payload = (request.address - ADDRESS).to_bytes(4, "little")
        self.replies.append(encode_reply(reply_to(request, payload, version=request.request)))
        self.most = max(self.most, len(self.replies))
        return True

    def receive(self, timeout_s):
        assert 0 < timeout_s < 1
        return self.replies.popleft() if self.replies else None


def started(node=None, session=None, until_s=math.inf, deadline_s=math.inf):
    read, node, session = Read(), node or Node(), session or greeted()
    stream = ReadStream(read, ADDRESS, 0, FAST_NBYTES)
    return read, node, session, stream, stream.run(node, session, until_s, deadline_s)


def units(requests):
    return [(request.address - ADDRESS) // 4 for request in requests]


def test_all_is_read_in_order_with_few_under_way():
    read, node, _, stream, frames = started()
    assert frames is None
    assert [(unit, payload) for unit, _, payload in read.taken] == [
        (unit, (4 * unit).to_bytes(4, "little")) for unit in range(COUNT)
    ]
    assert [version for _, version, _ in read.taken] == [each.request for each in node.asked]
    assert len({each.request for each in node.asked}) == COUNT
    assert {(each.op, each.number, each.numbers) for each in node.asked} == {(Op.LEND, 5, 0)}
    assert (node.most, stream.answered, stream.open_requests()) == (DEPTH, COUNT, [])
    assert stream.taken_nbytes == 4 * COUNT


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"window": 3}, 3), ({"lent_nbytes": 2 << 20}, 2), ({"lent_nbytes": 1}, 1)],
)
def test_what_the_node_allows_is_kept(limits, most):
    _, node, _, _, frames = started(session=greeted(**limits))
    assert frames is None
    assert node.most == most


def test_of_larger_requests_fewer_are_under_way():
    node = Node()
    assert (
        ReadStream(Read(), ADDRESS, 0, SLOW_NBYTES).run(node, greeted(), math.inf, math.inf)
        is None
    )
    assert node.most == LENT_NBYTES // SLOW_NBYTES


def test_where_bytes_come_slowly_requests_are_larger():
    assert suited_nbytes(16 << 20, 0.016) == FAST_NBYTES
    assert suited_nbytes(16 << 20, 0.017) == SLOW_NBYTES
    assert suited_nbytes(16 << 20, 0.0) == FAST_NBYTES


def test_a_part_that_has_to_wait_is_asked_for_when_those_before_have_come():
    read, node = Read(), Node()
    read.waits_at = DEPTH // 2
    stream = ReadStream(read, ADDRESS, 0, FAST_NBYTES)
    assert stream.run(node, greeted(), math.inf, math.inf) is None
    assert units(node.asked) == list(range(COUNT))


def test_it_goes_on_where_the_read_stands():
    read, node = Read(), Node()
    assert (
        ReadStream(read, ADDRESS, COUNT - 2, SLOW_NBYTES).run(
            node, greeted(), math.inf, math.inf
        )
        is None
    )
    assert units(node.asked) == [COUNT - 2, COUNT - 1]


def test_when_time_is_over_nothing_more_is_asked_for():
    _, node, _, stream, frames = started(until_s=0.0)
    assert (frames, node.asked, stream.answered) == (None, [], 0)


def test_beyond_the_deadline_nothing_is_waited_for():
    _, node, _, stream, frames = started(deadline_s=0.0)
    assert (frames, stream.answered) == ([], 0)
    assert stream.open_requests() == node.asked


@pytest.mark.parametrize(
    ("answers_nbytes", "most"), [(4, 1), (11, 2), (1, 1), (1 << 20, DEPTH)]
)
def test_no_more_copies_are_under_way_than_the_node_allows(answers_nbytes, most):
    read, node = Read(), Node()
    read.op = Op.GET
    stream = ReadStream(read, ADDRESS, 0, FAST_NBYTES)
    session = greeted(answers_nbytes=answers_nbytes)
    assert stream.run(node, session, math.inf, math.inf) is None
    assert (node.most, len(read.taken)) == (most, COUNT)


@pytest.mark.parametrize("lost", [0, DEPTH + 1])
def test_without_a_reply_what_is_under_way_is_left(lost):
    node = Node()
    receive = node.receive
    node.receive = lambda s: None if read.taken and len(read.taken) >= lost else receive(s)
    read = Read()
    read.taken = [] if lost else [None]
    stream = ReadStream(read, ADDRESS, 0, FAST_NBYTES)
    assert stream.run(node, greeted(), math.inf, math.inf) == []
    assert units(stream.open_requests()) == list(range(lost, min(COUNT, lost + DEPTH)))
    assert stream.answered == lost
    assert stream.open_requests() == node.asked[lost:]


def test_another_message_is_handed_back():
    node = Node()
    refusal = encode_reply(Reply(Op.LEND, Status.REGION_FREED, 1))
    node.replies.append(refusal)
    _, _, _, stream, frames = started(node)
    assert frames is refusal
    assert len(stream.open_requests()) == DEPTH


def test_where_the_transport_has_no_room_the_rest_is_left():
    _, node, _, stream, frames = started(Node(room=3))
    assert frames == []
    assert stream.open_requests() == node.asked


@pytest.mark.parametrize("why", ["not greeted", "expired", "waiting", "under way", "lone"])
def test_nothing_is_sent_beside_anything_else(why):
    session = greeted()
    if why == "not greeted":
        session.hello()
    elif why == "expired":
        session.expired = SessionExpiredError("gone")
    elif why == "lone":
        session.offer_lone(Request(Op.GET), 0)
    else:
        session.begin(Request(Op.GET))
        if why == "under way":
            session.next_to_send()
            session.sent()
    _, node, _, _, frames = started(session=session)
    assert (frames, node.asked) == ([], [])


def test_an_interrupt_takes_no_reply_twice():
    read, node, session = Read(), Node(), greeted()
    take = read.take

    def struck(part, version, payload):
        take(part, version, payload)
        if len(read.taken) == 4:
            raise KeyboardInterrupt

    read.take = struck
    stream = ReadStream(read, ADDRESS, 0, FAST_NBYTES)
    with pytest.raises(KeyboardInterrupt):
        stream.run(node, session, math.inf, math.inf)
    assert [unit for unit, _, _ in read.taken] == [0, 1, 2, 3]
    assert not session.needs_hello  # what was asked for has no numbers
