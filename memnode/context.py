"""State of a node: channels, metrics, and the context that handlers receive."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TypeAlias

import msgspec
from msgspec.structs import asdict

from memnode.access import Access
from memnode.creation import Builds
from memnode.flow import Unsent
from memnode.registry import Registry
from smbox.memory.channels import Answers, ChannelRow
from smbox.memory.commit import StripeBusy
from smbox.memory.node_memory import NodeMemory
from smbox.memory.reading import Reader
from smbox.wire.codec import Reply, Request
from smbox.wire.ops import Op, Status

Connection = tuple[int, bytes]
"""Index of the listening socket, and ZeroMQ's id of the peer there."""


class Park(Enum):
    """Why a request is parked; the node runs it again unchanged."""

    BUSY = 1  # another writer holds a stripe, or a region of the same name is being created
    UNSENT = 2  # too many answers of the channel are unsent: ``wake`` is called
    SLICE = 3  # one slice of its work is done; the next one can start at once


@dataclass(eq=False)
class Channel:
    """A channel that has a session.

    Attributes:
        connection: where its replies go.
        row: its row of the channel table, with the generation of the connection.
        user: the public key of its client; "" if it has none.
        unsent: answers that are being sent.
        key: client id and channel.
        block: its row for the native library, for changes without an answer.
        probed_s: time of the last test whether its peer is connected, in monotonic seconds.
        acknowledged: the number up to which the client has acknowledged replies.
        queue: requests in order of arrival; the first one is parked.
        park: why it is parked.
        busy: the held stripe that the last try met.
        notify_s: when to send the next PARKED reply, in monotonic seconds.
        waits: its pending WAITs by request id, each with its deadline.
        copying: its unfinished SNAPSHOT; closing it releases all stripes.
    """

    connection: Connection
    row: ChannelRow
    user: str
    unsent: Unsent
    probed_s: float = 0.0
    acknowledged: int = 0
    queue: deque[Request] = field(default_factory=deque)
    park: Park | None = None
    busy: StripeBusy | None = None
    notify_s: float = 0.0
    waits: dict[int, tuple[Request, float]] = field(default_factory=dict)
    copying: Generator[Park, None, int] | None = None

    def __post_init__(self) -> None:
        self.key = self.row.key
        self.block = self.row.block()

    @cached_property
    def answers(self) -> Answers:
        """The answers to the last changes of the channel."""
        return Answers(self.row)

    def record(self, request: Request, now_s: float) -> None:
        """Record the arrival of a request and the replies that it acknowledges."""
        self.row.heard_s = now_s
        if request.op is not Op.WAIT:  # its version field is the version that it waits for
            self.acknowledged = max(self.acknowledged, request.version)

    def close(self) -> None:
        """Discard queued requests unexecuted, and cancel waits and the snapshot."""
        self.queue.clear()
        self.waits.clear()
        self.unsent.close()
        self.stop_copying()

    def stop_copying(self) -> None:
        """Abandon the unfinished SNAPSHOT, if there is one."""
        if self.copying is not None:
            self.copying.close()
            self.copying = None


class Metrics(msgspec.Struct):
    """Counts since the node started, as STATS returns them.

    Attributes:
        received_nbytes: bytes of bodies received.
        sent_nbytes: bytes of bodies sent.
        replies_dropped: replies dropped because the client did not read.
        duplicates: changes that were applied already and were answered again.
        parked: how often a channel was parked, for a stripe that a local client held or because
            too many of its copies were unsent.
        slots_recovered: journal slots of dead local clients that were undone or completed.
        sessions_expired: channels removed after long silence.
        requests: requests by op.
        refusals: error replies by status, without the challenge that answers the first HELLO.
    """

    received_nbytes: int = 0
    sent_nbytes: int = 0
    replies_dropped: int = 0
    duplicates: int = 0
    parked: int = 0
    slots_recovered: int = 0
    sessions_expired: int = 0
    requests: Counter[Op] = msgspec.field(default_factory=Counter)
    refusals: Counter[Status] = msgspec.field(default_factory=Counter)

    def facts(self) -> dict[str, int]:
        """Return all counts under flat names such as ``requests.PUT``."""
        counted = asdict(self)
        requests, refusals = counted.pop("requests"), counted.pop("refusals")
        counted |= {f"requests.{op.name}": count for op, count in sorted(requests.items())}
        counted |= {f"refusals.{s.name}": count for s, count in sorted(refusals.items())}
        return counted


class Context:
    """All state of a node.

    Attributes:
        memory: owned by this process.
        registry: the regions.
        builds: the regions that are being created.
        reader: shares the open lock file of the memory's writer.
        access: the permissions of clients that have a key.
        connected: channels by the connection of their last HELLO.
        pending: those of them that have parked requests or WAITs.
        metrics: counts since the start.
        now_s: monotonic seconds of the message, or tick, that is being handled.
    """

    def __init__(self, memory: NodeMemory, access: Access, now_s: float) -> None:
        self.memory = memory
        self.registry = Registry(memory)
        self.builds = Builds(memory, self.registry)
        self.reader = Reader(memory.writer.locks)
        self.access = access
        self.connected: dict[Connection, Channel] = {}
        self.pending: dict[Connection, Channel] = {}
        self.metrics = Metrics()
        self.now_s = self._started_s = now_s

    def facts(self) -> Mapping[str, object]:
        """Return the node's figures, as STATS returns them."""
        memory, pending = self.memory, self.pending.values()
        return {
            "name": memory.name,
            "pid": os.getpid(),
            "incarnation": memory.superblock.incarnation,
            "uptime_s": self.now_s - self._started_s,
            "memory_nbytes": memory.superblock.memory_nbytes,
            "used_nbytes": memory.used_nbytes(),
            "regions": len(memory.regions),
            "sessions": len(self.connected),
            "channels": len(memory.channels.rows()),
            "parked_now": sum(bool(channel.queue) for channel in pending),
            "waits_now": sum(len(channel.waits) for channel in pending),
            **self.metrics.facts(),
        }


Outcome: TypeAlias = Reply | Park | None
"""A reply; the reason for parking; or None: later requests run until it is answered."""

Handler: TypeAlias = Callable[[Context, Channel, Request], Outcome]
"""Executes a request without waiting; may be run any number of times.

Raises:
    StripeBusy: another writer holds a stripe; run it again later.
    SmboxError: the request is refused.
"""
