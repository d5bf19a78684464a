"""Connecting to several memory nodes, which form one address space."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from smbox.config import ClientConfig
from smbox.errors import ConfigError, PeerLostError
from smbox.many.box import ManyBox
from smbox.many.striping import Node
from smbox.paths.opening import OpenPaths, open_paths
from smbox.paths.pair import PathPair


@dataclass(unsafe_hash=True)
class NodeOpener:
    """Opens the paths to a node, in forked children and pickled copies to one of the same id.

    A node of another id would have other names than the box expects there.

    Attributes:
        node_id: id of the node; None: it was not opened yet. A box has opened it, so the hash
            of a pickled copy does not change.
    """

    node_id: int | None = None

    def __call__(self, config: ClientConfig) -> OpenPaths:
        """Open the paths; raises as ``open_paths``.

        Raises:
            PeerLostError: the node has another id.
        """
        opened = open_paths(config)
        found = opened.control.node.node_id
        if self.node_id not in {None, found}:
            opened.control.close()  # a data path opens nothing before the first request
            raise PeerLostError(
                "a node of another id answers at this address; connect again",
                node=self.node_id,
                found=found,
                outcome="none",
            )
        self.node_id = found
        return opened


def connect(config: ClientConfig, addresses: Iterable[str]) -> ManyBox:
    """Connect to the nodes at all addresses, or to none; raises as ``smbox.connect``."""
    with ExitStack() as opened:
        nodes: dict[int, Node] = {}
        for address in addresses:
            paths = PathPair(replace(config, address=address), NodeOpener())
            opened.callback(paths.close)
            node_id = paths.control().node.node_id
            if node_id in nodes:
                raise ConfigError(
                    "two addresses lead to nodes of one id: start each memory node with a"
                    " --node-id of its own, and name each once",
                    node=node_id,
                    addresses=[nodes[node_id].address, address],
                )
            nodes[node_id] = Node(paths, node_id)
        opened.pop_all()
    return ManyBox(nodes.values())
