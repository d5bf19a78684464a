"""Leases: places in a region; each place has one holder, which renews it.

A place is one row of int64 words: the lease word, the values of the holder, and the duration of
its lease in milliseconds. Each word is ``generation << 40 | number``. Words change only by an
atomic maximum, which returns the old words:

    take     (generation + 1) << 40        succeeds if the old word has the old generation
    renew    generation << 40 | 2 * beats  fails if the old word has a later generation
    expire   word | 1                      by an observer that saw no change for the lease
    leave    generation << 40 | LEFT

A place with an odd number is free. If the holder renews before an observer sets the expiry
mark, the maximum discards the mark, and no process can take the place.

The generation is a fencing token: the words of a successor are larger, so a late write of an
earlier holder changes nothing. Clocks are not compared: each observer measures with its own
monotonic clock how long a word stays the same. If two processes take a place at the same time,
the one that fails may increase the values and the lease duration of the other.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from numbers import Real
from typing import Final

import numpy as np
from numpy.typing import NDArray

from smbox.deadline import optional_timeout_s
from smbox.errors import ConfigError, LeaseLostError, LimitError
from smbox.mutex import Mutex, refuse
from smbox.region import Region

I64 = NDArray[np.int64]

NUMBER_BITS: Final = 40
NUMBER_MAX: Final = (1 << NUMBER_BITS) - 1
"""Largest value of a holder. The bits above it hold the generation."""

GENERATION_MAX: Final = (1 << 63 - NUMBER_BITS) - 1
"""The last generation of a place."""

LEFT: Final = NUMBER_MAX
EXPIRED: Final = 1
"""Bit of the lease word: the holder did not renew in time."""

BEAT: Final = 2
"""Increment of the lease word for each renewal."""

RENEWALS: Final = 4
"""Number of renewals by the holder, and of reads by an observer, in one lease."""

_PER_SECOND: Final = 1000
_TAKEN: Final = "this process did not renew its lease in time; another process took its place"


def check_lease(lease_s: object) -> float:
    """Return a lease duration in seconds as a float.

    Raises:
        ConfigError: it is not a positive finite number.
    """
    if not isinstance(lease_s, Real) or not 0.0 < float(lease_s) < math.inf:
        raise ConfigError("lease_s must be a positive number of seconds", lease_s=lease_s)
    return float(lease_s)


def generations(words: I64) -> I64:
    """Return the generations of words: how often each place was taken; 0: never."""
    return words >> NUMBER_BITS


def numbers(words: I64) -> I64:
    """Return the numbers of words, without the generations."""
    return words & NUMBER_MAX


def leases_s(words: I64) -> NDArray[np.float64]:
    """Return the lease durations in seconds that the last words of places hold."""
    return numbers(words) / _PER_SECOND


def is_held(words: I64) -> NDArray[np.bool_]:
    """Return which lease words have a holder that neither left nor was marked as expired."""
    found: NDArray[np.bool_] = (words > 0) & (words & EXPIRED == 0)
    return found


def expire(row: Region, word: int, *, deadline_s: float | None = None) -> bool:
    """Mark a place as expired for all observers, unless its lease word has changed.

    If the holder is alive, it takes the place again at its next renewal.

    Args:
        row: the place, ``i64[1, k]``.
        word: the lease word that did not change for the lease.
        deadline_s: deadline of the request; None: the timeout of the box.

    Returns:
        True if the place is free; False if it was renewed or taken.
    """
    mark = np.zeros(row.shape, np.int64)
    mark[0, 0] = word | EXPIRED
    old = row.fetch_and_op(mark, "max", timeout_s=optional_timeout_s(deadline_s))
    return int(old[0, 0]) | EXPIRED == word | EXPIRED


def _clock_s() -> float:
    """Return the seconds since boot, with those in which the host was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """The lease of this process on a place; thread-safe.

    A holder that did not renew in time keeps the place if no other process has taken it.
    Otherwise each later call raises LeaseLostError. A forked child does not hold the lease.

    Attributes:
        generation, values: the current or last ones of this holder; k - 2 values.
        is_leaving: the place was left, but the request was not answered.

    Args:
        row: the place, ``i64[1, k]``: the lease word, k - 2 values, the lease duration.
        lease_s: seconds after the last renewal until the place expires.

    Raises:
        ConfigError: lease_s is not a positive finite number.
    """

    def __init__(self, row: Region, lease_s: float) -> None:
        self.row = row
        self.lease_s = check_lease(lease_s)
        self._lease_ms = math.ceil(min(self.lease_s * _PER_SECOND, NUMBER_MAX))
        self.generation = 0
        self.values: tuple[int, ...] = (0,) * (row.shape[1] - 2)
        self._beats = 0
        self._renewed_s = -math.inf
        self._lost = "this object has not acquired the lock, or joined the run"
        self.is_leaving = self._is_closed = False
        self._owner = os.getpid()
        self._mutex = Mutex()

    @property
    def is_held(self) -> bool:
        """Return True if, as far as is known, this process holds the place."""
        return not self._lost and os.getpid() == self._owner

    def take(
        self, generation: int, values: Sequence[int], *, deadline_s: float | None = None
    ) -> bool:
        """Take a place that was free in the given generation.

        Args:
            generation: generation of the free place.
            values: initial values of the new holder, k - 2 of them.
            deadline_s: see :meth:`renew`.

        Returns:
            False if another process took the place first.

        Raises:
            LimitError: this is the last generation of the place; nothing changed.
            ConfigError: the lease was closed; nothing changed.
        """

        def take() -> bool:
            if self._is_closed:
                raise ConfigError("the box was closed", region=self.row.name)
            if is_taken := self._take(generation, tuple(values), deadline_s):
                self._lost = ""
            return is_taken

        return self._mutex.holding(deadline_s, take)

    def renew(self, *, deadline_s: float | None = None) -> None:
        """Renew the lease; no wait for another thread exceeds the deadline: others may be due.

        Args:
            deadline_s: deadline of the request; None: the timeout of the box.

        Raises:
            LeaseLostError: another process holds the place.
            RequestTimeoutError: the node did not answer, or another thread used the lease until
                the deadline; the place is held until it expires.
        """
        self._check()  # before it waits for the mutex
        self._mutex.holding(
            deadline_s, lambda: self._renew(self.values, deadline_s), late=refuse
        )

    def set(self, index: int, value: int, *, deadline_s: float | None = None) -> None:
        """Set a value and renew; for other errors see :meth:`renew`.

        Raises:
            ConfigError: the value is negative or above NUMBER_MAX; nothing is set.
            RequestTimeoutError: the value may be set; then others may not see a lower one.
        """
        if not 0 <= value <= NUMBER_MAX:
            raise ConfigError(f"a value must be from 0 to {NUMBER_MAX}", value=value)
        self._check()
        self._mutex.holding(deadline_s, lambda: self._set(index, value, deadline_s))

    def check(self, *, deadline_s: float | None = None) -> None:
        """Raise LeaseLostError if the place is lost; renew first if the lease has expired."""
        self._check()
        if _clock_s() - self._renewed_s > self.lease_s:
            self.renew(deadline_s=deadline_s)

    def check_process(self) -> None:
        """Raise LeaseLostError in a forked child of the process that made this object."""
        if os.getpid() != self._owner:
            raise LeaseLostError(
                "this rank or lock is the parent process's: join, or acquire it, in the child",
                region=self.row.name,
            )

    def lose(self, reason: str) -> None:
        """Mark the lease as lost; later calls raise LeaseLostError with the first reason."""
        self._lost = self._lost or reason

    def leave(self, *, deadline_s: float | None = None) -> None:
        """Free the place at once. Idempotent; does nothing if the lease is lost.

        Raises:
            RequestTimeoutError: the node did not answer; call again, or the lease expires.
        """
        if self.is_held:
            self.is_leaving = True
            self.lose("this process left the run or released the lock, or its box was closed")
        if self.is_leaving:
            self._maximum(self.generation, (LEFT, *self.values), deadline_s)
            self.is_leaving = False

    def close(self, deadline_s: float) -> None:
        """Leave for good: wait for a take in progress, and refuse later ones.

        Raises:
            SmboxError: as ``leave``.
        """
        self._is_closed = True
        if not self.is_held:
            self._mutex.holding(deadline_s, lambda: None, late=lambda: None)
        self.leave(deadline_s=deadline_s)

    def _check(self) -> None:
        self.check_process()
        if self._lost:
            raise LeaseLostError(self._lost, region=self.row.name, generation=self.generation)

    def _take(self, generation: int, values: tuple[int, ...], deadline_s: float | None) -> bool:
        if generation == GENERATION_MAX:
            message = "this place was taken 2^23 - 1 times, the most: use another name"
            raise LimitError(message, region=self.row.name)
        began_s = _clock_s()
        if self._maximum(generation + 1, (0, *values), deadline_s) >> NUMBER_BITS != generation:
            return False
        self.generation, self.values = generation + 1, values
        self._renewed_s = began_s
        return True

    def _set(self, index: int, value: int, deadline_s: float | None) -> None:
        self._check()
        values = (*self.values[:index], value, *self.values[index + 1 :])
        write = self._retake if value < self.values[index] else self._renew
        write(values, deadline_s)  # only a new generation can decrease a word

    def _renew(self, values: tuple[int, ...], deadline_s: float | None) -> None:
        self._check()
        self._beats += BEAT
        began_s = _clock_s()
        old = self._maximum(self.generation, (self._beats, *values), deadline_s)
        if old >> NUMBER_BITS != self.generation:
            self.lose(_TAKEN)
            self._check()
        if old & EXPIRED:
            self._check()  # the mark may be that of another thread, which left
            self._retake(values, deadline_s)
        self.values, self._renewed_s = values, began_s

    def _retake(self, values: tuple[int, ...], deadline_s: float | None) -> None:
        """Take the same place in the next generation."""
        if not self._take(self.generation, values, deadline_s):
            self.lose(_TAKEN)
        elif self._lost:  # another thread left, and marked only the previous generation
            self._maximum(self.generation, (LEFT, *values), deadline_s)
        self._check()

    def _maximum(self, generation: int, row: Sequence[int], deadline_s: float | None) -> int:
        """Write words of a generation by an atomic maximum; return the old lease word.

        ``row``: numbers of the lease word and of the values, k - 1 of them.
        """
        words = [[generation << NUMBER_BITS | number for number in (*row, self._lease_ms)]]
        operand, wait_s = np.array(words, np.int64), optional_timeout_s(deadline_s)
        return int(self.row.fetch_and_op(operand, "max", timeout_s=wait_s)[0, 0])
