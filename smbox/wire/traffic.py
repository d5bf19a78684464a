"""Messages as one line of text each, for logs, traces and the transcripts of tests. Pure.

PUT request=3 number=7 address=1:0x1000 nbytes=4096 kernel=1
PUT request=3 number=7 status=GAP applied=5
"""

from __future__ import annotations

from smbox.address import GlobalAddress
from smbox.wire.codec import Reply, Request
from smbox.wire.status import Status


def describe(message: Request | Reply) -> str:
    """Return the line of one message; fields that are 0 are left out, payloads never shown."""
    fields = _request(message) if isinstance(message, Request) else _reply(message)
    shown = [f"{name}={value}" for name, value in fields.items() if value]
    return " ".join([message.op.name, *shown])


def _place(message: Request | Reply) -> dict[str, object]:
    address = message.address
    if 0 < address < 1 << 64:
        found = GlobalAddress(address)
        return {"address": f"{found.node}:{found.offset:#x}", "nbytes": message.nbytes}
    return {"nbytes": message.nbytes}


def _request(request: Request) -> dict[str, object]:
    ids = {"request": request.request, "number": request.number}
    more = {"kernel": request.kernel, "version": request.version, "items": len(request.items)}
    return ids | _place(request) | more


def _reply(reply: Reply) -> dict[str, object]:
    ids = {"request": reply.request, "number": reply.number}
    if reply.status is Status.OK:
        return ids | _place(reply) | {"version": reply.version}
    applied = reply.error.applied if reply.error else 0
    return ids | {"status": reply.status.name, "applied": applied}
