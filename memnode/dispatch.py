"""Runs the requests of all channels through their handlers, one after another.

Within a channel requests run in order of arrival. One that meets a stripe held by another
writer (which may be stopped, not dead) parks its channel, and the node goes on with others; so
does one whose answer would exceed what the channel may have unsent, or whose work is done in
slices. A parked request is run again as it is, in rotation.
"""

from __future__ import annotations

import logging
from typing import Final

from memnode.context import Context, Outcome
from memnode.flow import LONG_NBYTES, Credit
from memnode.handlers import HANDLERS
from memnode.sessions import Channel, Connection, Park
from smbox.config import WINDOW_MAX
from smbox.errors import RemoteError, RemoteProtocolError, SmboxError
from smbox.memory.commit import StripeBusy
from smbox.wire.codec import Reply, Request, refuse
from smbox.wire.ops import CHANGES, COPIED
from smbox.wire.status import Status

QUEUE_MAX: Final = 2 * WINDOW_MAX
"""Requests kept of a parked channel; a client within its window never has as many."""

NOTICE_AFTER_S: Final = 0.05
NOTICE_S: Final = 0.5
"""When, and how often, a client is told that its request is parked: it need not reconnect, and
if its patience ends it can name the process that holds the stripe."""

_LOG = logging.getLogger(__name__)

Replies = list[tuple[Connection, Reply]]


class Dispatcher:
    """Runs requests on the memory of a node.

    Attributes:
        parked: channels whose first request is to be run again.

    Args:
        context: for the handlers.
    """

    def __init__(self, context: Context) -> None:
        self.parked: dict[Connection, Channel] = {}
        self._context = context
        self._credit = Credit()

    def submit(self, channel: Channel, request: Request) -> Reply | None:
        """Run a request, or queue it behind those of its channel that are parked."""
        if channel.queue:
            if len(channel.queue) >= QUEUE_MAX:
                _LOG.warning("a client sends beyond its window: %s dropped", request.op.name)
            else:
                channel.queue.append(request)
            return None
        outcome = self._try(channel, request)
        if isinstance(outcome, Park):
            channel.queue.append(request)
            channel.park = outcome
            channel.notice_s = self._context.now_s + NOTICE_AFTER_S
            self.parked[channel.connection] = channel
            self._context.metrics.parked += 1
            return None
        return outcome

    def advance(self) -> Replies:
        """Try the parked requests again, and end the waits that are over."""
        context = self._context
        context.builds.step_detached(now_s=context.now_s)
        replies = [reply for each in list(self.parked.values()) for reply in self._run(each)]
        return replies + context.waits.poll(
            lambda address: context.registry.locate(address).version(), now_s=context.now_s
        )

    def _run(self, channel: Channel) -> Replies:
        """Run the requests of a parked channel until one has to be tried again later."""
        replies: Replies = []
        while channel.queue:
            outcome = self._try(channel, channel.queue[0])
            if isinstance(outcome, Park):
                channel.park = outcome
                return replies + self._notice(channel)
            channel.queue.popleft()
            if outcome is not None:
                replies.append((channel.connection, outcome))
        del self.parked[channel.connection]
        return replies

    def _try(self, channel: Channel, request: Request) -> Outcome:
        """Run a request once; whatever goes wrong in it becomes its reply."""
        applied = channel.row.applied
        if request.number > applied + (request.op in CHANGES):
            gap = RemoteProtocolError("changes are missing before this", number=request.number)
            return refuse(request, gap, applied=applied, status=Status.GAP)
        if request.op in COPIED and not channel.unsent.ask_for_room():
            return Park.UNSENT
        try:
            if channel.user:
                context = self._context
                context.access.check(context.registry, channel.key, channel.user, request)
            outcome = HANDLERS[request.op](self._context, channel, request)
        except StripeBusy as busy:
            channel.busy = busy
            return Park.BUSY
        except SmboxError as error:
            return refuse(request, error, applied=channel.row.applied)
        except Exception:  # noqa: BLE001 -- no request may end the node
            _LOG.exception("request failed: %s", request.op.name)
            failed = RemoteError("the node failed at this request; its log says how")
            return refuse(request, failed, applied=channel.row.applied)
        if isinstance(outcome, Reply) and len(request.payload) > LONG_NBYTES:
            outcome.numbers = self._credit.after(channel.connection)
        return outcome

    def _notice(self, channel: Channel) -> Replies:
        """Say why the first request of a channel is parked, if it is time to."""
        busy, channel.busy = channel.busy, None
        now_s = self._context.now_s
        if channel.park is Park.UNSENT or now_s < channel.notice_s:
            return []
        channel.notice_s = now_s + NOTICE_S
        parked = RemoteError("not done yet")
        if busy is not None:
            parked = RemoteError("another writer holds a stripe", **busy.facts())
        reply = refuse(channel.queue[0], parked, status=Status.PARKED)
        return [(channel.connection, reply)]
