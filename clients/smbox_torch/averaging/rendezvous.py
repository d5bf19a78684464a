"""Synchronization of the ranks of one host: counters in mapped memory, and liveness checks.

Every rank has one row of words, which only that rank writes. So no lock is needed: a rank
sets its own words, and the others read them. A rank that reads a word also sees all stores
before it, and its later reads are not older: a memory fence of the native library precedes each
store and follows each load, because Python has no fence and aarch64 reorders.

Every wait ends. A dead rank is detected by pid and start time within POLL_S. A rank that is
stopped or stuck is considered lost after the timeout. The first rank that detects a lost rank
records it in its row, so that all ranks name the same rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import psutil
from numpy.typing import NDArray

from smbox.errors import StepMismatchError, WorkerLostError
from smbox.memory import process
from smbox.native import library
from smbox_torch.averaging.steps import finished_early, step_mismatch

ROW_WORDS: Final = 16
SPIN_S: Final = 200e-6  # time of polling that only yields the core
SLEEP_FIRST_S: Final = 20e-6
SLEEP_MAX_S: Final = 1e-3
SLEEP_SHARE: Final = 0.2  # a sleep is at most this share of the time waited so far
POLL_S: Final = 0.25  # interval between two checks of the other ranks' processes


GONE: Final = 1
FINISHED: Final = 2
SKIPPED: Final = 1 << 32


class Word:
    """Words of a rank's row; those from COUNTERS on are free for the user of the rows."""

    PID: Final = 0
    STARTED: Final = 1
    LEFT: Final = 2  # GONE: this rank left; FINISHED + n: it finished after n steps
    BLAMED: Final = 3  # 1 + the local rank that this one considers lost, | SKIPPED; or 0
    COUNTERS: Final = 4


class Rendezvous:
    """The counters of the ranks of one host, as used by one of them.

    Args:
        rows: ``u64[ranks, ROW_WORDS]`` in shared memory, initially zeros.
        rank: row of this process.
        timeout_s: longest wait for a live rank, in seconds.
        first_rank: rank of row 0 in the run, for messages.

    Raises:
        NativeError: there is no native library, which has the fence.
    """

    def __init__(
        self, rows: NDArray[np.uint64], rank: int, *, timeout_s: float, first_rank: int = 0
    ) -> None:
        self.rank = rank
        self.size = len(rows)
        self.timeout_s = timeout_s
        # As Python's numbers: for so few words numpy takes ten times as long.
        self._columns = [rows[:, word].data for word in range(ROW_WORDS)]
        self._first_rank = first_rank
        self._owner = os.getpid()
        self._fence = library.load().short.smbox_fence

    def enter(self) -> None:
        """Record pid and start time of this rank; the pid, written last, makes it present."""
        pid, pid_started = process.identity()
        self._set(Word.STARTED, pid_started)
        self._set(Word.PID, pid)

    def leave(self, *, steps: int | None = None) -> None:
        """Record that this rank has left; waiting ranks detect it within POLL_S.

        A forked child of the rank's process is not the rank: there nothing is recorded.

        Args:
            steps: number of steps if this rank's loop ended normally; None: it did not.
        """
        if os.getpid() == self._owner and not self._columns[Word.LEFT][self.rank]:
            self._set(Word.LEFT, GONE if steps is None else FINISHED + steps)

    def raise_to(self, counter: int, value: int) -> None:
        """Set this rank's counter; a rank that reads it also sees all earlier stores."""
        self._set(Word.COUNTERS + counter, value)

    def counters(self, counter: int) -> list[int]:
        """Return every rank's ``counter``."""
        return self._words(Word.COUNTERS + counter)

    def _set(self, word: int, value: int) -> None:
        """Set a word of this rank's row, after all earlier stores."""
        self._fence()
        self._columns[word][self.rank] = value

    def _words(self, word: int) -> list[int]:
        """Return a word of every row, before all later loads."""
        found = self._columns[word].tolist()
        self._fence()
        return found

    def reached(self, counter: int, value: int) -> bool:
        """Return whether every rank's ``counter`` is at least ``value``."""
        return min(self.counters(counter)) >= value

    def wait(self, counter: int, value: int) -> None:
        """Wait until every rank's ``counter`` is at least ``value``.

        Raises:
            WorkerLostError: a rank died, left or did not arrive in time; the error names it.
                The counters are unchanged, and the group cannot be used any more.
        """
        if not self.reached(counter, value):
            self.wait_until(
                lambda: self.reached(counter, value),
                lambda rank: self.counters(counter)[rank] < value,
            )

    def wait_for(self, rank: int, counter: int, value: int) -> None:
        """Wait until the ``counter`` of one rank is at least ``value``.

        Raises:
            WorkerLostError: as ``wait``, for that rank.
        """

        def lags() -> bool:
            return self.counters(counter)[rank] < value

        self.wait_until(lambda: not lags(), lambda other: other == rank and lags())

    def wait_until(self, is_done: Callable[[], bool], lags: Callable[[int], bool]) -> None:
        """Wait until ``is_done()``; ``lags(rank)`` returns whether a rank is waited for.

        Raises:
            WorkerLostError: as ``wait``.
        """
        started_s = time.monotonic()
        while time.monotonic() - started_s < SPIN_S:
            if is_done():
                return
            os.sched_yield()
        next_poll_s = started_s + POLL_S
        while not is_done():
            now_s = time.monotonic()
            if now_s >= next_poll_s:
                self._check_ranks(lags, is_late=now_s - started_s > self.timeout_s)
                next_poll_s = now_s + POLL_S
            pause_s = SLEEP_SHARE * (now_s - started_s)
            time.sleep(min(max(pause_s, SLEEP_FIRST_S), SLEEP_MAX_S))

    def give_up_skipped(self, ranks: Sequence[int], counted: Sequence[int] = ()) -> None:
        """Raise because ranks skipped a step, and record it for the other ranks.

        Raises:
            StepMismatchError: always; it names the ranks, or this one if its loop has ended.
        """
        self._check_unfinished(self.rank)
        self._set(Word.BLAMED, SKIPPED | (ranks[0] + 1))
        raise self._mismatch(ranks, counted)

    def _mismatch(self, ranks: Sequence[int], counted: Sequence[int] = ()) -> StepMismatchError:
        return step_mismatch([self._first_rank + rank for rank in ranks], counted)

    def _check_ranks(self, lags: Callable[[int], bool], *, is_late: bool) -> None:
        """Raise if a rank that is waited for is lost."""
        for blamed in self._words(Word.BLAMED):
            if blamed & SKIPPED:
                raise self._mismatch([(blamed ^ SKIPPED) - 1])
            if blamed:
                verdict = self._verdict(blamed - 1, is_late=False)
                self._give_up(blamed - 1, verdict or "was given up by another rank")
        for rank in set(range(self.size)) - {self.rank}:
            # The verdict comes first: a rank may arrive and end between the two checks.
            verdict = self._verdict(rank, is_late=is_late)
            if verdict and lags(rank):
                self._give_up(rank, verdict)

    def _verdict(self, rank: int, *, is_late: bool) -> str:
        """Return what happened to a rank, in words; empty if it may still arrive."""
        pid, started = self._words(Word.PID)[rank], self._words(Word.STARTED)[rank]
        is_dead = pid and not process.is_alive(pid, started)
        left = self._words(Word.LEFT)[rank]  # last: a rank may leave just before its end
        if left >= FINISHED:
            return f"finished after {left - FINISHED} steps"
        if left:
            return "has left"
        if is_dead:
            return "died"
        if not is_late:
            return ""
        return f"does not answer: it is {_status(pid)}" if pid else "never came"

    def _give_up(self, rank: int, verdict: str) -> None:
        self._set(Word.BLAMED, rank + 1)
        self._check_unfinished(rank)
        raise WorkerLostError(
            f"rank {self._first_rank + rank} {verdict}; the ranks of this host cannot go on"
            " without it",
            rank=self._first_rank + rank,
            pid=self._words(Word.PID)[rank],
            timeout_s=self.timeout_s,
        )

    def _check_unfinished(self, rank: int) -> None:
        """Raise StepMismatchError if the loop of a rank has ended."""
        left = self._words(Word.LEFT)[rank]
        if left >= FINISHED:
            raise finished_early(self._first_rank + rank, left - FINISHED)


def _status(pid: int) -> str:
    """Return the kernel's state of a process: running, sleeping, stopped."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"
