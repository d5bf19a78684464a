"""``smbox.connect()``: a box on one memory node or several, by arguments and environment."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from smbox.box import Box
from smbox.config import ClientConfig, addresses_of
from smbox.errors import ConfigError
from smbox.many.connecting import connect_all
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
        return connect_all(config, addresses)
    paths = PathPair(config)
    paths.open()
    return Box(paths)
