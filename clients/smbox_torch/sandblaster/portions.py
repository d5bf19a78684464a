"""Portions of work that unequal workers share: tickets, a board, and reports added once each.

The load balancing of Sandblaster (Dean et al., NIPS 2012, section 4.2): workers fetch portions
one at a time, so slow ones do fewer; at the end of a round idle ones do again what is not done
yet, and the first report of a portion counts.

    tickets   int64[1]: round << 32 | position; a worker adds 1, the coordinator 1 << 32
    board     int64[3 + P + W], which the coordinator alone writes: see ``WorkBoard``
    reports   int64[W, 2], a row of each worker: a label, round << 32 | portion, and the bits of
              the float64 loss. A row is one commit, put after the worker's slot is written
    slotR     [n], a region of each worker: the gradient of the portion that its row names

Only the coordinator adds slots to the sum, by a command: so no portion is added twice or in
part, wherever a worker is killed. The coordinator frees all of these at the end; a worker that
finds one freed takes the run for over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from smbox.errors import RegionFreedError
from smbox_torch.checks import whole
from smbox_torch.sandblaster.coordinator import Place
from smbox_torch.sandblaster.made import Made
from smbox_torch.sandblaster.work_board import (
    HEAD,
    POSITION,
    ROUND_SHIFT,
    Ticket,
    WorkBoard,
    add_to,
)
from smbox_torch.workers.joining import LEASE_S

__all__ = ["Portions", "Report", "check_counts"]


class Report(NamedTuple):
    """What a worker says that it has done, and whose slot holds the gradient."""

    rank: int
    ticket: Ticket
    loss: float


def check_counts(portions: int, workers: int) -> tuple[int, int]:
    """Return both counts; ConfigError or TypeError: they are not whole, or none."""
    return whole("portions", portions, most=POSITION), whole("workers", workers, most=POSITION)


class Portions:
    """The coordinator's side.

    Args:
        box: where the regions are made.
        name: of the run.
        portions: P.
        workers: W.
        size: n.
        dtype: of the slots.
        lease_s: seconds without a sign of life after which workers count this process as dead.

    Attributes:
        added: portions of each worker that were added, by rank.
        discarded: reports that came too late: of an earlier round, or of a portion that
            another worker had done.

    Raises:
        ConfigError, TypeError: no portions, or no workers; nothing was made.
        RegionExistsError, OutOfMemoryError: the name is in use, or there is no room; nothing
            is left.
        RankTakenError: another living process coordinates a run of this name.
    """

    def __init__(
        self,
        box: Any,
        name: str,
        portions: int,
        workers: int,
        size: int,
        dtype: str,
        *,
        lease_s: float = LEASE_S,
    ) -> None:
        portions, workers = check_counts(portions, workers)
        self.added = [0] * workers
        self.discarded = 0
        self._board = WorkBoard(np.zeros(HEAD + portions + workers, np.int64), portions)
        self._made = Made(box, name)
        with self._made.all_or_none():
            self.slots = [
                self._made.region(f"slot{rank}", shape=(size,), dtype=dtype, layout="striped")
                for rank in range(workers)
            ]
            self._reports = self._made.region("reports", shape=(workers, 2), dtype="int64")
            self._tickets = self._made.region("tickets", shape=(1,), dtype="int64")
            self._place = Place(box, name, lease_s)
            try:  # last: workers wait for it
                self._shared = self._made.region("board", init=self._board.words)
            except BaseException:
                self._place.leave()
                raise

    def begin(self) -> None:
        """Begin a round: all portions are to be done anew."""
        before = add_to(self._tickets, 1 << ROUND_SHIFT)
        self._board.words[:2] = (before >> ROUND_SHIFT) + 1, before & POSITION
        self._show()

    def reports(self, timeout_s: float) -> Iterator[Report]:
        """Yield the first report of each portion; its slot is free once the next is asked for.

        Raises:
            RequestTimeoutError: no worker has reported for so long; ask again, or end.
        """
        while self._board.missing():
            version = self._reports.version
            is_any = False
            for rank, (label, bits) in enumerate(self._reports.get().tolist()):
                if label == self._board.taken[rank]:
                    continue
                is_any = True
                ticket = Ticket(label >> ROUND_SHIFT, label & POSITION)
                if (
                    ticket.round == self._board.round
                    and self._board.done[ticket.portion] != ticket.round
                ):
                    yield Report(rank, ticket, float(np.int64(bits).view(np.float64)))
                    self._board.done[ticket.portion] = ticket.round
                    self.added[rank] += 1
                else:
                    self.discarded += 1
                self._board.taken[rank] = label
            if is_any:
                self._show()
            else:
                self._reports.wait(version + 1, timeout_s=timeout_s)

    def close(self) -> None:
        """End the run: workers stop at once, and all that was made here is freed. Idempotent.

        Raises:
            SmboxError: a node did not answer; call again to free the rest.
        """
        self._board.words[2] = 1
        with suppress(RegionFreedError):  # by an earlier call
            self._show()
        self._made.free()
        self._place.leave()

    def _show(self) -> None:
        self._shared.put(self._board.words)
