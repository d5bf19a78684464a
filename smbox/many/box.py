"""ManyBox: several memory nodes as one address space, with the verbs of a Box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox.address import GlobalAddress, check_layout
from smbox.batch import Batch
from smbox.box import Box
from smbox.deadline import deadline_of, left_s
from smbox.errors import (
    AddressRangeError,
    ConfigError,
    RegionFreedError,
    RegionNotFoundError,
    SmboxError,
)
from smbox.handle import check_seconds
from smbox.head import check_no_part_name
from smbox.lock import LEASE_S, Lock
from smbox.many import creating as striped
from smbox.many.batch import ManyBatch
from smbox.many.node import Node
from smbox.many.optimizer import StripedOptimizer
from smbox.many.region import StripedRegion
from smbox.many.striping import head_striping, home_of, opened, read_head
from smbox.optimizer import Optimizer
from smbox.paths import creating
from smbox.paths.work import NodeInfo, RegionInfo
from smbox.region import Region
from smbox.sync import Counter


class ManyBox(Box):
    """A client's connection to several memory nodes; a context manager.

    A region lies on the node of its name, or is striped over all nodes. Counters, barriers,
    locks and runs lie on the node of their name. Thread-safe. Pickles, and works in a forked
    child, as a Box does. All clients of an address space connect to the same nodes.

    Args:
        nodes: at least one, with ids that differ.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        by_id = sorted(nodes, key=lambda node: node.id)
        super().__init__(by_id[0].paths)  # for the settings, which all share
        self._by_id = {node.id: node for node in by_id}

    @property
    def address(self) -> str:
        """The nodes' endpoints, for other processes to connect to."""
        return ",".join(node.control.address for node in self._by_id.values())

    @property
    def node(self) -> NodeInfo:
        """Raise ConfigError: there are several, see ``nodes``."""
        raise ConfigError("this box is on several nodes: see box.nodes", nodes=[*self._by_id])

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """What the nodes told about themselves, by id."""
        return tuple(node.info for node in self._by_id.values())

    @property
    def transport(self) -> str:
        """How bytes travel: as ``Box.transport``, or several of these joined by "+"."""
        return "+".join(sorted({node.box.transport for node in self._by_id.values()}))

    @property
    def transport_reason(self) -> str:
        """Why they travel so, by node."""
        return "; ".join(
            f"node {node.id}: {node.box.transport_reason}" for node in self._by_id.values()
        )

    def create(
        self,
        name: str,
        shape: int | tuple[int, ...] | None = None,
        dtype: Any = None,
        init: Any = None,
        *,
        exist_ok: bool = False,
        consistency: str = "stripe",
        layout: str = "single",
        timeout_s: float | None = None,
    ) -> Region:
        """Create a region on the node of its name, or striped over all nodes.

        Arguments and errors are those of ``Box.create``; an error names its node. A striped
        region has one part of consecutive rows on each node, made one after the other. With
        ``exist_ok`` the layout must be the same, too.
        """
        check_layout(layout)
        check_no_part_name(name)
        home = self._home(name)
        if layout == "single":
            with home.named():
                return home.box.create(
                    name,
                    shape,
                    dtype,
                    init,
                    exist_ok=exist_ok,
                    consistency=consistency,
                    timeout_s=timeout_s,
                )
        request, values = creating.describe(name, shape, dtype, init, consistency)
        request = replace(request, exist_ok=exist_ok)
        deadline_s = None if timeout_s is None else deadline_of(check_seconds(timeout_s))
        return StripedRegion(striped.create(self._by_id, request, values, deadline_s))

    def attach(self, name: str, *, timeout_s: float | None = 30.0) -> Region:
        """Find a region by name; waits until somebody has created it; see ``Box.attach``.

        Raises:
            RegionNotFoundError: nobody did, within ``timeout_s``.
            PeerLostError: a part lay in a memory that is gone; names the node.
            RegionFreedError: a part was freed by itself.
        """
        home = self._home(name)
        deadline_s = None if timeout_s is None else deadline_of(check_seconds(timeout_s))
        while True:
            info = home.attach(name, deadline_s)
            try:
                head = read_head(home, info, deadline_s)
                if head is None:
                    return home.region(info)
                return StripedRegion(opened(self._by_id, home, info, head, deadline_s))
            except RegionFreedError as error:
                if not home.has_lost(info, deadline_s):
                    raise
                if deadline_s is None or left_s(deadline_s) <= 0.0:
                    raise RegionNotFoundError("no region has this name", name=name) from error

    def counter(self, name: str, init: int = 0) -> Counter:
        """Return the counter ``name``, on the node of its name; see ``Box.counter``."""
        home = self._home(name)
        with home.named():
            return home.box.counter(name, init)

    def barrier(self, name: str, parties: int, *, timeout_s: float | None = None) -> int:
        """Meet others at a barrier, on the node of its name; see ``Box.barrier``."""
        home = self._home(name)
        with home.named():
            return home.box.barrier(name, parties, timeout_s=timeout_s)

    def optimizer(self, region: Region, name: str, **parameters: float) -> Optimizer:
        """Let a region take training steps by itself; its state lies with its parts."""
        if isinstance(region, StripedRegion):
            return StripedOptimizer(region, name, parameters)
        if not isinstance(region, Region):
            raise TypeError(f"an optimizer steps a region, not {type(region).__name__}")
        return self._at(region.address).box.optimizer(region, name, **parameters)

    def batch(self, *, timeout_s: float | None = None) -> Batch:
        """Begin a batch; it is split by node."""
        return ManyBatch(self._by_id, timeout_s)

    def regions(self) -> list[RegionInfo]:
        """List all live regions of all nodes by address, heads and parts included."""
        found: list[RegionInfo] = []
        for node in self._by_id.values():
            with node.named():
                found += node.box.regions()
        return found

    def free(self, region: str | Region | Counter | RegionInfo) -> None:
        """Free a region, a striped one with all its parts; see ``Box.free``.

        Raises:
            PeerLostError, RequestTimeoutError: a node is lost; the name is free and the parts
                on other nodes are gone all the same, if the head could be freed.
        """
        if isinstance(region, StripedRegion):
            if region.nbytes != region.info.nbytes:
                raise ConfigError("free takes a whole region, not a slice", region=region.name)
            striped.free(region.striping, self._home(region.name))
            return
        if isinstance(region, str):
            region = self._home(region).find(region, None)
        elif isinstance(region, Region | Counter):
            node = self._at(region.info.address)
            with node.named():
                node.box.free(region)
            return
        elif not isinstance(region, RegionInfo):
            raise TypeError(f"free takes a region or its name, not {type(region).__name__}")
        self._free_found(region)

    def _free_found(self, info: RegionInfo) -> None:
        node = self._at(info.address)
        head = read_head(node, info)
        if head is None:
            node.free(info)
        else:
            striped.free(head_striping(self._by_id, node, info, head), node)

    def put(self, address: int, x: Any, *, timeout_s: float | None = None) -> None:
        """Write bytes from ``address`` on, at the node that it names; see ``Box.put``."""
        node = self._at(GlobalAddress(address))
        with node.named():
            node.box.put(address, x, timeout_s=timeout_s)

    def get(
        self, address: int, nbytes: int, *, timeout_s: float | None = None
    ) -> NDArray[np.uint8]:
        """Read bytes from ``address`` on, at the node that it names; see ``Box.get``."""
        node = self._at(GlobalAddress(address))
        with node.named():
            return node.box.get(address, nbytes, timeout_s=timeout_s)

    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all earlier operations are complete at all nodes; see ``Box.flush``."""
        deadline_s = deadline_of(self._paths.seconds(timeout_s))
        first_error: SmboxError | None = None
        for node in self._by_id.values():
            try:
                with node.named():
                    node.box.flush(timeout_s=left_s(deadline_s))
            except SmboxError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def stats(self) -> dict[str, Any]:
        """Return the nodes' own figures, by id."""
        found = {}
        for node in self._by_id.values():
            with node.named():
                found[f"node {node.id}"] = node.box.stats()
        return found

    def lock(self, name: str, *, lease_s: float = LEASE_S, timeout_s: float = 300.0) -> Lock:
        """Return a lock, on the node of its name; see ``Box.lock``."""
        return self.home_of(name).lock(name, lease_s=lease_s, timeout_s=timeout_s)

    def home_of(self, name: str) -> Box:
        """Return a box on the one node that a name belongs to."""
        return self._home(name).box

    def before_close(self, end: Callable[[], None]) -> None:
        """Have something called once when the box closes, as long as all nodes can be asked."""
        self._first.before_close(end)

    def not_before_close(self, end: Callable[[], None]) -> None:
        """Have it called no more. Idempotent."""
        self._first.not_before_close(end)

    def leave(self) -> None:
        """Call what is to be called before the box closes, the first node's first."""
        with ExitStack() as stack:  # what is due may fail, and all are left
            for node in reversed(self._by_id.values()):
                stack.callback(node.box.leave)

    def close(self) -> None:
        """Let go of all nodes; see ``Box.close``."""
        with ExitStack() as stack:  # from the last line on
            for node in self._by_id.values():
                stack.callback(node.paths.close)
            for node in self._by_id.values():
                stack.callback(node.paths.say_bye)
            stack.callback(self.leave)

    @property
    def _first(self) -> Box:
        return next(iter(self._by_id.values())).box

    def _home(self, name: str) -> Node:
        return self._by_id[home_of(str(name), self._by_id)]

    def _at(self, address: GlobalAddress) -> Node:
        node = self._by_id.get(address.node)
        if node is None:
            raise AddressRangeError(
                "no node of this box has such addresses",
                address=int(address),
                nodes=[*self._by_id],
            )
        return node

    def __repr__(self) -> str:
        return f"ManyBox({[node.address for node in self._by_id.values()]!r})"

    def __reduce__(self) -> tuple[type[ManyBox], tuple[object, ...]]:
        """Travel as the nodes' settings."""
        return ManyBox, (tuple(self._by_id.values()),)
