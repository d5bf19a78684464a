"""What every handler works with, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from memnode.channel import Channel, Park
from memnode.creation import Unattended
from memnode.holding import LockFiles
from memnode.metrics import Metrics
from memnode.registry import Registry
from memnode.waits import Wait
from smbox.memory.journal import Writer
from smbox.memory.reading import Reader
from smbox.wire.codec import Reply, Request


@dataclass(slots=True)
class Context:
    """The node, as its handlers see it.

    Attributes:
        registry: the regions.
        writer: the node's journal slot.
        reader: shares the writer's open lock file.
        lock_files: lent to those who hold stripes from one try to the next.
        unattended: regions in the making whose CREATE may be sent again.
        metrics: counts what happens.
        facts: gives the node's figures for STATS.
        now_s: monotonic seconds of the message, or tick, that is being handled.
    """

    registry: Registry
    writer: Writer
    reader: Reader
    lock_files: LockFiles
    unattended: Unattended
    metrics: Metrics
    facts: Callable[[], Mapping[str, object]]
    now_s: float = 0.0


Outcome: TypeAlias = Reply | Park | Wait
"""A reply; why the request is to be run again; or what it waits for while others pass it."""

Handler: TypeAlias = Callable[[Context, Channel, Request], Outcome]
"""Does what a request asks, without waiting; may be run any number of times.

Raises:
    StripeBusy: another writer holds a stripe; run it again later.
    SmboxError: the request is refused.
"""
