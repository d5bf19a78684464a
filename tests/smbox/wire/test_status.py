"""The table of statuses, both ways."""

from __future__ import annotations

import pytest

from smbox import errors
from smbox.wire.codec import Request, decode_request, encode_request
from smbox.wire.ops import STATUS_OF, Op, Status, error_of, status_of

ERRORS = {status: status.error for status in Status if status.error is not None}
SESSION_ONLY = {Status.OK, Status.NO_SESSION, Status.GAP, Status.PARKED}


def test_every_status_of_a_caller_has_its_error_and_back():
    assert set(ERRORS) == set(Status) - SESSION_ONLY
    for status, kind in ERRORS.items():
        assert status_of(kind("why")) is status
        assert type(error_of(status, "why", {"size": 3})) is kind
        assert STATUS_OF[int(status)] is status


def test_every_refusal_of_the_tree_has_a_status():
    kinds = [kind for name, kind in vars(errors).items() if name.endswith("Error")]
    refusals = {kind for kind in kinds if issubclass(kind, errors.RemoteError)}
    assert refusals <= set(ERRORS.values())


@pytest.mark.parametrize("error", [errors.ConfigError("x"), errors.SegmentError("x")])
def test_other_errors_are_plain_refusals(error):
    assert status_of(error) is Status.ERROR


def test_numbers_are_never_reused():
    assert {status.name: int(status) for status in Status} == {
        "OK": 0,
        "ERROR": 1,
        "REGION_NOT_FOUND": 2,
        "REGION_EXISTS": 3,
        "REGION_FREED": 4,
        "ADDRESS_RANGE": 5,
        "LAYOUT_MISMATCH": 6,
        "OUT_OF_MEMORY": 7,
        "LIMIT": 8,
        "ACCESS_DENIED": 9,
        "SESSION_EXPIRED": 10,
        "STOPPING": 11,
        "TIMEOUT": 12,
        "BAD_MESSAGE": 13,
        "VERSION": 14,
        "OTHER_MEMORY": 15,
        "NO_SESSION": 64,
        "GAP": 65,
        "PARKED": 66,
    }


def test_facts_named_like_the_arguments_do_no_harm():
    error = error_of(Status.LIMIT, "too many", {"status": "LIMIT", "self": 1, "message": 2})
    assert error.facts == {"status": "LIMIT"}
    assert error.message == "too many"


def test_a_request_has_no_status():
    (head,) = encode_request(Request(Op.GET, request=1, nbytes=4))
    assert decode_request([head]).op is Op.GET
    refused = head[:7] + bytes([Status.ERROR]) + head[8:]
    with pytest.raises(errors.RemoteProtocolError, match="status"):
        decode_request([refused])
