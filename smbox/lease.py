"""Leases: places in a region that one holder at a time keeps by renewing them.

A place is one row of int64 words: the lease word, then values of the holder, then its lease in
milliseconds. Each word is ``generation << 40 | number`` and changes by one operation only, an
atomic maximum:

    take     (generation + 1) << 40        who finds the old generation in the answer holds it
    renew    generation << 40 | 2 * beats  the answer shows whether somebody has taken it since
    expire   word | 1                      an observer, once the word stood still for lease_s
    leave    generation << 40 | LEFT

An odd number has no holder. A renewal is larger than the mark of an observer that did not see
it: nobody takes the place of a holder that renewed before the mark was set.

The generation is the holder's token: the words of a successor are larger, so nothing that an
earlier holder writes, however late, changes them. No clock is shared: each observer measures
with its own monotonic clock for how long a word stood still. Of two that take a place at the
same moment the slower one may raise the values of the faster one, and lengthen its lease.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.deadline import answer_s, held
from smbox.errors import ConfigError, LeaseLostError
from smbox.region import Region

I64 = NDArray[np.int64]

NUMBER_BITS: Final = 40
NUMBER_MAX: Final = (1 << NUMBER_BITS) - 1
"""Largest value of a holder; the word's generation stands above it."""

LEFT: Final = NUMBER_MAX
EXPIRED: Final = 1
"""Bit of the lease word: the holder did not renew in time."""

BEAT: Final = 2
"""What a renewal adds to the lease word."""

RENEWALS: Final = 4
"""Renewals, and looks of an observer, in one lease."""

_PER_SECOND: Final = 1000
_TAKEN: Final = "this process did not renew its lease in time, and another one took its place"


def check_lease(lease_s: object) -> float:
    """Return a lease that can be kept, in seconds.

    Raises:
        ConfigError: it is no positive finite number.
    """
    if not isinstance(lease_s, Real) or not 0.0 < float(lease_s) < math.inf:
        raise ConfigError("lease_s is a positive number of seconds", lease_s=lease_s)
    return float(lease_s)


def generations(words: I64) -> I64:
    """Return how often each place was taken; 0: never."""
    return words >> NUMBER_BITS


def numbers(words: I64) -> I64:
    """Return what the words say besides their generation."""
    return words & NUMBER_MAX


def leases_s(words: I64) -> NDArray[np.float64]:
    """Return for how long places are kept after a renewal, in seconds, by their last words."""
    return numbers(words) / _PER_SECOND


def is_held(words: I64) -> NDArray[np.bool_]:
    """Return which places have a holder that neither left nor was found expired."""
    found: NDArray[np.bool_] = (words > 0) & (words & EXPIRED == 0)
    return found


def expire(row: Region, word: int, *, deadline_s: float | None = None) -> bool:
    """Mark a place as free for all observers, unless its lease word has changed since.

    A holder that is alive after all takes it again at its next renewal.

    Args:
        row: the place, ``i64[1, k]``.
        word: its lease word as it stood still.
        deadline_s: to wait for the node until then; None: the timeout of the box.

    Returns:
        Whether it is free; False: its holder has renewed, or somebody has taken it.
    """
    mark = np.zeros(row.shape, np.int64)
    mark[0, 0] = word | EXPIRED
    old = row.fetch_and_op(mark, "max", timeout_s=answer_s(deadline_s))
    return int(old[0, 0]) | EXPIRED == word | EXPIRED


def _clock_s() -> float:
    """Return seconds that pass while the host is suspended, too; other hosts' clocks run on."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """One process's hold of a place; thread-safe.

    A holder that did not renew in time goes on if nobody has taken the place since; else it
    raises LeaseLostError, once and for all. A forked child holds nothing.

    Attributes:
        generation: of the hold, or of the last one.
        values: the holder's, as they were set last, k - 2 of them.

    Args:
        row: the place, ``i64[1, k]``: the lease word, k - 2 values, and the lease.
        lease_s: how long the place is kept after a renewal, in seconds.

    Raises:
        ConfigError: lease_s cannot be kept.
    """

    def __init__(self, row: Region, lease_s: float) -> None:
        self.row = row
        self.lease_s = check_lease(lease_s)
        self.generation = 0
        self.values: tuple[int, ...] = (0,) * (row.shape[1] - 2)
        self._beats = 0
        self._renewed_s = -math.inf
        self._lost = "nobody has taken this place yet"
        self._owner = os.getpid()
        self._mutex = threading.Lock()

    @property
    def is_held(self) -> bool:
        """Whether the place is held, as far as this process knows."""
        return not self._lost and os.getpid() == self._owner

    def take(
        self, generation: int, values: Sequence[int], *, deadline_s: float | None = None
    ) -> bool:
        """Take a place that was found free in this generation; return whether it worked.

        Args:
            generation: of the words that were found.
            values: the first values of the new holder, k - 2 of them.
            deadline_s: as :meth:`renew`.

        Returns:
            False if somebody else was first; the place is theirs.
        """
        with held(self._mutex, deadline_s):
            if not self._take(generation, tuple(values), deadline_s):
                return False
            self._lost = ""
            return True

    def renew(self, *, deadline_s: float | None = None) -> None:
        """Keep the place for another lease.

        Args:
            deadline_s: to wait for the node until then; None: the timeout of the box.

        Raises:
            LeaseLostError: somebody else holds the place.
            RequestTimeoutError: the node did not answer; the place is kept until its lease
                ends for those who see it.
        """
        with self._holding(deadline_s):
            self._renew(self.values, deadline_s)

    def set(self, index: int, value: int, *, deadline_s: float | None = None) -> None:
        """Set a value and renew; raises as :meth:`renew` does, and then nothing is set.

        Raises:
            ConfigError: the value is negative or above NUMBER_MAX.
        """
        if not 0 <= value <= NUMBER_MAX:
            raise ConfigError(f"a value is from 0 to {NUMBER_MAX}", value=value)
        with self._holding(deadline_s):
            values = (*self.values[:index], value, *self.values[index + 1 :])
            if value < self.values[index]:  # a maximum lowers nothing: begin a generation
                self._retake(values, deadline_s)
            else:
                self._renew(values, deadline_s)

    def check(self, *, deadline_s: float | None = None) -> None:
        """Raise LeaseLostError if the place is lost; ask the node if the lease has passed."""
        self._check()
        if _clock_s() - self._renewed_s > self.lease_s:
            self.renew(deadline_s=deadline_s)

    def check_process(self) -> None:
        """Raise LeaseLostError in a forked child of the process that holds the place."""
        if os.getpid() != self._owner:
            raise LeaseLostError(
                "the parent process holds this place; join again in the child",
                region=self.row.name,
            )

    def lose(self, reason: str) -> None:
        """Hold nothing any more, for a reason that the next use is told."""
        self._lost = self._lost or reason

    def leave(self, *, deadline_s: float | None = None) -> None:
        """Free the place at once. Idempotent; does nothing where the place is lost.

        Raises:
            RequestTimeoutError: the node did not answer; the place is free after its lease.
        """
        if self.is_held:
            self.lose("this process left its place")
            self._raise(self.generation, (LEFT, *self.values), deadline_s)

    @contextmanager
    def _holding(self, deadline_s: float | None) -> Iterator[None]:
        """Hold the mutex; LeaseLostError, without waiting for it, where the place is lost."""
        self._check()
        with held(self._mutex, deadline_s):
            self._check()
            yield

    def _check(self) -> None:
        self.check_process()
        if self._lost:
            raise LeaseLostError(self._lost, region=self.row.name, generation=self.generation)

    def _take(self, generation: int, values: tuple[int, ...], deadline_s: float | None) -> bool:
        began_s = _clock_s()
        old = self._raise(generation + 1, (0, *values), deadline_s)
        if int(old[0] >> NUMBER_BITS) != generation:
            return False
        self.generation, self.values = generation + 1, values
        self._beats, self._renewed_s = 0, began_s
        return True

    def _renew(self, values: tuple[int, ...], deadline_s: float | None) -> None:
        self._beats += BEAT
        began_s = _clock_s()
        old = self._raise(self.generation, (self._beats, *values), deadline_s)
        if int(old[0] >> NUMBER_BITS) != self.generation:
            self.lose(_TAKEN)
            self._check()
        if int(old[0]) & EXPIRED:
            self._retake(values, deadline_s)
        self.values, self._renewed_s = values, began_s

    def _retake(self, values: tuple[int, ...], deadline_s: float | None) -> None:
        """Hold the same place in the next generation."""
        if not self._take(self.generation, values, deadline_s):
            self.lose(_TAKEN)
        elif self._lost:  # left by another thread, which marked the generation before
            self._raise(self.generation, (LEFT, *values), deadline_s)
        self._check()

    def _raise(self, generation: int, row: Sequence[int], deadline_s: float | None) -> I64:
        """Raise the words to those of a generation; return the old ones, ``i64[k]``."""
        kept = max(1, round(min(self.lease_s * _PER_SECOND, NUMBER_MAX)))
        words = [[generation << NUMBER_BITS | number for number in (*row, kept)]]
        raised, wait_s = np.array(words, np.int64), answer_s(deadline_s)
        old: I64 = self.row.fetch_and_op(raised, "max", timeout_s=wait_s)[0]
        return old
