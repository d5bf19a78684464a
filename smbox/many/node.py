"""Node: one memory node among several, and errors that name it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smbox.box import Box
from smbox.errors import SmboxError
from smbox.memory.layout import RegionKind
from smbox.paths.control import ControlPath
from smbox.paths.pair import PathPair
from smbox.paths.work import NodeInfo, RegionInfo
from smbox.region import Region


class Node:
    """One memory node of an address space. Pickles: the copy connects by itself.

    Attributes:
        id: the upper bits of its addresses.
        paths: to it.
        box: on it alone.

    Args:
        paths: to the node.
        node_id: as it said in the handshake.
    """

    def __init__(self, paths: PathPair, node_id: int) -> None:
        self.paths = paths
        self.id = node_id
        self.box = Box(paths)

    @property
    def address(self) -> str:
        """Where it was connected to."""
        return str(self.paths.config.address)

    @property
    def info(self) -> NodeInfo:
        """What it told about itself."""
        return self.control.node

    @property
    def control(self) -> ControlPath:
        """The path of its own services."""
        return self.paths.control()

    def find(self, name: str, timeout_s: float) -> RegionInfo:
        """Find an array by name, be it the head of a striped region; see ``Box.attach``."""
        with self.named():
            return self.control.attach(name, RegionKind.ARRAY, timeout_s)

    def region(self, info: RegionInfo) -> Region:
        """Return a region of this node."""
        return Region(self.paths, info)

    def free(self, info: RegionInfo) -> None:
        """Free a region of this node; see ``Box.free``."""
        with self.named():
            self.box.free(info)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let errors of this block name the node."""
        try:
            yield
        except SmboxError as error:
            self.name(error)
            raise

    def name(self, error: SmboxError) -> None:
        """Let an error name the node, unless it names one."""
        error.facts.setdefault("node", self.id)
        error.facts.setdefault("node_address", self.address)

    def __reduce__(self) -> tuple[type[Node], tuple[object, ...]]:
        """Travel as settings."""
        return Node, (self.paths, self.id)

    def __repr__(self) -> str:
        return f"Node({self.id}, {self.address!r})"
