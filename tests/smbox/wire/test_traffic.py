"""One line for each message."""

from __future__ import annotations

from smbox.address import GlobalAddress
from smbox.errors import RegionFreedError
from smbox.wire.codec import Reply, Request
from smbox.wire.ops import Op
from smbox.wire.refusal import refuse
from smbox.wire.traffic import describe

PUT = Request(Op.PUT, 3, 7, GlobalAddress.at(1, 4096), 2, kernel=1, payload=b"ab")


def test_lines():
    assert describe(PUT) == "PUT request=3 number=7 address=1:0x1000 nbytes=2 kernel=1"
    assert describe(refuse(PUT, RegionFreedError("x"), applied=6)) == (
        "PUT request=3 number=7 status=REGION_FREED applied=6"
    )
    assert describe(Reply(Op.PUT, request=3, version=4)) == "PUT request=3 version=4"
    assert describe(Request(Op.PING)) == "PING"
