"""Portions of work that unequal workers share: tickets, a board, and reports added once each.

The load balancing of Sandblaster (Dean et al., NIPS 2012, section 4.2): workers fetch portions
one at a time, so slow ones do fewer; at the end of a round idle ones do again what is not done
yet, and the first report of a portion counts.

    tickets   counter: round << 32 | position; a worker adds 1, the coordinator 1 << 32
    board     int64[3 + P + W], which the coordinator alone writes: see ``Board``
    reports   int64[W, 2], a row of each worker: a label, round << 32 | portion, and the bits of
              the float64 loss. A row is one commit, put after the worker's slot is written
    slotR     [n], a region of each worker: the gradient of the portion that its row names

Only the coordinator adds slots to the sum, by a command: so no portion is added twice or in
part, wherever a worker is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smbox.errors import ConfigError

__all__ = ["Board", "Portions", "Report", "Ticket", "Tickets", "check_counts"]

ROUND_SHIFT: Final = 32
POSITION: Final = (1 << ROUND_SHIFT) - 1
HEAD: Final = 3
Words = NDArray[np.int64]


class Ticket(NamedTuple):
    """A portion of a round that a worker is to do."""

    round: int
    portion: int

    @property
    def label(self) -> int:
        """The ticket as one number, positive from round 1 on."""
        return self.round << ROUND_SHIFT | self.portion


class Report(NamedTuple):
    """What a worker says that it has done, and whose slot holds the gradient."""

    rank: int
    ticket: Ticket
    loss: float


@dataclass(slots=True)
class Board:
    """What the coordinator tells all workers.

    Args:
        words: ``i64[3 + P + W]``: see the properties.
        portions: P.
    """

    words: Words
    portions: int

    @property
    def round(self) -> int:
        """The present round, from 1; 0: none yet."""
        return int(self.words[0])

    @property
    def first(self) -> int:
        """The position of the round's first ticket."""
        return int(self.words[1])

    @property
    def is_over(self) -> bool:
        """Whether the coordinator has ended the run."""
        return bool(self.words[2])

    @property
    def done(self) -> Words:
        """``[P]``: the round in which each portion was added last."""
        return self.words[HEAD : HEAD + self.portions]

    @property
    def taken(self) -> Words:
        """``[W]``: the label of each worker's last report that was read."""
        return self.words[HEAD + self.portions :]

    def missing(self) -> list[int]:
        """List the portions that have not been added in this round."""
        found: list[int] = np.flatnonzero(self.done != self.round).tolist()
        return found


def check_counts(portions: int, workers: int) -> None:
    """Raise ConfigError unless there are whole portions and workers, one of each at least."""
    are_whole = {type(portions), type(workers)} == {int}
    if not are_whole or not 0 < portions <= POSITION or workers < 1:
        raise ConfigError(
            "there is a portion and a worker at least", portions=portions, workers=workers
        )


class Portions:
    """The coordinator's side.

    Args:
        box: where the regions are made.
        name: of the run.
        portions: P.
        workers: W.
        size: n.
        dtype: of the slots.

    Attributes:
        added: portions of each worker that were added, by rank.
        discarded: reports that came too late: of an earlier round, or of a portion that
            another worker had done.

    Raises:
        ConfigError: no portions, or no workers; nothing was made.
        RegionExistsError: the name is in use.
    """

    def __init__(
        self, box: Any, name: str, portions: int, workers: int, size: int, dtype: str
    ) -> None:
        check_counts(portions, workers)
        self.added = [0] * workers
        self.discarded = 0
        self.slots = [
            box.create(f"{name}.slot{rank}", shape=(size,), dtype=dtype, layout="striped")
            for rank in range(workers)
        ]
        self._reports = box.create(f"{name}.reports", shape=(workers, 2), dtype="int64")
        self._tickets = box.counter(f"{name}.tickets")
        self._board = Board(np.zeros(HEAD + portions + workers, np.int64), portions)
        self._shared = box.create(f"{name}.board", init=self._board.words)  # workers await it

    def begin(self) -> None:
        """Begin a round: all portions are to be done anew."""
        before = self._tickets.add(1 << ROUND_SHIFT)
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

    def end(self) -> None:
        """End the run: workers stop at their next look at the board."""
        self._board.words[2] = 1
        self._show()

    def _show(self) -> None:
        self._shared.put(self._board.words)


class Tickets:
    """A worker's side.

    Args:
        box: the worker's own.
        name: of the run.
        rank: of this worker; no other process has it at the same time. A process that takes
            the place of a dead one has its rank.
        timeout_s: how long the coordinator may be silent, or not be there yet.

    Attributes:
        slot: region ``[n]`` for the gradient.

    Raises:
        ConfigError: the run has no worker of this rank.
        RegionNotFoundError: the coordinator has not made the regions in time.
    """

    def __init__(self, box: Any, name: str, rank: int, timeout_s: float) -> None:
        self._shared = box.attach(f"{name}.board", timeout_s=timeout_s)
        self._reports = box.attach(f"{name}.reports")
        workers = self._reports.shape[0]
        if not 0 <= rank < workers:
            raise ConfigError("the run has no worker of this rank", rank=rank, workers=workers)
        self._tickets = box.counter(f"{name}.tickets")
        self.slot = box.attach(f"{name}.slot{rank}")
        self._rank = rank
        self._timeout_s = timeout_s
        self._portions = self._shared.shape[0] - HEAD - workers
        self._label = int(self._reports[rank : rank + 1].get()[0, 0])

    def draw(self) -> Ticket | None:
        """Return a portion to do, waiting for a round that has some; None: the run is over.

        Raises:
            RequestTimeoutError: the coordinator was silent for too long.
        """
        while True:
            value = self._tickets.add(1)
            round_, position = value >> ROUND_SHIFT, value & POSITION
            board = self._await_round(max(1, round_))
            if board.is_over:
                return None
            if board.round > round_:
                continue
            if position - board.first < board.portions:
                return Ticket(round_, position - board.first)
            mine = Ticket(*divmod(self._label, 1 << ROUND_SHIFT))
            left = [p for p in board.missing() if Ticket(round_, p) != mine]
            if left:
                return Ticket(round_, left[position % len(left)])
            self._await_round(round_ + 1)

    def await_slot(self) -> bool:
        """Wait until the slot may be overwritten; False: the run is over.

        Raises:
            RequestTimeoutError: the coordinator was silent for too long.
        """
        is_free = self._await(lambda board: int(board.taken[self._rank]) == self._label)
        return not is_free.is_over

    def report(self, ticket: Ticket, loss: float) -> None:
        """Say that the slot holds the gradient of a portion: its last byte is written."""
        row = np.array([[ticket.label, np.float64(loss).view(np.int64)]])
        self._reports[self._rank : self._rank + 1].put(row)
        self._label = ticket.label

    def _await_round(self, least: int) -> Board:
        return self._await(lambda board: board.round >= least)

    def _await(self, is_met: Callable[[Board], bool]) -> Board:
        """Return the board as soon as it meets a condition, or the run is over."""
        while True:
            version = self._shared.version
            board = Board(self._shared.get(), self._portions)
            if board.is_over or is_met(board):
                return board
            self._shared.wait(version + 1, timeout_s=self._timeout_s)
