"""The hosts of a run, read from a TOML file (``smbox run --hosts``). Pure."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from smbox import toml
from smbox.config import check_memory, parse_size
from smbox.errors import ConfigError
from smbox_torch.world import TORCHELASTIC, bracketed

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PORT_MAX: Final = (1 << 16) - 1
WORKERS_MAX: Final = 10_000
"""Maximum number of workers of all hosts together."""

TORCHRUN: Final = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    )
)
"""Variables of torchrun, besides those that begin with TORCHELASTIC."""

STAYS: Final = frozenset(
    (
        *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "TMPDIR", "DISPLAY"),
        *("PWD", "OLDPWD", "SHLVL", "_"),
    )
)
"""Variables of a host or login, besides those that begin with a prefix in _SESSION."""

_SESSION: Final = ("SSH_", "XDG_", "DBUS_")


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[host]]`` of the file.

    Attributes:
        name: name of the host in messages.
        address: IP address at which the other hosts reach it; loopback only for a single host.
        workers: number of workers on it.
        enter: command prefix that runs a command there, for example ssh; empty: this host.
        memory: size of its memory node, as "8GiB"; "": see ``--memory-nodes``.
        port: port of that node; 0: a free port.
        folder: working directory of its workers; "": that of the launcher.
        python: interpreter that has smbox; "": the path of the launcher's interpreter.
        env: more variables for its processes.
    """

    name: str
    address: str
    workers: int = 0
    enter: tuple[str, ...] = ()
    memory: str = ""
    port: int = 0
    folder: str = ""
    python: str = ""
    env: dict[str, str] = {}

    def bind(self) -> str:
        """Return the address on which its memory node listens."""
        return f"tcp://{bracketed(self.address)}:{self.port}"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    host: tuple[Host, ...]


def read(text: bytes) -> tuple[Host, ...]:
    """Read the text of a TOML file.

    Raises:
        ConfigError: the text is not TOML, has unknown fields or invalid values.
    """
    hosts = toml.decode(text, _File, "this is not a file of hosts (docs/hosts.md)").host
    check(hosts)
    return hosts


def check(hosts: tuple[Host, ...]) -> None:
    """Raise ConfigError unless a run can have these hosts."""
    counts = Counter(host.name for host in hosts)
    for host in hosts:
        if _NAME.fullmatch(host.name) is None or counts[host.name] > 1:
            raise ConfigError(
                "the names of hosts must differ and consist of letters, digits, '.', '_', '-'",
                name=host.name,
            )
        _check_address(host, is_alone=len(hosts) == 1)
        _check_host(host)
    workers = sum(host.workers for host in hosts)
    if not workers:
        raise ConfigError("no host has workers: give one of them `workers = 1`")
    if workers > WORKERS_MAX:
        raise ConfigError(f"a run has at most {WORKERS_MAX} workers")


def _check_address(host: Host, *, is_alone: bool) -> None:
    """Raise ConfigError for an address at which other hosts cannot reach this host."""
    try:
        address = ipaddress.ip_address(host.address)
    except ValueError as error:
        raise ConfigError(
            "the address of a host is an IP address, not a name: its memory node listens there",
            host=host.name,
            key="address",
            address=host.address,
        ) from error
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    is_own = address.is_loopback and not is_alone
    if is_own or address.is_unspecified or address.is_multicast:
        raise ConfigError(
            "other hosts cannot reach an unspecified, loopback or multicast address: give the"
            " address of the host's network interface",
            host=host.name,
            key="address",
            address=host.address,
        )


def _check_host(host: Host) -> None:
    if host.workers < 0 or not 0 <= host.port <= PORT_MAX:
        raise ConfigError(
            f"workers must be at least 0, and port from 0 to {PORT_MAX}", host=host.name
        )
    if shlex.quote(host.python or "-") != (host.python or "-"):
        raise ConfigError(
            "a shell on the host reads the path of python: give one without blanks and quotes",
            host=host.name,
            python=host.python,
        )
    _check_env(host)
    texts = {
        "enter": host.enter,
        "memory": [host.memory],
        "folder": [host.folder],
        "env": [*host.env, *host.env.values()],
    }
    wrong = [key for key, words in texts.items() if any("\0" in word for word in words)]
    if wrong:
        raise ConfigError(
            "the operating system accepts no text with a NUL (\\u0000)",
            host=host.name,
            keys=wrong,
        )
    try:
        if host.memory:
            check_memory(parse_size(host.memory))
    except ConfigError as error:
        raise ConfigError(
            error.message, host=host.name, key="memory", memory=host.memory
        ) from error


def _check_env(host: Host) -> None:
    own = sorted(name for name in host.env if name.startswith("SMBOX_"))
    if own:
        raise ConfigError(
            "SMBOX_ variables are set by the run: leave them out of env",
            host=host.name,
            variables=own,
        )
    if any(not name or "=" in name for name in host.env):
        raise ConfigError(
            "names of variables in env must not be empty or contain '='", host=host.name
        )


def travelling(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are sent to hosts: all except those of a host or login."""
    return {
        name: value
        for name, value in env.items()
        if name not in STAYS and not name.startswith(_SESSION)
    }


def without_places(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables without torchrun's, which describe another process."""
    return {
        name: value
        for name, value in env.items()
        if name not in TORCHRUN and not name.startswith(TORCHELASTIC)
    }
