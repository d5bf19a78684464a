"""The team: the living and the expected workers of a run, as one worker sees them.

On a memory of smbox a worker joins the run (``smbox.join``), so that counts follow those who
come, leave and die. On any other memory, a model of one in a test, the team is fixed.
"""

from __future__ import annotations

from typing import Final, Protocol

from smbox import Member
from smbox.errors import ConfigError
from smbox_torch.boxes import BoxLike
from smbox_torch.workers.phase import of_this_start

__all__ = ["DIED", "LEFT", "FixedTeam", "JoinedTeam", "Team", "check_uncounted"]

DIED: Final = "died"
LEFT: Final = "left"


class Team(Protocol):
    """What an algorithm asks about the workers of its run.

    Attributes:
        rank: of this worker, from 0.
        size: workers that the run was started with.
        begins_at: steps of a predecessor at this rank, 0 without one.
        is_late: whether it joined a run that was at work.
        look_s: seconds after which to look again who is there, while waiting.
    """

    rank: int
    size: int
    begins_at: int
    is_late: bool
    look_s: float

    @property
    def workers(self) -> int:
        """Workers that rates are divided by: the living, and those that never came."""

    def present(self) -> list[int]:
        """Look who is to be waited for: ranks of the living and of those that never came."""

    def describe(self, rank: int) -> dict[str, object]:
        """Return what is known of a rank, as facts of an error."""

    def lost(self) -> dict[int, str]:
        """Look which ranks died or left that an earlier look found alive: DIED or LEFT."""

    def check(self) -> None:
        """Raise LeaseLostError if another process has this worker's rank."""

    def count(self) -> None:
        """Have the progress of this worker to set, until it leaves the team.

        Raises:
            ConfigError: somebody else sets it.
        """

    def tell(self, steps: int) -> None:
        """Tell the others, and a successor, how far this worker is; raises like check."""

    def meet(self, where: str, timeout_s: float) -> None:
        """Return when all who are there have come, but for those who wait in ``finish``.

        Raises:
            RequestTimeoutError: somebody did not come.
        """

    def finish(self, timeout_s: float | None) -> None:
        """Return when all who are there have called this; see ``Member.finish``.

        Raises:
            RequestTimeoutError: somebody did not come.
        """

    def leave(self) -> None:
        """Be waited for by nobody any more. Idempotent."""


class FixedTeam:
    """A number of workers that neither join nor die.

    Args:
        box: the memory.
        name: of the run.
        rank: of this worker.
        size: number of workers.
    """

    is_late = False
    begins_at = 0
    look_s = float("inf")

    def __init__(self, box: BoxLike, name: str, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._box = box
        self._name = name

    @property
    def workers(self) -> int:
        """All of them."""
        return self.size

    def present(self) -> list[int]:
        """Return all ranks."""
        return list(range(self.size))

    def describe(self, rank: int) -> dict[str, object]:
        """Return the rank."""
        return {"rank": rank}

    def lost(self) -> dict[int, str]:
        """Return none."""
        return {}

    def check(self) -> None:
        """Return."""

    def count(self) -> None:
        """Return: nobody is told."""

    def tell(self, steps: int) -> None:
        """Tell nobody."""

    def meet(self, where: str, timeout_s: float) -> None:
        """Meet all in a barrier."""
        self._barrier(where, timeout_s)

    def finish(self, timeout_s: float | None) -> None:
        """Meet all in a barrier."""
        self._barrier("finish", timeout_s)

    def _barrier(self, where: str, timeout_s: float | None) -> None:
        name = of_this_start(f"{self._name}.{where}")
        self._box.barrier(name, parties=self.size, timeout_s=timeout_s)

    def leave(self) -> None:
        """Return."""


class JoinedTeam:
    """The members of a run.

    Args:
        member: this process's place.
        is_mine: whether leaving the team leaves the run: not where the user joined.
    """

    def __init__(self, member: Member, *, is_mine: bool) -> None:
        self.member = member
        self.rank = member.rank
        self.size = max(member.expected, member.workers)
        self.begins_at = member.progress
        self.is_late = member.late
        self.look_s = member.interval_s
        self._is_mine = is_mine
        self._counts = False
        self._came: set[int] = set()
        self.lost()

    @property
    def workers(self) -> int:
        """The living and those expected that never came, as of the last look."""
        return self.member.workers

    def present(self) -> list[int]:
        """Look who is alive, or never came."""
        view = self.member.look()
        return sorted(view.alive() + view.never_came(self.member.expected))

    def describe(self, rank: int) -> dict[str, object]:
        """Return rank, host and pid."""
        found = self.member.seen.of(rank)
        return {"rank": rank, "host": found.host, "pid": found.pid}

    def lost(self) -> dict[int, str]:
        """Look who is gone; a process that died on this host is seen before its lease ends."""
        view = self.member.look()
        alive, dead = set(view.alive()), view.dead_here()
        died = dead.union(view.expired())
        gone = self._came.difference(alive - dead)
        self._came |= alive
        return {rank: DIED if rank in died else LEFT for rank in sorted(gone)}

    def check(self) -> None:
        """Raise LeaseLostError if another process has this rank."""
        self.member.check()

    def count(self) -> None:
        """Have the member's progress to set; raises as ``check_uncounted``."""
        check_uncounted(self.member)
        self.member.is_counted = self._counts = True

    def tell(self, steps: int) -> None:
        """Set the member's progress."""
        self.member.progress = steps

    def meet(self, where: str, timeout_s: float) -> None:  # noqa: ARG002 - meetings have an order
        """Meet all who live."""
        self.member.meet(timeout_s=timeout_s)

    def finish(self, timeout_s: float | None) -> None:
        """Meet all who live, at the end."""
        self.member.finish(timeout_s=timeout_s)

    def leave(self) -> None:
        """Leave the run, unless the user joined it, and its progress to others."""
        if self._counts:
            self.member.is_counted = self._counts = False
        if self._is_mine:
            self.member.leave()


def check_uncounted(member: Member) -> None:
    """Check that this is no member whose progress somebody sets already.

    Raises:
        ConfigError: it is.
    """
    if member.is_counted:
        raise ConfigError(
            "this member belongs to another optimizer, whose steps are its progress: join once"
            " more under another name, or pass workers=N, which joins under the optimizer's",
            rank=member.rank,
        )
