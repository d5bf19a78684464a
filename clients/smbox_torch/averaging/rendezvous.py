"""Where the ranks of one host meet: counters in mapped memory, and who is still alive.

Every rank owns one row of eight words and is the only one to write it, so nothing needs a
lock or an atomic instruction: a rank raises its own counter, the others look. Whoever sees the
counter must also see what was stored before it, and what is read after the counter must not be
older. x86-64 keeps both orders (x86-TSO). aarch64 does not: there a release store in
``raise_to`` and an acquire load in ``counters`` are missing.

Waiting never hangs. A rank that died is noticed by pid and start time within LOOK_S; one
that is stopped or stuck is given up after the timeout; the first to notice writes down whom
it blames, so that the others name the same rank and not the messenger.
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
from smbox_torch.averaging.steps import finished_early, step_mismatch

ROW_WORDS: Final = 8
SPIN_S: Final = 200e-6  # of looks that only yield the core
SLEEP_FIRST_S: Final = 20e-6
SLEEP_MAX_S: Final = 1e-3
SLEEP_SHARE: Final = 0.2  # of the time waited so far: no wait is much longer than it has to be
LOOK_S: Final = 0.25  # between two looks at the others' processes


GONE: Final = 1
FINISHED: Final = 2
SKIPPED: Final = 1 << 32


class Word:
    """Words of a rank's row; the four from COUNTERS on are for whoever uses the rows."""

    PID: Final = 0
    STARTED: Final = 1
    LEFT: Final = 2  # GONE: this rank left; FINISHED + n: it finished after n steps
    BLAMED: Final = 3  # 1 + the local rank that this one has given up, | SKIPPED; or 0
    COUNTERS: Final = 4


class Rendezvous:
    """The counters of the ranks of one host, seen by one of them.

    Args:
        rows: ``u64[ranks, ROW_WORDS]`` in shared memory, zeros at first.
        rank: row of this process.
        timeout_s: for one wait, in seconds, until a living rank is given up.
        first_rank: rank in the whole run of row 0, for messages.
    """

    def __init__(
        self, rows: NDArray[np.uint64], rank: int, *, timeout_s: float, first_rank: int = 0
    ) -> None:
        self.rank = rank
        self.size = len(rows)
        self.timeout_s = timeout_s
        self._rows = rows
        # As Python's numbers: for so few words numpy takes ten times as long.
        self._columns = [rows[:, word].data for word in range(Word.COUNTERS, ROW_WORDS)]
        self._first_rank = first_rank

    def enter(self) -> None:
        """Write down who this rank is; its pid, last, makes it present."""
        pid, pid_started = process.identity()
        self._rows[self.rank, Word.STARTED] = pid_started
        self._rows[self.rank, Word.PID] = pid

    def leave(self, *, steps: int | None = None) -> None:
        """Go away in order: whoever waits for this rank learns it within LOOK_S.

        Args:
            steps: that this rank did, if its loop ended as it should; None: it was cut short.
        """
        if not self._rows[self.rank, Word.LEFT]:
            self._rows[self.rank, Word.LEFT] = GONE if steps is None else FINISHED + steps

    def raise_to(self, counter: int, value: int) -> None:
        """Set this rank's counter: whoever sees it sees all that was stored before."""
        self._columns[counter][self.rank] = value

    def counters(self, counter: int) -> list[int]:
        """Return every rank's ``counter``."""
        return self._columns[counter].tolist()

    def reached(self, counter: int, value: int) -> bool:
        """Tell whether every rank's ``counter`` is at least ``value``."""
        return min(self._columns[counter].tolist()) >= value

    def wait(self, counter: int, value: int) -> None:
        """Return once every rank's ``counter`` is at least ``value``.

        Raises:
            WorkerLostError: a rank died, left or did not come in time; it names the rank. The
                counters are as they were, and the group is of no more use.
        """
        if not self.reached(counter, value):
            self.wait_until(
                lambda: self.reached(counter, value),
                lambda rank: self._columns[counter][rank] < value,
            )

    def wait_for(self, rank: int, counter: int, value: int) -> None:
        """Return once one rank's ``counter`` is at least ``value``.

        Raises:
            WorkerLostError: as ``wait``, of that rank.
        """

        def lags() -> bool:
            return self._columns[counter][rank] < value

        self.wait_until(lambda: not lags(), lambda other: other == rank and lags())

    def wait_until(self, is_done: Callable[[], bool], lags: Callable[[int], bool]) -> None:
        """Return once ``is_done()``; until then ``lags(rank)`` tells who is waited for.

        Raises:
            WorkerLostError: as ``wait``.
        """
        started_s = time.monotonic()
        while time.monotonic() - started_s < SPIN_S:
            if is_done():
                return
            os.sched_yield()
        look_s = started_s + LOOK_S
        while not is_done():
            now_s = time.monotonic()
            if now_s >= look_s:
                self._look(lags, is_late=now_s - started_s > self.timeout_s)
                look_s = now_s + LOOK_S
            pause_s = SLEEP_SHARE * (now_s - started_s)
            time.sleep(min(max(pause_s, SLEEP_FIRST_S), SLEEP_MAX_S))

    def give_up_skipped(self, ranks: Sequence[int], counted: Sequence[int] = ()) -> None:
        """Give up because ranks skipped a step; the others learn it, too.

        Raises:
            StepMismatchError: always; it names the ranks.
        """
        self._rows[self.rank, Word.BLAMED] = SKIPPED | (ranks[0] + 1)
        raise self._mismatch(ranks, counted)

    def _mismatch(self, ranks: Sequence[int], counted: Sequence[int] = ()) -> StepMismatchError:
        return step_mismatch([self._first_rank + rank for rank in ranks], counted)

    def _look(self, lags: Callable[[int], bool], *, is_late: bool) -> None:
        """Raise if a rank that is waited for will not come."""
        for blamed in self._rows[:, Word.BLAMED].tolist():
            if blamed & SKIPPED:
                raise self._mismatch([(blamed ^ SKIPPED) - 1])
            if blamed:
                verdict = self._verdict(blamed - 1, is_late=False)
                self._give_up(blamed - 1, verdict or "was given up by another rank")
        for rank in set(range(self.size)) - {self.rank}:
            # The verdict comes first: a rank may do its part and end between the two looks.
            verdict = self._verdict(rank, is_late=is_late)
            if verdict and lags(rank):
                self._give_up(rank, verdict)

    def _verdict(self, rank: int, *, is_late: bool) -> str:
        """Say what became of a rank; nothing for one that may still come."""
        pid, left = int(self._rows[rank, Word.PID]), int(self._rows[rank, Word.LEFT])
        if left >= FINISHED:
            return f"finished after {left - FINISHED} steps"
        if pid and left:
            return "has left"
        if pid and not process.is_alive(pid, int(self._rows[rank, Word.STARTED])):
            return "died"
        if not is_late:
            return ""
        return f"does not answer: it is {_status(pid)}" if pid else "never came"

    def _give_up(self, rank: int, verdict: str) -> None:
        self._rows[self.rank, Word.BLAMED] = rank + 1
        left = int(self._rows[rank, Word.LEFT])
        if left >= FINISHED:
            raise finished_early(self._first_rank + rank, left - FINISHED)
        raise WorkerLostError(
            f"rank {self._first_rank + rank} {verdict}; the ranks of this host cannot go on"
            " without it",
            rank=self._first_rank + rank,
            pid=int(self._rows[rank, Word.PID]),
            timeout_s=self.timeout_s,
        )


def _status(pid: int) -> str:
    """Say what a process does, in the kernel's word: running, sleeping, stopped."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"
