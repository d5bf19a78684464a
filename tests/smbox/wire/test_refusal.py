"""From an error to a reply and back to the error."""

from __future__ import annotations

import pytest

from smbox.errors import RegionFreedError, RemoteProtocolError, VersionMismatchError
from smbox.wire.codec import (
    Header,
    Request,
    decode_reply,
    encode_reply,
    refuse,
    refuse_malformed,
)
from smbox.wire.ops import Op, Status

REQUEST = Request(Op.PUT, request=7, number=8, address=4096, nbytes=16)


def test_the_caller_gets_the_error_of_the_node():
    error = RegionFreedError("gone", name="w", size=3, rate=0.5, what=object, big=1 << 70)
    reply = refuse(REQUEST, error, applied=6, old=b"ab")
    found = decode_reply(encode_reply(reply))
    raised = found.to_error()
    assert type(raised) is RegionFreedError
    assert raised.message == "gone"
    wanted = {"op": "put", "request": 7, "status": "REGION_FREED", "name": "w", "size": 3}
    assert wanted.items() <= raised.facts.items()
    assert raised.facts["big"] == str(1 << 70)
    assert (found.number, found.error.applied, found.error.old) == (8, 6, b"ab")


def test_a_status_without_a_class():
    reply = refuse(REQUEST, RegionFreedError("x"), applied=3, status=Status.GAP)
    assert reply.status is Status.GAP


def test_facts_cannot_displace_the_protocols_own():
    error = RegionFreedError("gone", op="evil", status=1)
    facts = decode_reply(encode_reply(refuse(REQUEST, error))).to_error().facts
    assert (facts["op"], facts["status"]) == ("put", "REGION_FREED")


def test_garbage_is_answered_where_it_can_be_addressed():
    frames = [Header(17, request=5, number=6, nbytes=1).pack(), b"too long"]
    reply = refuse_malformed(frames, RemoteProtocolError("bad"))
    assert (reply.status, reply.request, reply.number) == (Status.BAD_MESSAGE, 5, 6)
    unknown = refuse_malformed([Header(99, request=5).pack()], RemoteProtocolError("bad"))
    assert unknown.request == 5


def test_another_version_is_told_so():
    frame = bytearray(Header(1).pack())
    frame[4] = 9
    reply = refuse_malformed([frame], VersionMismatchError("old"))
    assert reply.status is Status.VERSION
    assert isinstance(decode_reply(encode_reply(reply)).to_error(), VersionMismatchError)


@pytest.mark.parametrize("frames", [[], [b"short"], [bytes(64)]])
def test_noise_is_not_answered(frames):
    assert refuse_malformed(frames, RemoteProtocolError("bad")) is None
