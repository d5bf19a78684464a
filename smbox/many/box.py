"""ManyBox: a box over several memory nodes, with the verbs of a Box."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from typing import Any, cast

from msgspec.structs import replace

from smbox.address import GlobalAddress
from smbox.box import Box
from smbox.deadline import left_s
from smbox.directory import find
from smbox.errors import AddressRangeError, ConfigError, RegionFreedError, RegionNotFoundError
from smbox.many import creating as striped
from smbox.many.paths import ManyPath
from smbox.many.sharing import shares_of
from smbox.many.striping import (
    Node,
    Nodes,
    StripedInfo,
    home_of,
    node_of,
    opened,
    striped_info,
)
from smbox.optimizer import Optimizer, create_state
from smbox.paths.opening import DataPath, OpenPaths
from smbox.paths.pair import PathPair
from smbox.paths.requests import CreateRequest, NodeInfo, Operation, RegionInfo
from smbox.region import Region


class ManyPaths(PathPair):
    """The paths to several nodes, shared with all objects of a box. Pickles as its nodes.

    Attributes:
        nodes: the nodes, by id.

    Args:
        nodes: at least one node; their ids differ.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: Nodes = {node.id: node for node in sorted(nodes, key=lambda node: node.id)}
        self._first = next(iter(self.nodes.values()))
        super().__init__(self._first.paths.config)  # all nodes have the same settings

    def data(self, info: RegionInfo | None = None) -> DataPath:
        """Return the data path of a region: its node's, or that of all nodes if striped."""
        if info is None or isinstance(info, StripedInfo):
            return cast(DataPath, ManyPath(self.nodes))
        with self.at(info.address).named() as paths:
            return paths.data(info)

    def shares(self, operation: Operation) -> list[Operation]:
        """Return a change as one for each of its nodes; raises as ``data`` does."""
        if not isinstance(operation.info, StripedInfo):
            return super().shares(operation)
        shares = [cast(Operation, share) for _, share in shares_of(operation)]
        for share in shares:
            self.data(share.info)
        return shares

    def open(self) -> OpenPaths:
        """Open the paths to all nodes; the control path is the first node's."""
        reasons = [
            f"node {node.id}: {node.box.transport_reason}" for node in self.nodes.values()
        ]
        return OpenPaths(self._first.control, self.data(), "; ".join(reasons))

    def home(self, name: object) -> Node:
        """Return the node that a name belongs to; what is not a str is refused by any node."""
        text = name if isinstance(name, str) else ""
        return self.nodes[home_of(text, self.nodes)]

    def at(self, address: int) -> Node:
        """Return the node of a global address.

        Raises:
            AddressRangeError: no node of this box has the address.
        """
        node = self.nodes.get(GlobalAddress(address).node)
        if node is None:
            raise AddressRangeError(
                "no node of this box has such addresses",
                address=int(address),
                nodes=[*self.nodes],
            )
        return node

    def close(self) -> None:
        """Close the paths to all nodes; tell all nodes before waiting for any. Idempotent."""
        with ExitStack() as stack:  # runs the last callback first, and all even if one fails
            for node in self.nodes.values():
                stack.callback(node.paths.close)
            for node in self.nodes.values():
                stack.callback(node.paths.say_bye)

    def __reduce__(self) -> tuple[type[ManyPaths], tuple[object, ...]]:
        """Pickle the nodes' settings."""
        return ManyPaths, (tuple(self.nodes.values()),)


class ManyBox(Box):
    """A client's connection to several memory nodes; a context manager.

    A region lies on the node of its name, or is striped over all nodes. Counters, barriers,
    locks and runs lie on the node of their name. Thread-safe. A forked child and a pickled copy
    open new connections on first use. All clients of an address space connect to the same
    nodes.

    Args:
        nodes: at least one node; their ids differ.
    """

    _paths: ManyPaths  # type: ignore[mutable-override] # no box changes its paths

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(ManyPaths(nodes))

    @property
    def address(self) -> str:
        """Addresses of the nodes, separated by commas; other processes can connect to them."""
        return ",".join(node.control.address for node in self._paths.nodes.values())

    @property
    def node(self) -> NodeInfo:
        """Not available: raises ConfigError, as there are several nodes; see ``nodes``."""
        message = "this box is on several nodes: see box.nodes"
        raise ConfigError(message, nodes=[*self._paths.nodes])

    @property
    def nodes(self) -> tuple[NodeInfo, ...]:
        """Name, id, memory and incarnation of all nodes, in order of id."""
        return tuple(node.control.node for node in self._paths.nodes.values())

    def _at_name(self, name: str) -> AbstractContextManager[PathPair]:
        return self._paths.home(name).named()

    def _at_address(self, address: int) -> AbstractContextManager[PathPair]:
        return self._paths.at(address).named()

    def _create(
        self, request: CreateRequest, values: Any, layout: str, deadline_s: float | None
    ) -> Region:
        if layout == "striped":
            info = striped.create(self._paths.nodes, request, values, deadline_s)
            return Region(self._paths, info)
        return super()._create(request, values, layout, deadline_s)

    def _attach(self, name: str, deadline_s: float | None) -> Region:
        home = self._paths.home(name)
        while True:
            with home.named() as paths:
                info = find(paths, name, deadline_s)
            try:
                head = home.head_of(info, deadline_s)
                if head is None:
                    return Region(paths, info)
                return Region(self._paths, opened(self._paths.nodes, info, head, deadline_s))
            except RegionFreedError as error:
                if not home.was_freed(info, deadline_s):
                    raise
                if deadline_s is None or left_s(deadline_s) <= 0.0:
                    raise RegionNotFoundError("no region has this name", name=name) from error

    def optimizer(self, region: Region, name: str, **parameters: float) -> Optimizer:
        """Return a server-side optimizer of a region; its state lies with the region's parts.

        See ``Box.optimizer``.
        """
        if not isinstance(region, Region):
            raise TypeError(f"an optimizer steps a region, not {type(region).__name__}")
        if isinstance(region.info, StripedInfo):
            return StripedOptimizer(self._paths, region, name, parameters)
        node = self._paths.at(region.address)
        with node.named():
            return node.box.optimizer(region, name, **parameters)

    def regions(self) -> list[RegionInfo]:
        """Return all regions of all nodes in order of address, heads and parts included."""
        found: list[RegionInfo] = []
        for node in self._paths.nodes.values():
            with node.named():
                found += node.box.regions()
        return found

    def _find(self, name: str, deadline_s: float | None) -> RegionInfo:
        return self._paths.home(name).find(name, deadline_s)

    def _free(self, info: RegionInfo) -> None:
        if isinstance(info, StripedInfo):
            striped.free(self._paths.nodes, info)
            return
        node = self._paths.at(info.address)
        head = node.head_of(info)
        if head is None:
            node.free(info)
        else:
            striped.free(self._paths.nodes, striped_info(info, head))

    def stats(self) -> dict[str, Any]:
        """Return the statistics of each node, by "node ID"."""
        found = {}
        for node in self._paths.nodes.values():
            with node.named():
                found[f"node {node.id}"] = node.box.stats()
        return found

    def home_of(self, name: str) -> Box:
        """Return a box on the one node that a name belongs to."""
        return self._paths.home(name).box

    def leave(self) -> None:
        """Call all functions registered by ``before_close``, while all nodes can be used."""
        with ExitStack() as stack:  # calls all even if one fails
            for node in reversed([*self._paths.nodes.values()]):
                stack.callback(node.box.leave)
            stack.callback(super().leave)

    def __repr__(self) -> str:
        return f"ManyBox({[node.address for node in self._paths.nodes.values()]!r})"

    def __reduce__(self) -> tuple[type[ManyBox], tuple[object, ...]]:
        """Pickle the nodes' settings."""
        return ManyBox, (tuple(self._paths.nodes.values()),)


class StripedOptimizer(Optimizer):
    """A server-side optimizer on a striped region; thread-safe.

    A step changes the parameters and state of a stripe together, as on one node. The state of a
    part is on the part's node, under the part's name. Free the state before the region: a new
    region of the same name has other parts.

    Attributes:
        region: the parameters.
        states: the state, as striped regions by name.

    Args:
        paths: paths to all nodes, shared with the box.
        region: a whole striped region of a float dtype and consistency "stripe".
        name: see Optimizer.
        given: see Optimizer.

    Raises:
        ConfigError: the name, parameters or region are invalid; nothing was created.
        SmboxError: a node refused its state, or is lost; the error names it.
    """

    _paths: ManyPaths  # type: ignore[mutable-override] # no optimizer changes its paths

    def free(self) -> None:
        """Free the state, for all workers; the parameters stay."""
        states = (state.info for state in self.states.values())
        parts = (state.parts for state in states if isinstance(state, StripedInfo))
        striped.free_parts(self._paths.nodes, chain.from_iterable(parts))

    def _state(self, name: str, value: float) -> Region:
        whole = self.region.info
        assert isinstance(whole, StripedInfo)
        made = []
        nodes = [node_of(self._paths.nodes, whole.name, part) for part in whole.parts]
        for node, part in zip(nodes, whole.parts, strict=True):
            with node.named() as paths:
                made.append(create_state(paths, part, name, value))
        first = made[0]
        parts = replace(
            whole, name=first.name, address=first.address, parts=tuple(made), head=None
        )
        return Region(self._paths, parts)
