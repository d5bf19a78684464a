"""The roster of a run: the state of all ranks, as last read by this process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from smbox.deadline import ANSWER_MIN_S, left_s, optional_timeout_s
from smbox.directory import Directory
from smbox.errors import LimitError, RequestTimeoutError, SmboxError
from smbox.lease import (
    EXPIRED,
    I64,
    LEFT,
    RENEWALS,
    expire,
    generations,
    is_held,
    leases_s,
    numbers,
)
from smbox.member_record import WORDS, MemberInfo, Record
from smbox.mutex import Mutex
from smbox.region import Region
from smbox.watch import Watch

CAPACITY: Final = 1024
"""Maximum number of ranks of a run."""

LEASE, PROGRESS, MEETINGS, LEASE_MS = range(4)
"""Columns of a place: lease word, two values, lease duration; see smbox/lease.py."""

COLUMNS: Final = 4


class View(Struct, frozen=True):
    """The result of one read of all places.

    Args:
        words: the words of all places, ``i64[capacity, COLUMNS]``.
        is_alive: True for places with a living holder, ``[capacity]``.
        records: records of the holders, by rank; None: unknown.
        dead_here: ranks with a lease whose process is known to have ended before the read.
    """

    words: I64
    is_alive: NDArray[np.bool_]
    records: Sequence[Record | None]
    dead_here: frozenset[int]

    @property
    def count(self) -> int:
        """Number of living members."""
        return int(self.is_alive.sum())

    def never_came(self, before: Sequence[int]) -> list[int]:
        """Return the expected ranks that no process of this start has taken.

        SSP asks in every step, and Python's numbers are faster than numpy's for few ranks.

        Args:
            before: result of ``before_start``.
        """
        words = self.words[: len(before), LEASE].tolist()
        return [rank for rank, word in enumerate(words) if word | EXPIRED == before[rank]]

    def present(self, before: Sequence[int]) -> list[int]:
        """Return the ranks of living members and those that never came, sorted."""
        return sorted({*self.alive(), *self.never_came(before)})

    def before_start(self, expected: int, launch: int, restart: int) -> list[int]:
        """Return the lease words of the expected ranks that this start has not taken yet.

        Their last holders belong to an earlier start; killed ones may seem alive until their
        leases expire. One that lives renews its lease, so its word changes.

        Args:
            expected: number of ranks with which the run was started.
            launch: hash of the launch, see ``Record``; 0: unknown.
            restart: see ``Record``.

        Returns:
            The words, with the mark EXPIRED; 0 for other ranks.
        """
        words = self.words[:expected, LEASE].tolist()
        found = [0 if word else EXPIRED for word in words]
        for rank, last in enumerate(self.records[:expected]):
            if last is None:
                continue
            is_other_launch = launch not in {0, last.launch}
            if is_other_launch or (last.launch == launch and last.restart < restart):
                found[rank] = words[rank] | EXPIRED
        return found

    def expired(self) -> list[int]:
        """Return the ranks whose holder did not renew its lease and did not leave."""
        words = self.words[:, LEASE]
        return _ranks((words > 0) & (numbers(words) != LEFT) & ~self.is_alive)

    def alive(self) -> list[int]:
        """Return the ranks of living members."""
        return _ranks(self.is_alive)

    def is_free(self, rank: int) -> bool:
        """Return True if a rank may be taken: its holder left, expired or died on this host."""
        return not self.is_alive[rank] or rank in self.dead_here

    def lowest_free(self) -> int:
        """Return the lowest rank that may be taken; LimitError if there is none."""
        found = next(filter(self.is_free, range(CAPACITY)), None)
        if found is None:
            raise LimitError(f"a run has at most {CAPACITY} members, and all are alive")
        return found

    def has_left(self, rank: int) -> bool:
        """Return True if the last holder of a rank left it."""
        return int(numbers(self.words[rank, LEASE])) == LEFT

    def generation(self, rank: int) -> int:
        """Return how often a rank was taken."""
        return int(generations(self.words[rank, LEASE]))

    def progress(self) -> I64:
        """Return the progress of all ranks, ``i64[capacity]``."""
        return numbers(self.words[:, PROGRESS])

    def meetings(self) -> I64:
        """Return the meeting words of all ranks, ``i64[capacity]``."""
        return numbers(self.words[:, MEETINGS])

    def of(self, rank: int) -> MemberInfo:
        """Return the state of a rank."""
        last = self.records[rank]
        host, pid, since = (last.host, last.pid, last.since) if last else (None, None, None)
        progress = int(numbers(self.words[rank, PROGRESS]))
        return MemberInfo(rank, host, pid, since, bool(self.is_alive[rank]), progress)


def _ranks(is_wanted: NDArray[np.bool_]) -> list[int]:
    found: list[int] = np.flatnonzero(is_wanted).tolist()
    return found


def regions_of(name: str) -> tuple[str, str]:
    """Return the names of the two regions of a run: places and records."""
    return name + ".members", name + ".members.records"


class Roster:
    """Reads the places of a run and expires dead members; thread-safe.

    Args:
        box: the box with the memory.
        name: name of the run, the prefix of its two regions.
        capacity: number of places.
        must_exist: do not create the regions; raise RegionNotFoundError if they do not exist.

    Attributes:
        memory: the box.
        seen: result of the last read.
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
        self._ended: set[tuple[int, Record]] = set()
        self._mutex = Mutex()
        self.seen = self.read()

    def poll_s(self, rank: int) -> float:
        """Return the seconds between two reads for a rank, a fraction of its lease."""
        return float(leases_s(self.seen.words[rank, LEASE_MS])) / RENEWALS

    def place(self, rank: int) -> Region:
        """Return the place of a rank, ``i64[1, COLUMNS]``."""
        return self._places[rank : rank + 1]

    def write(self, rank: int, record: Record, *, deadline_s: float | None = None) -> None:
        """Write the record of the holder of a rank."""
        row = self._rows[rank : rank + 1]
        row.put(record.row()[None], timeout_s=optional_timeout_s(deadline_s))

    def record(self, rank: int, *, deadline_s: float | None = None) -> Record | None:
        """Read the record of a rank, of whichever holder; None: there is none."""
        row = self._rows[rank : rank + 1]
        return Record.of(row.get(timeout_s=optional_timeout_s(deadline_s))[0])

    def read(
        self, *, mine: int | None = None, deaths: bool = True, deadline_s: float | None = None
    ) -> View:
        """Read all places now, and expire members that did not renew in time.

        Args:
            mine: rank of the caller, which never expires itself.
            deaths: look at each holder's process on this host, which takes some 10 us.
            deadline_s: deadline of the requests; None: the timeout of the box.

        Raises:
            RequestTimeoutError: the node did not answer; all measurements restart.
        """
        return self._mutex.holding(
            deadline_s, lambda: self._look(mine, deadline_s, deaths=deaths)
        )

    def watch(self, rank: int, *, deadline_s: float | None = None, fails: bool = False) -> View:
        """Read all places for a caller that waits for a rank to become free.

        If it was taken, check that the node answers: its holder may be on another host. With
        ``fails``, raise RequestTimeoutError if the timeout of the box ends without an answer.
        """
        is_over = deadline_s is not None and left_s(deadline_s) <= 0.0
        if not (is_over or self.seen.is_free(rank)):
            try:
                self.ask_node(min(ANSWER_MIN_S, self.poll_s(rank)))
            except RequestTimeoutError:
                if fails:
                    self.ask_node(None)
        return self.read(deadline_s=deadline_s)

    def ask_node(self, timeout_s: float | None) -> None:
        """Check that the node answers, which a read of mapped memory does not show.

        Raises:
            SmboxError: it did not, in ``timeout_s`` (None: of the box); measurements restart.
        """
        try:
            self.memory.attach(self._places.name, timeout_s=timeout_s)
        except SmboxError:
            self._watch.forget()  # without the mutex, which a read may hold for long
            raise

    def _look(self, mine: int | None, deadline_s: float | None, *, deaths: bool) -> View:
        try:
            self.seen = self._read(mine, deadline_s, deaths=deaths)
        except SmboxError:
            self._watch.forget()
            raise
        return self.seen

    def _read(self, mine: int | None, deadline_s: float | None, *, deaths: bool) -> View:
        while True:
            words: I64 = self._places.get(timeout_s=optional_timeout_s(deadline_s))
            now_s = time.monotonic()
            self._read_records(words[:, LEASE], deadline_s)
            is_alive = is_held(words[:, LEASE])
            held_by = {n: r for n in _ranks(is_alive) if (r := self._records[n])}.items()
            before = self._ended
            asked = held_by if deaths else held_by & before
            self._ended = {(n, r) for n, r in asked if r.is_known_dead()}
            if self._ended <= before:  # else some may have left after the read, and then ended
                break
        limits_s = leases_s(words[:, LEASE_MS])
        is_gone = self._watch.observe(words[:, LEASE], limits_s, now_s=now_s)
        for rank in set(_ranks(is_gone & is_alive)) - {mine}:
            word = int(words[rank, LEASE])
            is_alive[rank] = not expire(self.place(rank), word, deadline_s=deadline_s)
        dead_here = frozenset(rank for rank, _ in self._ended if is_alive[rank])
        return View(words, is_alive, tuple(self._records), dead_here)

    def _read_records(self, words: I64, deadline_s: float | None) -> None:
        """Read the records of all holders that changed since the last read."""
        present = generations(words)
        changed = [
            rank
            for rank in _ranks(present > 0)
            if (known := self._records[rank]) is None or known.generation != present[rank]
        ]
        if not changed:
            return
        first, limit = changed[0], changed[-1] + 1
        rows: I64 = self._rows[first:limit].get(timeout_s=optional_timeout_s(deadline_s))
        for rank in changed:
            found = Record.of(rows[rank - first])
            is_new = found is not None and found.generation == present[rank]
            self._records[rank] = found if is_new else None  # else of the predecessor

    def wait(self, version: int, timeout_s: float) -> None:
        """Wait until a place has changed since ``version``, or until the timeout."""
        with suppress(RequestTimeoutError):
            self._places.wait(version + 1, timeout_s=timeout_s)

    def version(self, *, deadline_s: float | None = None) -> int:
        """Return the current version of the places, for ``wait``."""
        return self._places.wait(0, timeout_s=optional_timeout_s(deadline_s))
