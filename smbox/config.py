"""What a client may be told from outside: one frozen object, checked when it is made. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Final

from smbox.errors import ConfigError

TRANSPORTS: Final = ("auto", "shm", "tcp", "ipc")
SCHEMES: Final = ("tcp", "ipc", "inproc")
TCP_FORM: Final = "a tcp address is tcp://host:port, of IPv6 tcp://[::1]:port"
WINDOW_MAX: Final = 16
"""Requests under way on one channel; the node keeps the answers of two stripes for each."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a client; every one has an environment variable.

    Args:
        address: of the memory node, ``tcp://host:port`` or ``ipc://path``; of several nodes
            with a comma between two; ``$SMBOX_ADDRESS``.
        transport: one of ``TRANSPORTS``; "auto" maps the memory where that can be done;
            ``$SMBOX_TRANSPORT``.
        key: file of the client's key, for a node that other hosts reach (smbox/keys.py); used
            on tcp only; ``$SMBOX_KEY``.
        timeout_s: how long a call waits when it is not told otherwise, begun anew as long as
            some of a large array gets through; ``$SMBOX_TIMEOUT_S``.
        resend_after_s: without any reply for so long (or twice as long as the last one took,
            or after a try in vain), a thread opens a fresh connection and sends again what is
            unanswered; ``$SMBOX_RESEND_AFTER_S``.
        resend_after_max_s: the longest such pause while the node does not answer at all;
            ``$SMBOX_RESEND_AFTER_MAX_S``.
        lend_from_nbytes: over messages, a read of so many bytes or more is sent without a copy
            at the node, and takes one more round trip in the end: more where that is long,
            ``inf`` for never; ``$SMBOX_LEND_FROM_NBYTES``.

    Raises:
        ConfigError: a value that can never work.
    """

    address: str | None = None
    transport: str = "auto"
    timeout_s: float = 10.0
    resend_after_s: float = 1.0
    resend_after_max_s: float = 5.0
    lend_from_nbytes: float = 16 << 20
    key: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None:
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
        """Read the settings from ``environment``; what is not there keeps its default.

        Raises:
            ConfigError: a value that cannot be read; names its variable.
        """
        given: dict[str, Any] = {}
        for field in fields(cls):
            is_text = field.name in {"address", "transport", "key"}
            variable = _variable_of(field.name)
            text = environment.get(variable)
            if text is None or (is_text and not text):
                continue
            try:
                given[field.name] = text if is_text else float(text)
            except ValueError as error:
                raise ConfigError(f"{variable} is no number", value=text) from error
        if "resend_after_s" in given:  # one that is longer lengthens the longest, too
            longest_s = max(given["resend_after_s"], cls().resend_after_max_s)
            given.setdefault("resend_after_max_s", longest_s)
        return cls(**given)


def _variable_of(setting: str) -> str:
    return f"SMBOX_{setting.upper()}"


VARIABLES: Final = frozenset(_variable_of(field.name) for field in fields(ClientConfig)) | {
    "SMBOX_NO_NATIVE",
    "SMBOX_REPORT_FD",  # by which `smbox run` hears of its workers
}
"""The environment variables that smbox reads."""


def addresses_of(address: str) -> tuple[str, ...]:
    """Split ``address`` where a comma stands before the next scheme; a path may have commas."""
    if not hasattr(address, "partition"):
        raise TypeError(f"an address is a str, not {type(address).__name__}")
    return tuple(re.split(r"\s*,\s*(?=\w+://)", address.strip()))


def scheme_of(address: str) -> str:
    """Return the scheme of ``address``: "tcp", "ipc" or "inproc".

    Raises:
        ConfigError: no address of ours.
    """
    scheme, separator, rest = address.partition("://")
    if not separator or scheme not in SCHEMES or not rest:
        raise ConfigError("an address is tcp://host:port or ipc://path", address=address)
    if scheme == "tcp":
        host, colon, port = rest.rpartition(":")
        is_port = port.isdecimal() and 0 < int(port) < 1 << 16
        if not colon or not is_port or not is_host(host):
            raise ConfigError(TCP_FORM, address=address)
    return scheme


def is_host(text: str) -> bool:
    """Tell whether ``text`` may be the host of a tcp address; an IPv6 one has its brackets.

    In front of it may stand whence to connect, ``source:port;``, as ZeroMQ has it.
    """
    host = text.rpartition(";")[2]
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1].replace(":", "")
    return bool(host) and not set(host) & set(":[]")
