"""Tickets: a worker draws tickets for portions and delivers gradients; see scheduler.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from smbox.deadline import left_s
from smbox.errors import (
    ConfigError,
    RegionFreedError,
    RegionNotFoundError,
    RequestTimeoutError,
)
from smbox_torch.checks import whole
from smbox_torch.sandblaster.coordinator_lease import CoordinatorWatch, has_ended
from smbox_torch.sandblaster.shared_state import (
    HEAD,
    POSITION,
    ROUND_SHIFT,
    RunState,
    Ticket,
    fetch_add,
)

__all__ = ["Tickets"]

POLL_S: Final = 1.0
"""Seconds between two checks, before the run begins, whether it has ended already."""


class Tickets:
    """The worker's side of a run: it draws tickets and delivers gradients.

    Args:
        box: the worker's own connection to the memory.
        name: name of the run.
        rank: rank of this worker. No other living process may have it; a replacement of a dead
            worker uses the dead worker's rank.
        timeout_s: longest wait for the coordinator to start or to make progress, in seconds.

    Attributes:
        slot: region ``[n]`` for the gradient.

    Raises:
        ConfigError, TypeError: the run has no worker of this rank.
        RegionNotFoundError: the coordinator did not create the regions in time, or has ended
            the run, of which only x is left.
    """

    def __init__(self, box: Any, name: str, rank: int, timeout_s: float) -> None:
        self._box = box
        self._shared = _await_board(box, name, timeout_s)
        reports = box.attach(f"{name}.reports", timeout_s=None)
        workers = reports.shape[0]
        if not 0 <= whole("rank", rank, least=0) < workers:
            raise ConfigError("the run has no worker of this rank", rank=rank, workers=workers)
        self._tickets = box.attach(f"{name}.tickets", timeout_s=None)
        self.slot = box.attach(f"{name}.slot{rank}", timeout_s=None)
        self._coordinator = CoordinatorWatch(box, name)
        self._rank = rank
        self._timeout_s = timeout_s
        self._portions = self._shared.shape[0] - HEAD - workers
        self._row = reports[rank : rank + 1]

    def draw(self) -> Ticket | None:
        """Draw a portion, and wait for a round that has one; return None if the run is over.

        Raises:
            WorkerLostError: the coordinator died.
            RequestTimeoutError: the coordinator made no progress within the timeout.
        """
        try:
            return self._draw()
        except RegionFreedError:
            self._check_node()
            return None

    def _draw(self) -> Ticket | None:
        while True:
            value = fetch_add(self._tickets, 1)
            round_, position = value >> ROUND_SHIFT, value & POSITION
            board = self._await_round(max(1, round_))
            if board.is_over:
                return None
            if board.round > round_:
                continue
            if position - board.first < board.portions:
                return Ticket(round_, position - board.first)
            last = Ticket.of(self._reported())
            missing = [p for p in board.missing() if Ticket(round_, p) != last]
            if missing:
                return Ticket(round_, missing[position % len(missing)])
            self._await_round(round_ + 1)

    def deliver(self, ticket: Ticket, gradient: Any, loss: float) -> bool:
        """Wait for a free slot, put a portion's gradient into it, and report the portion.

        Returns:
            False: the run is over.

        Raises:
            WorkerLostError: the coordinator died.
            RequestTimeoutError: the coordinator made no progress within the timeout.
        """
        try:
            label = self._reported()
            if self._await(lambda board: int(board.taken[self._rank]) == label).is_over:
                return False
            self.slot.put(gradient)
            self._row.put(np.array([[ticket.label, np.float64(loss).view(np.int64)]]))
        except RegionFreedError:
            self._check_node()
            return False
        return True

    def _reported(self) -> int:
        """Return the label of the last report of this rank, also of an interrupted put."""
        return int(self._row.get()[0, 0])

    def _check_node(self) -> None:
        """Raise unless the node answers: a node that stops also frees its regions."""
        self._box.stats()

    def _await_round(self, least: int) -> RunState:
        return self._await(lambda board: board.round >= least)

    def _await(self, is_met: Callable[[RunState], bool]) -> RunState:
        """Wait until the board meets a condition or the run is over; return the board."""
        while True:
            version = self._shared.version
            board = self._read()
            if board.is_over or is_met(board):
                return board
            self._await_change(version)

    def _await_change(self, version: int) -> None:
        """Wait until the board changes; check regularly that the coordinator is alive."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            limit_s = min(self._coordinator.poll_s, left_s(deadline_s))
            try:
                self._shared.wait(version + 1, timeout_s=limit_s)
            except RequestTimeoutError:
                lost = self._coordinator.lost()
                if lost is not None and not self._read().is_over:
                    raise lost from None
                if time.monotonic() >= deadline_s:
                    raise
            else:
                return

    def _read(self) -> RunState:
        return RunState(self._shared.get(), self._portions)


def _await_board(box: Any, name: str, timeout_s: float) -> Any:
    """Return the board once it exists.

    Raises:
        RegionNotFoundError: it was not created in time, or the run has ended.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return box.attach(f"{name}.board", timeout_s=min(POLL_S, left_s(deadline_s)))
        except RegionNotFoundError as error:
            if has_ended(box, name):
                message = "the run has ended: only its result, NAME.x, is left"
                raise RegionNotFoundError(message, name=name) from error
            if left_s(deadline_s) <= 0.0:
                message = "no coordinator has started a run of this name"
                raise RegionNotFoundError(message, name=name) from error
        except RequestTimeoutError:
            if left_s(deadline_s) <= 0.0:
                raise
