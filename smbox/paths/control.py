"""ControlPath: the node's directory of regions and its statistics, over messages."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import asdict

from smbox import dtypes
from smbox.address import GlobalAddress
from smbox.client.channel import Channel
from smbox.client.transfer import Call
from smbox.deadline import request_timeout_s
from smbox.errors import (
    ConfigError,
    LimitError,
    RegionFreedError,
    RegionNotFoundError,
    SmboxError,
)
from smbox.memory.region_header import check_limits, check_name
from smbox.paths.requests import CreateRequest, NodeInfo, RegionInfo
from smbox.wire import messages
from smbox.wire.messages import Body, Empty, RegionBody
from smbox.wire.ops import Op
from smbox.work import Pause

ATTACH_MIN_S: Final = 0.002
ATTACH_MAX_S: Final = 0.2
"""The shortest and the longest pause between polls for a region that does not exist yet."""


def new_token() -> bytes:
    """Return a token for a CREATE."""
    return secrets.token_bytes(16)


class ControlPath:
    """The node's directory of regions and its statistics, over a separate channel.

    Thread-safe. The channel repeats a request whose reply was lost. The node recognizes a
    repeated creation by its token; a repeated free finds the region freed.

    Attributes:
        channel: to the node.
        address: of the node, for messages and other processes.

    Args:
        channel: as the attribute.
        address: as the attribute.
    """

    def __init__(self, channel: Channel, address: str) -> None:
        self.channel = channel
        self.address = address
        self._node: NodeInfo | None = None

    @property
    def node(self) -> NodeInfo:
        """The node as described in its last WELCOME."""
        welcome = self.channel.flight.node
        if welcome is not None:
            self._node = NodeInfo(
                welcome.node_name, welcome.node_uuid, welcome.node_id, welcome.incarnation
            )
        assert self._node is not None  # the path is used once the node has answered a PING
        return self._node

    def ping(self, timeout_s: float) -> None:
        """Wait for a reply to PING."""
        self._ask(Op.PING, Empty(), timeout_s)

    def create(
        self, spec: CreateRequest, timeout_s: float, token: bytes, *, restarts: bool = False
    ) -> RegionInfo:
        """Create a region; RegionExistsError, LayoutMismatchError, OutOfMemoryError.

        Args:
            spec: of the region.
            timeout_s: of the request.
            token: 16 random bytes, by which :meth:`discard` finds the region.
            restarts: restart the timeout as long as the node works on the region.
        """
        check_limits(spec)
        body = messages.Create(**asdict(spec) | {"dtype": spec.dtype.name, "token": token})
        return self._info(self._ask(Op.CREATE, body, timeout_s, restarts=restarts))

    def publish(self, info: RegionInfo, timeout_s: float) -> None:
        """Publish a region under construction; RegionExistsError: the name is taken."""
        self._ask(Op.PUBLISH, messages.Publish(address=int(info.address)), timeout_s)

    def discard(self, token: bytes, *, published: bool = False) -> None:
        """Free the unpublished region of a CREATE with this token, without waiting.

        The request is in flight then. If it is lost, the next request sends it again.

        Args:
            token: of the CREATE.
            published: free the region even if it was published; no other client may use it.
        """
        body = messages.Free(token=token, published=published)
        with suppress(SmboxError):  # the session has ended, and its regions with it
            self.channel.begin(Call(self.channel, Op.FREE, body))

    def find(self, name: str, kind: int, timeout_s: float) -> RegionInfo:
        """Find a region by name and ``layout.RegionKind``; RegionNotFoundError."""
        _demand_possible(name)
        body = messages.Attach(name=name, kind=kind)
        return self._info(self._ask(Op.ATTACH, body, timeout_s))

    def attach(self, name: str, kind: int, deadline_s: float) -> RegionInfo:
        """Wait for a region of this name; RegionNotFoundError at the deadline."""
        _demand_possible(name)  # before the loop, which would wait for it
        pause = Pause(ATTACH_MIN_S, ATTACH_MAX_S)
        while True:
            try:
                return self.find(name, kind, request_timeout_s(deadline_s))
            except RegionNotFoundError:
                if not pause.sleep(deadline_s):
                    raise

    def locate(self, address: int, timeout_s: float) -> RegionInfo:
        """Find the region that holds ``address``; AddressRangeError if none does."""
        body = messages.Attach(address=int(address))
        return self._info(self._ask(Op.ATTACH, body, timeout_s))

    def begin_free(self, address: int) -> Call:
        """Send the request to free a region, without waiting; ``end_free`` waits."""
        call = Call(self.channel, Op.FREE, messages.Free(address=int(address)))
        self.channel.begin(call)
        return call

    def free(self, address: int, timeout_s: float) -> None:
        """Free the region that begins at ``address``; RegionFreedError if it was freed."""
        self.end_free(self.begin_free(address), timeout_s)

    def end_free(self, call: Call, timeout_s: float) -> None:
        """Wait for the reply to ``begin_free``; RegionFreedError if the region was freed."""
        try:
            call.answer(timeout_s)
        except RegionFreedError:
            if call.message.copies < 2:  # else the first copy may have freed it
                raise

    def regions(self, timeout_s: float) -> list[RegionInfo]:
        """Return the regions of the node, by address."""
        found: list[RegionInfo] = []
        while True:
            after = int(found[-1].address) if found else -1
            page = self._ask(Op.LIST, messages.ListRegions(after=after), timeout_s)
            found += [self._info(body) for body in page.regions]
            if not page.more:
                return found

    def stats(self, timeout_s: float) -> dict[str, Any]:
        """Return the node's statistics."""
        return dict(self._ask(Op.STATS, Empty(), timeout_s).facts)

    def say_bye(self) -> None:
        """Say goodbye; do not wait."""
        self.channel.say_bye()

    def close(self) -> None:
        """Say goodbye, unless that was said, and close."""
        self.channel.close()

    def abandon(self) -> None:
        """Release it in a forked child."""
        self.channel.abandon()

    def _info(self, body: RegionBody) -> RegionInfo:
        address, dtype = GlobalAddress(body.address), dtypes.by_name(body.dtype)
        known = asdict(body) | {"address": address, "dtype": dtype}
        return RegionInfo(**known, node_uuid=self.node.uuid)

    def _ask(self, op: Op, body: Body, timeout_s: float, *, restarts: bool = False) -> Any:
        """Return the body of the reply, which is of the type in ``messages.REPLIES``."""
        return Call(self.channel, op, body).answer(timeout_s, restarts=restarts).body


def _demand_possible(name: str) -> None:
    try:
        check_name(name)
    except (LimitError, ConfigError) as error:
        message = f"no region can have this name: {error.message}"
        raise RegionNotFoundError(message, name=ascii(name)) from error
