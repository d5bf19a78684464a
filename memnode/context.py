"""What a handler works with: the node's state, its counts, and the channel that asks."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from memnode.access import Access
from memnode.creation import Builds
from memnode.flow import Unsent
from memnode.registry import Registry
from smbox.memory.channels import Answers, ChannelRow
from smbox.memory.commit import StripeBusy
from smbox.memory.node_memory import NodeMemory
from smbox.memory.reading import Reader
from smbox.wire.codec import Reply, Request
from smbox.wire.messages import Hello
from smbox.wire.ops import Op
from smbox.wire.status import Status

Connection = tuple[int, bytes]
"""Index of the listening socket, and ZeroMQ's id of the peer there."""


class Park(Enum):
    """Why a request is not answered yet; it is run again as it is."""

    BUSY = 1  # another writer holds a stripe, or makes the region of the same name
    UNSENT = 2  # too many answers of the channel are still being sent: ``wake`` is called
    SLICE = 3  # one slice of its work is done; the next one can be done at once


@dataclass(eq=False)
class Channel:
    """What the node keeps of a channel while it is connected.

    Attributes:
        connection: where its replies go.
        hello: who it is, as it said there.
        row: its row of the channel table.
        user: the public key that it came with; "" without one.
        unsent: answers that are on their way.
        key: client id and channel.
        block: its row for the native library, for changes without an answer.
        looked_s: when it was last seen whether its peer is there, in monotonic seconds.
        acknowledged: the number up to which its client said that it has all replies.
        queue: requests in order of arrival, the first of them parked.
        park: why it is.
        busy: of the last try that met a held stripe: which one.
        notice_s: when its client is told so, in monotonic seconds.
        waits: its WAITs under way by the request's id, each with its deadline.
        copying: what its SNAPSHOT has begun, and goes on with; closed, it lets all go.
    """

    connection: Connection
    hello: Hello
    row: ChannelRow
    user: str
    unsent: Unsent
    looked_s: float = 0.0
    acknowledged: int = 0
    queue: deque[Request] = field(default_factory=deque)
    park: Park | None = None
    busy: StripeBusy | None = None
    notice_s: float = 0.0
    waits: dict[int, tuple[Request, float]] = field(default_factory=dict)
    copying: Generator[Park, None, None] | None = None

    def __post_init__(self) -> None:
        self.key = self.row.key
        self.block = self.row.block()

    @cached_property
    def answers(self) -> Answers:
        """The old bytes that changes of the channel answered."""
        return Answers(self.row)

    @property
    def is_answered(self) -> bool:
        """Whether its client has said that it has all replies, and asks for none again."""
        return self.acknowledged >= self.row.applied

    def hear(self, request: Request, now_s: float) -> None:
        """Note that a request came, and what it says of the replies before it."""
        self.row.heard_s = now_s
        if request.op is not Op.WAIT:  # its version is one that it waits for
            self.acknowledged = max(self.acknowledged, request.version)

    def close(self) -> None:
        """Discard, unexecuted, what is queued, and give up what was begun."""
        self.queue.clear()
        self.waits.clear()
        self.unsent.close()
        if self.copying is not None:
            self.copying.close()


@dataclass(slots=True)
class Metrics:
    """Counts since the node started; STATS tells them.

    Attributes:
        received_nbytes: bytes of bodies received.
        sent_nbytes: bytes of bodies sent.
        replies_dropped: replies that their client was too slow to take.
        duplicates: changes that had been applied before and were answered again.
        parked: how often a channel began to wait, for a stripe that a local client held or
            because too many copies for it were on their way.
        slots_recovered: journal slots of dead local clients rolled back or finished.
        sessions_expired: clients forgotten after long silence.
        requests: requests by their op.
        refusals: error replies by their status; not the challenge that clients begin with.
    """

    received_nbytes: int = 0
    sent_nbytes: int = 0
    replies_dropped: int = 0
    duplicates: int = 0
    parked: int = 0
    slots_recovered: int = 0
    sessions_expired: int = 0
    requests: Counter[Op] = field(default_factory=Counter)
    refusals: Counter[Status] = field(default_factory=Counter)

    def facts(self) -> dict[str, int]:
        """Return all counts under flat names, ``requests.PUT`` and the like."""
        counted = {each.name: getattr(self, each.name) for each in fields(self)}
        requests, refusals = counted.pop("requests"), counted.pop("refusals")
        counted |= {f"requests.{op.name}": count for op, count in sorted(requests.items())}
        counted |= {f"refusals.{s.name}": count for s, count in sorted(refusals.items())}
        return counted


class Context:
    """All state of a node: its memory, and what it knows besides.

    Attributes:
        memory: owned by this process.
        registry: the regions.
        builds: those in the making.
        reader: shares the open lock file of the memory's writer.
        access: who may do what, of the clients that come with a key.
        connected: channels by the connection that they said HELLO on last.
        pending: those of them that have requests to be tried again: parked ones, or WAITs.
        metrics: counts what happens.
        now_s: monotonic seconds of the message, or tick, that is being handled.

    Args:
        memory: owned by this process.
        access: of the clients with keys.
        now_s: monotonic seconds.
    """

    def __init__(self, memory: NodeMemory, access: Access, now_s: float) -> None:
        self.memory = memory
        self.registry = Registry(memory)
        self.builds = Builds(self.registry)
        self.reader = Reader(memory.writer.locks)
        self.access = access
        self.connected: dict[Connection, Channel] = {}
        self.pending: dict[Connection, Channel] = {}
        self.metrics = Metrics()
        self.now_s = self._started_s = now_s

    def facts(self) -> Mapping[str, object]:
        """Return the node's figures, as STATS gives them."""
        memory, pending = self.memory, self.pending.values()
        return {
            "name": memory.name,
            "pid": os.getpid(),
            "incarnation": memory.superblock.incarnation,
            "uptime_s": self.now_s - self._started_s,
            "memory_nbytes": memory.superblock.memory_nbytes,
            "used_nbytes": memory.used_nbytes(),
            "regions": len(self.registry),
            "sessions": len(self.connected),
            "channels": len(memory.channels),
            "parked_now": sum(bool(channel.queue) for channel in pending),
            "waits_now": sum(len(channel.waits) for channel in pending),
            **self.metrics.facts(),
        }


Outcome: TypeAlias = Reply | Park | None
"""A reply; why the request is to be run again; or None: others pass it until it is answered."""

Handler: TypeAlias = Callable[[Context, Channel, Request], Outcome]
"""Does what a request asks, without waiting; may be run any number of times.

Raises:
    StripeBusy: another writer holds a stripe; run it again later.
    SmboxError: the request is refused.
"""
