"""What a laboratory consists of, as a TOML file says it. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import msgspec

from smbox import toml
from smbox.errors import ConfigError

HOSTS_MAX: Final = 200
NETWORK: Final = "10.77.0"
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,30}")


class Kind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[host]]`` of the file: a host, or ``count`` equal ones.

    Attributes:
        name: of the host; of several, the name is followed by a number from 0 on.
        count: how many.
        rate_mbit: of its link, each way, in 10^6 bit/s; 0 is unlimited; None: the file's.
        delay_ms: that each packet waits on its link, each way; None: the file's.
        cores: of the machine that its processes may use; none: those of the laboratory.
        workers: that ``lab run`` starts there.
        memory: size of the memory node that is started there, as "1GiB"; "": none.
        island: name of the island whose switch its link leads to; "": the switch of all.
    """

    name: str
    count: int = 1
    rate_mbit: float | None = None
    delay_ms: float | None = None
    cores: tuple[int, ...] = ()
    workers: int = 0
    memory: str = ""
    island: str = ""


class Island(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[island]]`` of the file: a switch of its own, linked with the switch of all.

    Attributes:
        name: of the island.
        rate_mbit: of that link, which all hosts of the island share, each way, in 10^6 bit/s;
            0 is unlimited.
    """

    name: str
    rate_mbit: float = 0.0


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file.

    Attributes:
        host: kinds of hosts.
        island: islands; none: all hosts are at one switch.
        rate_mbit: of links that say nothing else; 0 is unlimited.
        delay_ms: on links that say nothing else.
        keys: whether memory nodes ask for keys and encrypt.
    """

    host: tuple[Kind, ...]
    island: tuple[Island, ...] = ()
    rate_mbit: float = 0.0
    delay_ms: float = 0.0
    keys: bool = True


@dataclass(frozen=True, slots=True)
class HostSpec:
    """One host; fields as of Kind."""

    name: str
    ip: str
    rate_mbit: float
    delay_ms: float
    cores: tuple[int, ...]
    workers: int
    memory: str
    island: str = ""


@dataclass(frozen=True, slots=True)
class Spec:
    """All hosts and islands, in the order of the file; ``keys`` as of File."""

    hosts: tuple[HostSpec, ...]
    keys: bool
    islands: tuple[Island, ...] = ()


def read(text: bytes) -> Spec:
    """Read the text of a TOML file.

    Raises:
        ConfigError: it is no TOML, has unknown fields, or describes what cannot be.
    """
    file = toml.decode(text, File, "this describes no laboratory (docs/lab.md)")
    hosts = tuple(
        HostSpec(
            name,
            f"{NETWORK}.{number}",
            file.rate_mbit if kind.rate_mbit is None else kind.rate_mbit,
            file.delay_ms if kind.delay_ms is None else kind.delay_ms,
            kind.cores,
            kind.workers,
            kind.memory,
            kind.island,
        )
        for number, (name, kind) in enumerate(_named(file.host), start=1)
    )
    _check(hosts)
    _check_islands(hosts, file.island)
    return Spec(hosts, file.keys, file.island)


def _named(kinds: tuple[Kind, ...]) -> list[tuple[str, Kind]]:
    return [
        (kind.name if kind.count == 1 else f"{kind.name}{number}", kind)
        for kind in kinds
        for number in range(kind.count)
    ]


def _check(hosts: tuple[HostSpec, ...]) -> None:
    names = [host.name for host in hosts]
    if not 1 <= len(hosts) <= HOSTS_MAX:
        raise ConfigError(f"a laboratory has 1 to {HOSTS_MAX} hosts", hosts=len(hosts))
    for host in hosts:
        if _NAME.fullmatch(host.name) is None or names.count(host.name) > 1:
            raise ConfigError(
                "names of hosts differ, begin with a letter and hold a-z 0-9 -", name=host.name
            )
        if not all(map(_is_amount, (host.rate_mbit, host.delay_ms, host.workers))):
            raise ConfigError(
                "rate_mbit, delay_ms and workers are finite and not negative", host=host.name
            )


def _is_amount(value: float) -> bool:
    return 0 <= value < math.inf


def _check_islands(hosts: tuple[HostSpec, ...], islands: tuple[Island, ...]) -> None:
    names = [island.name for island in islands]
    for island in islands:
        if not island.name or names.count(island.name) > 1 or not _is_amount(island.rate_mbit):
            raise ConfigError(
                "names of islands differ, and rate_mbit is finite and not negative",
                island=island.name,
            )
    for host in hosts:
        if host.island and host.island not in names:
            raise ConfigError(
                "a host is on an island of the file: add an [[island]] of this name",
                host=host.name,
                island=host.island,
            )
