"""Client settings, address syntax and memory sizes, checked when they are read. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Final

from smbox.address import OFFSET_BITS
from smbox.errors import ConfigError

TRANSPORTS: Final = ("auto", "shm", "tcp", "ipc")
SCHEMES: Final = ("tcp", "ipc", "inproc")
TCP_FORM: Final = "a tcp address is tcp://host:port, of IPv6 tcp://[::1]:port"
WINDOW_MAX: Final = 16
"""Most requests in flight on a channel; the node keeps the answers of two stripes for each."""
MEMORY_NBYTES_MIN: Final = 1 << 20
MEMORY_NBYTES_MAX: Final = 1 << OFFSET_BITS  # a node has this many addresses

_TCP = re.compile(r"((?:.*;)?(?:\[[^][]+\]|[^][:;]+)):([0-9]{1,5})")
"""Host, with brackets if it is of IPv6, and port. A ZeroMQ source address, ``source:port;``,
may precede them."""

_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


# No msgspec struct: before msgspec 0.21 the copy by ``replace`` of a struct is not checked.
@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a client; an environment variable exists for each.

    Args:
        address: ``tcp://host:port`` or ``ipc://path`` of the memory node; addresses of several
            nodes are separated by commas; "": none; ``$SMBOX_ADDRESS``.
        transport: one of ``TRANSPORTS``; "auto" maps the memory if possible;
            ``$SMBOX_TRANSPORT``.
        key: file of the client's key, for a node that other hosts reach (smbox/keys.py); used
            on tcp only; ``$SMBOX_KEY``.
        timeout_s: default timeout of a call in seconds; it restarts as long as part of a large
            array is transferred; ``$SMBOX_TIMEOUT_S``.
        resend_after_s: seconds without any reply after which a thread opens a new connection
            and sends unanswered requests again. The thread waits longer if the last reply took
            more than half as long, or after a failed attempt; ``$SMBOX_RESEND_AFTER_S``.
        resend_after_max_s: the longest such pause, in seconds, while the node does not answer;
            ``$SMBOX_RESEND_AFTER_MAX_S``.
        lend_from_nbytes: reads of at least this many bytes over messages are sent without a
            copy at the node, and take one more round trip at the end. Increase it if round
            trips are slow; ``inf`` disables such reads; ``$SMBOX_LEND_FROM_NBYTES``.

    Raises:
        ConfigError: a value is impossible.
    """

    address: str = ""
    transport: str = "auto"
    timeout_s: float = 10.0
    resend_after_s: float = 1.0
    resend_after_max_s: float = 5.0
    lend_from_nbytes: float = 16 << 20
    key: str | None = None

    def __post_init__(self) -> None:
        if self.address != "":
            for address in addresses_of(self.address):
                scheme_of(address)
        if self.transport not in TRANSPORTS:
            raise ConfigError(
                f"transport is one of {', '.join(TRANSPORTS)}", transport=self.transport
            )
        for name in ("timeout_s", "resend_after_s", "resend_after_max_s"):
            value_s: object = getattr(self, name)
            if not isinstance(value_s, Real) or not float(value_s) > 0:
                raise ConfigError(f"{name} is a positive number of seconds", value=value_s)
        if math.isnan(self.lend_from_nbytes) or self.lend_from_nbytes < 1:
            raise ConfigError("lend_from_nbytes is at least 1", value=self.lend_from_nbytes)
        if self.resend_after_max_s < self.resend_after_s:
            raise ConfigError(
                "resend_after_max_s is at least resend_after_s",
                resend_after_s=self.resend_after_s,
                resend_after_max_s=self.resend_after_max_s,
            )

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> ClientConfig:
        """Read the settings from ``environment``; settings without a variable keep defaults.

        Raises:
            ConfigError: a value cannot be parsed; the message names its variable.
        """
        given: dict[str, Any] = {}
        for field in fields(cls):
            is_text = field.name in {"address", "transport", "key"}
            variable = variable_of(field.name)
            text = environment.get(variable)
            if text is None or (is_text and not text):
                continue
            try:
                given[field.name] = text if is_text else float(text)
            except ValueError as error:
                raise ConfigError(f"{variable} is not a number", value=text) from error
        if "resend_after_s" in given:  # a longer pause also raises the maximum
            longest_s = max(given["resend_after_s"], cls().resend_after_max_s)
            given.setdefault("resend_after_max_s", longest_s)
        return cls(**given)


def variable_of(setting: str) -> str:
    """Return the environment variable of a setting."""
    return f"SMBOX_{setting.upper()}"


def addresses_of(address: str) -> tuple[str, ...]:
    """Split ``address`` at each comma that precedes a scheme; a path may contain commas.

    Raises:
        TypeError: ``address`` is not a str.
    """
    if not hasattr(address, "partition"):
        raise TypeError(f"an address is a str, not {type(address).__name__}")
    return tuple(re.split(r"\s*,\s*(?=\w+://)", address.strip()))


def scheme_of(address: str) -> str:
    """Return the scheme of ``address``: "tcp", "ipc" or "inproc".

    Raises:
        ConfigError: ``address`` has another form.
    """
    scheme, _, port = split_address(address, SCHEMES)
    if scheme == "tcp" and not port:
        raise ConfigError(TCP_FORM, address=address)
    return scheme


def split_address(address: str, schemes: Collection[str]) -> tuple[str, str, int]:
    """Return the scheme of ``address``, its host or path, and its port: 0 if it has none.

    Raises:
        ConfigError: ``address`` has another form.
    """
    scheme, _, rest = address.partition("://")
    if scheme not in schemes or not rest or re.search("[\ud800-\udfff]", rest):
        form = "an address is tcp://host:port or ipc://path, in the locale's encoding (LC_ALL)"
        raise ConfigError(form, address=address)
    if scheme != "tcp":
        return scheme, rest, 0
    match = _TCP.fullmatch(rest)
    if match is None or int(match[2]) >= 1 << 16:
        raise ConfigError(TCP_FORM, address=address)
    return scheme, match[1], int(match[2])


def peer_of(address: str) -> tuple[str, int]:
    """Return host and port of the node of a tcp address, as ``socket`` takes them.

    Raises:
        ConfigError: ``address`` has another form.
    """
    _, host, port = split_address(address, ("tcp",))
    return host.rpartition(";")[2].strip("[]"), port


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as "8GiB", "500MB", "64k" or "4096".

    ``KiB`` is 1024 bytes; ``KB`` and ``K`` are 1000, as for disks and networks.

    Raises:
        ConfigError: ``text`` is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError("not a size; write for example 8GiB or 500MB", size=text)
    number, unit, binary = match.groups(default="")
    return int(float(number) * (1024 if binary else 1000) ** _POWER[unit.upper()])


def check_memory(nbytes: int) -> int:
    """Return ``nbytes`` if a node can have a memory of that size.

    Raises:
        ConfigError: the size is too small or too large.
    """
    if not MEMORY_NBYTES_MIN <= nbytes <= MEMORY_NBYTES_MAX:
        raise ConfigError(
            "a node's memory has at least 1 MiB and at most 256 TiB",
            memory_nbytes=nbytes,
        )
    return nbytes
