"""WAIT: answered at once where the version is reached, else when it is or time is up."""

from __future__ import annotations

from memnode.channel import Channel
from memnode.registry import Registry
from memnode.waits import Wait, WaitEnd
from smbox.errors import RequestTimeoutError
from smbox.wire.codec import Reply, Request, reply_to
from smbox.wire.refusal import refuse


class WaitTask:
    """A WAIT that is looked at for the first time.

    Args:
        request: a WAIT: a region's address, a version, a timeout in ms.
        channel: who asks.
        registry: finds the region.
        now_s: when it arrived, in monotonic seconds.
    """

    def __init__(
        self, request: Request, channel: Channel, registry: Registry, *, now_s: float
    ) -> None:
        self.request = request
        self._connection = channel.connection
        self._registry = registry
        self._deadline_s = now_s + request.nbytes / 1000

    def advance(self) -> Reply | Wait:
        """Answer if the version is reached; else hand the wait over; see ``Task``."""
        request = self.request
        version = self._registry.locate(request.address).version()
        if version >= request.version:
            return _reached(request, version)
        return Wait(
            self._connection, request, request.address, request.version, self._deadline_s
        )

    def abandon(self) -> None:
        """Do nothing."""


def reply_of(end: WaitEnd) -> Reply:
    """Build the reply to a wait that is over."""
    request = end.wait.request
    if end.error is not None:
        return refuse(request, end.error)
    if end.is_reached:
        return _reached(request, end.version)
    late = RequestTimeoutError(
        "the version was not reached", timeout_s=request.nbytes / 1000, version=end.version
    )
    return refuse(request, late)


def _reached(request: Request, version: int) -> Reply:
    return reply_to(request, version=version)
