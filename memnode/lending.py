"""LEND and STAMPS: reads whose bytes ZeroMQ sends out of the region itself.

A copy costs a node as much as all else that it does for a read. So of a long read nothing is
copied, and the reader finds out by the stamps which pieces were changed meanwhile.
"""

from __future__ import annotations

import numpy as np

from memnode.checks import check_range
from memnode.registry import Registry
from smbox.errors import ConfigError
from smbox.memory.layout import Consistency
from smbox.memory.mapped import MappedRegion
from smbox.memory.region_header import RegionSpec
from smbox.memory.stamps import stamp_of
from smbox.wire.codec import Reply, Request, reply_to
from smbox.wire.header import LONG_NBYTES_MAX, Buffer
from smbox.wire.ops import Op
from smbox.wire.pieces import cut, unit_of


class LendTask:
    """A LEND or STAMPS: done at once.

    Args:
        request: it.
        registry: finds the region.
    """

    def __init__(self, request: Request, registry: Registry) -> None:
        self.request = request
        self._registry = registry

    def advance(self) -> Reply:
        """Answer the range, or its stamps; see ``Task``."""
        request = self.request
        region = self._registry.locate(request.address)
        check_stamped(region.spec)
        first = request.address - region.address
        check_range(first, request.nbytes, region.nbytes, unit_of(request.op))
        answer = lend if request.op is Op.LEND else _stamps
        version, payload = answer(region, first, first + request.nbytes)
        return reply_to(request, payload, version=version)

    def abandon(self) -> None:
        """Do nothing."""


def lend(region: MappedRegion, first: int, limit: int) -> tuple[int, Buffer]:
    """Return the stamp of bytes ``[first, limit)`` of a region that has one, and the bytes."""
    stamp = stamp_of(region, first, limit)  # before any byte can be sent
    return stamp, region.data[first:limit].data


def _stamps(region: MappedRegion, first: int, limit: int) -> tuple[int, Buffer]:
    stamps = [stamp_of(region, *piece) for piece in cut(first, limit, LONG_NBYTES_MAX)]
    return 0, np.array(stamps, np.uint64).tobytes()


def check_stamped(spec: RegionSpec) -> None:
    """Raise ConfigError unless every change of the region shows in its stamps.

    In a lock-free region nothing would tell that the system sent half of a machine word.
    """
    if spec.consistency != Consistency.STRIPE:
        raise ConfigError("only a region of consistency 'stripe' is lent", name=spec.name)
