"""The lane: runs the requests of all channels on the memory, one after another.

Within a channel requests run in order of arrival. One that meets a stripe held by a local
client (which may be stopped, not dead) parks its channel, and the lane goes on with others;
so does one that answers bytes while too many copies for the channel are still being sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from memnode.changes import ChangeTask
from memnode.channel import Channel, Task
from memnode.commands import ChannelKey, Connection
from memnode.control import HANDLERS, ControlTask, Desk, Facts
from memnode.creation import CreateTask
from memnode.derived import FromTask, UpdateTask
from memnode.holding import LockFiles
from memnode.lending import LendTask
from memnode.metrics import Metrics
from memnode.numbered import NumberedTask
from memnode.reads import GatherTask, ReadTask
from memnode.registry import Registry
from memnode.room import Rooms
from memnode.snapshots import SnapshotTask
from memnode.waiting import WaitTask, reply_of
from memnode.waits import Wait, Waits
from smbox.config import WINDOW_MAX
from smbox.errors import RemoteError, RemoteProtocolError, SmboxError
from smbox.memory.busy import StripeBusy
from smbox.memory.node_memory import NodeMemory
from smbox.wire.codec import Reply, Request
from smbox.wire.ops import CHANGES, COPIED, SOURCES, UNCOPIED, Op
from smbox.wire.refusal import refuse
from smbox.wire.status import Status

QUEUE_MAX: Final = 2 * WINDOW_MAX
"""Requests kept of a parked channel; a client within its window never has as many."""

_LOG = logging.getLogger(__name__)

Replies = list[tuple[Connection, Reply]]


class Lane:
    """Runs requests on the memory of a node.

    Args:
        memory: owned by this process.
        registry: the regions of that memory.
        rooms: what channels may have under way.
        metrics: counts what happens here.
        facts: gives the node's figures for STATS.
        wake: called, from any thread, when what is parked can go on.
    """

    def __init__(
        self,
        memory: NodeMemory,
        registry: Registry,
        rooms: Rooms,
        metrics: Metrics,
        facts: Facts,
        wake: Callable[[], None],
    ) -> None:
        self.waits = Waits()
        self._memory = memory
        self._registry = registry
        self._metrics = metrics
        self._desk = Desk(registry, facts)
        self._wake = wake
        self._lock_files = LockFiles(memory.name)
        self._rooms = rooms
        self._channels: dict[Connection, Channel] = {}
        self._parked: dict[Connection, Channel] = {}
        self._unattended: list[tuple[ChannelKey, CreateTask]] = []
        self._now_s = 0.0

    @property
    def parked_count(self) -> int:
        """How many channels are parked."""
        return len(self._parked)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is parked, being made or waited for."""
        return not (self._parked or self._unattended or len(self.waits))

    @property
    def tries_again(self) -> bool:
        """Whether a channel waits for a stripe: nobody tells when that is let go."""
        return any(not channel.unsent.is_waited_for for channel in self._parked.values())

    @property
    def is_building(self) -> bool:
        """Whether a region is being made, so that more work can be done at once."""
        heads = (channel.queue[0] for channel in self._parked.values())
        return bool(self._unattended) or any(map(_is_building, heads))

    def open(self, connection: Connection, key: ChannelKey) -> tuple[Channel, bool]:
        """Take up a channel on its present connection.

        Returns:
            The channel, and whether the node knew it before.

        Raises:
            LimitError: no room for another channel.
        """
        is_known = self._memory.channels.find(*key) is not None
        row = self._memory.channels.claim(*key)
        channel = Channel(self._memory.name, connection, key[0], row, self._wake)
        self._channels[connection] = channel
        return channel, is_known

    def drop(self, connection: Connection) -> None:
        """Discard unexecuted all that is held of a connection; its channel stays known.

        A region that is being made goes on: making a large one takes longer than its client
        waits before it asks again, and the copy of the CREATE is to find it.
        """
        self.waits.drop(connection)
        self._parked.pop(connection, None)
        channel = self._channels.pop(connection, None)
        if channel is None:
            return
        head = channel.queue[0] if channel.queue else None
        if isinstance(head, CreateTask) and head.is_building:
            channel.queue.popleft()
            key = channel.client_id, channel.row.channel
            self._unattended.append((key, head))
        channel.close()

    def release(self, key: ChannelKey) -> None:
        """Forget a channel for good: its numbers, its answers, and what it has begun."""
        for owner, task in list(self._unattended):
            if owner == key:
                self._unattended.remove((owner, task))
                task.abandon()
        row = self._memory.channels.find(*key)
        if row is not None:
            self._memory.channels.release(row, self._memory.name)

    def idle_channel(self, connection: Connection) -> Channel | None:
        """Return the channel of a connection, if it has one and no request of it is parked."""
        channel = self._channels.get(connection)
        return None if channel is None or channel.queue else channel

    def submit(self, connection: Connection, request: Request, *, now_s: float) -> Replies:
        """Run a request, or line it up behind those of its channel that are parked."""
        self._now_s = now_s
        channel = self._channels[connection]
        task = TASKS[request.op](self, request, channel)
        if channel.queue:
            if len(channel.queue) >= QUEUE_MAX:
                _LOG.warning("a client sends beyond its window: %s dropped", request.op.name)
            else:
                channel.queue.append(task)
            return []
        outcome = self._try(task, channel)
        if outcome is None:
            channel.queue.append(task)
            self._parked[connection] = channel
            self._metrics.parked += 1
        return [(connection, outcome)] if isinstance(outcome, Reply) else []

    def advance(self, *, now_s: float) -> Replies:
        """Try the parked requests again, and end the waits that are over."""
        self._now_s = now_s
        replies: Replies = []
        self._unattended = [left for left in self._unattended if not _has_ended(left[1])]
        for channel in list(self._parked.values()):
            replies += self._run(channel)
        if len(self.waits):
            ends = self.waits.poll(self._version_of, now_s=now_s)
            replies += [(end.wait.connection, reply_of(end)) for end in ends]
        return replies

    def close(self) -> None:
        """Discard unexecuted all that is held."""
        for connection in list(self._channels):
            self.drop(connection)
        for _, task in self._unattended:
            task.abandon()
        self._unattended.clear()
        self._lock_files.close()

    def _run(self, channel: Channel) -> Replies:
        """Run the tasks of a parked channel until one has to be tried again later."""
        replies: Replies = []
        while channel.queue:
            outcome = self._try(channel.queue[0], channel)
            if outcome is None:
                return replies
            channel.queue.popleft()
            if isinstance(outcome, Reply):
                replies.append((channel.connection, outcome))
        del self._parked[channel.connection]
        return replies

    def _try(self, task: Task, channel: Channel) -> Reply | Wait | None:
        """Try a task once; whatever goes wrong in it becomes its reply."""
        request = task.request
        if request.op not in CHANGES and request.number > channel.applied:
            gap = RemoteProtocolError("changes are missing before this", number=request.number)
            return refuse(request, gap, applied=channel.applied, status=Status.GAP)
        if request.op in COPIED and channel.unsent.is_full():
            return None
        try:
            outcome = task.advance()
            if isinstance(task, NumberedTask):
                self._metrics.duplicates += task.duplicates
            elif isinstance(outcome, Wait):
                self.waits.add(outcome)
        except StripeBusy:
            return None
        except SmboxError as error:
            return refuse(request, error, applied=channel.applied)
        except Exception:  # noqa: BLE001 -- no request may end the node
            _LOG.exception("request failed: %s", request.op.name)
            failed = RemoteError("the node failed at this request; its log says how")
            return refuse(request, failed, applied=channel.applied)
        if isinstance(outcome, Reply):
            outcome.room = self._rooms.after(channel.connection, len(request.payload))
        return outcome

    def _version_of(self, address: int) -> int:
        return self._registry.locate(address).version()

    def _change(self, request: Request, channel: Channel) -> Task:
        return ChangeTask(request, channel, self._registry, self._memory.writer)

    def _from(self, request: Request, channel: Channel) -> Task:
        return FromTask(request, channel, self._registry, self._memory.writer)

    def _update(self, request: Request, channel: Channel) -> Task:
        return UpdateTask(request, channel, self._registry, self._memory.writer)

    def _read(self, request: Request, channel: Channel) -> Task:
        return ReadTask(request, channel, self._registry, self._memory.writer.locks)

    def _gather(self, request: Request, channel: Channel) -> Task:
        return GatherTask(request, channel, self._registry, self._memory.writer.locks)

    def _lend(self, request: Request, channel: Channel) -> Task:  # noqa: ARG002 -- a row of TASKS
        return LendTask(request, self._registry)

    def _snapshot(self, request: Request, channel: Channel) -> Task:
        return SnapshotTask(request, channel, self._registry, self._lock_files)

    def _create(self, request: Request, channel: Channel) -> Task:
        return CreateTask(request, channel, self._registry)

    def _control(self, request: Request, channel: Channel) -> Task:  # noqa: ARG002 -- a row of TASKS
        return ControlTask(request, self._desk)

    def _wait(self, request: Request, channel: Channel) -> Task:
        return WaitTask(request, channel, self._registry, now_s=self._now_s)


def _is_building(task: Task) -> bool:
    return isinstance(task, CreateTask) and task.is_building


def _has_ended(task: CreateTask) -> bool:
    """Do one slice of a region whose creator's connection is gone; True when that ends it."""
    try:
        return task.advance() is not None
    except Exception as error:  # noqa: BLE001 -- nobody is there to be told
        _LOG.info("a region that was begun is given up: %s", error)
        return True


TASKS: Final[dict[Op, Callable[[Lane, Request, Channel], Task]]] = {
    Op.GET: Lane._read,  # noqa: SLF001 -- the table belongs to the class
    Op.CREATE: Lane._create,  # noqa: SLF001
    Op.WAIT: Lane._wait,  # noqa: SLF001
    **dict.fromkeys((*SOURCES, Op.BATCH), Lane._change),  # noqa: SLF001
    Op.GATHER: Lane._gather,  # noqa: SLF001
    **dict.fromkeys(UNCOPIED, Lane._lend),  # noqa: SLF001
    Op.FROM: Lane._from,  # noqa: SLF001
    Op.UPDATE: Lane._update,  # noqa: SLF001
    Op.SNAPSHOT: Lane._snapshot,  # noqa: SLF001
    **dict.fromkeys(HANDLERS, Lane._control),  # noqa: SLF001
}
