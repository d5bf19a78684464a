"""The short way over the wire: a small request whose plain reply is waited for at once.

Nothing is kept of it unless it has to be: only one that is answered otherwise, or not soon,
becomes a work that stands in line.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from smbox.memory.layout import STRIPE_NBYTES
from smbox.paths.base import Bytes, Operation, RegionInfo
from smbox.paths.link import Link
from smbox.paths.remote_work import RemoteChange, RemoteRead, op_of, scale_of
from smbox.wire.codec import Request
from smbox.wire.ops import Op
from smbox.wire.pieces import count

LONE_NBYTES_MAX: Final = 32 * 1024
"""Of a range: what is so small is copied when it is sent, and answered soon."""


def is_lone(first: int, limit: int) -> bool:
    """Tell whether a range is small, and within one stripe: one request, and one number."""
    return limit - first <= LONE_NBYTES_MAX and count(first, limit, STRIPE_NBYTES) == 1


def change_now(link: Link, info: RegionInfo, operation: Operation) -> RemoteChange | None:
    """Do a lone change that nobody wants the old bytes of: None; or begin it."""
    request = Request(
        op_of(operation.kernel, None),
        address=int(info.address) + operation.first,
        nbytes=operation.limit - operation.first,
        kernel=operation.kernel,
        scale=scale_of(operation, info),
        payload=operation.source.data,
    )
    heard = link.ask(request, 1, lambda: RemoteChange(link, info, operation, None))
    return heard if isinstance(heard, RemoteChange) else None


def read_now(
    link: Link, info: RegionInfo, first: int, limit: int, out: Bytes
) -> RemoteRead | None:
    """Do a lone read: None; or begin it."""
    request = Request(Op.GET, address=int(info.address) + first, nbytes=limit - first)
    heard = link.ask(request, 0, lambda: RemoteRead(link, info, first, limit, out))
    if isinstance(heard, RemoteRead):
        return heard
    out[:] = np.frombuffer(heard, np.uint8)
    return None
