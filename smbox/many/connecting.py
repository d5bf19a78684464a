"""Connecting to several memory nodes: all of them, each with an id of its own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from smbox.config import ClientConfig
from smbox.errors import ConfigError, SmboxError
from smbox.many.box import ManyBox
from smbox.many.node import Node
from smbox.paths.pair import PathPair


def connect_all(config: ClientConfig, addresses: tuple[str, ...]) -> ManyBox:
    """Connect to all nodes; raises as ``connect``, and ConfigError for ids that are equal.

    Args:
        config: complete settings; the address in it is not used.
        addresses: one for each node, in any order.
    """
    with ExitStack() as opened:
        nodes: dict[int, Node] = {}
        for address in addresses:
            paths = PathPair(replace(config, address=address))
            opened.callback(paths.close)
            node_id = _id_of(paths, address)
            if node_id in nodes:
                raise ConfigError(
                    "two addresses lead to nodes of one id: start each memory node with a"
                    " --node-id of its own, and name each once",
                    node=node_id,
                    addresses=[nodes[node_id].address, address],
                )
            nodes[node_id] = Node(paths, node_id)
        opened.pop_all()
    return ManyBox([*nodes.values()])


def _id_of(paths: PathPair, address: str) -> int:
    """Connect and return the node's id; what fails names the address."""
    try:
        return paths.open().control.node.node_id
    except SmboxError as error:
        error.facts.setdefault("address", address)
        raise
