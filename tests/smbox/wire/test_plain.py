from __future__ import annotations

import pytest

from smbox.errors import RegionFreedError
from smbox.wire.codec import Reply, Request, encode_reply, encode_request, reply_to
from smbox.wire.ops import Op
from smbox.wire.plain import expected_head, plain_payload, plain_version
from smbox.wire.refusal import refuse

PUT = Request(Op.PUT, 7, 3, 4096, 4, kernel=1, payload=b"abcd", numbers=1)
GET = Request(Op.GET, 8, 3, 4096, 4)


def found(request, frames):
    payload = plain_payload(request, expected_head(request), frames)
    return None if payload is None else bytes(payload)


def test_a_reply_that_says_no_more_is_known():
    assert found(PUT, encode_reply(reply_to(PUT))) == b""
    assert found(GET, encode_reply(reply_to(GET, b"wxyz"))) == b"wxyz"
    views = [memoryview(frame) for frame in encode_reply(reply_to(GET, b"wxyz"))]
    assert found(GET, views) == b"wxyz"


@pytest.mark.parametrize(
    "reply",
    [
        refuse(PUT, RegionFreedError("gone"), applied=2),
        Reply(Op.PUT, request=6, number=3, address=4096, nbytes=4),
        Reply(Op.PUT, request=7, number=2, address=4096, nbytes=4),
        Reply(Op.ACCUMULATE, request=7, number=3, address=4096, nbytes=4),
        Reply(Op.PUT, request=7, number=3, address=4096, nbytes=4, version=1),
    ],
    ids=["refusal", "another request", "another number", "another op", "a version"],
)
def test_any_other_message_is_not(reply):
    assert found(PUT, encode_reply(reply)) is None


def test_nor_one_of_another_length():
    head = encode_reply(reply_to(GET, b"wxyz"))[0]
    assert found(GET, [head]) is None
    assert found(GET, [head, b"wxy"]) is None
    assert found(GET, [head, b"wxyz", b""]) is None
    assert found(PUT, [expected_head(PUT), b""]) is None
    assert found(PUT, [b""]) is None


LEND = Request(Op.LEND, 9, 3, 4096, 4)


def version(request, frames):
    nbytes = None if request.op is Op.STAMPS else request.nbytes
    return plain_version(encode_request(request)[0], nbytes, frames)


def lent(**changed):
    fields = {"request": 9, "number": 3, "address": 4096, "nbytes": 4, "version": 77}
    return encode_reply(Reply(Op.LEND, payload=b"wxyz", **fields | changed))


def test_the_version_of_a_plain_reply_is_its_own():
    assert version(LEND, lent()) == 77
    assert version(LEND, lent(version=0)) == 0
    assert version(GET, encode_reply(reply_to(GET, b"wxyz"))) == 0
    stamps = Request(Op.STAMPS, 9, 3, 4096, 8 << 20)
    assert version(stamps, encode_reply(reply_to(stamps, bytes(32)))) == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"request": 8},
        {"number": 2},
        {"address": 4097},
        {"nbytes": 5},
        {"room": 1},
        {"op": Op.GET},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_reply_to_another_read_is_not_plain(changed):
    reply = Reply(**{"op": Op.LEND, "request": 9, "number": 3, "address": 4096} | changed)
    reply.payload, reply.nbytes = b"wxyz", changed.get("nbytes", 4)
    assert version(LEND, encode_reply(reply)) is None


def test_nor_is_a_refused_or_a_shortened_one():
    refused = refuse(LEND, RegionFreedError("gone"), applied=2)
    assert version(LEND, encode_reply(refused)) is None
    head, payload = lent()
    assert version(LEND, [head]) is None
    assert version(LEND, [head, payload[:3]]) is None
    assert version(LEND, [head, payload, b""]) is None
    assert version(LEND, [b"XXXX" + head[4:], payload]) is None
    assert version(LEND, [head[:-1], payload]) is None
    assert version(LEND, [head + b"\0", payload]) is None
