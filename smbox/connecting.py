"""``smbox.connect()``: a box on one memory node or several, by arguments and environment."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from smbox.box import Box
from smbox.config import ClientConfig, addresses_of
from smbox.errors import ConfigError, SmboxError
from smbox.many.box import ManyBox
from smbox.many.node import Node
from smbox.paths.pair import PathPair


def connect(
    address: str | None = None,
    *,
    transport: str | None = None,
    key: str | os.PathLike[str] | None = None,
    timeout_s: float | None = None,
) -> Box:
    """Connect to a memory node, or to all nodes of one address space.

    What is None comes from the environment (``SMBOX_ADDRESS``, ``SMBOX_TRANSPORT``,
    ``SMBOX_TIMEOUT_S``) or has its default; docs/cli.md names some more variables.

    Args:
        address: ``tcp://host:port`` or ``ipc://path``; of several nodes with a comma between
            two, in any order: the box is then over all of them (docs/many_nodes.md).
        transport: "auto" maps the memory where this host shares it; "shm", "tcp" and "ipc"
            force a way.
        key: file of this client's key, for a node that was started with ``--keys``.
        timeout_s: how long connecting, and later every verb, waits when not told; 10. Verbs
            of regions begin it anew as long as some of their array gets through.

    Raises:
        ConfigError: no address, or the transport that was asked for cannot work here; or two
            of several nodes have one id.
        ConnectError: no node answers there, or another one than the key is for.
        AccessDeniedError: the node refuses the key, or wants one.
    """
    given = {
        "address": address,
        "transport": transport,
        "key": None if key is None else os.fspath(key),
        "timeout_s": timeout_s,
    }
    told: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    config = replace(ClientConfig.from_env(os.environ), **told)
    if config.address is None:
        raise ConfigError("no address: give one, or set SMBOX_ADDRESS")
    addresses = addresses_of(config.address)
    if len(addresses) > 1:
        return _connect_all(config, addresses)
    paths = PathPair(config)
    paths.open()
    return Box(paths)


def _connect_all(config: ClientConfig, addresses: tuple[str, ...]) -> ManyBox:
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
