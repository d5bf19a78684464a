"""The roster of a run: the state of all ranks, as one process last read it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.deadline import ANSWER_MIN_S, answer_s, held, left_s
from smbox.directory import Directory
from smbox.errors import RequestTimeoutError, SmboxError, TransportError
from smbox.lease import I64, LEFT, RENEWALS, expire, generations, is_held, leases_s, numbers
from smbox.member_record import WORDS, MemberInfo, Record
from smbox.region import Region

CAPACITY: Final = 1024
"""Ranks of one run."""

LEASE, PROGRESS, MEETINGS, KEPT = range(4)
"""Columns of a place: the lease word, values and the lease itself, see smbox/lease.py."""

COLUMNS: Final = 4


@dataclass(frozen=True, slots=True)
class View:
    """All places as one look found them.

    Args:
        words: ``i64[capacity, COLUMNS]``, as they were read.
        is_alive: ``[capacity]``, places with a living holder.
        records: the records of the holders, by rank; None: not known.
    """

    words: I64
    is_alive: NDArray[np.bool_]
    records: Sequence[Record | None]

    @property
    def count(self) -> int:
        """Living members."""
        return int(self.is_alive.sum())

    def never_came(self, expected: int) -> list[int]:
        """Return the ranks below ``expected`` that nobody has ever had."""
        return _ranks(self.words[:expected, LEASE] == 0)

    def expired(self) -> list[int]:
        """Return the ranks whose holder neither renewed its lease nor left."""
        words = self.words[:, LEASE]
        return _ranks((words > 0) & (numbers(words) != LEFT) & ~self.is_alive)

    def alive(self) -> list[int]:
        """Return the ranks of living members."""
        return _ranks(self.is_alive)

    def dead_here(self) -> set[int]:
        """Return the ranks whose lease has not passed, but whose process on this host died."""
        return set(filter(self.is_free, self.alive()))

    def is_free(self, rank: int) -> bool:
        """Return whether a rank may be taken now: its holder left, expired or died here."""
        record = self.records[rank]
        return not self.is_alive[rank] or (record is not None and record.is_known_dead())

    def has_left(self, rank: int) -> bool:
        """Return whether the last holder of a rank left it."""
        return int(numbers(self.words[rank, LEASE])) == LEFT

    def generation(self, rank: int) -> int:
        """Return how often a rank was taken."""
        return int(generations(self.words[rank, LEASE]))

    def progress(self) -> I64:
        """Return the progress at all ranks, ``i64[capacity]``."""
        return numbers(self.words[:, PROGRESS])

    def of(self, rank: int) -> MemberInfo:
        """Describe a rank."""
        found = self.records[rank]
        host, pid, since = (found.host, found.pid, found.since) if found else (None, None, None)
        progress = int(numbers(self.words[rank, PROGRESS]))
        return MemberInfo(rank, host, pid, since, bool(self.is_alive[rank]), progress)


def _ranks(is_wanted: NDArray[np.bool_]) -> list[int]:
    found: list[int] = np.flatnonzero(is_wanted).tolist()
    return found


class Watch:
    """An observer's measure of how long words have stood still.

    Args:
        count: how many words there are.
    """

    def __init__(self, count: int) -> None:
        self._words = np.zeros(count, np.int64)
        self._since_s = np.zeros(count)
        self._looked_s = -math.inf

    def forget(self) -> None:
        """Begin all measures anew at the next look: what happened since the last is unknown."""
        self._looked_s = -math.inf

    def look(
        self, words: I64, lease_s: NDArray[np.float64], *, began_s: float, ended_s: float
    ) -> NDArray[np.bool_]:
        """Compare with the look before; tell which words stood still for their whole lease.

        Two looks that lie further apart than the lease begin the measure anew, so that an
        observer that was stopped itself does not take the others for dead.

        Args:
            words: as read just now, ``[count]``.
            lease_s: of each, in seconds, ``[count]``.
            began_s: the observer's monotonic time before the read.
            ended_s: and after it.
        """
        is_new = (words != self._words) | (began_s - self._looked_s > lease_s)
        self._since_s[is_new] = ended_s
        self._words[:] = words
        self._looked_s = ended_s
        is_still: NDArray[np.bool_] = began_s - self._since_s > lease_s
        return is_still


def regions_of(name: str) -> tuple[str, str]:
    """Return the names of a run's two regions: its places, and their records."""
    return f"{name}.members", f"{name}.members.records"


class Roster:
    """Reads the places of a run, finds the living members and expires the dead; thread-safe.

    Args:
        box: the memory.
        name: of the run: prefix of the two regions.
        capacity: how many places there are.
        must_exist: make no regions, so that a look begins no run that has ended;
            RegionNotFoundError if there are none.

    Attributes:
        memory: the box.
        seen: the last look.
    """

    def __init__(
        self, box: Directory, name: str, *, capacity: int = CAPACITY, must_exist: bool = False
    ) -> None:
        self.memory = box
        places, rows = regions_of(name)
        if must_exist:
            self._places = box.attach(places, timeout_s=None)
            self._rows = box.attach(rows, timeout_s=None)
        else:
            self._places = box.create(places, (capacity, COLUMNS), "int64", exist_ok=True)
            self._rows = box.create(rows, (capacity, WORDS), "int64", exist_ok=True)
        self._watch = Watch(capacity)
        self._records: list[Record | None] = [None] * capacity
        self._mutex = threading.Lock()
        self.seen = self.look()

    def look_s(self, rank: int) -> float:
        """Return the pause between two looks for a rank: a part of its holder's lease."""
        return float(leases_s(self.seen.words[rank, KEPT])) / RENEWALS

    def place(self, rank: int) -> Region:
        """Return the place of a rank, ``i64[1, COLUMNS]``."""
        return self._places[rank : rank + 1]

    def write(self, rank: int, record: Record, *, deadline_s: float | None = None) -> None:
        """Write the record of the holder of a place."""
        row = self._rows[rank : rank + 1]
        row.put(record.row()[None], timeout_s=answer_s(deadline_s))

    def look(self, *, mine: int | None = None, deadline_s: float | None = None) -> View:
        """Read all places now.

        Args:
            mine: the caller's own rank, which it does not find dead itself.
            deadline_s: to wait for the node until then; None: the timeout of the box.

        Raises:
            RequestTimeoutError: the node did not answer; all measures begin anew.
        """
        with held(self._mutex, deadline_s):
            try:
                self.seen = self._look(mine, deadline_s)
            except SmboxError:
                self._watch.forget()
                raise
            return self.seen

    def watch(self, rank: int, *, deadline_s: float | None = None) -> View:
        """Look for a place that somebody else had at the last look, until it is free.

        A place is measured only while the node answers: its holder may be on another host.
        """
        is_over = deadline_s is not None and left_s(deadline_s) <= 0.0
        if not (is_over or self.seen.is_free(rank)):
            with suppress(RequestTimeoutError, TransportError):
                self.ask_node(min(ANSWER_MIN_S, self.look_s(rank)))
        return self.look(deadline_s=deadline_s)

    def ask_node(self, timeout_s: float) -> None:
        """Ask the node for an answer, where looks do not, because the memory is mapped.

        Members on other hosts cannot renew their leases as long as it does not answer.

        Raises:
            SmboxError: it did not answer; all measures begin anew.
        """
        try:
            self.memory.attach(self._places.name, timeout_s=timeout_s)
        except SmboxError:
            with self._mutex:
                self._watch.forget()
            raise

    def _look(self, mine: int | None, deadline_s: float | None) -> View:
        began_s = time.monotonic()
        words: I64 = self._places.get(timeout_s=answer_s(deadline_s))
        ended_s = time.monotonic()
        self._read_records(words[:, LEASE], deadline_s)
        is_gone = self._watch.look(
            words[:, LEASE], leases_s(words[:, KEPT]), began_s=began_s, ended_s=ended_s
        )
        is_alive = is_held(words[:, LEASE])
        is_gone &= is_alive
        if mine is not None:
            is_gone[mine] = False
        for rank in _ranks(is_gone):
            word = int(words[rank, LEASE])
            is_alive[rank] = not expire(self.place(rank), word, deadline_s=deadline_s)
        return View(words, is_alive, tuple(self._records))

    def _read_records(self, words: I64, deadline_s: float | None) -> None:
        """Read the records of holders that changed since."""
        present = generations(words)
        changed = [
            rank
            for rank in _ranks(present > 0)
            if (known := self._records[rank]) is None or known.generation != present[rank]
        ]
        if not changed:
            return
        first, limit = changed[0], changed[-1] + 1
        rows: I64 = self._rows[first:limit].get(timeout_s=answer_s(deadline_s))
        for rank in changed:
            found = Record.of(rows[rank - first])
            if found is not None and found.generation != present[rank]:
                found = None  # of the holder before; the new one has not written its own yet
            self._records[rank] = found

    def wait(self, version: int, timeout_s: float) -> None:
        """Return when a place has changed since a version, or after some time."""
        with suppress(RequestTimeoutError):
            self._places.wait(version + 1, timeout_s=timeout_s)

    def version(self, *, deadline_s: float | None = None) -> int:
        """Return the version of the places, to wait for the next."""
        return self._places.wait(0, timeout_s=answer_s(deadline_s))
