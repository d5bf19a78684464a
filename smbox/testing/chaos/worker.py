"""The client of a chaos run: makes the planned changes, checks its reads, logs the rest.

A process of its own, to be killed at any moment. It ends with a traceback if it sees what must
not be: a wrong sum, an error other than a timeout, a call that outlives its timeout.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from smbox.box import Box
from smbox.connecting import connect
from smbox.errors import ConnectError, RequestTimeoutError
from smbox.handle import Handle
from smbox.testing.chaos import plan
from smbox.testing.chaos.log import Change, LogWriter, log_path
from smbox.testing.chaos.plan import I64

REGION: Final = "chaos"
TIMEOUT_S: Final = 60.0
CONNECT_S: Final = 5.0
GRACE_S: Final = 20.0
"""A call may return so long after its timeout: the processor has others to serve."""

IMPATIENT_S: Final = 0.002
"""Some calls are given so long only, and then waited for again."""


LOCAL_NAP_S: Final = 0.0005
"""Between two steps on mapped memory, or the node and the remote clients got no processor."""


class ChaosError(Exception):
    """What must never be seen."""


class Worker:
    """One life of one client.

    Args:
        box: connected.
        log: empty.
        who: identity of this life.
        rng: decides what is done.
    """

    def __init__(self, box: Box, log: LogWriter, who: int, rng: random.Random) -> None:
        self._box = box
        self._log = log
        self._rng = rng
        self._own = 1 + who
        self._number = 0
        self._expected = [0] * (2 * plan.STRIPES)
        self._expected_rows = [0] * plan.STRIPES
        region = box.attach(REGION, timeout_s=TIMEOUT_S)
        pattern = plan.pattern(who)
        cells = [plan.window_cells(window) for window in range(plan.WHOLE + 1)]
        self._windows = [region[each.start : each.stop] for each in cells]
        self._ones = [pattern[each] for each in cells]
        rows = [plan.row_cells(stripe, who) for stripe in range(plan.STRIPES)]
        self._rows = [region[each.start : each.stop] for each in rows]
        self._actions: list[Callable[[], None]] = [self.accumulate] * 8
        self._actions += [self.fetch, self.put, self.get] * 3
        self._actions += [self.batch, self.pipeline]

    def step(self) -> None:
        """Do one thing."""
        self._rng.choice(self._actions)()

    def accumulate(self) -> None:
        """Add to a window."""
        (change,) = self._begin(1)
        window, ones = self._windows[change.place], self._ones[change.place]
        self._finish(window.accumulate_nb(ones, plan.amount(change.number)))
        self._end([change])

    def fetch(self) -> None:
        """Add to a window and check what was there."""
        (change,) = self._begin(1)
        window, ones = self._windows[change.place], self._ones[change.place]
        scale = plan.amount(change.number)
        old = self._finish(window.fetch_and_op_nb(ones, scale=scale))
        self._check(change.place, old)
        self._end([change])

    def put(self) -> None:
        """Replace the row of this life in a stripe."""
        (change,) = self._begin(1, puts=True)
        row, values = self._rows[change.place - plan.PUTS], _row(change)
        self._patiently(lambda timeout_s: row.put(values, timeout_s=timeout_s))
        self._end([change])

    def get(self) -> None:
        """Read a window, or a row, and check it."""
        stripe = self._rng.randrange(plan.STRIPES)
        row = self._finish(self._rows[stripe].get_nb())
        if not (row == self._expected_rows[stripe]).all():
            wanted = self._expected_rows[stripe]
            raise ChaosError(f"row in stripe {stripe}: {row.tolist()}, wanted {wanted}")
        window = self._pick_window()
        self._check(window, self._finish(self._windows[window].get_nb()))

    def batch(self) -> None:
        """Send several changes as one batch."""
        changes = self._begin(3) + self._begin(1, puts=True)
        fetched = []

        begun_s = time.monotonic()
        with self._box.batch(timeout_s=TIMEOUT_S) as batch:
            for change in changes[:2]:
                window, ones = self._windows[change.place], self._ones[change.place]
                batch.accumulate(window, ones, plan.amount(change.number))
            window, ones = self._windows[changes[2].place], self._ones[changes[2].place]
            scale = plan.amount(changes[2].number)
            fetched.append(batch.fetch_and_op(window, ones, scale=scale))
            batch.put(self._rows[changes[3].place - plan.PUTS], _row(changes[3]))
        _check_returned(begun_s, TIMEOUT_S)
        self._end(changes[:2])
        self._check(changes[2].place, fetched[0])
        self._end(changes[2:])

    def pipeline(self) -> None:
        """Begin several changes at once, then wait for all."""
        changes = self._begin(4)
        handles: list[Handle[Any]] = [
            self._windows[change.place].accumulate_nb(
                self._ones[change.place], plan.amount(change.number)
            )
            for change in changes
        ]
        for handle, change in zip(handles, changes, strict=True):
            self._finish(handle)
            self._end([change])

    def _pick_window(self) -> int:
        if self._rng.random() < 0.05:
            return plan.WHOLE
        return self._rng.randrange(plan.EDGES)

    def _begin(self, count: int, *, puts: bool = False) -> list[Change]:
        changes = []
        for _ in range(count):
            self._number += 1
            stripe = self._rng.randrange(plan.STRIPES)
            place = plan.PUTS + stripe if puts else self._pick_window()
            changes.append(Change(place, self._number))
        self._log.intend(changes)
        return changes

    def _end(self, changes: list[Change]) -> None:
        self._log.acknowledge(changes)
        for change in changes:
            if change.place >= plan.PUTS:
                self._expected_rows[change.place - plan.PUTS] = change.number
                continue
            for block in plan.blocks(change.place):
                self._expected[block] += plan.amount(change.number)

    def _finish(self, handle: Handle[Any]) -> Any:
        """Wait for a request; one that was given little time is waited for again."""
        for timeout_s in (self._timeout_s(), TIMEOUT_S):
            begun_s = time.monotonic()
            try:
                handle.wait(timeout_s)
                return handle.result()
            except RequestTimeoutError:
                if timeout_s == TIMEOUT_S:
                    raise
            finally:
                _check_returned(begun_s, timeout_s)
        raise AssertionError

    def _patiently(self, call: Callable[[float], None]) -> None:
        """Make a change within one stripe; again if it was given little time, in vain."""
        timeout_s, begun_s = self._timeout_s(), time.monotonic()
        try:
            try:
                call(timeout_s)
            finally:
                _check_returned(begun_s, timeout_s)
        except RequestTimeoutError as error:
            if timeout_s == TIMEOUT_S or error.handle is None:
                raise
            outcome = error.handle.outcome(TIMEOUT_S)
            if outcome not in {"none", "all"}:
                raise ChaosError(f"the outcome of a timeout is {outcome}") from error
            if outcome == "none":
                call(TIMEOUT_S)

    def _timeout_s(self) -> float:
        return IMPATIENT_S if self._rng.random() < 0.02 else TIMEOUT_S

    def _check(self, window: int, cells: I64) -> None:
        """Check the contents of a window as they were between two changes of this life."""
        begin = plan.window_cells(window).start
        for block in plan.blocks(window):
            first = plan.block_cells(block).start - begin
            part = cells[first : first + plan.BLOCK]
            fault = plan.block_fault(part)
            if fault is not None:
                raise ChaosError(f"block {block}: {fault}")
            if int(part[self._own]) != self._expected[block]:
                raise ChaosError(
                    f"block {block}: own cell {part[self._own]:#x},"
                    f" wanted {self._expected[block]:#x} before change {self._number}"
                )


def _row(change: Change) -> I64:
    return np.full(plan.ROW, change.number, np.int64)


def _check_returned(begun_s: float, timeout_s: float) -> None:
    took_s = time.monotonic() - begun_s
    if took_s > timeout_s + GRACE_S:
        raise ChaosError(f"a call with a timeout of {timeout_s} s took {took_s:.1f} s")


def connect_patiently(address: str, transport: str) -> Box:
    """Connect to a node that may be down just now."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return connect(address, transport=transport, timeout_s=CONNECT_S)
        except ConnectError:
            if time.monotonic() > deadline_s:
                raise


def main() -> int:
    """Live until SIGTERM, or until the parent ends."""
    parser = argparse.ArgumentParser()
    for name, kind in (("address", str), ("transport", str), ("folder", Path)):
        parser.add_argument(name, type=kind)
    for name in ("client", "life", "seed"):
        parser.add_argument(name, type=int)
    args = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    parent = os.getppid()
    nap_s = LOCAL_NAP_S if args.transport == "shm" else 0.0
    who = plan.identity(args.client, args.life)
    log = LogWriter(log_path(args.folder, args.client, args.life))
    with connect_patiently(args.address, args.transport) as box:
        worker = Worker(box, log, who, random.Random(f"{args.seed}-{who}"))
        while not stopped and os.getppid() == parent:
            worker.step()
            time.sleep(nap_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
