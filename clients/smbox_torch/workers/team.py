"""The team: the living and the expected workers of a run, as one worker sees them.

On smbox's memory a worker joins the run (``smbox.join``), so that counts change when workers
join, leave and die. On another memory, such as a test's model, the team is fixed.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from smbox import Member
from smbox.errors import ConfigError
from smbox.lease import I64
from smbox_torch.boxes import BoxLike
from smbox_torch.workers.phase import of_this_start

__all__ = ["DIED", "LEFT", "FixedTeam", "JoinedTeam", "Team", "check_uncounted"]

DIED: Final = "died"
LEFT: Final = "left"


class Team(Protocol):
    """The view of a run's workers that an algorithm uses.

    Attributes:
        rank: rank of this worker, from 0.
        size: number of workers with which the run was started.
        begins_at: steps of a predecessor with this rank; 0 without one.
        is_late: this worker joined a run that was already in use.
        is_first: the others wait for this worker from their start on; see ``Member.first``.
        poll_s: seconds between two checks of the members while waiting.
        generation: larger than that of each earlier worker of this rank; None: unknown.
    """

    rank: int
    size: int
    begins_at: int
    is_late: bool
    is_first: bool
    poll_s: float
    generation: int | None

    @property
    def workers(self) -> int:
        """Divisor of rates: number of living workers and expected ones that never joined."""

    @property
    def met(self) -> int:
        """Number of the last meeting that this worker completed, or the others before it."""

    def present(self) -> list[int]:
        """Return the ranks to wait for: living workers, and expected ones that never joined."""

    def never_came(self) -> list[int]:
        """Return those of ``present`` that have not joined yet, as of its last call."""

    def without_earlier(self, counts: I64) -> I64:
        """Return counts of steps by rank, at most those that each rank has told.

        A rank that has just joined may not have replaced the count of an earlier launch yet.
        """

    def describe(self, rank: int) -> dict[str, object]:
        """Return facts about a rank for an error."""

    def lost(self) -> dict[int, str]:
        """Return the ranks that died or left since they were found alive: DIED or LEFT."""

    def check(self) -> None:
        """Raise LeaseLostError if another process has this worker's rank."""

    def count(self) -> None:
        """Reserve the progress of this worker for this object until it leaves the team.

        Raises:
            ConfigError: another object sets it.
        """

    def tell(self, steps: int) -> None:
        """Publish this worker's steps to the others and a successor; raises like check."""

    def meet(self, where: str, timeout_s: float) -> None:
        """Wait until all present workers have called this or wait in ``finish``.

        Raises:
            RequestTimeoutError: a worker did not call it.
        """

    def finish(self, timeout_s: float | None) -> None:
        """Wait until all present workers have called this; see ``Member.finish``.

        Raises:
            RequestTimeoutError: a worker did not call it.
        """

    def leave(self) -> None:
        """Leave, so that no worker waits for this one. Idempotent."""


class FixedTeam:
    """A fixed number of workers that neither join nor die.

    Args:
        box: the memory.
        name: name of the run.
        rank: rank of this worker.
        size: number of workers.
    """

    is_late = is_first = False
    begins_at = 0
    poll_s = float("inf")
    generation: int | None = None

    def __init__(self, box: BoxLike, name: str, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._box = box
        self._name = name

    @property
    def workers(self) -> int:
        """Number of all workers."""
        return self.size

    @property
    def met(self) -> int:
        """Return 0: nobody joins late."""
        return 0

    def present(self) -> list[int]:
        """Return all ranks."""
        return list(range(self.size))

    def never_came(self) -> list[int]:
        """Return an empty list: all workers count as joined."""
        return []

    def without_earlier(self, counts: I64) -> I64:
        """Return the counts."""
        return counts

    def describe(self, rank: int) -> dict[str, object]:
        """Return the rank."""
        return {"rank": rank}

    def lost(self) -> dict[int, str]:
        """Return an empty dict."""
        return {}

    def check(self) -> None:
        """Do nothing."""

    def count(self) -> None:
        """Do nothing."""

    def tell(self, steps: int) -> None:
        """Do nothing."""

    def meet(self, where: str, timeout_s: float) -> None:
        """Wait for all workers in a barrier."""
        self._barrier(where, timeout_s)

    def finish(self, timeout_s: float | None) -> None:
        """Wait for all workers in a barrier."""
        self._barrier("finish", timeout_s)

    def _barrier(self, where: str, timeout_s: float | None) -> None:
        name = of_this_start(f"{self._name}.{where}")
        self._box.barrier(name, parties=self.size, timeout_s=timeout_s)

    def leave(self) -> None:
        """Do nothing."""


class JoinedTeam:
    """The members of a run.

    Args:
        member: this process's membership.
        is_mine: leaving the team also leaves the run; False if the user joined the run.
    """

    def __init__(self, member: Member, *, is_mine: bool) -> None:
        self.member = member
        self.rank = member.rank
        self.size = max(member.expected, member.workers)
        self.begins_at = member.progress
        self.is_late = member.late
        self.is_first = member.first
        self.poll_s = member.interval_s
        self.generation: int | None = 1 + member.first_view.generation(member.rank)
        self._is_mine = is_mine
        self._counts = False
        self._came: set[int] = set()
        self.lost()

    @property
    def workers(self) -> int:
        """Number of living workers and expected ones that never joined, at the last check."""
        return self.member.workers

    @property
    def met(self) -> int:
        """Number of the last meeting; see ``Member.met``."""
        return self.member.met

    def present(self) -> list[int]:
        """Return the ranks of living workers and of expected ones that never joined."""
        self.member.read(deaths=False)
        return self.member.present

    def never_came(self) -> list[int]:
        """Return the expected ranks that never joined, at the last check."""
        return self.member.never_came

    def without_earlier(self, counts: I64) -> I64:
        """Return the counts, limited by the members' progress; 0 for who never joined."""
        never_came = self.member.never_came  # first: one of them may join meanwhile
        found: I64 = np.minimum(counts, self.member.seen.progress()[: len(counts)])
        found[never_came] = 0
        return found

    def describe(self, rank: int) -> dict[str, object]:
        """Return rank, host and pid."""
        found = self.member.of(rank)
        return {"rank": rank, "host": found.host, "pid": found.pid}

    def lost(self) -> dict[int, str]:
        """Return the lost ranks; a dead process of this host is found before its lease ends."""
        view = self.member.read()
        alive = set(view.alive()).difference(self.member.never_came)
        dead = view.dead_here & alive
        died = dead.union(view.expired())
        gone = self._came.difference(alive - dead)
        self._came |= alive
        return {rank: DIED if rank in died else LEFT for rank in sorted(gone)}

    def check(self) -> None:
        """Raise LeaseLostError if another process has this rank."""
        self.member.check()

    def count(self) -> None:
        """Reserve the member's progress; raises as ``check_uncounted``."""
        check_uncounted(self.member)
        self.member.is_counted = self._counts = True

    def tell(self, steps: int) -> None:
        """Set the member's progress."""
        self.member.progress = steps

    def meet(self, where: str, timeout_s: float) -> None:  # noqa: ARG002 - meetings are in order
        """Wait for all living members."""
        self.member.meet(timeout_s=timeout_s)

    def finish(self, timeout_s: float | None) -> None:
        """Wait at the end for all living members."""
        self.member.finish(timeout_s=timeout_s)

    def leave(self) -> None:
        """Release the progress, and leave the run unless the user joined it."""
        if self._counts:
            self.member.is_counted = self._counts = False
        if self._is_mine:
            self.member.leave()


def check_uncounted(member: Member) -> None:
    """Check that no other object sets the progress of a member.

    Raises:
        ConfigError: another object does.
    """
    if member.is_counted:
        raise ConfigError(
            "this member belongs to another optimizer, whose steps are its progress: join again"
            " under another name, or pass workers=N, which joins under the optimizer's",
            rank=member.rank,
        )
