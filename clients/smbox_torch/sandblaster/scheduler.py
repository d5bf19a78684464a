"""PortionScheduler: the coordinator's load balancing, which counts each portion once.

A round is one evaluation of the objective, cut into portions (Dean et al., NIPS 2012, section
4.2). Workers fetch portions one at a time, so slow workers compute fewer. At the end of a
round, idle workers repeat portions that are not done. The first report of a portion counts.

    tickets   int64[1]: round << 32 | position; a worker adds 1, the coordinator 1 << 32
    board     int64[3 + P + W], which the coordinator alone writes: see ``RunState``
    reports   int64[W, 2], a row of each worker: a label, round << 32 | portion, and the bits of
              the float64 loss. A row is one commit, put after the worker's slot is written
    slotR     [n], a region of each worker: the gradient of the portion that its row names

Only the coordinator adds slots to the sum, by a command. So no portion is added twice or in
part, whenever a worker is killed. The coordinator frees all these regions at the end. A worker
that finds a freed region knows that the run is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from smbox.errors import RegionFreedError
from smbox_torch.checks import whole
from smbox_torch.sandblaster.coordinator_lease import CoordinatorLease
from smbox_torch.sandblaster.run_regions import RunRegions
from smbox_torch.sandblaster.shared_state import (
    HEAD,
    POSITION,
    ROUND_SHIFT,
    RunState,
    Ticket,
    fetch_add,
)
from smbox_torch.workers.joining import LEASE_S

__all__ = ["PortionScheduler", "Report", "check_counts"]


class Report(NamedTuple):
    """A worker's report of a finished portion, whose gradient is in the worker's slot."""

    rank: int
    ticket: Ticket
    loss: float


def check_counts(portions: int, workers: int) -> tuple[int, int]:
    """Return both counts; raise ConfigError or TypeError unless they are integers from 1."""
    return whole("portions", portions, most=POSITION), whole("workers", workers, most=POSITION)


class PortionScheduler:
    """The coordinator's side of a run: it starts rounds and collects the workers' reports.

    Args:
        box: connection to the memory.
        name: name of the run.
        portions: number of portions, P.
        workers: number of workers, W.
        size: number of parameters, n.
        dtype: dtype of the slots.
        lease_s: seconds without renewal after which workers count this process as dead.

    Attributes:
        added: number of portions of each worker that were added, by rank.
        discarded: number of late reports: of an earlier round, or of a portion that another
            worker had already reported.

    Raises:
        ConfigError, TypeError: no portions, or no workers; no region was created.
        RegionExistsError, OutOfMemoryError: the name is in use, or memory is short; no region
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
        self._state = RunState(np.zeros(HEAD + portions + workers, np.int64), portions)
        self._regions = RunRegions(box, name)
        with self._regions.free_on_error():
            self.slots = [
                self._regions.create(
                    f"slot{rank}", shape=(size,), dtype=dtype, layout="striped"
                )
                for rank in range(workers)
            ]
            self._reports = self._regions.create("reports", shape=(workers, 2), dtype="int64")
            self._tickets = self._regions.create("tickets", shape=(1,), dtype="int64")
            self._lease = CoordinatorLease(box, name, lease_s)
        self._shared: Any = None

    def open(self) -> None:
        """Create the board, for which workers wait.

        Raises:
            RegionExistsError, OutOfMemoryError: it cannot be created; close.
        """
        self._shared = self._regions.create("board", init=self._state.words)

    def begin(self) -> None:
        """Begin a round in which no portion is done yet."""
        before = fetch_add(self._tickets, 1 << ROUND_SHIFT)
        self._state.words[:2] = (before >> ROUND_SHIFT) + 1, before & POSITION
        self._put_state()

    def reports(self, timeout_s: float) -> Iterator[Report]:
        """Yield the first report of each portion; advancing the iterator releases its slot.

        Raises:
            RequestTimeoutError: no worker reported within ``timeout_s``; call again, or close.
        """
        while self._state.missing():
            version = self._reports.version
            is_any = False
            for rank, (label, bits) in enumerate(self._reports.get().tolist()):
                if label == self._state.taken[rank]:
                    continue
                is_any = True
                ticket = Ticket.of(label)
                if (
                    ticket.round == self._state.round
                    and self._state.done[ticket.portion] != ticket.round
                ):
                    yield Report(rank, ticket, float(np.int64(bits).view(np.float64)))
                    self._state.done[ticket.portion] = ticket.round
                    self.added[rank] += 1
                else:
                    self.discarded += 1
                self._state.taken[rank] = label
            if is_any:
                self._put_state()
            else:
                self._reports.wait(version + 1, timeout_s=timeout_s)

    def close(self) -> None:
        """End the run: workers stop at once, and the regions are freed. Idempotent.

        Raises:
            SmboxError: a node did not answer; call again to free the remaining regions.
        """
        self._state.words[2] = 1
        if self._shared is not None:
            with suppress(RegionFreedError):  # an earlier call freed it
                self._put_state()
        self._regions.free()
        self._lease.release()

    def _put_state(self) -> None:
        self._shared.put(self._state.words)
