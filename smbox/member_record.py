"""Member records: the identity of the process at each rank, one row of int64 words.

The row is 128 bytes: the values of a Record in their order as a list in msgpack, then zeros.
"""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from smbox.memory import process

WORDS: Final = 16
_ROW_NBYTES: Final = 8 * WORDS
_HOST_NBYTES: Final = 64
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One holder of a place.

    Args:
        generation: of its lease.
        pid: of the process on its host.
        pid_started: start time of that process, in ticks since the host's boot.
        domain: hash of boot, pid namespace and user; pids of one domain can be compared.
        since: when it joined, by its host's clock.
        launch: hash of what its launcher calls the run.
        host: its host name, cut at 64 bytes; last, for its bytes end in no zero.
    """

    generation: int
    pid: int
    pid_started: int
    domain: int
    since: datetime
    launch: int
    host: str

    @classmethod
    def own(cls, *, launch: int) -> Self:
        """Describe this process, which joins now, in generation 0."""
        host = socket.gethostname().encode()[:_HOST_NBYTES].decode(errors="ignore")
        now = datetime.now(tz=UTC)
        return cls(0, *process.identity(), domain(), now, launch, host)

    @classmethod
    def of(cls, row: NDArray[np.int64]) -> Self | None:
        """Read a row, ``i64[WORDS]``; None: nobody has written it, or something else."""
        try:
            return msgspec.msgpack.decode(row.tobytes().rstrip(b"\0"), type=cls)
        except msgspec.DecodeError:
            return None

    def row(self) -> NDArray[np.int64]:
        """Return the row, ``i64[WORDS]``."""
        text = msgspec.msgpack.encode(self).ljust(_ROW_NBYTES, b"\0")
        return np.frombuffer(text, np.int64)

    def is_known_dead(self) -> bool:
        """Return whether this process can see that the holder does not run any more."""
        return self._is_of_this_host() and not process.is_alive(self.pid, self.pid_started)

    def is_known_alive(self) -> bool:
        """Return whether this process can see that the holder runs."""
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
