"""``smbox.connect()``: a box on one memory node, or on several that form one address space."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Final

from smbox.box import Box
from smbox.config import ClientConfig, addresses_of
from smbox.errors import ConfigError
from smbox.many import connecting as many
from smbox.paths.pair import PathPair

NO_ADDRESS: Final = (
    "no address: pass one (--address of a command), set SMBOX_ADDRESS, or start the script with"
    " smbox run"
)


def connect(
    address: str | None = None,
    *,
    transport: str | None = None,
    key: str | os.PathLike[str] | None = None,
    timeout_s: float | None = None,
) -> Box:
    """Connect to a memory node, or to all nodes of one address space.

    An argument that is None is read from the environment (``SMBOX_ADDRESS``,
    ``SMBOX_TRANSPORT``, ``SMBOX_KEY``, ``SMBOX_TIMEOUT_S``), else it has its default;
    docs/cli.md lists more variables.

    Args:
        address: ``tcp://host:port`` or ``ipc://path``. Addresses of several nodes are separated
            by commas, in any order; the box then spans all of them (docs/many_nodes.md).
        transport: "auto" maps the memory if it is on this host, else it sends messages; "shm",
            "tcp" and "ipc" allow only that transport.
        key: file of this client's key, for a node that was started with ``--keys``.
        timeout_s: timeout of connecting and default timeout of every verb, in seconds; 10 by
            default. The timeout of a region's verb restarts as long as part of its array is
            transferred.

    Raises:
        ConfigError: no address is given, the transport cannot work here, or two of several
            nodes have the same id.
        ConnectError: no node answers at the address, or the node is not the one that the key is
            for.
        AccessDeniedError: the node refuses the key, or requires one.
    """
    given: dict[str, Any] = {
        "address": address,
        "transport": transport,
        "key": None if key is None else os.fspath(key),
        "timeout_s": timeout_s,
    }
    given = {name: value for name, value in given.items() if value is not None}
    config = replace(ClientConfig.from_env(os.environ), **given)
    if config.address == "":
        raise ConfigError(NO_ADDRESS)
    addresses = addresses_of(config.address)
    if len(addresses) > 1:
        return many.connect(config, addresses)
    paths = PathPair(replace(config, address=addresses[0]))
    paths.open()
    return Box(paths)
