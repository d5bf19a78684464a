"""Boxes that send messages to a memory node of this process, without a socket.

The caller passes the node with its memory, because smbox never imports memnode.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from msgspec.structs import replace

from smbox.box import Box
from smbox.client.connection import OpenTransport
from smbox.config import ClientConfig
from smbox.paths.opening import OpenPaths, open_over
from smbox.paths.pair import PathPair
from smbox.testing.inproc import Answers
from smbox.wire.header import Buffer

BIND = 0
"""Index of the only address that the node listens on."""

Outgoing: TypeAlias = Iterable[tuple[tuple[int, bytes], Sequence[Buffer]]]


class FrameNode(Protocol):
    """The interface of ``memnode.node.Node`` to a transport."""

    def receive(
        self, connection: tuple[int, bytes], frames: Sequence[Buffer], *, now_s: float
    ) -> Outgoing:
        """Handle one message; return the messages to send."""
        ...

    def tick(self, *, now_s: float) -> Outgoing:
        """Continue parked and waiting requests; return the messages to send."""
        ...


def handle(node: FrameNode, connection: bytes, frames: list[Buffer]) -> Answers:
    """Pass a message to the node, or none for a tick, and return its replies."""
    now_s = time.monotonic()
    if frames:
        outgoing = node.receive((BIND, connection), frames, now_s=now_s)
    else:
        outgoing = node.tick(now_s=now_s)
    return [(peer, answer) for (_, peer), answer in outgoing]


def inproc_box(open_transport: OpenTransport, config: ClientConfig) -> Box:
    """Return a box that sends messages for all verbs, even on the memory's own host.

    Args:
        open_transport: opens connections to the node: ``InprocHub.connect``, or faults
            around it.
        config: settings, with an address ``inproc://...``.
    """
    return Box(inproc_paths(open_transport, config))


def inproc_paths(open_transport: OpenTransport, config: ClientConfig) -> PathPair:
    """Return the paths of such a box; see ``inproc_box``."""
    return PathPair(config, partial(_open_paths, open_transport))


def _open_paths(open_transport: OpenTransport, config: ClientConfig) -> OpenPaths:
    remote = open_over(open_transport, config)
    return replace(remote, reason="the node is in this process")
