"""ManyBox: several memory nodes as one address space, with the verbs of a Box."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smbox import directory
from smbox.address import GlobalAddress
from smbox.box import Box
from smbox.deadline import left_s
from smbox.errors import ConfigError, RegionFreedError, RegionNotFoundError
from smbox.many import creating as striped
from smbox.many.node import Node
from smbox.many.paths import ManyPaths
from smbox.many.striping import StripedInfo, opened, striped_info
from smbox.optimizer import Optimizer, create_state
from smbox.paths.work import CreateRequest, NodeInfo, RegionInfo
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

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._many = ManyPaths(nodes)
        super().__init__(self._many)
        self._by_id = self._many.nodes

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

    def _create(
        self, request: CreateRequest, values: Any, layout: str, deadline_s: float | None
    ) -> Region:
        if layout == "striped":
            info = striped.create(self._by_id, request, values, deadline_s)
            return Region(self._paths, info)
        home = self._many.home(request.name)
        with home.named():
            return directory.create(home.paths, request, values, deadline_s)

    def _attach(self, name: str, deadline_s: float | None) -> Region:
        """Find a region; also RegionFreedError, PeerLostError: a part was freed, or is lost."""
        home = self._many.home(name)
        while True:
            info = home.attach(name, deadline_s)
            try:
                head = home.head_of(info, deadline_s)
                if head is None:
                    return Region(home.paths, info)
                return Region(self._paths, opened(self._by_id, info, head, deadline_s))
            except RegionFreedError as error:
                if not home.has_lost(info, deadline_s):
                    raise
                if deadline_s is None or left_s(deadline_s) <= 0.0:
                    raise RegionNotFoundError("no region has this name", name=name) from error

    def counter(self, name: str, init: int = 0) -> Counter:
        """Return the counter ``name``, on the node of its name; see ``Box.counter``."""
        home = self._many.home(name)
        with home.named():
            return home.box.counter(name, init)

    def barrier(self, name: str, parties: int, *, timeout_s: float | None = None) -> int:
        """Meet others at a barrier, on the node of its name; see ``Box.barrier``."""
        home = self._many.home(name)
        with home.named():
            return home.box.barrier(name, parties, timeout_s=timeout_s)

    def optimizer(self, region: Region, name: str, **parameters: float) -> Optimizer:
        """Let a region take training steps by itself; its state lies with its parts."""
        if not isinstance(region, Region):
            raise TypeError(f"an optimizer steps a region, not {type(region).__name__}")
        if isinstance(region.info, StripedInfo):
            return StripedOptimizer(self._many, region, name, parameters)
        return self._many.at(region.address).box.optimizer(region, name, **parameters)

    def regions(self) -> list[RegionInfo]:
        """List all live regions of all nodes by address, heads and parts included."""
        found: list[RegionInfo] = []
        for node in self._by_id.values():
            with node.named():
                found += node.box.regions()
        return found

    def _find(self, name: str) -> RegionInfo:
        return self._many.home(name).find(name, None)

    def _free(self, info: RegionInfo) -> None:
        if isinstance(info, StripedInfo):
            striped.free(self._by_id, info)
            return
        node = self._many.at(info.address)
        head = node.head_of(info)
        if head is None:
            node.free(info)
        else:
            striped.free(self._by_id, striped_info(info, head))

    def put(self, address: int, x: Any, *, timeout_s: float | None = None) -> None:
        """Write bytes from ``address`` on, at the node that it names; see ``Box.put``."""
        node = self._many.at(GlobalAddress(address))
        with node.named():
            node.box.put(address, x, timeout_s=timeout_s)

    def get(
        self, address: int, nbytes: int, *, timeout_s: float | None = None
    ) -> NDArray[np.uint8]:
        """Read bytes from ``address`` on, at the node that it names; see ``Box.get``."""
        node = self._many.at(GlobalAddress(address))
        with node.named():
            return node.box.get(address, nbytes, timeout_s=timeout_s)

    def stats(self) -> dict[str, Any]:
        """Return the nodes' own figures, by id."""
        found = {}
        for node in self._by_id.values():
            with node.named():
                found[f"node {node.id}"] = node.box.stats()
        return found

    def home_of(self, name: str) -> Box:
        """Return a box on the one node that a name belongs to."""
        return self._many.home(name).box

    def leave(self) -> None:
        """Call what is to be called before the box closes, as long as all nodes answer."""
        with ExitStack() as stack:  # what is due may fail, and all are left
            for node in reversed([*self._by_id.values()]):
                stack.callback(node.box.leave)
            stack.callback(super().leave)

    def __repr__(self) -> str:
        return f"ManyBox({[node.address for node in self._by_id.values()]!r})"

    def __reduce__(self) -> tuple[type[ManyBox], tuple[object, ...]]:
        """Travel as the nodes' settings."""
        return ManyBox, (tuple(self._by_id.values()),)


class StripedOptimizer(Optimizer):
    """A server-side optimizer on a striped region; thread-safe.

    A step changes the parameters and state of a stripe together, as on one node. The state of
    a part is on its node, under the part's name; free it before the region, for a new region
    of the same name has other parts.

    Attributes:
        region: the parameters.
        states: the state, each as a striped region, by name.

    Args:
        paths: to all nodes, shared with the box.
        region: a whole striped region of floats, of consistency "stripe".
        name: as in Optimizer.
        given: its parameters by name.

    Raises:
        ConfigError: name, parameters or region make no sense; nothing was created.
        SmboxError: a node refused its state, or is lost; it is named.
    """

    def __init__(
        self, paths: ManyPaths, region: Region, name: str, given: dict[str, float]
    ) -> None:
        self._nodes = paths.nodes
        super().__init__(paths, region, name, given)

    def free(self) -> None:
        """Free the state, for all workers; the parameters stay."""
        states = (state.info for state in self.states.values())
        parts = (state.parts for state in states if isinstance(state, StripedInfo))
        striped.free_parts(self._nodes, chain.from_iterable(parts))

    def _state(self, name: str, value: float) -> Region:
        whole = self.region.info
        assert isinstance(whole, StripedInfo)
        made = []
        for part in whole.parts:
            node = self._nodes[part.address.node]
            with node.named():
                made.append(create_state(node.paths, part, name, value))
        first = made[0]
        parts = replace(
            whole, name=first.name, address=first.address, parts=tuple(made), head=None
        )
        return Region(self._paths, parts)

    def __repr__(self) -> str:
        return f"StripedOptimizer({self.region.name!r})"
