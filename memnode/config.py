"""Configuration of a memory node: names and addresses, parsed and checked. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from smbox.address import NODE_MAX
from smbox.config import check_memory, split_address
from smbox.errors import ConfigError

IPC_PATH_LENGTH_MAX: Final = 107  # sun_path of a unix socket, less its final zero

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class Bind:
    """One address to listen on: ``tcp://HOST:PORT`` (port 0: any free one) or ``ipc://PATH``.

    Attributes:
        address: as given; ZeroMQ replaces port 0.
        scheme: ``"tcp"`` or ``"ipc"``.
        host: host of tcp, path of ipc.
        port: of tcp; 0 for ipc.
    """

    address: str
    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, address: str) -> Self:
        """Parse an address.

        Raises:
            ConfigError: neither tcp nor ipc, or the port or path is missing or invalid.
        """
        scheme, host, port = split_address(address, ("tcp", "ipc"))
        if scheme == "ipc" and len(host.encode()) > IPC_PATH_LENGTH_MAX:
            raise ConfigError(
                "the path of an ipc address is too long for a unix socket",
                address=address,
                length_max=IPC_PATH_LENGTH_MAX,
            )
        return cls(address, scheme, host, port)

    @property
    def is_private(self) -> bool:
        """Whether only this host can reach the address."""
        if self.scheme == "ipc" or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:  # an interface or host name: assume that it is public
            return False


# No msgspec struct: before msgspec 0.21 the copy by ``replace`` of a struct is not checked.
@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Configuration of a node, checked on creation.

    Attributes:
        binds: addresses to listen on; at least one.
        name: prefix of the node's segments; None: the port of the first address, or the last
            part of its path.
        memory_nbytes: limit of all segments for the creation of regions. Journals and rings
            count, but may exceed it. None: depends on the free space of /dev/shm.
        keep: leave the memory in place on a clean stop.
        insecure: allow addresses that other hosts can reach.
        keys: folder of keys; every tcp client then needs a key.
        parent_pid: stop when this process ends; None: never.
        node_id: the upper 16 bits of the node's addresses; must differ among the nodes that a
            client connects to at once.
    """

    binds: tuple[Bind, ...]
    name: str | None = None
    memory_nbytes: int | None = None
    keep: bool = False
    insecure: bool = False
    keys: Path | None = None
    parent_pid: int | None = None
    node_id: int = 0

    def __post_init__(self) -> None:
        if not self.binds:
            raise ConfigError("a node needs an address to listen on")
        if self.name is not None and _NAME.fullmatch(self.name) is None:
            raise ConfigError(
                "a node's name is 1 to 64 of A-Z a-z 0-9 _ - and begins with a letter or digit",
                name=self.name,
            )
        if self.memory_nbytes is not None:
            check_memory(self.memory_nbytes)
        if self.parent_pid is not None and self.parent_pid <= 0:
            raise ConfigError("not a process id", parent_pid=self.parent_pid)
        if not 0 <= self.node_id <= NODE_MAX:
            raise ConfigError(f"a node id is 0 to {NODE_MAX}", node_id=self.node_id)
        for bind in self.binds:
            if not bind.is_private and not self.insecure and self.keys is None:
                raise ConfigError(
                    "other hosts can reach this address and nothing is encrypted or "
                    "authenticated; make keys (smbox keygen DIR) and pass --keys DIR, or pass "
                    "--insecure if the network is trusted",
                    address=bind.address,
                )
        if self.insecure and self.keys is not None:
            raise ConfigError("--keys and --insecure exclude each other: pass one of them")

    @property
    def known_name(self) -> str | None:
        """The node's name; None if it depends on a port that is not bound yet."""
        if self.name is not None:
            return self.name
        first = self.binds[0]
        if first.scheme == "tcp":
            return str(first.port) if first.port else None
        return re.sub(r"[^A-Za-z0-9_-]", "-", first.host.rsplit("/", 1)[-1]).strip("-") or "ipc"
