"""The log of a client: planned and acknowledged changes, in a file that survives its kill."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from smbox.testing.chaos.plan import CLIENTS, LIVES, identity

INTENT: Final = 1
ACKNOWLEDGED: Final = 2
_RECORD: Final = struct.Struct("<BB6xQ")
RECORD_NBYTES: Final = _RECORD.size


class Change(NamedTuple):
    """One change of a life.

    Attributes:
        place: a window, or ``PUTS + stripe`` for a put of the life's row there.
        number: counts the changes of the life from 1.
    """

    place: int
    number: int


class LogWriter:
    """Appends records by plain writes: what was written before a SIGKILL is there.

    Args:
        path: of a new file.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def intend(self, changes: Sequence[Change]) -> None:
        """Write down changes before they begin."""
        self._write(INTENT, changes)

    def acknowledge(self, changes: Sequence[Change]) -> None:
        """Write down changes whose call has returned."""
        self._write(ACKNOWLEDGED, changes)

    def _write(self, kind: int, changes: Sequence[Change]) -> None:
        os.write(self._fd, b"".join(_RECORD.pack(kind, *change) for change in changes))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@dataclass(slots=True)
class LifeLog:
    """What one life's log says.

    Attributes:
        acknowledged: changes that are in, exactly once.
        open: changes that were meant; each is in at most once.
    """

    acknowledged: list[Change] = field(default_factory=list)
    open: list[Change] = field(default_factory=list)


def log_path(folder: Path, client: int, life: int) -> Path:
    """Name the log of a life."""
    return folder / f"client-{client}-life-{life}.log"


def read_log(path: Path) -> LifeLog:
    """Read a log; a record cut off at the end was never written."""
    data = path.read_bytes()
    found = LifeLog()
    meant: dict[Change, None] = {}
    for kind, place, number in _RECORD.iter_unpack(data[: len(data) // 16 * 16]):
        change = Change(place, number)
        if kind == INTENT:
            meant[change] = None
        else:
            del meant[change]
            found.acknowledged.append(change)
    found.open = list(meant)
    return found


def read_logs(folder: Path) -> dict[int, LifeLog]:
    """Read the logs of all lives, by identity."""
    paths = {
        identity(client, life): log_path(folder, client, life)
        for client in range(CLIENTS)
        for life in range(LIVES)
    }
    return {who: read_log(path) for who, path in paths.items() if path.exists()}


def count_records(folder: Path, first: int = 0) -> int:
    """Count what clients from ``first`` on began or had acknowledged, and both twice."""
    paths = [
        path
        for client in range(first, CLIENTS)
        for path in folder.glob(f"client-{client}-*.log")
    ]
    return sum(path.stat().st_size for path in paths) // RECORD_NBYTES
