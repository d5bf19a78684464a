"""What every handler works with, what it may answer, and what the node counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeAlias

from memnode.access import Access
from memnode.creation import Builds
from memnode.registry import Registry
from memnode.sessions import Channel, Park
from memnode.waits import Waits
from smbox.memory.node_memory import NodeMemory
from smbox.memory.reading import Reader
from smbox.wire.codec import Reply, Request
from smbox.wire.ops import Op
from smbox.wire.status import Status


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
    """The node, as its handlers see it.

    Attributes:
        registry: the regions.
        builds: those in the making.
        waits: requests that wait for a version.
        access: who may do what, of the clients that come with a key.
        writer: the node's journal slot.
        reader: shares the writer's open lock file.
        metrics: counts what happens.
        facts: gives the node's figures for STATS.
        now_s: monotonic seconds of the message, or tick, that is being handled.

    Args:
        memory: owned by this process.
        facts: gives the node's figures for STATS.
        access: of the clients with keys.
        now_s: monotonic seconds.
    """

    def __init__(
        self,
        memory: NodeMemory,
        facts: Callable[[], Mapping[str, object]],
        access: Access,
        now_s: float,
    ) -> None:
        self.access = access
        self.registry = Registry(memory)
        self.builds = Builds(self.registry)
        self.waits = Waits()
        self.writer = memory.writer
        self.reader = Reader(memory.writer.locks)
        self.metrics = Metrics()
        self.facts = facts
        self.now_s = now_s


Outcome: TypeAlias = Reply | Park | None
"""A reply; why the request is to be run again; or None: others pass it until it is answered."""

Handler: TypeAlias = Callable[[Context, Channel, Request], Outcome]
"""Does what a request asks, without waiting; may be run any number of times.

Raises:
    StripeBusy: another writer holds a stripe; run it again later.
    SmboxError: the request is refused.
"""
