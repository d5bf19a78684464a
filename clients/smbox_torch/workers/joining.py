"""Joining a run, with a rank from the user or the launcher."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, Final

from smbox import Box, Member, join
from smbox.errors import ConfigError
from smbox.roster import CAPACITY
from smbox_torch.boxes import BoxLike
from smbox_torch.checks import lease, whole
from smbox_torch.workers.team import FixedTeam, JoinedTeam, Team
from smbox_torch.world import World, is_launched

__all__ = ["LEASE_S", "Workers", "check_workers", "team_of", "team_of_comers"]

LEASE_S: Final = 10.0
"""Seconds without a renewal of its lease after which a worker counts as dead."""

Workers = int | Member | None
"""The workers of a run, as a user gives them: a number, a member, or None with a launcher."""


def check_workers(
    workers: Workers,
    env: Mapping[str, str] = os.environ,
    *,
    rank: int | None = None,
    lease_s: float = LEASE_S,
) -> int:
    """Return the number of workers with which a run starts.

    Args:
        workers: the user's argument.
        env: the environment, with the launcher's variables.
        rank: rank of this worker; the user's argument.
        lease_s: lease of this worker, in seconds.

    Raises:
        TypeError: an argument is not a number.
        ConfigError: the number of workers is not given, below 1 or too large, no worker has
            the rank, a member has another rank, or the lease is too short.
    """
    size = _size(workers, env)
    lease(lease_s)
    if size > CAPACITY:
        raise ConfigError(f"a run has at most {CAPACITY} workers", workers=size)
    if rank is not None and not 0 <= whole("rank", rank, least=0) < size:
        raise ConfigError("rank must be at least 0 and below workers", rank=rank, workers=size)
    if isinstance(workers, Member) and rank not in {None, workers.rank}:
        raise ConfigError(
            "the member has another rank: leave out rank=", rank=rank, member=workers.rank
        )
    return size


def _size(workers: Workers, env: Mapping[str, str]) -> int:
    if isinstance(workers, Member):
        return max(workers.expected, workers.workers)
    if workers is None:
        if not is_launched(env):
            raise ConfigError(
                "the number of workers is unknown: start the script by a launcher (smbox run, "
                "torchrun), or pass workers=N, or workers=smbox.join(box, name) if workers "
                "join and leave; workers=1 for a single worker"
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
        name: name of the run.
        workers: their number, a member that the user joined, or None with a launcher.
        rank: rank of this worker; None: the launcher's rank if it started this number of
            workers, else the lowest free rank (0 on a memory that is not smbox's).
        lease_s: seconds without a renewal after which this worker counts as dead.
        env: the environment.

    Raises:
        ConfigError: a number is invalid or missing; this worker did not join.
        RankTakenError: a living process has the rank; this worker did not join.
    """
    size = check_workers(workers, env, rank=rank, lease_s=lease_s)
    if isinstance(workers, Member):
        return JoinedTeam(workers, is_mine=False)
    if rank is None and is_launched(env):
        world = World.from_env(env)
        rank = world.rank if world.world_size == size else None
    if not isinstance(box, Box):
        return FixedTeam(box, name, rank or 0, size)
    return _own_team(box, name, workers, env, rank=rank, expected=size, lease_s=lease_s)


def _own_team(
    box: Box, name: str, workers: int | None, env: Mapping[str, str], **settings: Any
) -> JoinedTeam:
    """Join a run and return its team; leave the run if that fails in between."""
    if is_launched(env):
        world = World.from_env(env)
        settings |= {"launch": world.launch, "restart": world.restart}
    member = None
    try:
        member = join(box, name, **settings)
        _warn_if_miscounted(workers, member)
        return JoinedTeam(member, is_mine=True)
    except BaseException:
        if member is not None:
            member.leave()
        raise


def _warn_if_miscounted(workers: int | None, member: Member) -> None:
    """Warn if more workers joined than ``workers=`` says."""
    if workers is not None and member.rank >= workers:
        warnings.warn(
            f"workers={workers}, but this is worker {member.rank + 1} of the run: data that is"
            f" cut into {workers} shares has none for it. Leave out workers= under a launcher;"
            " pass workers=smbox.join(box, name) if workers join and leave; first close"
            " an optimizer that this process has wrapped under this name before",
            stacklevel=2,
        )


def team_of_comers(
    box: Box, name: str, *, lease_s: float = LEASE_S, env: Mapping[str, str] = os.environ
) -> JoinedTeam:
    """Join a run whose number of workers need not be known; otherwise as ``team_of``."""
    if not is_launched(env):
        return _own_team(box, name, None, env, lease_s=lease_s)
    world = World.from_env(env)
    return _own_team(
        box, name, None, env, rank=world.rank, expected=world.world_size, lease_s=lease_s
    )
