"""Which path a client takes to its node, and why."""

from __future__ import annotations

from dataclasses import dataclass

from smbox.config import ClientConfig, scheme_of
from smbox.errors import ConfigError
from smbox.paths.base import ControlPath, DataPath, NodeInfo
from smbox.paths.local import LocalPath
from smbox.paths.opening import open_remote
from smbox.paths.proof import why_not_shared


@dataclass(frozen=True, slots=True)
class Opened:
    """A client's two paths to its node.

    Args:
        control: to the node's own services.
        data: to the regions' bytes.
        reason: why this data path, in words.
    """

    control: ControlPath
    data: DataPath
    reason: str


def open_paths(config: ClientConfig) -> Opened:
    """Connect to the node and choose the data path.

    Raises:
        ConfigError: the transport that was asked for cannot work here; says why.
        ConnectError: no node answers at the address.
    """
    remote = open_remote(config)
    try:
        reason = choose(config, remote.control.node)
        if reason is None:
            why = why_not_shared(remote.control.node)
            return Opened(
                remote.control, remote.data, why or f"{config.transport} was asked for"
            )
        data = LocalPath(remote.control.node)
    except BaseException:
        remote.data.close()
        remote.control.close()
        raise
    remote.data.close()
    return Opened(remote.control, data, reason)


def choose(config: ClientConfig, node: NodeInfo) -> str | None:
    """Return why the memory is mapped, or None where messages carry the data.

    Raises:
        ConfigError: the transport that was asked for cannot work.
    """
    if config.transport in {"tcp", "ipc"}:
        _check_scheme(config)
        return None
    why_not = why_not_shared(node)
    if why_not is None:
        return f"node {node.name!r} keeps its memory in this /dev/shm"
    if config.transport == "shm":
        raise ConfigError(f"transport shm cannot work: {why_not}", node=node.name)
    return None


def _check_scheme(config: ClientConfig) -> None:
    scheme = scheme_of(config.address or "")
    if scheme != config.transport:
        raise ConfigError(
            f"transport {config.transport} cannot work: the address is one of {scheme}",
            address=config.address,
        )
