"""The workers of a run as one of them sees them: how many there are, and who is still there.

On a memory of smbox a worker joins the run (``smbox.join``), so that counts follow those who
come, leave and die. On any other memory, a model of one in a test, the team is fixed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Protocol

from smbox import Box, Member, join
from smbox.errors import ConfigError
from smbox.lease import check_lease
from smbox.roster import CAPACITY
from smbox_torch.boxes import BoxLike
from smbox_torch.workers.phase import of_this_start
from smbox_torch.world import World, is_launched

__all__ = [
    "LEASE_S",
    "FixedTeam",
    "JoinedTeam",
    "Team",
    "Workers",
    "check_workers",
    "team_of",
    "team_of_comers",
]

LEASE_S: Final = 10.0
"""Seconds without renewal after which a worker counts as dead."""

Workers = int | Member | None
"""How a user says who works: their number, a member, or nothing under a launcher."""


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

    def check(self) -> None:
        """Raise LeaseLostError if another process has this worker's rank."""

    def tell(self, steps: int) -> None:
        """Tell the others, and a successor, how far this worker is; raises like check."""

    def meet(self, where: str, timeout_s: float) -> None:
        """Return when all who are there have come.

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

    def check(self) -> None:
        """Return."""

    def tell(self, steps: int) -> None:
        """Tell nobody."""

    def meet(self, where: str, timeout_s: float) -> None:
        """Meet all in a barrier."""
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

    def check(self) -> None:
        """Raise LeaseLostError if another process has this rank."""
        self.member.check()

    def tell(self, steps: int) -> None:
        """Set the member's progress."""
        self.member.progress = steps

    def meet(self, where: str, timeout_s: float) -> None:  # noqa: ARG002 - meetings have an order
        """Meet all who live."""
        self.member.meet(timeout_s=timeout_s)

    def leave(self) -> None:
        """Leave the run, unless the user joined it."""
        if self._is_mine:
            self.member.leave()


def check_workers(
    workers: Workers,
    env: Mapping[str, str] = os.environ,
    *,
    rank: int | None = None,
    lease_s: float = LEASE_S,
) -> int:
    """Return how many workers a run is started with.

    Args:
        workers: as the user said.
        env: the environment, in which a launcher says it.
        rank: of this worker, as the user said.
        lease_s: that this worker is to have.

    Raises:
        ConfigError: nobody said it, there are none or too many, the rank is none of theirs, or
            no lease is so short.
    """
    size = _size(workers, env)
    check_lease(lease_s)
    if size > CAPACITY:
        raise ConfigError(f"a run has at most {CAPACITY} workers", workers=size)
    if rank is not None and not 0 <= rank < size:
        raise ConfigError("a rank is at least 0 and below workers", rank=rank, workers=size)
    return size


def _size(workers: Workers, env: Mapping[str, str]) -> int:
    if isinstance(workers, Member):
        return max(workers.expected, workers.workers)
    if workers is None:
        if not is_launched(env):
            raise ConfigError(
                "how many workers are there? Start the script by a launcher (smbox run, "
                "torchrun), or say workers=N, or workers=smbox.join(box, name) where workers "
                "come and go; workers=1 for one alone"
            )
        return World.from_env(env).world_size
    if workers < 1:
        raise ConfigError("there is at least one worker", workers=workers)
    return workers


def team_of(
    box: BoxLike,
    name: str,
    workers: Workers,
    *,
    rank: int | None = None,
    lease_s: float = LEASE_S,
    env: Mapping[str, str] = os.environ,
) -> Team:
    """Join the workers of a run.

    Args:
        box: the memory.
        name: of the run.
        workers: their number, a member that the user joined, or None under a launcher.
        rank: of this worker; None: the launcher's if it started so many workers, else the
            lowest that is free (0 on a memory that is none of smbox's).
        lease_s: seconds without renewal after which this worker counts as dead.
        env: the environment.

    Raises:
        ConfigError: impossible numbers, or nobody said how many; this worker did not join.
        RankTakenError: a living process has the rank; this worker did not join.
    """
    size = check_workers(workers, env, rank=rank, lease_s=lease_s)
    if isinstance(workers, Member):
        return JoinedTeam(workers, is_mine=False)
    launch = ""
    if is_launched(env):
        world = World.from_env(env)
        launch = world.run_id
        if rank is None and world.world_size == size:
            rank = world.rank
    if not isinstance(box, Box):
        return FixedTeam(box, name, rank or 0, size)
    member = join(box, name, rank=rank, expected=size, lease_s=lease_s, launch=launch)
    return JoinedTeam(member, is_mine=True)


def team_of_comers(
    box: Box, name: str, *, lease_s: float = LEASE_S, env: Mapping[str, str] = os.environ
) -> JoinedTeam:
    """Join the workers of a run that need not know how many they are; else as ``team_of``."""
    if not is_launched(env):
        return JoinedTeam(join(box, name, lease_s=lease_s), is_mine=True)
    world = World.from_env(env)
    member = join(
        box,
        name,
        rank=world.rank,
        expected=world.world_size,
        lease_s=lease_s,
        launch=world.run_id,
    )
    return JoinedTeam(member, is_mine=True)
