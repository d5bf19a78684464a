"""Every message there and back, whole, cut, with a frame too many, and noise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from smbox.errors import LocalProtocolError, RemoteProtocolError
from smbox.wire import header, messages
from smbox.wire.codec import (
    Header,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from smbox.wire.operands import Item, pack_items
from smbox.wire.ops import ANSWERS, CONTROL, OPERANDS, SOURCES, Op, Status

ID = bytes(range(16))
REGION = messages.RegionBody(
    address=1 << 48, name="w", kind=1, dtype="float32", shape=(2, 3), consistency=1
)
BODIES = {
    Op.HELLO: messages.Hello(client_id=ID, channel=2, proof=b"p", nonce=b"n", pid=7, host="h"),
    Op.BYE: messages.Empty(),
    Op.PING: messages.Empty(),
    Op.CREATE: messages.Create(name="w", dtype="int8", shape=(), token=ID, init=-1),
    Op.PUBLISH: messages.Publish(address=5),
    Op.ATTACH: messages.Attach(name="w", kind=2),
    Op.FREE: messages.Free(address=1 << 60),
    Op.LIST: messages.ListRegions(after=3),
    Op.STATS: messages.Empty(),
}
ANSWER_BODIES = {
    Op.HELLO: messages.Welcome(
        node_name="n",
        node_uuid=ID,
        node_id=1,
        incarnation=2,
        window=16,
        ring_entries=32,
        applied=9,
    ),
    Op.BYE: messages.Empty(),
    Op.PING: messages.Empty(),
    Op.CREATE: REGION,
    Op.PUBLISH: messages.Empty(),
    Op.ATTACH: REGION,
    Op.FREE: messages.Empty(),
    Op.LIST: messages.Regions(regions=(REGION,), more=True),
    Op.STATS: messages.StatsReply(facts={"regions": 1, "rate": 0.5, "name": "n"}),
}
HALF, TENTH = header.pack_scale(0.5, "f"), header.pack_scale(0.1, "f")
ITEMS = (Item(Op.PUT, 1, 4096, 2, b"ab"), Item(Op.FETCH, 6, 8192, 8, bytes(16)))


def asked(op, request, number, address, nbytes, **more):
    fields = {"request": request, "number": number, "address": address, "nbytes": nbytes}
    return Request(op, **fields, **more)


REQUESTS = [
    *(Request(op, request=1, number=2, body=body) for op, body in BODIES.items()),
    asked(Op.GET, 3, 0, 4096, 16),
    asked(Op.PUT, 4, 1, 4096, 3, kernel=1, payload=b"abc", numbers=1),
    asked(Op.ACCUMULATE, 5, 2, 4096, 3, kernel=2, scale=HALF, payload=b"abc"),
    asked(Op.ELASTIC, 6, 3, 4096, 3, kernel=5, scale=TENTH, payload=b"abc"),
    asked(Op.FETCH, 7, 4, 4096, 8, kernel=6, payload=bytes(16)),
    asked(Op.WAIT, 8, 4, 4096, 1000, version=12),
    asked(Op.BATCH, 9, 5, 0, 2, items=ITEMS, payload=pack_items(ITEMS)),
    asked(Op.GATHER, 10, 5, 4096, 16, payload=bytes(16)),
    asked(Op.FROM, 11, 6, 4096, 16, kernel=2, payload=bytes(8), numbers=1),
    asked(Op.UPDATE, 13, 8, 4096, 8, kernel=64, payload=bytes(72), numbers=1),
    asked(Op.SNAPSHOT, 14, 8, 4096, 1 << 30),
    asked(Op.LEND, 15, 8, 4096, 2 << 20),
    asked(Op.STAMPS, 16, 8, 4096, 1 << 30),
    asked(Op.DOT, 17, 8, 4096, 16, payload=bytes(8)),
]
REPLIES = [
    *(Reply(op, request=1, number=2, body=body) for op, body in ANSWER_BODIES.items()),
    Reply(Op.GET, request=3, address=4096, nbytes=3, version=4, payload=b"abc"),
    Reply(Op.LEND, request=15, address=4096, nbytes=3, version=4, payload=b"abc"),
    Reply(Op.STAMPS, request=16, address=4096, nbytes=1 << 30, payload=bytes(16)),
    Reply(Op.DOT, request=17, address=4096, nbytes=16, payload=bytes(8)),
    Reply(Op.PUT, request=4, number=1, address=4096, nbytes=3, version=5, numbers=255),
    Reply(Op.ELASTIC, request=5, number=2, address=4096, nbytes=3, version=6, payload=b"old"),
    Reply(Op.WAIT, request=6, version=12),
    Reply(Op.BATCH, request=7, number=3, nbytes=2, payload=bytes(8)),
    Reply(Op.GATHER, request=9, address=4096, nbytes=3, version=4, payload=b"abc"),
    Reply(
        Op.PUT,
        request=8,
        number=3,
        status=Status.GAP,
        error=messages.ErrorBody(message="gap", applied=1),
    ),
]


def name(message: Request | Reply) -> str:
    return message.op.name


def has_fixed_body(message: Request | Reply) -> bool:
    """Whether the second frame's length follows from the message; see docs/protocol.md."""
    if isinstance(message, Request):
        return message.op not in SOURCES | OPERANDS
    return message.op not in {Op.BATCH, Op.STAMPS, Op.DOT}


@pytest.mark.parametrize("request_", REQUESTS, ids=name)
def test_request_round_trip(request_):
    frames = [memoryview(bytes(frame)) for frame in encode_request(request_)]
    assert decode_request(frames) == request_


@pytest.mark.parametrize("reply", REPLIES, ids=name)
def test_reply_round_trip(reply):
    assert decode_reply(encode_reply(reply)) == reply


def test_every_op_is_in_the_tables():
    assert {request.op for request in REQUESTS} == set(Op)
    assert CONTROL | ANSWERS - {Op.FETCH} <= {reply.op for reply in REPLIES}


@pytest.mark.parametrize(
    ("encode", "decode", "message"),
    [
        *((encode_request, decode_request, request) for request in REQUESTS),
        *((encode_reply, decode_reply, reply) for reply in REPLIES),
    ],
)
def test_cut_anywhere_or_a_frame_too_many(encode, decode, message):
    frames = [bytes(frame) for frame in encode(message)]
    for length in range(len(frames[0])):
        with pytest.raises(RemoteProtocolError):
            decode([frames[0][:length], *frames[1:]])
    for length in range(len(frames[-1]) if frames[1:] and has_fixed_body(message) else 0):
        with pytest.raises(RemoteProtocolError):
            decode([frames[0], frames[1][:length]])
    for extra in ([], [*frames, b""], [*frames, b"", b""], frames[:1] if frames[1:] else []):
        with pytest.raises(RemoteProtocolError):
            decode(extra)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=3))
def test_noise_is_a_typed_error(frames):
    for decode in (decode_request, decode_reply):
        with pytest.raises(RemoteProtocolError):
            decode(frames)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([int(op) for op in Op] + [0, 10, 255]),
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 40),
    st.lists(st.binary(max_size=100), max_size=2),
)
def test_noise_behind_a_legal_header_is_a_message_or_a_typed_error(
    op, kernel, status, nbytes, frames
):
    head = Header(op, kernel=kernel, status=status, nbytes=nbytes).pack()
    for decode, encode in ((decode_request, encode_request), (decode_reply, encode_reply)):
        try:
            found = decode([head, *frames])
        except RemoteProtocolError:
            continue
        assert decode(encode(found)) == found


LONG = header.REQUEST_NBYTES_MAX + 1


@pytest.mark.parametrize("op", sorted(SOURCES))
def test_a_change_with_its_source_may_be_longer(op):
    request = Request(op, nbytes=LONG, kernel=1, payload=bytes(LONG))
    assert len(decode_request(encode_request(request)).payload) == LONG


@pytest.mark.parametrize(
    "request_",
    [
        Request(Op.ELASTIC, nbytes=2 * LONG, payload=bytes(2 * LONG)),
        Request(Op.PUT, nbytes=2 * LONG, payload=bytes(2 * LONG)),
        Request(Op.ACCUMULATE, nbytes=8, operand=12),
        Request(Op.WAIT, nbytes=8, operand=10),
        Request(Op.FREE, body=messages.Free(address=-1)),
        Request(Op.CREATE, body=messages.Create(name="", dtype="int8", shape=(), token=ID)),
        Request(Op.HELLO, body=messages.Hello(client_id=b"short", channel=1)),
    ],
)
def test_what_breaks_a_limit_is_refused(request_):
    with pytest.raises(RemoteProtocolError):
        decode_request(encode_request(request_))


@pytest.mark.parametrize("nested", [b"\x91", b"\x81\xa1z"], ids=["arrays", "maps"])
def test_a_body_nested_without_end_is_refused(nested):
    """An unknown field is skipped, however deep its value is nested."""
    body = b"\x81\xa1z" + nested * 100_000
    for op in BODIES:
        with pytest.raises(RemoteProtocolError, match="body"):
            decode_request([Header(op).pack(), body])
    with pytest.raises(RemoteProtocolError, match="body"):
        decode_reply([Header(Op.GET, status=Status.GAP).pack(), body])


def test_a_wrong_body_is_our_bug():
    for wrong in (Request(Op.PING), Request(Op.PING, body=messages.ListRegions())):
        with pytest.raises(LocalProtocolError):
            encode_request(wrong)
    with pytest.raises(LocalProtocolError):
        encode_reply(Reply(Op.PING, body=messages.ListRegions()))
    with pytest.raises(LocalProtocolError):
        encode_reply(Reply(Op.STATS, body=messages.StatsReply(facts={"what": object()})))


def test_payloads_are_passed_on_and_not_copied():
    payload = bytearray(b"abc")
    frames = encode_request(Request(Op.PUT, nbytes=3, payload=payload))
    assert frames[1] is payload
    assert decode_request(frames).payload is payload


def test_a_status_of_a_later_release_is_a_plain_error():
    frames = encode_reply(REPLIES[-1])
    frames[0] = Header(Op.PUT, status=200).pack()
    assert decode_reply(frames).status is Status.ERROR
