"""Who holds a place of a run: one row of int64 words, which other hosts can read too.

0 generation of the lease that the row belongs to    3 hash of where the pid means something
1 pid                                                4 microseconds since 1970 of joining
2 start time of the process (/proc/PID/stat)         5 lease in microseconds
6 hash of the launch                                 8-15 host name, 64 bytes of UTF-8
"""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from smbox.memory import process

WORDS: Final = 16
_HOST_WORD: Final = 8
_HOST_NBYTES: Final = 8 * (WORDS - _HOST_WORD)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_MICRO: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SINCE_MAX: Final = 250_000_000_000 * _MICRO
"""In the year 9892; a row may hold anything, and later ones are no dates of Python's."""


@dataclass(frozen=True, slots=True)
class Record:
    """One holder of a place.

    Args:
        generation: of its lease.
        host: its host name, cut at 64 bytes.
        pid: on that host.
        pid_started: start time of that process, in ticks since the host's boot.
        domain: hash of boot, pid namespace and user; pids of one domain can be compared.
        since: when it joined, by its host's clock.
        lease_s: how long it keeps the place after a renewal.
        launch: hash of what its launcher calls the run.
    """

    generation: int
    host: str
    pid: int
    pid_started: int
    domain: int
    since: datetime
    lease_s: float
    launch: int

    @classmethod
    def own(cls, *, lease_s: float, launch: int) -> Self:
        """Describe this process, which joins now, in generation 0."""
        pid, started = process.own()
        now, host = datetime.now(tz=UTC), socket.gethostname()
        return cls(0, host, pid, started, domain(), now, lease_s, launch)

    @classmethod
    def of(cls, row: NDArray[np.int64]) -> Self:
        """Read a row, ``i64[WORDS]``."""
        generation, pid, started, where, since, lease, launch = map(int, row[:7])
        host = row[_HOST_WORD:].tobytes().rstrip(b"\0").decode(errors="replace")
        joined = _EPOCH + timedelta(microseconds=min(max(since, 0), _SINCE_MAX))
        return cls(generation, host, pid, started, where, joined, lease / _MICRO, launch)

    def row(self) -> NDArray[np.int64]:
        """Return the row, ``i64[WORDS]``."""
        words = np.zeros(WORDS, np.int64)
        words[:7] = (
            self.generation,
            self.pid,
            self.pid_started,
            self.domain,
            int(self.since.timestamp() * _MICRO),
            max(1, round(self.lease_s * _MICRO)),
            self.launch,
        )
        name = self.host.encode()[:_HOST_NBYTES]
        words[_HOST_WORD:] = np.frombuffer(name.ljust(_HOST_NBYTES, b"\0"), np.int64)
        return words

    def is_known_dead(self) -> bool:
        """Tell whether this process can see that the holder does not run any more."""
        return self._is_of_this_host() and not process.is_alive(self.pid, self.pid_started)

    def is_known_alive(self) -> bool:
        """Tell whether this process can see that the holder runs."""
        return self._is_of_this_host() and process.is_alive(self.pid, self.pid_started)

    def _is_of_this_host(self) -> bool:
        return self.domain != 0 and self.domain == domain()


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """What is known of one rank of a run.

    Args:
        rank: its number.
        host: where its process runs or ran; None: it never came, or has just begun to join.
        pid: of that process on its host; None like host.
        since: when it joined, by its host's clock; None like host.
        alive: whether it renewed its lease in time.
        progress: as the member, or its predecessor at this rank, set it.
    """

    rank: int
    host: str | None
    pid: int | None
    since: datetime | None
    alive: bool
    progress: int


@cache
def domain() -> int:
    """Hash what makes pids comparable: boot, pid namespace and user; 0 where unknown."""
    try:
        where = f"{_BOOT_ID.read_text()}|{os.readlink('/proc/self/ns/pid')}|{os.getuid()}"
    except OSError:
        return 0
    return hash_of(where)


def hash_of(text: str) -> int:
    """Return 56 bits that are equal for equal texts, on every host; 0 for an empty one."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7]) if text else 0
