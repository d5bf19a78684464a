"""Counter: one shared signed 64-bit number: tickets, clocks, quorums."""

from __future__ import annotations

import operator
import time

import numpy as np
from numpy.typing import NDArray

from smbox.array import as_bytes
from smbox.errors import LayoutMismatchError, RequestTimeoutError
from smbox.handle import Handle
from smbox.memory.kernels import KernelCode
from smbox.paths import requests
from smbox.paths.pair import PathPair
from smbox.paths.sinks import OldSink
from smbox.paths.work import Operation, RegionInfo

INT64 = np.dtype(np.int64)
NBYTES = INT64.itemsize


def whole_number(number: int) -> int:
    """Return a number that a counter can have.

    Raises:
        TypeError, LayoutMismatchError: no whole number of 64 bits.
    """
    whole = operator.index(number)
    if not -(1 << 63) <= whole < 1 << 63:
        raise LayoutMismatchError("a counter has 64 bits", given=number)
    return whole


class Counter:
    """A named counter of a node; a wait without ``timeout_s`` waits as long as the box does.

    Thread-safe. Pickles: the copy connects by itself.

    Args:
        paths: to the node, shared with the box.
        info: of the counter's region.
    """

    __slots__ = ("_paths", "info")

    def __init__(self, paths: PathPair, info: RegionInfo) -> None:
        self._paths = paths
        self.info = info

    @property
    def name(self) -> str:
        """The counter's name, among the counters of its node."""
        return self.info.name

    @property
    def value(self) -> int:
        """The present value; RegionFreedError."""
        return self._read(None)

    def _read(self, timeout_s: float | None) -> int:
        out = np.empty((), INT64)
        requests.read(self._paths, self.info, 0, NBYTES, as_bytes(out), timeout_s)
        return int(out)

    def add(self, amount: int = 1, *, timeout_s: float | None = None) -> int:
        """Add ``amount`` (which may be negative) and return the value from before.

        Each caller gets another value when all add 1: a ticket. Wraps around at 64 bits.

        Raises:
            TypeError, LayoutMismatchError: no whole number of 64 bits; nothing changed.
            RequestTimeoutError: ``error.handle.outcome()`` tells whether it was done.
        """
        operation, old = self._operation("counter.add", KernelCode.SUM, amount)
        requests.change(self._paths, operation, timeout_s)
        return int(old[0])

    def add_nb(self, amount: int = 1) -> Handle[int]:
        """Begin an ``add``."""
        operation, old = self._operation("counter.add", KernelCode.SUM, amount)
        return requests.change_nb(self._paths, operation, lambda: int(old[0]))

    def compare_and_swap(self, old: int, new: int, *, timeout_s: float | None = None) -> bool:
        """Set the value to ``new`` if it is ``old``; tell whether it was.

        Raises:
            TypeError, LayoutMismatchError: no whole number of 64 bits; nothing changed.
            RequestTimeoutError: ``error.handle.outcome()`` tells whether it was done.
        """
        operation, found = self._swap(old, new)
        requests.change(self._paths, operation, timeout_s)
        return bool(found[0] == old)

    def compare_and_swap_nb(self, old: int, new: int) -> Handle[bool]:
        """Begin a ``compare_and_swap``."""
        operation, found = self._swap(old, new)
        return requests.change_nb(self._paths, operation, lambda: bool(found[0] == old))

    def wait(self, at_least: int, *, timeout_s: float | None = None) -> int:
        """Wait until the value is ``at_least`` or more; return it.

        Raises:
            RequestTimeoutError: it was not, in time; nothing changed.
            RegionFreedError: the counter was freed meanwhile.
        """
        wanted_s = self._paths.seconds(timeout_s)
        deadline_s = requests.deadline_of(wanted_s)
        found: dict[str, object] = {
            "op": "counter.wait",
            "outcome": "none",
            "at_least": at_least,
            "timeout_s": wanted_s,
        }
        try:
            while True:
                version = self._paths.data(self.info).version(
                    self.info, requests.look_s(deadline_s)
                )
                found["value"] = value = self._read(requests.look_s(deadline_s))
                if value >= at_least:
                    return value
                left_s = max(0.0, deadline_s - time.monotonic())
                requests.wait_version(
                    self._paths, self.info, version + 1, left_s, op="counter.wait"
                )
        except RequestTimeoutError as error:
            error.facts.update(found)
            raise

    def _swap(self, old: int, new: int) -> tuple[Operation, NDArray[np.int64]]:
        return self._operation("counter.compare_and_swap", KernelCode.COMPARE_SWAP, old, new)

    def _operation(
        self, op: str, kernel: KernelCode, *numbers: int
    ) -> tuple[Operation, NDArray[np.int64]]:
        """Describe a change of the number; return also what its old value goes to."""
        source = as_bytes(np.array([whole_number(number) for number in numbers], INT64))
        old = np.empty(1, INT64)
        sink = OldSink(0, as_bytes(old))
        return Operation(self.info, op, kernel, 1, 0, NBYTES, source, sink=sink), old

    def __repr__(self) -> str:
        return f"Counter({self.name!r})"

    def __reduce__(self) -> tuple[type[Counter], tuple[object, ...]]:
        """Travel as the box's settings and description."""
        return Counter, (self._paths, self.info)
