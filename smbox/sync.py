"""Counters and barriers: a few shared words that workers change atomically and wait for.

A counter is one shared signed 64-bit integer, for tickets, clocks and quorums. A barrier's
words are its generation, the number of arrivals, the number of parties and the ids of those
that arrived; the last to arrive opens it. Each arrival has a random id, so that it can be
undone and counts once however often it is sent.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from smbox import dtypes
from smbox.array import as_bytes
from smbox.deadline import ANSWER_MIN_S, deadline_of, left_s, request_timeout_s
from smbox.errors import ConfigError, LayoutMismatchError, RequestTimeoutError, SmboxError
from smbox.handle import Handle
from smbox.memory.kernels import ONE, BarrierWord, KernelCode
from smbox.memory.layout import STRIPE_NBYTES, WORD_NBYTES, RegionKind
from smbox.paths import creating
from smbox.paths.pair import PathPair
from smbox.paths.requests import CreateRequest, Operation, Reading, RegionInfo
from smbox.paths.sinks import OldSink
from smbox.wire.header import NO_SCALE

INT64: Final = dtypes.by_name("int64")
UINT64: Final = dtypes.by_name("uint64")
PARTIES_MAX: Final = STRIPE_NBYTES // WORD_NBYTES - BarrierWord.MEMBERS
_ONE: Final = ONE["int"]
_NEVER: Final = 1 << 64  # larger than every generation

Words = NDArray[np.uint64]


@dataclass(slots=True, eq=False, repr=False)
class Counter:
    """A named counter of a node; timeouts are in seconds, None is the timeout of the box.

    Thread-safe. A pickled copy connects by itself.

    Attributes:
        paths: paths to the node, shared with the box.
        info: description of the counter's region.
    """

    paths: PathPair
    info: RegionInfo

    @property
    def name(self) -> str:
        """Name of the counter, unique among the counters of its node."""
        return self.info.name

    @property
    def value(self) -> int:
        """Current value.

        Raises:
            RegionFreedError: the counter was freed.
        """
        out = np.empty((), INT64.numpy)
        self.paths.finish(Reading(self.info, 0, out.nbytes, out), None)
        return int(out)

    def add(self, amount: int = 1, *, timeout_s: float | None = None) -> int:
        """Add ``amount`` (which may be negative) and return the old value.

        If all callers add 1, each gets another old value: a ticket. Wraps around at 64 bits.

        Raises:
            TypeError, LayoutMismatchError: the amount is not an integer, or exceeds 64 bits;
                nothing changed.
            RequestTimeoutError: ``error.handle.outcome()`` returns whether it took effect.
        """
        operation, old = self._operation("counter.add", KernelCode.SUM, amount)
        self.paths.finish(operation, timeout_s)
        return int(old)

    def add_nb(self, amount: int = 1) -> Handle[int]:
        """Start an ``add``; the handle's result is the old value."""
        operation, old = self._operation("counter.add", KernelCode.SUM, amount)
        return self.paths.begin(operation, lambda: int(old))

    def compare_and_swap(self, old: int, new: int, *, timeout_s: float | None = None) -> bool:
        """Set the value to ``new`` if it is ``old``; return whether it was.

        Raises:
            TypeError, LayoutMismatchError: a value is not an integer, or exceeds 64 bits;
                nothing changed.
            RequestTimeoutError: ``error.handle.outcome()`` returns whether it took effect.
        """
        operation, found = self._swap(old, new)
        self.paths.finish(operation, timeout_s)
        return bool(found == old)

    def compare_and_swap_nb(self, old: int, new: int) -> Handle[bool]:
        """Start a ``compare_and_swap``; the handle's result is what it returns."""
        operation, found = self._swap(old, new)
        return self.paths.begin(operation, lambda: bool(found == old))

    def wait(self, at_least: int, *, timeout_s: float | None = None) -> int:
        """Wait until the value is ``at_least`` or more; return the value.

        Raises:
            TypeError: ``at_least`` is not an integer.
            RequestTimeoutError: the value was not reached in time; nothing changed.
            RegionFreedError: the counter was freed.
        """
        at_least = operator.index(at_least)
        wanted_s = self.paths.seconds(timeout_s)
        deadline_s = deadline_of(wanted_s)
        found: dict[str, object] = {"outcome": "none", "timeout_s": wanted_s}

        def is_met(word: NDArray[Any]) -> bool:
            found["value"] = value = int(word)
            return value >= at_least

        try:
            return int(_wait_until(self.paths, self.info, is_met, deadline_s, "counter.wait"))
        except RequestTimeoutError as error:
            error.facts.update(op="counter.wait", at_least=at_least, **found)
            raise

    def _swap(self, old: int, new: int) -> tuple[Operation, NDArray[Any]]:
        return self._operation("counter.compare_and_swap", KernelCode.COMPARE_SWAP, old, new)

    def _operation(
        self, op: str, kernel: KernelCode, *numbers: int
    ) -> tuple[Operation, NDArray[Any]]:
        source = np.array([_whole_number(number) for number in numbers], INT64.numpy)
        return _change(self.info, op, kernel, source)

    def __repr__(self) -> str:
        return f"Counter({self.name!r})"


def counter(paths: PathPair, name: str, init: int) -> Counter:
    """Return the counter ``name``; create it with the value ``init`` if it does not exist."""
    request = CreateRequest(
        name, INT64, (), RegionKind.COUNTER, init=_whole_number(init), exist_ok=True
    )
    return Counter(paths, creating.create(paths, request, None, None))


def _whole_number(number: int) -> int:
    """Return ``number`` if a counter can hold it.

    Raises:
        TypeError, LayoutMismatchError: it is not an integer, or exceeds 64 bits.
    """
    whole = operator.index(number)
    if not -(1 << 63) <= whole < 1 << 63:
        raise LayoutMismatchError("a counter holds a signed 64-bit integer", given=number)
    return whole


def barrier(paths: PathPair, name: str, parties: int, timeout_s: float | None) -> int:
    """Arrive at the barrier ``name``, created on first use, and wait until all have arrived.

    A timeout or interrupt undoes the arrival.

    Returns:
        The generation that this meeting ended: 0 for the first.

    Raises:
        ConfigError: no parties, or more than fit into a stripe.
        LayoutMismatchError: the barrier exists with another number of parties.
        RequestTimeoutError: the others did not arrive in time; this arrival was undone.
        RegionFreedError: the barrier was freed.
    """
    wanted_s = paths.seconds(timeout_s)
    deadline_s = deadline_of(wanted_s)
    info = _find_barrier(paths, name, parties, deadline_s)
    member = secrets.randbits(64)
    arrival: Handle[Words] | None = None
    try:
        try:
            arrival = _begin(paths, info, KernelCode.ARRIVE, member)
            arrival.wait(left_s(deadline_s))
            met = _generation(arrival.result())
            _wait_until(paths, info, lambda now: _generation(now) > met, deadline_s, "barrier")
        except RequestTimeoutError as error:
            found = _withdraw(paths, info, member, request_timeout_s(deadline_s))
            met = _arrived_at(arrival)
            if found is None or _generation(found) <= met:
                raise _timeout(info, wanted_s, found) from error
            # The last party arrived between the timeout and the withdrawal.
    except BaseException as error:  # also an interrupt of the withdrawal above
        if not isinstance(error, RequestTimeoutError):
            _withdraw(paths, info, member, ANSWER_MIN_S)
        raise
    return met


def _find_barrier(paths: PathPair, name: str, parties: int, deadline_s: float) -> RegionInfo:
    if not 1 <= operator.index(parties) <= PARTIES_MAX:
        raise ConfigError(f"a barrier has 1 to {PARTIES_MAX} parties", parties=parties)
    words = np.zeros(BarrierWord.MEMBERS + parties, UINT64.numpy)
    words[BarrierWord.PARTIES] = parties
    request = CreateRequest(name, UINT64, words.shape, RegionKind.BARRIER, exist_ok=True)
    try:
        return creating.create(paths, request, words, deadline_s)
    except LayoutMismatchError as error:
        raise LayoutMismatchError(
            "the barrier exists with another number of parties: take another name, or the same"
            " number in all processes",
            barrier=name,
            given=parties,
        ) from error


def _begin(paths: PathPair, info: RegionInfo, kernel: KernelCode, member: int) -> Handle[Words]:
    """Start a barrier kernel; the handle's result is the old words."""
    operation, old = _change(info, "barrier", kernel, np.array([member], np.uint64))
    return paths.begin(operation, lambda: old)


def _withdraw(paths: PathPair, info: RegionInfo, member: int, timeout_s: float) -> Words | None:
    """Undo an arrival; return the old words, or None if the node did not confirm it."""
    try:
        withdrawal = _begin(paths, info, KernelCode.WITHDRAW, member)
        withdrawal.wait(timeout_s)
        return withdrawal.result()
    except SmboxError:
        return None


def _arrived_at(arrival: Handle[Words] | None) -> int:
    """Return the generation of an arrival, or _NEVER if it is not known to have happened.

    An arrival that timed out may have happened: it was sent before its withdrawal, and may have
    opened the barrier. An arrival that failed raises its error.
    """
    return _generation(arrival.result()) if arrival and arrival.done() else _NEVER


def _timeout(info: RegionInfo, timeout_s: float, found: Words | None) -> RequestTimeoutError:
    facts: dict[str, object]
    if found is None:
        message = "the barrier did not open in time, and this arrival may still count"
        facts = {"outcome": "unknown"}
    else:
        message = "the barrier did not open in time; this arrival was undone"
        arrived, parties = int(found[BarrierWord.ARRIVED]), int(found[BarrierWord.PARTIES])
        facts = {"outcome": "none", "arrived": arrived, "parties": parties}
    return RequestTimeoutError(
        message, op="barrier", barrier=info.name, timeout_s=timeout_s, **facts
    )


def _generation(words: Words) -> int:
    return int(words[BarrierWord.GENERATION])


def _change(
    info: RegionInfo, op: str, kernel: KernelCode, source: NDArray[Any]
) -> tuple[Operation, NDArray[Any]]:
    """Return a change of a region's words, and the array that receives the old words."""
    old = np.empty(info.shape, info.dtype.numpy)
    sink = OldSink(0, as_bytes(old))
    scale = _ONE if kernel is KernelCode.SUM else NO_SCALE
    return Operation(info, op, kernel, scale, 0, info.nbytes, source, sink=sink), old


def _wait_until(
    paths: PathPair,
    info: RegionInfo,
    is_met: Callable[[NDArray[Any]], bool],
    deadline_s: float,
    op: str,
) -> NDArray[Any]:
    """Read a region's words at each new version until a condition on them is met."""
    words = np.empty(info.shape, info.dtype.numpy)
    while True:
        version = paths.data(info).version(info, request_timeout_s(deadline_s))
        paths.finish(Reading(info, 0, info.nbytes, words), request_timeout_s(deadline_s))
        if is_met(words):
            return words
        paths.wait_version(info, version + 1, left_s(deadline_s), op=op)
