"""Which worker of which run this process is, as torchrun's variables tell; pure.

``torchrun`` and ``smbox run`` set the same variables. A process without them is a run of one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from smbox.errors import ConfigError

RUN_VARIABLES = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SMBOX_ADDRESS")
"""What distinguishes one run on a host from another."""


@dataclass(frozen=True, slots=True)
class World:
    """A worker's place among all workers, read once.

    Args:
        rank: of this worker among all, from 0.
        local_rank: of this worker among those of its host, from 0.
        world_size: workers in all.
        local_world_size: workers on this host.
        group_rank: number of the host, from 0.
        address: of the memory node, or None where no node was named.
        run_id: the same for all workers of one run and of no other run on this host.
        restart: how often the launcher has started this run's workers again.
        group_world_size: number of hosts, or None where nobody told it.

    Raises:
        ConfigError: a rank outside its world; nothing happened.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    group_rank: int = 0
    address: str | None = None
    run_id: str = ""
    restart: int = 0
    group_world_size: int | None = None

    def __post_init__(self) -> None:
        for name, value, limit in (
            ("RANK", self.rank, self.world_size),
            ("LOCAL_RANK", self.local_rank, self.local_world_size),
            ("LOCAL_WORLD_SIZE", self.local_world_size, self.world_size + 1),
        ):
            if not 0 <= value < limit:
                raise ConfigError(f"{name} must be below {limit}", value=value)
        if self.group_rank < 0 or self.restart < 0 or self.local_world_size < 1:
            raise ConfigError(
                "GROUP_RANK and the restart count begin at 0, LOCAL_WORLD_SIZE at 1",
                group_rank=self.group_rank,
                restart=self.restart,
                local_world_size=self.local_world_size,
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Read the variables of torchrun and SMBOX_ADDRESS from ``env``.

        Without LOCAL_RANK and LOCAL_WORLD_SIZE all workers are taken to share this host.

        Raises:
            ConfigError: a variable is no number, or the numbers contradict each other.
        """
        rank = number_of(env, "RANK", 0)
        world_size = number_of(env, "WORLD_SIZE", 1)
        return cls(
            rank=rank,
            local_rank=number_of(env, "LOCAL_RANK", rank),
            world_size=world_size,
            local_world_size=number_of(env, "LOCAL_WORLD_SIZE", world_size),
            group_rank=number_of(env, "GROUP_RANK", 0),
            address=env.get("SMBOX_ADDRESS") or None,
            run_id="|".join(env.get(name, "") for name in RUN_VARIABLES),
            restart=number_of(env, "TORCHELASTIC_RESTART_COUNT", 0),
            group_world_size=number_of(env, "GROUP_WORLD_SIZE", 0) or None,
        )

    @property
    def is_group_root(self) -> bool:
        """Whether this worker speaks for its host."""
        return self.local_rank == 0

    @property
    def host_token(self) -> str:
        """Name this host's workers of this run and start: 12 hex digits, equal on each."""
        told = f"{self.run_id}|{self.restart}|{self.group_rank}|{self.local_world_size}"
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def rank_of(self, local_rank: int) -> int:
        """Return the rank of a worker of this host; hosts are numbered contiguously."""
        return self.rank - self.local_rank + local_rank


def number_of(env: Mapping[str, str], name: str, default: int) -> int:
    """Return a variable that is a whole number; ``default`` where it is missing or empty.

    Raises:
        ConfigError: it is no number.
    """
    text = env.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise ConfigError(f"{name} must be a whole number", value=text) from error
