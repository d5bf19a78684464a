"""What a laboratory consists of, as a TOML file says it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec

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
    """

    name: str
    count: int = 1
    rate_mbit: float | None = None
    delay_ms: float | None = None
    cores: tuple[int, ...] = ()
    workers: int = 0
    memory: str = ""


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file.

    Attributes:
        host: kinds of hosts.
        rate_mbit: of links that say nothing else; 0 is unlimited.
        delay_ms: on links that say nothing else.
        keys: whether memory nodes ask for keys and encrypt.
    """

    host: tuple[Kind, ...]
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


@dataclass(frozen=True, slots=True)
class Spec:
    """All hosts, in the order of the file; ``keys`` as of File."""

    hosts: tuple[HostSpec, ...]
    keys: bool


def read(text: bytes) -> Spec:
    """Read the text of a TOML file.

    Raises:
        ConfigError: it is no TOML, has unknown fields, or describes what cannot be.
    """
    try:
        file = msgspec.toml.decode(text, type=File)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"this describes no laboratory: {error} (docs/lab.md)") from error
    hosts = tuple(
        HostSpec(
            name,
            f"{NETWORK}.{number}",
            file.rate_mbit if kind.rate_mbit is None else kind.rate_mbit,
            file.delay_ms if kind.delay_ms is None else kind.delay_ms,
            kind.cores,
            kind.workers,
            kind.memory,
        )
        for number, (name, kind) in enumerate(_named(file.host), start=1)
    )
    _check(hosts)
    return Spec(hosts, file.keys)


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
        if min(host.rate_mbit, host.delay_ms, host.workers) < 0:
            raise ConfigError(
                "rate_mbit, delay_ms and workers are not negative", host=host.name
            )
