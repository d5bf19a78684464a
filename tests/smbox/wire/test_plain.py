from __future__ import annotations

import pytest

from smbox.errors import RegionFreedError
from smbox.wire.codec import Reply, Request, encode_reply, reply_to
from smbox.wire.ops import Op
from smbox.wire.plain import expected_head, plain_payload
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
