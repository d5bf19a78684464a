"""Joining a run, with the ranks that the user or a launcher gives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from smbox import Box, Member, join
from smbox.errors import ConfigError
from smbox.roster import CAPACITY
from smbox_torch.boxes import BoxLike
from smbox_torch.checks import lease, whole
from smbox_torch.workers.team import FixedTeam, JoinedTeam, Team
from smbox_torch.world import World, is_launched

__all__ = ["LEASE_S", "Workers", "check_workers", "team_of", "team_of_comers"]

LEASE_S: Final = 10.0
"""Seconds without renewal after which a worker counts as dead."""

Workers = int | Member | None
"""How a user says who works: their number, a member, or nothing under a launcher."""


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
        TypeError: these are no numbers.
        ConfigError: nobody said it, there are none or too many, the rank is none of theirs, or
            no lease is so short.
    """
    size = _size(workers, env)
    lease(lease_s)
    if size > CAPACITY:
        raise ConfigError(f"a run has at most {CAPACITY} workers", workers=size)
    if rank is not None and not 0 <= whole("rank", rank, least=0) < size:
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
    return whole("workers", workers)


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
