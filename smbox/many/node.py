"""Node: one memory node among several, and errors that name it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from smbox.box import Box
from smbox.deadline import answer_s
from smbox.directory import find, head_of
from smbox.errors import AddressRangeError, RegionFreedError, SmboxError
from smbox.head import Head
from smbox.memory.layout import RegionKind
from smbox.paths.control import ControlPath
from smbox.paths.pair import PathPair
from smbox.paths.work import NodeInfo, RegionInfo


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

    def find(self, name: str, deadline_s: float | None) -> RegionInfo:
        """Find an array by name, be it the head of a striped region; RegionNotFoundError."""
        with self.named():
            return self.control.find(name, RegionKind.ARRAY, self.answer_s(deadline_s))

    def attach(self, name: str, deadline_s: float | None) -> RegionInfo:
        """Find it, waiting for it until the deadline; None: do not wait."""
        with self.named():
            return find(self.paths, name, deadline_s)

    def head_of(self, info: RegionInfo, deadline_s: float | None = None) -> Head | None:
        """Read what may be the head of a striped region; None: an ordinary region."""
        with self.named():
            return head_of(self.paths, info, deadline_s)

    def answer_s(self, deadline_s: float | None) -> float:
        """Return how long one answer may take; None: as long as the box waits."""
        return self.paths.seconds(answer_s(deadline_s))

    def has_lost(self, info: RegionInfo, deadline_s: float | None) -> bool:
        """Tell whether a region of this node was freed."""
        try:
            self.control.locate(info.address, self.answer_s(deadline_s))
        except (RegionFreedError, AddressRangeError):
            return True
        return False

    def free(self, info: RegionInfo, deadline_s: float | None = None) -> None:
        """Free a region of this node; see ``Box.free``."""
        with self.named():
            self.paths.control(info).free(info.address, self.answer_s(deadline_s))

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


Nodes = Mapping[int, Node]
"""The nodes of an address space, by id."""
