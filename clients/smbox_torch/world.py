"""The rank and run of this process, as ``smbox run`` or torchrun set them.

``smbox run`` sets SMBOX_RANK, SMBOX_WORLD_SIZE and so on, ``torchrun`` sets RANK, WORLD_SIZE
and so on. Where SMBOX_RANK is set, only ``smbox run``'s variables are read, else only
torchrun's. Where both are set and contradict each other, torchrun was started inside
``smbox run``, and only its variables are read: ``smbox run`` never sets such ones. A process
with neither is a run of one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from smbox.errors import ConfigError

TORCHELASTIC = "TORCHELASTIC_"
"""How the variables begin that torchrun's agent sets."""


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
        restart: how often the launcher has started all workers of this run again.
        group_world_size: number of hosts, or None where nobody told it.
        worker_restart: how often the launcher has started this worker again by itself.
        master_addr: host where rank 0 serves torch's store, or None.
        master_port: its TCP port, or None.

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
    worker_restart: int = 0
    master_addr: str | None = None
    master_port: int | None = None

    def __post_init__(self) -> None:
        for name, value, limit in (
            ("RANK", self.rank, self.world_size),
            ("LOCAL_RANK", self.local_rank, self.local_world_size),
            ("LOCAL_WORLD_SIZE", self.local_world_size, self.world_size + 1),
            ("GROUP_RANK", self.group_rank, self.group_world_size or self.group_rank + 1),
        ):
            if not 0 <= value < limit:
                raise ConfigError(f"{name} must be from 0 and below {limit}", value=value)
        if min(self.restart, self.worker_restart) < 0 or self.local_world_size < 1:
            raise ConfigError(
                "the restart counts begin at 0, LOCAL_WORLD_SIZE at 1",
                restart=self.restart,
                worker_restart=self.worker_restart,
                local_world_size=self.local_world_size,
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Read the variables of ``smbox run`` or of torchrun, and SMBOX_ADDRESS.

        Without LOCAL_RANK and LOCAL_WORLD_SIZE all workers are taken to share this host.

        Raises:
            ConfigError: a variable is no number, or the numbers contradict each other.
        """
        prefix, elastic = ("SMBOX_", "SMBOX_") if _is_by_smbox(env) else ("", TORCHELASTIC)
        rank = number_of(env, f"{prefix}RANK", 0)
        world_size = number_of(env, f"{prefix}WORLD_SIZE", 1)
        master = [env.get(f"{prefix}{name}", "") for name in ("MASTER_ADDR", "MASTER_PORT")]
        address = env.get("SMBOX_ADDRESS", "")
        return cls(
            rank=rank,
            local_rank=number_of(env, f"{prefix}LOCAL_RANK", rank),
            world_size=world_size,
            local_world_size=number_of(env, f"{prefix}LOCAL_WORLD_SIZE", world_size),
            group_rank=number_of(env, f"{prefix}GROUP_RANK", 0),
            address=address or None,
            run_id="|".join((env.get(f"{elastic}RUN_ID", ""), *master, address)),
            restart=number_of(env, f"{elastic}RESTART_COUNT", 0),
            group_world_size=number_of(env, f"{prefix}GROUP_WORLD_SIZE", 0) or None,
            worker_restart=number_of(env, "SMBOX_WORKER_RESTART_COUNT", 0) if prefix else 0,
            master_addr=master[0] or None,
            master_port=number_of(env, f"{prefix}MASTER_PORT", 0) or None,
        )

    @property
    def groups(self) -> int | None:
        """Number of hosts; None where nobody told it and hosts cannot be equally large."""
        if self.group_world_size is not None:
            return self.group_world_size
        groups, left = divmod(self.world_size, self.local_world_size)
        return None if left else groups

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


def world_or_default(world: World | None) -> World:
    """Return the world as given, else the one that the environment tells.

    Raises:
        TypeError: what was given is no World.
    """
    if world is not None and not isinstance(world, World):
        raise TypeError(f"world must be a World, not {type(world).__name__}")
    return World.from_env(os.environ) if world is None else world


def world_or_launched(world: World | None, group: object = None) -> World:
    """Return the world as given, else the one that a launcher tells.

    Args:
        world: as a user gave it.
        group: that the user gave, or None: one of several ranks says itself who they are.

    Raises:
        ConfigError: nobody says who this process is.
    """
    if world is None and group is None and not is_launched(os.environ):
        raise ConfigError(
            "which of how many workers is this process? Start the script by a launcher (smbox "
            "run, torchrun), or give world=World(rank=..., world_size=..., ...) of "
            "smbox_torch.world; world=World() for one alone"
        )
    return world_or_default(world)


def _is_by_smbox(env: Mapping[str, str]) -> bool:
    """Return whether the variables of ``smbox run`` count; a later torchrun overrides them."""
    if not env.get("SMBOX_RANK"):
        return False
    pairs = [(env.get(name), env.get(f"SMBOX_{name}")) for name in ("RANK", "WORLD_SIZE")]
    return not all(torch for torch, _ in pairs) or all(torch == own for torch, own in pairs)


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


def is_launched(env: Mapping[str, str]) -> bool:
    """Return whether a launcher (``smbox run``, torchrun) gave this process a rank."""
    return bool(env.get("SMBOX_RANK") or env.get("RANK"))
