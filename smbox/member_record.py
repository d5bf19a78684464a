"""Member records: the identity of the process at each rank, one row of int64 words.

A row has 128 bytes: the fields of a ``Record``, in order, as a list in msgpack; then zeros.
"""

from __future__ import annotations

import hashlib
import os
import socket
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from smbox.limits import refusal
from smbox.memory import process

WORDS: Final = 16
RESTARTS: Final = 1 << 31
"""Limit of the number of restarts in a record."""

_ROW_NBYTES: Final = 8 * WORDS
_HOST_NBYTES: Final = 64
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE: Final = "/proc/self/ns/time"  # since Linux 5.6


class Record(msgspec.Struct, frozen=True, array_like=True):
    """The holder of a place.

    Args:
        generation: generation of its lease.
        pid: pid on its host.
        pid_started: start time of the process, in ticks since the host's boot.
        domain: see ``domain``; only pids of one domain can be compared.
        since: when it joined, by its host's clock.
        launch: hash of the launcher's name for the run.
        restart: how often the launcher had restarted all members.
        host: host name, cut at 64 bytes. It is the last field since it never ends in a zero.
    """

    generation: int
    pid: int
    pid_started: int
    domain: int
    since: datetime
    launch: int
    restart: int
    host: str

    @classmethod
    def own(cls, *, launch: int, restart: int) -> Self:
        """Return the record of this process, which joins now, with generation 0."""
        host = socket.gethostname().encode()[:_HOST_NBYTES].decode(errors="ignore")
        now = datetime.now(tz=UTC)
        return cls(0, *process.identity(), domain(), now, launch, restart, host)

    @classmethod
    def of(cls, row: NDArray[np.int64]) -> Self | None:
        """Decode a row, ``i64[WORDS]``; return None if it contains no record."""
        try:
            return msgspec.msgpack.decode(row.tobytes().rstrip(b"\0"), type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def row(self) -> NDArray[np.int64]:
        """Encode this record as a row, ``i64[WORDS]``."""
        text = msgspec.msgpack.encode(self).ljust(_ROW_NBYTES, b"\0")
        return np.frombuffer(text, np.int64)

    def is_known_dead(self) -> bool:
        """Return True if the holder is in this process's domain and has ended."""
        return self._is_in_domain() and not process.is_alive(self.pid, self.pid_started)

    def is_known_alive(self) -> bool:
        """Return True if the holder is in this process's domain and runs."""
        return self._is_in_domain() and process.is_alive(self.pid, self.pid_started)

    def _is_in_domain(self) -> bool:
        return self.domain != 0 and self.domain == domain()


class MemberInfo(msgspec.Struct, frozen=True):
    """The state of one rank of a run.

    Args:
        rank: number of the rank.
        host: host of its process; None if no process has joined or its record is not written.
        pid: pid of the process on its host; None if host is None.
        since: when the process joined, by its host's clock; None if host is None.
        alive: True if it renewed its lease in time.
        progress: as set by the member or by its predecessor at this rank.
    """

    rank: int
    host: str | None
    pid: int | None
    since: datetime | None
    alive: bool
    progress: int

    @classmethod
    def vacant(cls, rank: int) -> Self:
        """Return the state of a rank that no process of this start has taken."""
        return cls(rank, None, None, None, alive=False, progress=0)


@cache
def domain() -> int:
    """Return a hash of this process's boot, user, and pid and time namespace; 0 if unknown.

    Processes of two time namespaces read different start times of the same process.

    Raises:
        SystemLimitError: a limit of the system keeps this process from finding that out.
    """
    try:
        where = f"{_BOOT_ID.read_text()}|{os.readlink('/proc/self/ns/pid')}|{os.getuid()}"
        if os.path.lexists(_TIME_NAMESPACE):
            where += f"|{os.readlink(_TIME_NAMESPACE)}"
    except (FileNotFoundError, PermissionError):  # no /proc here
        return 0
    except OSError as error:
        raise refusal("read the boot id of this host", error) from error
    return hash_of(where)


def hash_of(text: str) -> int:
    """Return a 56-bit hash of a text, the same on every host; 0 for an empty text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) if text else 0
