"""Connecting to several memory nodes, which form one address space."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace

from smbox.config import ClientConfig
from smbox.errors import ConfigError
from smbox.many.box import ManyBox
from smbox.many.striping import Node
from smbox.paths.pair import PathPair


def connect(config: ClientConfig, addresses: Iterable[str]) -> ManyBox:
    """Connect to the nodes at all addresses, or to none; raises as ``smbox.connect``."""
    with ExitStack() as opened:
        nodes: dict[int, Node] = {}
        for address in addresses:
            paths = PathPair(replace(config, address=address))
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
