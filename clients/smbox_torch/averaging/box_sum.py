"""Sums over workers in a memory box: all add, meet, and read.

Three sums are used in rotation. Before the meeting, rank 0 clears the sum of the next round,
which no worker can be reading then. Each round moves the bytes of the gradients twice per
worker, all through one node.

    NAME.gradientT.DTYPE     sums of turn T; for 16-bit gradients in float32
    NAME.rowsT               f64[workers, n]: a row of each worker
    NAME.stateT              u8[workers, m]: buffers of each worker
    NAME.ended               i64[workers]: 1 + the steps of a worker that finished; -1 - the
                             rank that a worker has given up, or its own if it left after
                             another error; else 0
    NAME.came                see ``starts``
    NAME.met.WHAT            see ``meeting``
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import torch

from smbox.deadline import left_s
from smbox.errors import LeaseLostError, RequestTimeoutError, SmboxError, WorkerLostError
from smbox_torch.adapter import as_array, dtype_name
from smbox_torch.averaging.meeting import COLUMNS as MEETING_COLUMNS, Meeting
from smbox_torch.averaging.packed import packed_nbytes
from smbox_torch.averaging.starts import COLUMNS, Starts
from smbox_torch.averaging.steps import finished_early
from smbox_torch.averaging.summed_mean import FLAGS, STEPS, WEIGHT, flat_sizes, wide_of
from smbox_torch.boxes import Array, BoxLike, RegionLike
from smbox_torch.workers.team import DIED, LEFT, Team

__all__ = ["BoxSum"]

TURNS: Final = 3

AGAIN: Final = "died or left, and was started again"

POLL_S: Final = 1.0
"""Longest time between two checks, while waiting, for workers that finished, died or left."""


class BoxSum:
    """One worker's part of the sums; the others notice it if it is started again.

    Args:
        box: the memory.
        name: prefix of the regions.
        team: the workers; the caller leaves it.
        timeout_s: longest wait for the slowest worker, in seconds.
        ranks: ranks of the workers in error messages, by rank in the team; None: the same.

    Attributes:
        timeout_s: as above; it may be changed.
        have_begun: all workers have made this object; until then ``ended`` is of an earlier
            run. See ``begin``.

    Raises:
        LayoutMismatchError: regions of this name belong to another number of workers.
    """

    def __init__(
        self,
        box: BoxLike,
        name: str,
        team: Team,
        *,
        timeout_s: float,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.rank, self.size = team.rank, team.size
        self._team = team
        self._ranks = range(team.size) if ranks is None else ranks
        self._late: list[int] = []  # ranks that did not come to the last meeting
        self._steps = 0
        self._box, self._name = box, name
        self.timeout_s = timeout_s
        self._round = 0
        self._zeros: list[Array] = []
        self._gradients: list[list[RegionLike]] = []
        self._rows: list[RegionLike] = []
        self._state: list[RegionLike] = []
        self._meetings: dict[str, Meeting] = {}
        self._poll_s = min(team.poll_s, POLL_S)
        self.have_begun = False
        came = self._region("came", (self.size, COLUMNS), "int64")
        self._starts = Starts(came, team)
        self._ended = self._region("ended", (self.size,), "int64")
        self._end(0)

    def create(
        self, parameters: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]
    ) -> None:
        """Create the regions, or open them if another worker has created them.

        Raises:
            LayoutMismatchError: they belong to another model or number of workers.
        """
        sizes = flat_sizes(parameters)
        self._zeros = [np.zeros(n, dtype_name(wide_of(dtype))) for dtype, n in sizes.items()]
        for turn in range(TURNS):
            self._gradients.append(
                [
                    self._region(f"gradient{turn}.{dtype_name(dtype)}", (n,), zeros.dtype.name)
                    for (dtype, n), zeros in zip(sizes.items(), self._zeros, strict=True)
                ]
            )
            n, m = FLAGS + len(parameters), packed_nbytes(buffers)
            self._rows.append(self._region(f"rows{turn}", (self.size, n), "float64"))
            if m:
                self._state.append(self._region(f"state{turn}", (self.size, m), "uint8"))

    def _end(self, word: int) -> None:
        self._starts.check()  # the word would be taken for that of a later worker of this rank
        self._ended[self.rank : self.rank + 1].put(np.array([word], np.int64))
        self._word = word

    def _region(self, what: str, shape: tuple[int, ...], dtype: str) -> RegionLike:
        return self._box.create(f"{self._name}.{what}", shape=shape, dtype=dtype, exist_ok=True)

    def table(
        self, row: torch.Tensor, flats: Sequence[torch.Tensor], state: torch.Tensor
    ) -> torch.Tensor:
        """Push row, gradients and buffers; pull all rows.

        Raises:
            StepMismatchError: a worker has finished.
            WorkerLostError: a worker died or left.
            RequestTimeoutError: as for ``meet``.
        """
        if self._round == 0:
            self._clear_first()
        self._round += 1
        mine = slice(self.rank, self.rank + 1)
        rows = self._rows[self._turn]
        rows[mine].put(as_array(row).reshape(1, -1))
        if self._state:
            self._state[self._turn][mine].put(as_array(state.cpu()).reshape(1, -1))
        if flats and (weight := row[WEIGHT].item()):
            for region, flat in zip(self._gradients[self._turn], flats, strict=True):
                region.accumulate(as_array(flat.cpu()), weight)
        if self.rank == 0:
            self._clear((self._round + 1) % TURNS)
        self._steps = int(row[STEPS])
        self.meet("added")
        return torch.from_numpy(rows.get())

    def last(self) -> int:
        """Return a number of the last start that did a round, as ``Meeting.last``."""
        return self._meeting("added").last()

    @property
    def _turn(self) -> int:
        return self._round % TURNS

    def total(self, flats: Sequence[torch.Tensor], weight: float) -> None:  # noqa: ARG002
        """Pull the sums; the push has already applied the weight."""
        for region, flat in zip(self._gradients[self._turn], flats, strict=True):
            flat.copy_(torch.from_numpy(region.get()))

    def share(self, state: torch.Tensor, source: int) -> None:
        """Pull the buffers."""
        found = self._state[self._turn][source : source + 1].get()
        state.copy_(torch.from_numpy(found.reshape(-1)))

    def restart(self) -> None:
        """Start again from the first round; all workers must call it together."""
        self._round = 0

    def _clear_first(self) -> None:
        """Clear the sums of earlier rounds or runs, after all workers have read them."""
        self.begin("begun")
        self._team.lost()  # all are present: later calls return those that are gone
        if self.rank == 0:
            self._clear(1)
        self.meet("cleared")

    def begin(self, what: str) -> None:
        """Meet; the first time, agree on the workers for all later meetings; raises as meet."""
        self.meet(what)
        if not self.have_begun:
            self._starts.agree()
            self.have_begun = True

    def _clear(self, turn: int) -> None:
        for region, zeros in zip(self._gradients[turn], self._zeros, strict=True):
            region.put(zeros)

    def meet(self, what: str, *, ended_come: bool = False) -> None:
        """Wait until all workers arrive; check regularly that they still can.

        Args:
            what: name of the meeting.
            ended_come: workers that have ended their loop come to it, too.

        Raises:
            StepMismatchError: a worker has finished; x is as before the step.
            WorkerLostError: a worker died or left; x is as before the step.
            LeaseLostError: another process has this worker's rank; x is as before the step.
            RequestTimeoutError: a worker did not arrive, and the error names its rank, or the
                memory node did not answer; x is as before the step.
        """
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            try:
                meeting = self._meeting(what)
                missing = meeting.come(self._starts.token())
                if not missing:
                    self._late = []
                    return
                limit_s = left_s(deadline_s)
                if meeting.wait(len(missing), min(limit_s, self._poll_s)):
                    continue
                self._check_workers(ended_come=ended_come)
            except RequestTimeoutError:  # the node did not answer; all of this may be repeated
                if left_s(deadline_s) <= 0.0:
                    raise
                continue
            if limit_s <= self._poll_s:
                self._late = [self._ranks[index] for index in missing]
                raise self._did_not_come(what)

    def _meeting(self, what: str) -> Meeting:
        if what not in self._meetings:
            region = self._region(f"met.{what}", (self.size, MEETING_COLUMNS), "int64")
            self._meetings[what] = Meeting(region, self.rank)
        return self._meetings[what]

    def _did_not_come(self, what: str) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"rank {self._late} did not come to the meeting {what!r} after {self._steps} steps:"
            " it died, is slow, or finished with fewer batches (give all equally many, or put"
            " each rank's loop inside `with optimizer.join():`)",
            op="meet",
            timeout_s=self.timeout_s,
        )

    def _check_workers(self, *, ended_come: bool) -> None:
        """Raise if an awaited worker will not arrive.

        All workers name the same rank: one that leaves because of a lost rank has recorded it.
        """
        lost = self._lost_workers()  # first: one that is gone has recorded its reason before
        words = self._ended.get() if self.have_begun else np.zeros(self.size, np.int64)
        for index in () if ended_come else np.flatnonzero(words > 0):
            raise finished_early(self._ranks[int(index)], int(words[index]) - 1)
        given_up = [-1 - int(word) for word in words[words < 0]]
        for rank, word in zip(self._ranks, words.tolist(), strict=True):
            if word == -1 - rank:
                lost[rank] = "left after an error"
        died = [rank for rank, verdict in lost.items() if verdict == DIED]
        for rank in (*given_up, *died, *lost):
            self._end(-1 - rank)
            verdict = lost.get(rank, "was given up by another rank")
            raise WorkerLostError(
                f"rank {rank} {verdict}; the others cannot go on without it: start all again,"
                " and continue from a checkpoint",
                rank=rank,
            )

    def _lost_workers(self) -> dict[int, str]:
        """Return the ranks that are lost, and the reasons.

        Until all have begun, a rank that came less often than this one is not lost: its
        successor is awaited. One that came as often and left may never have been seen alive.
        """
        starts = self._starts.find()  # first: a worker joins before it counts its start
        present = range(self.size) if self.have_begun else self._team.present()
        lost = self._team.lost()  # after present: it tells who died from who left
        lost |= dict.fromkeys(starts.again, AGAIN)
        for index in starts.earlier:
            lost.pop(index, None)
        for index in set(starts.equal).difference(present):
            lost.setdefault(index, LEFT)
        return {self._ranks[index]: lost[index] for index in sorted(lost)}

    def nbytes(self, flats: Sequence[torch.Tensor]) -> int:
        """Return the bytes pushed, pulled and, by rank 0, cleared in a round."""
        moved = 3 if self.rank == 0 else 2
        return moved * sum(wide_of(flat.dtype).itemsize * flat.numel() for flat in flats)

    def tell_end(self, *, steps: int | None) -> None:
        """Tell the others that this worker has finished, or leaves after an error; once."""
        if self._word:  # it has, or has recorded a lost rank
            return
        if steps is not None:
            with suppress(LeaseLostError):
                self._end(1 + steps)
            return
        with suppress(SmboxError):  # the first error says more
            self._end(-1 - [*self._late, self._ranks[self.rank]][0])

    def close(self, *, steps: int | None) -> None:
        """Tell the end; the caller leaves the team."""
        self.tell_end(steps=steps)
